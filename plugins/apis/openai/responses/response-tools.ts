import type {
  HostedEvent,
  HostTool,
  ToolDecision,
  ToolHost,
  ToolRequest,
  WantedTools
} from '../../../../core/contracts/tool-host.ts'
import { CorralError } from '../../../../core/errors.ts'
import { isObject, parseAnyJson } from '../../../../core/system/json-object.ts'
import type { PlacedItem } from './response-request.ts'
import type { OutputItem, ResponseRequest } from './schemas.ts'

/* Tools that corral runs: `mcp`, and types such as `web_search` that the configuration maps to a tool. */

type Fields = Record<string, unknown>

/**
 * Takes the tools that corral runs out of a request.
 * @param placed the conversation, with the user's decisions about calls
 * @returns the other fields, the tools as the reply repeats them, and the names of their fields that are ignored
 * @throws CorralError `invalid_request` for a server that is not configured
 */
export function takeHostedTools(
  request: ResponseRequest,
  placed: readonly PlacedItem[],
  host: ToolHost,
  owner: string
) {
  const wanted: WantedTools[] = []
  const shown: Fields[] = []
  const others = (request.tools ?? []).filter((given, index) => {
    const tool = given as Fields
    const found = tool.type === 'mcp' ? readServer(tool, `tools[${index}]`, host) : readMapped(tool, index, host)
    if (!found) return true
    wanted.push(found)
    const { headers: _, authorization: __, ...rest } = tool
    shown.push(rest)
    return false
  })
  // corral searches all documents of the caller.
  const unused = shown.flatMap(({ type, vector_store_ids: stores, filters }) => [
    ...(Array.isArray(stores) && stores.length > 0 ? [`${type}.vector_store_ids`] : []),
    ...(filters ? [`${type}.filters`] : [])
  ])
  const { tool_choice: choice, max_tool_calls: maxCalls } = request
  const chosen = isObject(choice) ? choice.type : choice
  const target = typeof chosen === 'string' ? host.mapped(chosen) : undefined
  const isChosen = wanted.some(({ server, tools, hosted }) =>
    hosted ? target?.server === server && tools?.[0] === target.tool : chosen === 'mcp'
  )
  const isDemanded = isChosen || (chosen === 'required' && wanted.length > 0 && others.length === 0)
  const tools: ToolRequest = {
    wanted,
    approves: true,
    // An earlier refusal is only part of the conversation.
    decisions: openDecisions(placed).filter(({ id, approve }) => approve || host.isKept(owner, id)),
    isDemanded,
    maxCalls: typeof maxCalls === 'number' ? maxCalls : undefined
  }
  return { request: { ...request, tools: others, ...(isDemanded && { tool_choice: null }) }, tools, shown, unused }
}

function readServer(tool: Fields, place: string, host: ToolHost): WantedTools {
  const { server_label: label, server_url: url, connector_id: connector, allowed_tools: allowed } = tool
  const address = url ?? connector
  const server = address === undefined || address === null ? label : host.serverAt(`${address}`)
  if (typeof server !== 'string') {
    const isUnnamed = address === undefined || address === null
    const param = `${place}.${isUnnamed ? 'server_label' : url ? 'server_url' : 'connector_id'}`
    const message = isUnnamed
      ? `"${param}" must be the name of a configured tool server. GET /api/mcp lists them.`
      : `"${param}" is not a configured tool server: ${`${address}`.slice(0, 200)}. Requests cannot choose addresses. Name a configured server as "server_label". GET /api/mcp lists them.`
    throw new CorralError('invalid_request', message, { param })
  }
  return {
    server,
    label: typeof label === 'string' ? label : server,
    param: `${place}.server_label`,
    ...(Array.isArray(allowed) && { tools: allowed.map(String) }),
    ...(isObject(allowed) && { accepts: each => isMeant(allowed, each) }),
    asks: each => asksFor(tool.require_approval, each)
  }
}

function readMapped({ type }: Fields, index: number, host: ToolHost): WantedTools | undefined {
  const target = typeof type === 'string' && type !== 'function' ? host.mapped(type) : undefined
  if (!target) return undefined
  return { server: target.server, tools: [target.tool], hosted: `${type}`, param: `tools[${index}].type` }
}

/** Whether a filter of the API names a tool: `{ tool_names, read_only }`. */
function isMeant({ tool_names: names, read_only: readOnly }: Fields, tool: HostTool): boolean {
  if (Array.isArray(names) && !names.includes(tool.name)) return false
  return typeof readOnly === 'boolean' ? tool.readOnly === readOnly : Array.isArray(names)
}

/** As in OpenAI's API, every call needs an approval unless the request says otherwise. */
function asksFor(required: unknown, tool: HostTool): boolean {
  if (!isObject(required)) return required !== 'never'
  const { always, never } = required
  return (isObject(always) && isMeant(always, tool)) || !(isObject(never) && isMeant(never, tool))
}

/** The decisions of the user about calls that were not run yet. */
function openDecisions(placed: readonly PlacedItem[]): ToolDecision[] {
  const run = new Set(placed.map(({ item }) => (item.type === 'mcp_call' ? (item as Fields).approval_request_id : '')))
  return placed.flatMap(({ item, place }) => {
    const { type, approval_request_id: id, approve } = item as Fields
    if (type !== 'mcp_approval_response' || typeof id !== 'string' || run.has(id) || place === undefined) return []
    return [{ id, approve: approve === true, param: `${place}.approval_request_id` }]
  })
}

/** Leaves out the requests and responses of these decisions, because the tool loop adds the calls and their results. */
export function withoutDecided(placed: readonly PlacedItem[], decisions: readonly ToolDecision[]): PlacedItem[] {
  const ids = new Set<unknown>(decisions.map(({ id }) => id))
  return placed.filter(({ item }) => {
    const { type, id, approval_request_id: request } = item as Fields
    return !(type === 'mcp_approval_request' && ids.has(id)) && !(type === 'mcp_approval_response' && ids.has(request))
  })
}

type Step = [type: string, fields: Fields]

/** Returns what an event about tools adds to the output: a whole item, or the start or end of an item. */
export interface HostedStep {
  begins?: OutputItem
  ends?: Fields
  /** The events in between, without the prefix `response.`. */
  events: Step[]
}

/** @param id creates ids */
export function hostedStep(event: HostedEvent, id: (prefix: string) => string): HostedStep | undefined {
  if (event.type === 'tools') {
    const tools = event.tools.map(({ name, description, parameters, readOnly }) => ({
      name,
      description,
      input_schema: parameters,
      annotations: { read_only: readOnly }
    }))
    const begins = { type: 'mcp_list_tools', id: id('mcpl'), server_label: event.label, tools: [], error: null }
    const events: Step[] = [...each('mcp_list_tools', 'in_progress'), ...each('mcp_list_tools', 'completed')]
    return { begins: begins as unknown as OutputItem, events, ends: { tools } }
  }
  const { call } = event
  const { arguments: text } = call
  const named = { server_label: call.label ?? call.server, name: call.tool, arguments: text }
  if (event.type === 'approval') {
    const begins = { type: 'mcp_approval_request', id: call.approval, ...named }
    return { begins: begins as unknown as OutputItem, events: [], ends: {} }
  }
  const search = SEARCHES.find(({ type }) => call.hosted?.startsWith(type))
  const item = `${search?.type}_call`
  if (event.type === 'call') {
    if (search) {
      const begins = { type: item, id: id(search.prefix), status: 'in_progress', ...search.fields(text) }
      return { begins: begins as OutputItem, events: [...each(item, 'in_progress'), ...each(item, 'searching')] }
    }
    const approval = { approval_request_id: call.approval ?? null, output: null, error: null }
    const begins = { type: 'mcp_call', id: id('mcp'), status: 'in_progress', ...named, arguments: '', ...approval }
    const events: Step[] = [
      ...each('mcp_call', 'in_progress'),
      ['mcp_call_arguments.delta', { delta: text }],
      ['mcp_call_arguments.done', { arguments: text }]
    ]
    return { begins: begins as OutputItem, events }
  }
  const { output, failed } = event
  const status = failed ? 'failed' : 'completed'
  if (search) return { events: each(item, 'completed'), ends: { status, ...search.fields(text, output) } }
  return {
    events: each('mcp_call', status),
    ends: { status, arguments: text, ...(failed ? { error: output } : { output }) }
  }
}

const each = (kind: string, state: string): Step[] => [[`${kind}.${state}`, {}]]

const MAX_SOURCES = 20

/** Hosted tools whose calls have items of their own. */
const SEARCHES = [
  {
    type: 'web_search',
    prefix: 'ws',
    fields(text: string, output = '') {
      const urls = [...new Set(output.match(/https?:\/\/[^\s"'<>)\]]+/g))].slice(0, MAX_SOURCES)
      const sources = urls.map(url => ({ type: 'url', url }))
      return { action: { type: 'search', query: queryOf(text), sources } }
    }
  },
  {
    type: 'file_search',
    prefix: 'fs',
    fields: (text: string, output?: string) => ({ queries: [queryOf(text)], results: output ? passages(output) : null })
  }
]

function queryOf(text: string): string {
  const given = parseAnyJson(text)
  const { query, q } = isObject(given) ? given : {}
  return `${query ?? q ?? ''}`
}

/** The passages that corral's own search of documents returns, or the text of another tool. */
function passages(output: string): Fields[] {
  const found = parseAnyJson(output)
  if (!isObject(found) || !Array.isArray(found.passages)) return [{ filename: '', text: output }]
  return found.passages.filter(isObject).map(({ file, file_id, score, text }) => ({
    file_id,
    filename: file,
    score,
    text,
    attributes: {}
  }))
}
