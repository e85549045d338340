import { type ToolChoice, toolFields } from '../../../core/answers/tool-choice.ts'
import { type CorralError, invalidRequest } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { freeformFunction } from './freeform-tools.ts'
import type { ChatRequest } from './schemas.ts'

type Fields = Record<string, unknown>
type Asked = Pick<ChatRequest, 'tools' | 'tool_choice' | 'functions' | 'function_call'> & Fields
type Names = NonNullable<ToolChoice['names']>

/**
 * Reads the tools of a chat. Freeform tools become functions. Tools of other types are run by services, so they are left
 * out.
 * @throws CorralError `invalid_request` or `unsupported_capability` with the field as `param`
 */
export function chatTools(chat: Asked) {
  const { tools, tool_choice, functions, function_call, web_search_options: search } = chat
  const isLegacy = Boolean(functions?.length) && !tools?.length
  const given = isLegacy ? functions!.map(called => ({ type: 'function', function: called })) : (tools ?? [])
  const freeform = new Map<string, string>()
  const ignored = search ? ['web_search'] : []
  const offered: { type: 'function'; function: { name: string } }[] = []
  const add = (called: { name: string }) => {
    while (offered.some(tool => tool.function.name === called.name)) called.name += '_'
    offered.push({ type: 'function', function: called })
  }
  given.forEach(({ type, function: called, custom }: NonNullable<ChatRequest['tools']>[number], index) => {
    const param = `tools[${index}]`
    if (type === 'custom') {
      if (!custom) throw missing(`${param}.custom`)
      const converted = freeformFunction(custom.name, custom.description, custom.format)
      add(converted)
      freeform.set(converted.name, custom.name)
    } else if (type === 'function') {
      if (!called) throw missing(`${param}.function`)
      // Engines may take null fields for values.
      offered.push({ type, function: withoutNulls(called) as { name: string } })
    } else if (called || custom) {
      throw invalidRequest(`${param}.type`, `"${param}.type" must be "function" or "custom".`)
    } else ignored.push(type)
  })
  const choice = isLegacy
    ? functionChoice(function_call)
    : chatChoice(tool_choice, freeform, ignored, offered.length > 0)
  return { fields: toolFields(offered, choice, ignored), isLegacy, freeform, ignored }
}

function missing(param: string): CorralError {
  return invalidRequest(param, `"${param}" is missing. It must be an object with "name".`)
}

export function withoutNulls(fields: Fields): Fields {
  const kept: Fields = {}
  for (const name in fields) if (fields[name] !== null) kept[name] = fields[name]
  return kept
}

function chatChoice(
  choice: ChatRequest['tool_choice'],
  freeform: ReadonlyMap<string, string>,
  ignored: readonly string[],
  isOffered: boolean
): ToolChoice {
  if (typeof choice !== 'object' || !choice) return { mode: choice ?? undefined }
  const { allowed_tools: allowed } = choice
  if (choice.type === 'allowed_tools' && allowed) {
    const names = allowed.tools.flatMap(tool => namesOf(tool as Fields, 'tool_choice.allowed_tools.tools'))
    return names.length === 0 && allowed.mode === 'auto' ? { mode: 'none' } : { mode: allowed.mode, names }
  }
  const names = namesOf(choice)
  // The model decides if the tool was left out and there are others.
  return names.length === 0 && isOffered ? {} : { mode: 'required', names }

  /** Returns the engine's name of a chosen tool, or nothing if the tool was left out. */
  function namesOf(tool: Fields, place?: string): Names {
    const { type, function: called, custom } = tool
    if (type === 'custom') {
      const name = isObject(custom) ? custom.name : undefined
      const [engineName] = [...freeform].find(([, own]) => own === name) ?? []
      return [{ name: engineName, param: place ?? 'tool_choice.custom.name' }]
    }
    if (ignored.includes(`${type}`)) return []
    if (type !== 'function' && place === undefined) {
      const param = 'tool_choice.type'
      throw invalidRequest(param, `"${param}" must be "function", "custom" or "allowed_tools".`)
    }
    return [{ name: isObject(called) ? called.name : undefined, param: place ?? 'tool_choice.function.name' }]
  }
}

function functionChoice(choice: ChatRequest['function_call']): ToolChoice {
  if (typeof choice !== 'object' || !choice) return { mode: choice ?? undefined }
  return { mode: 'required', names: [{ name: choice.name, param: 'function_call.name' }] }
}
