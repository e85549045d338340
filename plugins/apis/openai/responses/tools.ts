import { Type } from 'typebox'
import { type ToolChoice, toolFields } from '../../../../core/answers/tool-choice.ts'
import { type CorralError, invalidRequest } from '../../../../core/errors.ts'
import { Given, ListOf, Loose } from '../../../../core/http/request-fields.ts'
import { isObject } from '../../../../core/system/json-object.ts'
import { faultPlace } from '../../../../core/system/schema-check.ts'
import { freeformFunction } from '../freeform-tools.ts'
import { checkAgainst, type Path } from '../request-validation.ts'
import tools from './client-tools.json' with { type: 'json' }
import type { ResponseRequest } from './schemas.ts'

type Fields = Record<string, unknown>

export interface OfferedTool {
  /** `function`, `custom`, or the type of a tool in `CLIENT_TOOLS`. */
  type: string
  /** Its name in the request. Tools of other types are named by their type. */
  name: string
  namespace?: string | undefined
  function: { name: string; description?: string; parameters?: object; strict?: boolean }
}

export interface RequestedTools {
  offered: OfferedTool[]
  /** The tools that the reply repeats. */
  shown: object[]
  ignored: string[]
}

export interface PlacedTool {
  tool: unknown
  at: Path
}

const Name = Type.String({ minLength: 1 })
const FunctionSchema = Loose({
  type: Type.Literal('function'),
  name: Name,
  description: Given(Type.String()),
  parameters: Given(Loose({})),
  strict: Given(Type.Boolean())
})
const Custom = Loose({ name: Name, description: Given(Type.String()), format: Given(Loose({})) })
const Namespace = Loose({ name: Name, description: Given(Type.String()), tools: ListOf({}) })

export function invalid(path: Path, allowed: string): CorralError {
  const param = faultPlace({ path })
  return invalidRequest(param, `"${param}" must be ${allowed}.`)
}

export function engineName(name: unknown, namespace?: unknown): string {
  return namespace ? `${namespace}__${name}` : String(name)
}

/**
 * Reads the tools of a request. Tools that OpenAI's service runs are left out, because agents offer them in every
 * request. A search among tools that the service would do is no loss, because all tools are offered then.
 * @param added tools that items of the input add
 * @throws CorralError `invalid_request`
 */
export function readTools(requested: readonly unknown[], added: readonly PlacedTool[]): RequestedTools {
  const read: RequestedTools = { offered: [], shown: [], ignored: [] }
  const isSearch = (tool: unknown) => isObject(tool) && clientToolType(tool) === 'tool_search'
  const isDeferred = requested.some(isSearch)
  const add = (tool: OfferedTool) => {
    const { offered } = read
    // A later definition replaces an earlier one. Other tools of the same name get another one for the engine.
    const known = offered.findIndex(
      ({ type, name, namespace }) => type === tool.type && name === tool.name && namespace === tool.namespace
    )
    while (offered.some((each, index) => index !== known && each.function.name === tool.function.name)) {
      tool.function.name += '_'
    }
    offered.splice(known < 0 ? offered.length : known, known < 0 ? 0 : 1, tool)
  }
  /** @returns the tool as the reply shows it, or undefined if it is left out */
  const readTool = (given: unknown, at: Path, namespace?: string): object | undefined => {
    const tool = checkAgainst(Loose({}), given, at) as Fields
    const { type } = tool
    // The client's search has not found it yet.
    if (isDeferred && at[0] === 'tools' && tool.defer_loading === true) return undefined
    if (type === 'namespace' && namespace === undefined) {
      const { name, description, tools } = checkAgainst(Namespace, tool, at)
      const shown = tools.flatMap((inner, index) => readTool(inner, [...at, 'tools', index], name) ?? [])
      return shown.length === 0 ? undefined : { type, name, description: description ?? '', tools: shown }
    }
    const clientType = namespace === undefined ? clientToolType(tool) : undefined
    if (clientType) {
      add({ type: clientType, name: clientType, function: clientFunction(clientType, tool) })
      return tool
    }
    if (type === 'custom') {
      const { name, description, format } = checkAgainst(Custom, tool, at)
      add({ type, name, namespace, function: freeformFunction(engineName(name, namespace), description, format) })
      return tool
    }
    if (typeof type === 'string' && type !== '' && type !== 'function') {
      const label = [namespace, type, tool.server_label].filter(part => typeof part === 'string').join('.')
      if (type !== 'tool_search') read.ignored.push(label)
      return undefined
    }
    // Functions are strict by default in this API.
    const { name, description = null, parameters = null, strict: isStrict } = checkAgainst(FunctionSchema, tool, at)
    const strict = isStrict ?? true
    add({
      type: 'function',
      name,
      namespace,
      function: {
        name: engineName(name, namespace),
        ...(description !== null && { description }),
        ...(parameters && { parameters }),
        strict
      }
    })
    return { type: 'function', name, description, parameters, strict }
  }
  read.shown = requested.flatMap((tool, index) => readTool(tool, ['tools', index]) ?? [])
  for (const { tool, at } of added) readTool(tool, at)
  return read
}

/** Returns the tool that a call of the engine means. A model without a grammar may call any name. */
export function calledTool(offered: readonly OfferedTool[], called: string): Omit<OfferedTool, 'function'> {
  return offered.find(tool => tool.function.name === called) ?? { type: 'function', name: called }
}

const AllowedTools = Loose({
  mode: Type.Enum(['auto', 'required']),
  tools: Type.Array(Type.Unknown(), { minItems: 1 })
})
const HOSTED = /^(web_search|file_search|image_generation|code_interpreter|mcp|programmatic_tool_calling|tool_search)/

export function engineTools(tools: RequestedTools, choice: ResponseRequest['tool_choice']): Fields {
  const functions = tools.offered.map(tool => ({ type: 'function' as const, function: tool.function }))
  return toolFields(functions, readChoice(choice, tools), tools.ignored)
}

type Names = NonNullable<ToolChoice['names']>

function readChoice(choice: ResponseRequest['tool_choice'], tools: RequestedTools): ToolChoice {
  if (choice === undefined || choice === null) return {}
  if (choice === 'auto' || choice === 'none' || choice === 'required') return { mode: choice }
  const at = ['tool_choice']
  if (isObject(choice) && choice.type === 'allowed_tools') {
    const { mode, tools: allowed } = checkAgainst(AllowedTools, choice, at)
    const names = allowed.flatMap((tool, index) => chosenNames(tool, tools, [...at, 'tools', index]))
    if (names.length === 0 && mode === 'auto') return { mode: 'none' }
    return { mode: mode as 'auto' | 'required', names }
  }
  const names = chosenNames(choice, tools, at)
  // The model decides if the tool was left out and there are others.
  return names.length === 0 && tools.offered.length > 0 ? {} : { mode: 'required', names }
}

/** Returns the engine's names of the tools that a choice names: none for a tool that was left out. */
function chosenNames(choice: unknown, { offered, ignored }: RequestedTools, at: Path): Names {
  const { type = 'function', name, namespace } = isObject(choice) ? choice : { type: null }
  const found = offered.filter(tool => {
    if (type === 'function' || type === 'custom') return tool.function.name === engineName(name, namespace)
    return type === 'namespace' ? tool.namespace === name : kindOf(tool.type) === kindOf(type)
  })
  if (found.length > 0) return found.map(tool => ({ name: tool.function.name, param: '' }))
  if (HOSTED.test(`${type}`) || ignored.includes(`${type}`)) return []
  const isNamed = type === 'function' || type === 'custom' || type === 'namespace'
  if (!isNamed && clientToolType({ type }) === undefined) {
    throw invalid(
      at,
      '"auto", "none", "required", or an object with the "type" of a tool or "allowed_tools", and a "name" if it is a function or a custom tool'
    )
  }
  return [{ name: undefined, param: faultPlace({ path: [...at, isNamed ? 'name' : 'type'] }) }]
}

/** `computer` has several names. */
const kindOf = (type: unknown) => String(type).replace(/^computer_.*/, 'computer')

/* OpenAI's tools that clients run, whose parameters OpenAI's models know. Here each becomes a function. */

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
function clientToolType({ type, environment, execution }: Fields): string | undefined {
  if (typeof type !== 'string' || !Object.hasOwn(CLIENT_TOOLS, type)) return undefined
  if (type === 'tool_search') return execution === 'client' ? type : undefined
  const isHosted = isObject(environment) && environment.type !== 'local'
  return isHosted ? undefined : type
}

function clientFunction(type: string, tool: Fields): ClientTool['function'] {
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
