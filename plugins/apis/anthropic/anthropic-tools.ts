import { isObject } from '../../../core/system/json-object.ts'
import data from './anthropic-tools.json' with { type: 'json' }

/*
 * Anthropic's tools that clients run. Clients only send a type, because Anthropic's servers know the parameters. Here
 * each tool becomes a function, and each tool of a set becomes one too.
 *
 * The JSON file writes the parameters of a tool as a list of names: `?` marks optional ones, `=a|b` lists the values,
 * and `:key` names another entry of `parameters`. Tools in `disabled` are only offered if the request enables them.
 * `meanings` says what tools of sets do, if their names do not say it.
 */

type Fields = Record<string, unknown>

/** A function, and for a tool of a set the names that its calls have. */
export interface ClientFunction {
  function: { name: string; description: string; parameters: Fields }
  /** The fields of a `tool_use` block that names the function, if its name is another one there. */
  called?: { name: string; toolset_name: string }
}

const PARAMETERS: Fields = data.parameters
const SETS: Record<string, Record<string, string>> = data.sets
const MEANINGS: Record<string, string> = data.meanings

/** Returns the functions for a tool that clients run, or undefined for any other tool. */
export function clientFunctions(tool: Fields): ClientFunction[] | undefined {
  const type = String(tool.type)
  const [, set] = /^(computer|browser)_toolset_/.exec(type) ?? []
  if (set) return setFunctions(set, isObject(tool.configs) ? tool.configs : {})
  const known = data.tools.find(each => new RegExp(each.type).test(type))
  if (!known) return undefined
  const { display_width_px: width, display_height_px: height } = tool
  const size = width && height ? ` The screen has ${width} × ${height} pixels.` : ''
  const parameters = tool.enable_zoom ? known.parameters : known.parameters.replace(/\|zoom| region\?/g, '')
  const name = typeof tool.name === 'string' && tool.name !== '' ? tool.name : known.name
  return [{ function: { name, description: known.description + size, parameters: schema(parameters) } }]
}

function setFunctions(set: string, configs: Fields): ClientFunction[] {
  return Object.entries(SETS[set]!).flatMap(([parameters, names]) =>
    names.split(' ').flatMap(name => {
      const config = configs[name]
      if (!((isObject(config) ? config.enabled : undefined) ?? !data.disabled.includes(name))) return []
      const description = `In the ${set}: ${MEANINGS[name] ?? name.replaceAll('_', ' ')}.`
      const called = { name, toolset_name: set }
      return [{ function: { name: `${set}_${name}`, description, parameters: schema(parameters) }, called }]
    })
  )
}

function schema(parameters: string): Fields {
  const properties: Fields = {}
  const required: string[] = []
  for (const word of parameters.split(' ').filter(Boolean)) {
    const [, key, name, values, optional] = /^(([a-z_]+)(?::\w+)?)(?:=([\w|]+))?(\??)$/.exec(word)!
    properties[name!] = values ? { type: 'string', enum: values.split('|') } : PARAMETERS[key!]
    if (!optional) required.push(name!)
  }
  return { type: 'object', properties, required }
}
