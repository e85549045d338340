import type { HostedEvent, HostTool, ToolHost, ToolRequest, WantedTools } from '../../../core/contracts/tool-host.ts'
import { isObject, parseAnyJson } from '../../../core/system/json-object.ts'
import { invalid } from './history.ts'
import type { CountRequest, ReplyBlock } from './schemas.ts'

/* Tools that corral runs: sets of MCP servers, and types such as `web_search_20250305` that the configuration maps. */

type Fields = Record<string, unknown>

const CONFIGURED = /^configured:/

/**
 * Takes the tools that corral runs out of a request.
 * @throws CorralError `invalid_request` for a server that is not configured
 */
export function takeHostedTools<Request extends CountRequest>(request: Request, host: ToolHost) {
  const servers = (Array.isArray(request.mcp_servers) ? request.mcp_servers : []).filter(isObject)
  const wanted: WantedTools[] = []
  const names = new Set<unknown>()
  const others = (request.tools ?? []).filter((tool, index) => {
    const found = readTool(tool, `tools.${index}`, servers, host)
    if (!found) return true
    wanted.push(found)
    names.add(tool.name)
    return false
  })
  // In the first version of this API, servers without a set had all their tools.
  for (const [index, server] of servers.entries()) {
    if (wanted.some(({ label }) => label === server.name)) continue
    const { enabled, allowed_tools: allowed } = isObject(server.tool_configuration) ? server.tool_configuration : {}
    if (enabled === false) continue
    const place = `mcp_servers.${index}`
    const tools = Array.isArray(allowed) ? { tools: allowed.map(String) } : {}
    wanted.push({ server: serverName(server, place, host), label: `${server.name}`, param: `${place}.name`, ...tools })
  }
  const { type, name } = request.tool_choice ?? {}
  const isDemanded =
    (type === 'any' && others.length === 0 && wanted.length > 0) || (type === 'tool' && names.has(name))
  const tools: ToolRequest = { wanted, isDemanded }
  return { request: { ...request, tools: others, mcp_servers: [], ...(isDemanded && { tool_choice: null }) }, tools }
}

function readTool(tool: Fields, place: string, servers: readonly Fields[], host: ToolHost): WantedTools | undefined {
  const { type, mcp_server_name: name } = tool
  if (type !== 'mcp_toolset') {
    const target = typeof type === 'string' ? host.mapped(type) : undefined
    return target && { server: target.server, tools: [target.tool], hosted: `${type}`, param: `${place}.type` }
  }
  if (typeof name !== 'string') throw invalid(`${place}.mcp_server_name`, 'must be the name of a server')
  const at = servers.findIndex(server => server.name === name)
  const server = at < 0 ? name.replace(CONFIGURED, '') : serverName(servers[at]!, `mcp_servers.${at}`, host)
  return { server, label: name, param: `${place}.mcp_server_name`, accepts: each => isEnabled(tool, each) }
}

function serverName({ name, url }: Fields, place: string, host: ToolHost): string {
  if (typeof url !== 'string') return `${name}`.replace(CONFIGURED, '')
  const server = CONFIGURED.test(url) ? url.replace(CONFIGURED, '') : host.serverAt(url)
  if (server !== undefined) return server
  const must = `is not the address of a configured tool server: ${url.slice(0, 200)}. Requests cannot choose addresses. Name a server of GET /api/mcp as "configured:<name>"`
  throw invalid(`${place}.url`, must)
}

function isEnabled({ default_config: usual, configs }: Fields, { name }: HostTool): boolean {
  const own = isObject(configs) ? configs[name] : undefined
  const setting = isObject(own) && typeof own.enabled === 'boolean' ? own : usual
  return !isObject(setting) || setting.enabled !== false
}

/** Returns the block for an event about a tool. */
export function hostedBlock(event: HostedEvent): ReplyBlock | undefined {
  if (event.type !== 'call' && event.type !== 'result') return undefined
  const { id, tool: name, server, label, hosted, arguments: text } = event.call
  const isSearch = hosted?.startsWith('web_search') === true
  const use = `${isSearch ? 'srvtoolu_' : 'mcptoolu_'}${id}`
  if (event.type === 'call') {
    const input = parseAnyJson(text) ?? {}
    if (isSearch) return { type: 'server_tool_use', id: use, name: 'web_search', input }
    return { type: 'mcp_tool_use', id: use, name, server_name: label ?? server, input }
  }
  const { output, failed } = event
  if (!isSearch) {
    return { type: 'mcp_tool_result', tool_use_id: use, is_error: failed, content: [{ type: 'text', text: output }] }
  }
  const error = { type: 'web_search_tool_result_error', error_code: 'unavailable' }
  return { type: 'web_search_tool_result', tool_use_id: use, content: failed ? error : searchResults(output) }
}

/** The addresses in a text. The first result has the text, which the model reads when the conversation continues. */
function searchResults(text: string): Fields[] {
  const urls = [...new Set(text.match(/https?:\/\/[^\s"'<>)\]]+/g))].slice(0, 20)
  return (urls.length > 0 ? urls : ['']).map((url, index) => ({
    type: 'web_search_result',
    url,
    title: url,
    encrypted_content: '',
    page_age: null,
    ...(index === 0 && { text })
  }))
}
