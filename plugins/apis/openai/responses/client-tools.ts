import { isObject } from '../../../../core/system/json-object.ts'
import tools from './client-tools.json' with { type: 'json' }

/* OpenAI's tools that clients run, whose parameters OpenAI's models know. Here each becomes a function. */

type Fields = Record<string, unknown>

interface ClientTool {
  function: { name: string; description: string; parameters: Fields }
  /** Type and id prefix of the item for a call. */
  item: string
  prefix: string
  /** Converts the arguments of a call to the fields of its item. Models without a grammar may write anything. */
  toItem(given: Fields): Fields
}

const toTexts = (value: unknown) => (Array.isArray(value) ? value : [value ?? []].flat()).map(String)
const toNumber = (value: unknown) => (typeof value === 'number' ? value : null)

const { items: action } = tools.computer.function.parameters.properties.actions
const oneAction = { type: 'object', properties: { action }, required: ['action'] }

export const CLIENT_TOOLS: Record<string, ClientTool> = {
  local_shell: {
    ...tools.local_shell,
    toItem: ({ command, env, working_directory, timeout_ms }) => ({
      action: {
        type: 'exec',
        command: toTexts(command),
        env: isObject(env) ? env : {},
        timeout_ms: toNumber(timeout_ms),
        user: null,
        working_directory: working_directory ?? null
      }
    })
  },
  shell: {
    ...tools.shell,
    toItem: ({ commands, timeout_ms, max_output_length }) => ({
      action: {
        commands: toTexts(commands),
        timeout_ms: toNumber(timeout_ms),
        max_output_length: toNumber(max_output_length)
      },
      environment: { type: 'local' }
    })
  },
  apply_patch: {
    ...tools.apply_patch,
    toItem: ({ type, path, diff }) => {
      const operation = { type: type ?? 'update_file', path: String(path ?? '') }
      return { operation: type === 'delete_file' ? operation : { ...operation, diff: String(diff ?? '') } }
    }
  },
  computer: {
    ...tools.computer,
    toItem: ({ actions }) => ({ actions: Array.isArray(actions) ? actions : [], pending_safety_checks: [] })
  },
  computer_use_preview: {
    ...tools.computer,
    function: { ...tools.computer.function, parameters: oneAction },
    toItem: ({ action }) => ({ action: isObject(action) ? action : { type: 'screenshot' }, pending_safety_checks: [] })
  },
  tool_search: { ...tools.tool_search, toItem: given => ({ arguments: given, execution: 'client' }) }
}

/** Returns the type of a tool that the client runs. Undefined for shells in containers and searches of the service. */
export function clientToolType({ type, environment, execution }: Fields): string | undefined {
  if (typeof type !== 'string' || !Object.hasOwn(CLIENT_TOOLS, type)) return undefined
  if (type === 'tool_search') return execution === 'client' ? type : undefined
  const isHosted = isObject(environment) && environment.type !== 'local'
  return isHosted ? undefined : type
}

/** Returns the function for a tool of the client, with what its request adds to it. */
export function clientFunction(type: string, tool: Fields): ClientTool['function'] {
  const { name, description, parameters } = CLIENT_TOOLS[type]!.function
  const { display_width: width, display_height: height, environment } = tool
  const skills = isObject(environment) && Array.isArray(environment.skills) ? environment.skills.filter(isObject) : []
  const added = [
    width && height ? `The screen (${environment}) has ${width} × ${height} pixels.` : '',
    ...skills.map(skill => `Skill "${skill.name}" in ${skill.path}: ${skill.description}`)
  ]
  return {
    name,
    description: [typeof tool.description === 'string' ? tool.description : description, ...added]
      .filter(Boolean)
      .join('\n'),
    parameters: isObject(tool.parameters) ? tool.parameters : parameters
  }
}
