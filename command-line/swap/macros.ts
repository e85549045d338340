import { isObject } from '../../core/system/json-object.ts'

/** Macros of a configuration in the order of their definition. Later ones may contain earlier ones. */
export type Macros = ReadonlyMap<string, unknown>

/** What the macros become that only a running program has. */
const LATER: Record<string, string> = { PORT: '{port}', PID: '{pid}' }

/**
 * Replaces `${name}` and `${env.NAME}` in all texts of a value. A text that is only a macro gets the macro's type.
 * @param path the setting, for messages
 * @throws Error if a macro or variable does not exist
 */
export function expandMacros(value: unknown, macros: Macros, env: NodeJS.ProcessEnv, path: string): unknown {
  if (Array.isArray(value)) return value.map((each, at) => expandMacros(each, macros, env, `${path}[${at}]`))
  if (isObject(value)) {
    const entries = Object.entries(value).map(([key, each]) => [
      String(expandText(key, macros, env, path)),
      expandMacros(each, macros, env, `${path}.${key}`)
    ])
    return Object.fromEntries(entries)
  }
  return typeof value === 'string' ? expandText(value, macros, env, path) : value
}

function expandText(text: string, macros: Macros, env: NodeJS.ProcessEnv, path: string): unknown {
  let expanded: unknown = text
  for (const [name, value] of [...macros].reverse()) {
    const slug = `\${${name}}`
    if (expanded === slug) expanded = value
    else if (typeof expanded === 'string') expanded = expanded.replaceAll(slug, () => String(value))
  }
  if (typeof expanded !== 'string') return expanded
  return expanded.replace(/\$\{(env\.)?([\w-]+)\}/g, (_, isVariable: string | undefined, name: string) => {
    const found = isVariable ? env[name] : LATER[name]
    if (found !== undefined) return found
    const what = isVariable ? `the environment variable ${name}, which is not set` : `the macro ${name}`
    throw new Error(`${path} uses ${what}. Define it, and import again.`)
  })
}
