import { isObject } from '../../../../core/system/json-object.ts'

/*
 * OpenAI's tools that clients run. Requests only contain their types, because OpenAI's models know the parameters.
 * Here each becomes a function, and its calls become items of their own type again.
 */

type Fields = Record<string, unknown>

interface ClientTool {
  function: { name: string; description: string; parameters: Fields }
  /** Type and id prefix of the item for a call. */
  item: string
  prefix: string
  /** Converts the arguments of a call to the fields of its item. Models without a grammar may write anything. */
  toItem(given: Fields): Fields
}

const text = (description: string) => ({ type: 'string', description })
const integer = (description: string) => ({ type: 'integer', description })
const texts = (description: string) => ({ type: 'array', items: { type: 'string' }, description })
const object = (properties: Fields, required = Object.keys(properties)) => ({ type: 'object', properties, required })

const toTexts = (value: unknown) => (Array.isArray(value) ? value : [value ?? []].flat()).map(String)
const toNumber = (value: unknown) => (typeof value === 'number' ? value : null)

const TIMEOUT = integer('Milliseconds after which to stop it')

const COMMAND = {
  command: texts('The program and its arguments, such as ["bash", "-lc", "ls"]'),
  working_directory: text('The directory to run it in'),
  env: { type: 'object', additionalProperties: { type: 'string' }, description: 'Environment variables to set' },
  timeout_ms: TIMEOUT
}
const COMMANDS = {
  commands: texts('Shell commands, which may run at the same time'),
  timeout_ms: TIMEOUT,
  max_output_length: integer('Maximum number of characters of output to return')
}
const OPERATION = {
  type: { type: 'string', enum: ['create_file', 'update_file', 'delete_file'] },
  path: text('Path of the file'),
  diff: text(
    'The lines of the file, each after "+", if it is created. Hunks if it is updated: "@@" with an optional line of context, then lines after " ", "-" or "+". Empty if it is deleted'
  )
}

const POSITION = { type: 'integer', description: 'Pixels from the left (x) and from the top (y)' }
const ACTION_FIELDS: Record<string, Fields> = {
  x: POSITION,
  y: POSITION,
  button: { type: 'string', enum: ['left', 'right', 'wheel', 'back', 'forward'] },
  keys: texts('Names of keys, such as ["CTRL", "S"]'),
  path: { type: 'array', items: object({ x: POSITION, y: POSITION }) },
  scroll_x: integer('Pixels to scroll to the right'),
  scroll_y: integer('Pixels to scroll down'),
  text: text('The text to type')
}
/** The actions on a computer, with their fields. */
const ACTIONS: Record<string, string[]> = {
  click: ['x', 'y', 'button'],
  double_click: ['x', 'y'],
  drag: ['path'],
  keypress: ['keys'],
  move: ['x', 'y'],
  screenshot: [],
  scroll: ['x', 'y', 'scroll_x', 'scroll_y'],
  type: ['text'],
  wait: []
}
const ACTION = {
  anyOf: Object.entries(ACTIONS).map(([type, names]) => {
    const fields = Object.fromEntries(names.map(name => [name, ACTION_FIELDS[name]]))
    return object({ type: { const: type }, ...fields })
  })
}
const SCREEN = 'Uses the mouse and keyboard of a computer and returns a picture of its screen.'

/** The tools by their types. */
export const CLIENT_TOOLS: Record<string, ClientTool> = {
  local_shell: {
    function: {
      name: 'local_shell',
      description: 'Runs a program and returns its output.',
      parameters: object(COMMAND, ['command'])
    },
    item: 'local_shell_call',
    prefix: 'lsh',
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
    function: {
      name: 'shell',
      description: 'Runs shell commands and returns their output.',
      parameters: object(COMMANDS, ['commands'])
    },
    item: 'shell_call',
    prefix: 'sh',
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
    function: {
      name: 'apply_patch',
      description: 'Creates, updates or deletes a file.',
      parameters: object(OPERATION)
    },
    item: 'apply_patch_call',
    prefix: 'apc',
    toItem: ({ type, path, diff }) => {
      const operation = { type: type ?? 'update_file', path: String(path ?? '') }
      return { operation: type === 'delete_file' ? operation : { ...operation, diff: String(diff ?? '') } }
    }
  },
  computer: {
    function: {
      name: 'computer',
      description: SCREEN,
      parameters: object({ actions: { type: 'array', items: ACTION, description: 'What to do, in this order' } })
    },
    item: 'computer_call',
    prefix: 'cu',
    toItem: ({ actions }) => ({ actions: Array.isArray(actions) ? actions : [], pending_safety_checks: [] })
  },
  computer_use_preview: {
    function: { name: 'computer', description: SCREEN, parameters: object({ action: ACTION }) },
    item: 'computer_call',
    prefix: 'cu',
    toItem: ({ action }) => ({ action: isObject(action) ? action : { type: 'screenshot' }, pending_safety_checks: [] })
  },
  tool_search: {
    function: {
      name: 'tool_search',
      description: 'Finds further tools, which can be called afterwards.',
      parameters: object({ query: text('What the tools should do') })
    },
    item: 'tool_search_call',
    prefix: 'tsc',
    toItem: given => ({ arguments: given, execution: 'client' })
  }
}

/**
 * Returns the type of the client's tool that a tool of a request is, or undefined if OpenAI's service would run it: a
 * shell in a container, or a search among tools.
 */
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
