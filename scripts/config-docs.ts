import { inlineYaml } from '../core/config/describe.ts'
import { OVERRIDES } from '../core/config/overrides.ts'
import { composeConfigSchema, isGroup } from '../core/config/setting-schema.ts'
import type { PluginDefinition } from '../core/plugins/plugin.ts'
import type { JsonSchema } from '../core/system/schema-check.ts'

const INTRODUCTION = `# Settings

[\`config.yaml\`](../config.yaml) lists every setting with its default, ready to be edited; this page is the same as tables.
Change what you need and leave out the rest.

A setting comes from a flag, else from the environment, else from the file, else from its default. The file is the one that
\`--config\` or \`CORRAL_CONFIG\` names, else \`config.yaml\` in the working directory (\`corral serve\`, \`config\` and
\`doctor\` only), else in the data directory.

Settings marked *trust* can run programs, admit callers or send data elsewhere. They count only in a file that nobody but
you, the service's account and administrators can write. In the working directory they also need your word, since anybody
could have written a folder that you cloned or unpacked: \`corral config trust\` gives it until the file changes, and
\`--config\` names the file.

\`\`\`sh
corral config check     # whether a server would start, and its warnings; --strict fails for these
corral config show      # the values in force, and where each came from
corral reload           # a running server reads the file again
\`\`\`

What changed counts at once: running answers go on, and only models whose own settings changed are loaded anew, once
their answers have ended. Settings marked *restart* wait for the next start, and a file with mistakes changes nothing.
SIGHUP does the same as \`corral reload\`, and so does \`watch_config: true\` whenever the file changes.

Lengths of time are written \`30s\`, \`5m\`, \`1h30m\`, or in seconds. Amounts of bytes: \`64MiB\`, \`1.5GB\`, or a number.
Relative paths start at the file's folder, \`~/\` at your home. A setting without a value (\`port:\`) counts as left out.

## Environment and flags

An empty variable counts as not set.

| variable | flag | setting |
|---|---|---|
`

const SINGLE_MODELS = `
How one model is served: load options and sampling defaults, how long it stays, other names, groups that are never in
memory together, the llama.cpp build, more flags, speculative decoding by a draft model or by \`ngram\` guesses, LoRA
adapters, another projector, limits.

\`\`\`yaml
models:
  corral/tiny-chat:
    options: { num_ctx: 2048, temperature: 0.2 }
    keep_alive: 30m
    aliases: [my/helper]
\`\`\`

`

const ELSEWHERE = `
## Models elsewhere

A model of any server that speaks hosted chat (OpenAI's API) can be listed and used like the others, on every API.
Several servers of one model share its requests; one that fails gets none until it is healthy again, and requests that
have sent nothing to their client yet move to another.

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

Every part of corral beyond a small core is a plugin with its own section below; optional ones can be switched off there
(\`enabled: false\`). \`plugins: [./shelf.mjs, corral-plugin-shelf]\` adds others, by path or as npm packages that are
installed beside \`config.yaml\`: engines, hubs, filters of requests and answers, APIs, kinds of llama.cpp builds.
\`corral plugin list\` shows the state of each; [plugins.md](plugins.md) says how to write one.

`

/** Escapes text for a table cell. */
const cell = (text: string) => text.replaceAll('|', '\\|').replaceAll('<', '&lt;')

/** Settings of a group. Inner groups are flattened into paths. */
function settingsOf(schema: JsonSchema, defaults: unknown, path: string): [string, JsonSchema, unknown][] {
  return Object.entries(schema.properties ?? {}).flatMap(([name, inner]): [string, JsonSchema, unknown][] => {
    const value = (defaults as Record<string, unknown> | undefined)?.[name]
    const at = path === '' ? name : `${path}.${name}`
    return inner.properties ? settingsOf(inner, value, at) : [[at, inner, value]]
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
    const rows = entry ? settingsOf(entry, undefined, '') : settingsOf(schema, defaults[name], '')
    // Groups with user-defined names are shown by the settings of an entry.
    lines.push(table(rows.flatMap(row => [row, ...filled(row)])))
  }
  return { 'configuration.md': `${lines.join('\n').trimEnd()}\n` }
}

function filled([path, schema]: [string, JsonSchema, unknown]): [string, JsonSchema, unknown][] {
  const entry = Object.values(schema.patternProperties ?? {})[0]
  return entry ? settingsOf(entry, undefined, `${path}.<name>`) : []
}
