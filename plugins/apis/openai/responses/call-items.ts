import { isObject } from '../../../../core/system/json-object.ts'
import { freeformArguments } from '../freeform-tools.ts'
import type { InputPart } from './schemas.ts'
import { engineName, type PlacedTool } from './tools.ts'

/* What items mean to a model, besides messages and reasoning: a call, the result of a call, or both. */

// biome-ignore lint/suspicious/noExplicitAny: items are only read here, and any field may be absent or have any type
type Fields = Record<string, any>

export interface EarlierCall {
  id: string
  name: string
  arguments: unknown
  /** Whether it was never made unless it has a result: it was truncated, or its approval is missing. */
  isOpen: boolean
}

type Result = string | InputPart[]

const NOT_STORED = '[The result is not part of this conversation.]'

/** The name and the arguments of the function that each type of item calls. */
const CALLS: Record<string, (item: Fields) => [name: string, given: unknown]> = {
  function_call: ({ name, namespace, arguments: given }) => [engineName(name, namespace), given],
  custom_tool_call: ({ name, namespace, input }) => [engineName(name, namespace), freeformArguments(input)],
  local_shell_call: ({ action }) => ['local_shell', withoutEmpty(action, 'type', 'env')],
  shell_call: ({ action }) => ['shell', withoutEmpty(action)],
  apply_patch_call: ({ operation }) => ['apply_patch', withoutEmpty(operation)],
  computer_call: ({ action, actions }) => ['computer', Array.isArray(actions) ? { actions } : { action }],
  tool_search_call: ({ arguments: given }) => ['tool_search', given],
  program: ({ code }) => ['program', { code }],
  mcp_approval_request: ({ name, server_label, arguments: given }) => [engineName(name, server_label), given],
  mcp_call: ({ name, server_label, arguments: given }) => [engineName(name, server_label), given],
  web_search_call: ({ action }) => ['web_search', withoutEmpty(action, 'sources')],
  file_search_call: ({ queries }) => ['file_search', { queries }],
  code_interpreter_call: ({ code }) => ['code_interpreter', { code }],
  image_generation_call: ({ revised_prompt: prompt }) => ['image_generation', withoutEmpty({ prompt })]
}

const RESULTS: Record<string, (item: Fields) => unknown> = {
  function_call_output: ({ output }) => output,
  custom_tool_call_output: ({ output }) => output,
  local_shell_call_output: ({ output }) => output,
  shell_call_output: ({ output }) => listOf(output).map(shellOutput).join('\n'),
  apply_patch_call_output: ({ status, output }) => output || status,
  computer_call_output: ({ output }) => [picture(output?.image_url)],
  tool_search_output: ({ tools }) => `These tools can be called now: ${listOf(tools).map(toolName).join(', ')}`,
  program_output: ({ result }) => result,
  mcp_approval_response: ({ approve, reason }) =>
    `The user ${approve ? 'approved' : 'denied'} this call. ${reason ?? ''}`.trim(),
  mcp_call: ({ output, error }) => output ?? (error ? `Error: ${textOf(error)}` : NOT_STORED),
  web_search_call: ({ action }) => {
    const urls = listOf(action?.sources).flatMap(({ url }) => url ?? [])
    return urls.length > 0 ? `Sources:\n${urls.join('\n')}` : NOT_STORED
  },
  file_search_call: ({ results }) =>
    listOf(results)
      .map(({ filename, text }) => `${filename ?? ''}\n${text ?? ''}`.trim())
      .join('\n\n') || NOT_STORED,
  code_interpreter_call: ({ outputs }) => {
    const parts = listOf(outputs).map(({ type, logs, url }) => (type === 'image' ? picture(url) : written(logs)))
    return parts.length > 0 ? parts : NOT_STORED
  },
  image_generation_call: ({ status }) => (status === 'failed' ? 'Error: no image was made.' : '[An image was made.]')
}

export function callOf(item: Fields): EarlierCall | undefined {
  const read = isWithModel(item) && find(CALLS, item.type)
  if (!read) return undefined
  const [name, given] = read(item)
  return {
    id: item.call_id ?? item.id,
    name,
    arguments: given,
    isOpen: item.status === 'incomplete' || item.type === 'mcp_approval_request'
  }
}

/** Returns the result of a call that an item contains, and the id of the call. */
export function resultOf(item: Fields): { id: string; content: Result } | undefined {
  const read = isWithModel(item) && find(RESULTS, item.type)
  if (!read) return undefined
  const content = read(item)
  const id = item.call_id ?? item.approval_request_id ?? item.id
  return { id, content: Array.isArray(content) ? content : textOf(content) }
}

/** Returns the tools that items add to those of the request. OpenAI's service only finds tools of the request. */
export function addedTools(item: Fields, at: PlacedTool['at']): PlacedTool[] {
  const adds = item.type === 'additional_tools' || (item.type === 'tool_search_output' && isWithModel(item))
  return adds ? listOf(item.tools).map((tool, index) => ({ tool, at: [...at, 'tools', index] })) : []
}

/** Whether a type of item is read here, or adds tools. */
export const isKnownItem = (type: string) =>
  Object.hasOwn(CALLS, type) || Object.hasOwn(RESULTS, type) || type === 'additional_tools'

/**
 * Whether the API could have returned a type of item or part. A conversation is sent again in every request, so an
 * unknown type that is refused once would end it. The API's types are all written like this. Anything else is a mistake
 * of the client, which must not lose its content silently.
 */
export function isOpenAiType(type: unknown): type is string {
  return typeof type === 'string' && /^[a-z][a-z0-9_]{0,63}$/.test(type)
}

/** Searches among tools that OpenAI's service ran have no call id. All tools are offered here instead. */
const isWithModel = ({ type, call_id: id }: Fields) =>
  (type !== 'tool_search_call' && type !== 'tool_search_output') || typeof id === 'string'

const find = <Value>(table: Record<string, Value>, key: string) => (Object.hasOwn(table, key) ? table[key] : undefined)

const listOf = (value: unknown): Fields[] => (Array.isArray(value) ? value.filter(isObject) : [])

const textOf = (value: unknown) => (typeof value === 'string' ? value : value == null ? '' : JSON.stringify(value))

const written = (text: unknown): InputPart => ({ type: 'input_text', text: textOf(text) })

const picture = (url: unknown): InputPart => ({ type: 'input_image', image_url: url, detail: 'auto' })

const toolName = ({ name, type }: Fields) => name ?? type

function shellOutput({ stdout, stderr, outcome }: Fields): string {
  const end = outcome?.type === 'timeout' ? 'It timed out.' : `Exit code: ${outcome?.exit_code ?? 0}`
  return [textOf(stdout), textOf(stderr), end].filter(text => text !== '').join('\n')
}

/** Removes fields without a value, and other ones that say nothing to a model. */
function withoutEmpty(fields: unknown, ...others: string[]): unknown {
  if (!isObject(fields)) return fields
  return Object.fromEntries(Object.entries(fields).filter(([name, value]) => value != null && !others.includes(name)))
}
