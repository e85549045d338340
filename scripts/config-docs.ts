import { inlineYaml } from '../core/config/config-text.ts'
import { OVERRIDES } from '../core/config/overrides.ts'
import { composeConfigSchema, isGroup } from '../core/config/setting-schema.ts'
import type { PluginDefinition } from '../core/plugins/plugin.ts'
import type { JsonSchema } from '../core/system/schema-check.ts'

const INTRODUCTION = `# Settings

[\`config.yaml\`](../config.yaml) lists every setting with its default, ready to be edited. This page has the same settings in tables.
Change what you need and leave out the rest.

Flags override the environment, which overrides the file, which overrides the defaults. \`--config\` or \`CORRAL_CONFIG\`
names the file. Otherwise it is \`config.yaml\` in the working directory (only for \`corral serve\`, \`config\` and
\`doctor\`) or in the data directory.

Settings marked *trust* can run programs, admit clients or send data elsewhere. They apply only if nobody but you, the
service's account and administrators can write the file. In the working directory you must also trust the file, because a
folder that you cloned or unpacked may come from anyone. \`corral config trust\` trusts it until it changes. Naming the file
with \`--config\` trusts it too.

\`\`\`sh
corral config check     # whether a server would start, and its warnings; --strict makes warnings fail
corral config show      # all values and their origins
corral reload           # reloads the file in a running server
\`\`\`

Changes take effect immediately. Active requests continue, and only models whose own settings changed are reloaded, after
their active requests. Settings marked *restart* wait for the next start. A file with errors changes nothing. SIGHUP also
reloads the file, and with \`watch_config: true\` every change of the file does.

Write durations as \`30s\`, \`5m\`, \`1h30m\`, or in seconds. Write sizes as \`64MiB\`, \`1.5GB\`, or in bytes. Relative paths
start at the file's folder, and \`~/\` at your home folder. A setting without a value (\`port:\`) is the same as none.

## Environment and flags

An empty variable is the same as none.

| variable | flag | setting |
|---|---|---|
`

const SINGLE_MODELS = `
Settings of one model: load options and sampling defaults, how long it stays loaded, aliases, groups of models that are
never loaded together, the llama.cpp build, extra flags, speculative decoding with a draft model or \`ngram\`, LoRA
adapters, a different projector, and limits.

\`\`\`yaml
models:
  corral/tiny-chat:
    options: { num_ctx: 2048, temperature: 0.2 }
    keep_alive: 30m
    aliases: [my/helper]
\`\`\`

`

const ELSEWHERE = `
## Models on other servers

Models of any server with OpenAI's chat API can be listed and used like local models, on every API. Several servers of a
model share its requests. A failed server gets no requests until it is healthy again, and requests that have not sent
anything to their client yet move to another server.

\`\`\`yaml
remote:
  models:
    far/tiny:
      model: its-name-there
      servers:
        - { url: 'http://127.0.0.1:9001/v1', key: secret }
        - { url: 'http://127.0.0.1:9002/v1' }
\`\`\`

## Plugins

corral is a small core with plugins, and each plugin has its own section below. Turn off an optional plugin there with
\`enabled: false\`. \`plugins: [./shelf.mjs, corral-plugin-shelf]\` adds other plugins, by path or as npm packages installed
beside \`config.yaml\`: engines, hubs, filters for requests and answers, APIs, or kinds of llama.cpp builds.
\`corral plugin list\` shows the state of each plugin, and [plugins.md](plugins.md) explains how to write one.

`

/** Escapes text for a table cell. */
const cell = (text: string) => text.replaceAll('|', '\\|').replaceAll('<', '&lt;')

/** Settings of a group. Inner groups are flattened into paths. */
function flattenSettings(schema: JsonSchema, defaults: unknown, path: string): [string, JsonSchema, unknown][] {
  return Object.entries(schema.properties ?? {}).flatMap(([name, inner]): [string, JsonSchema, unknown][] => {
    const value = (defaults as Record<string, unknown> | undefined)?.[name]
    const at = path === '' ? name : `${path}.${name}`
    return inner.properties ? flattenSettings(inner, value, at) : [[at, inner, value]]
  })
}

function table(rows: [string, JsonSchema, unknown][]): string {
  if (rows.length === 0) return ''
  const lines = rows.map(([name, schema, value]) => {
    const choice = schema.enum && schema.enum.length > 1 ? `: ${schema.enum.join(', ')}` : ''
    const shown = value === undefined ? '' : `\`${inlineYaml(value)}\``
    return `| \`${name}\` | ${shown} | ${cell(`${schema.description ?? ''}${choice}`)}${schema.restart ? ' *restart*' : ''}${schema.needsTrust ? ' *trust*' : ''} |`
  })
  return ['| setting | default | |', '|---|---|---|', ...lines, ''].join('\n')
}

/** Generates the reference of all settings from the schemas of the core and these plugins. */
export function renderConfigDocs(definitions: readonly PluginDefinition[]): { 'configuration.md': string } {
  const { root, check } = composeConfigSchema(definitions)
  const defaults: Record<string, unknown> = {}
  check(defaults)
  const variables = [
    ['CORRAL_CONFIG', '--config', 'path of the file'],
    [
      'CORRAL_HOME',
      '--home',
      'the data directory (models, llama.cpp builds, logs), `~/.corral` by default; cannot be set in the file'
    ],
    ...OVERRIDES.map(({ path, env, flag }) => [env, flag ? `--${flag}` : '', `\`${path.join('.')}\``])
  ].map(([env, flag, meaning]) => `| \`${env}\` | ${flag ? `\`${flag}\`` : ''} | ${meaning} |`)

  const entries = Object.entries(root.properties ?? {})
  const single = entries.filter(([, schema]) => !isGroup(schema))
  const lines = [INTRODUCTION + variables.join('\n'), '', '## The server itself', '']
  lines.push(table(single.map(([name, schema]) => [name, schema, defaults[name]])))
  for (const [name, schema] of entries.filter(([, schema]) => isGroup(schema))) {
    const entry = Object.values(schema.patternProperties ?? {})[0]
    if (name === 'security') lines.push(ELSEWHERE.trim(), '')
    lines.push(`## ${name}`, '')
    if (name === 'models') lines.push(SINGLE_MODELS.trim(), '')
    else
      lines.push(
        `${schema.description ?? ''}.${schema.restart ? ' Changes to any of it need a *restart*.' : ''}${schema.needsTrust ? ' All of it needs *trust*.' : ''}`,
        ''
      )
    const rows = entry ? flattenSettings(entry, undefined, '') : flattenSettings(schema, defaults[name], '')
    // Groups with user-defined names are shown by the settings of an entry.
    lines.push(table(rows.flatMap(row => [row, ...filled(row)])))
  }
  return { 'configuration.md': `${lines.join('\n').trimEnd()}\n` }
}

function filled([path, schema]: [string, JsonSchema, unknown]): [string, JsonSchema, unknown][] {
  const entry = Object.values(schema.patternProperties ?? {})[0]
  return entry ? flattenSettings(entry, undefined, `${path}.<name>`) : []
}
