import { stringify } from 'yaml'
import { inlineYaml } from '../core/config/config-text.ts'
import { OVERRIDES } from '../core/config/overrides.ts'
import { composeConfigSchema, isGroup } from '../core/config/setting-schema.ts'
import type { PluginDefinition } from '../core/plugins/plugin.ts'
import type { JsonSchema } from '../core/system/schema-check.ts'

/* Renders the shipped `config.yaml`. */

const WIDTH = 120

const HEAD = `# corral's settings. Each one is shown with its default: change what you need, leave out the rest.
#
# A setting comes from a flag, else from the environment, else from this file, else from its default. The file is the
# one that --config or CORRAL_CONFIG names, else config.yaml in the working directory ("corral serve", "config" and
# "doctor" only), else in the data directory.
# "corral config check" says whether a server would start with it; "corral config show" shows which values are in force
# and where each came from.
#
# Lengths of time: 30s, 5m, 1h30m, or seconds. Amounts of bytes: 64MiB, 1.5GB, or a number. Relative paths start at this
# file's folder, ~/ at your home. A setting without a value (port:) counts as left out.
#
# "corral reload" (or SIGHUP) has a running server read this file again; flags and variables stay as they were at its
# start. Settings marked [restart], and all of a section marked so, count from its next start on.
#
# Settings marked [trust] can run programs, admit callers or send data elsewhere. They count only in a file that nobody but
# you and administrators can write. In the working directory you have to trust it too: "corral config trust", or --config.
#
# Environment (an empty variable counts as not set):`

function environmentTable(): string[] {
  const rows = [
    ['CORRAL_CONFIG', '--config', 'path of this file'],
    ['CORRAL_HOME', '--home', 'the data directory, ~/.corral by default; cannot be set here'],
    ...OVERRIDES.map(({ path, env, flag }) => [
      env,
      flag ? `--${flag}` : '',
      `${path.join('.')}${/(origins|keys)$/.test(env.toLowerCase()) ? ', separated by commas' : ''}`
    ])
  ]
  return rows.map(([env, flag, meaning]) => `#   ${env!.padEnd(18)} ${flag!.padEnd(12)} ${meaning}`)
}

function comment(schema: JsonSchema): string {
  const choice = schema.enum ? `: ${schema.enum.join(', ')}` : ''
  return `${schema.description ?? ''}${choice}${mark(schema)}`
}

const mark = ({ restart, needsTrust }: JsonSchema) => `${restart ? ' [restart]' : ''}${needsTrust ? ' [trust]' : ''}`

/** Splits text into comment lines of at most the file's width. */
function wrapped(text: string, indent: string): string[] {
  const lines: string[] = []
  for (const word of text.split(' ')) {
    const longer = `${lines.at(-1)} ${word}`
    if (lines.length > 0 && longer.length <= WIDTH) lines[lines.length - 1] = longer
    else lines.push(`${indent}# ${word}`)
  }
  return lines
}

/** Aligns the comments of settings in one column. If a comment is too long for its line, it goes above the setting. */
function withComments(rows: { text: string; comment: string }[], indent?: string): string[] {
  const short = rows.filter(({ text, comment }) => text.length + comment.length + 4 <= WIDTH)
  const column = Math.max(0, ...short.map(({ text }) => text.length)) + 2
  return rows.flatMap(({ text, comment }) => {
    if (comment === '') return [text]
    const line = `${text.padEnd(column)}# ${comment}`
    const fits = text.length < column && line.length <= WIDTH
    return fits ? [line] : [...wrapped(comment, indent ?? /^ */.exec(text)![0]), text]
  })
}

/** A commented-out example of a setting that is empty by default. */
function example(name: string, schema: JsonSchema, indent: string): string[] {
  const value = schema.examples?.[0]
  if (value === undefined) return []
  const entry = Object.values(schema.patternProperties ?? {})[0]?.properties
  if (entry) return entryExample(name, entry, value as Record<string, object>, indent)
  const text = stringify({ [name]: value }, { lineWidth: 0 }).trimEnd()
  return text.split('\n').map(line => `${indent}# ${line}`)
}

/** A commented-out example entry of a group with user-chosen names, with all possible settings. */
function entryExample(
  name: string,
  settings: Record<string, JsonSchema>,
  example: Record<string, object>,
  indent: string
): string[] {
  const [[key, values]] = Object.entries(example) as [[string, Record<string, unknown>]]
  const rows = Object.entries(settings).map(([setting, schema]) => ({
    text: `${indent}#     ${setting}: ${inlineYaml(values[setting])}`,
    comment: comment(schema)
  }))
  return [`${indent}# ${name}:`, `${indent}#   ${key}:`, ...withComments(rows, `${indent}#     `)]
}

function renderSettings(schema: JsonSchema, defaults: Record<string, unknown>, indent: string): string[] {
  const lines: string[] = []
  let rows: { text: string; comment: string }[] = []
  const flush = () => {
    if (rows.length > 0) lines.push(...withComments(rows))
    rows = []
  }
  for (const [name, inner] of Object.entries(schema.properties ?? {})) {
    if (inner.properties) {
      flush()
      lines.push(...renderGroup(name, inner, (defaults[name] ?? {}) as Record<string, unknown>, indent))
    } else if (Object.hasOwn(defaults, name)) {
      rows.push({ text: `${indent}${name}: ${inlineYaml(defaults[name])}`, comment: comment(inner) })
      const shown = example(name, inner, indent)
      if (shown.length > 0) {
        flush()
        lines.push(...shown)
      }
    } else {
      // A setting without a default is shown by its name only.
      rows.push({ text: `${indent}# ${name}:`, comment: comment(inner) })
    }
  }
  flush()
  return lines
}

function renderGroup(name: string, schema: JsonSchema, defaults: Record<string, unknown>, indent: string): string[] {
  const inner = renderSettings(schema, defaults, `${indent}  `)
  // Users choose all names of such a group.
  const isEmpty = inner.length === 0 && schema.patternProperties !== undefined
  if (inner.length === 0 && !isEmpty) return []
  const shown = isEmpty ? [`${indent}${name}: {}`, ...example(name, schema, indent)] : [`${indent}${name}:`, ...inner]
  const said = schema.description ? wrapped(`${schema.description}${mark(schema)}`, indent) : []
  return ['', ...said, ...shown]
}

/** The text of the shipped `config.yaml`: every setting of the schemas with its default and a comment. */
export function renderDefaultConfig(definitions: readonly PluginDefinition[]): string {
  const { root, check } = composeConfigSchema(definitions)
  const defaults: Record<string, unknown> = {}
  check(defaults)
  const properties = Object.entries(root.properties ?? {})
  const single = properties.filter(([, schema]) => !isGroup(schema))
  const lines = renderSettings({ properties: Object.fromEntries(single) }, defaults, '')
  for (const [name, schema] of properties.filter(([, schema]) => isGroup(schema))) {
    if (schema.properties) lines.push(...renderGroup(name, schema, defaults[name] as Record<string, unknown>, ''))
    else lines.push('', ...renderSettings({ properties: { [name]: schema } }, defaults, ''))
  }
  return [HEAD, ...environmentTable(), '', ...lines, ''].join('\n')
}
