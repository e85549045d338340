import { isObject, parseAnyJson } from '../../core/system/json-object.ts'
import { failure, forEach } from '../command-failure.ts'
import { type CommandContext, type Options, usageFailure } from '../context.ts'
import { formatTable, printable, printJson, printNote, printText } from '../output.ts'
import { ask } from '../server-connection.ts'

interface ToolServer {
  name: string
  transport: string
  state: string
  roles: string[]
  ask: string
}

interface Tool {
  name: string
  description: string
  asks: boolean
}

const getServers = (context: CommandContext) => ask<{ servers: ToolServer[] }>(context, 'GET', '/api/mcp')

export async function mcpList(context: CommandContext, { json }: Options<'json'>): Promise<void> {
  const { servers } = await getServers(context)
  if (json) return printJson(servers)
  if (servers.length === 0) return printNote('No tool servers. Add them under "mcp.servers" in config.yaml.')
  const rows = servers.map(({ name, transport, state, roles, ask }) => [name, transport, state, roles.join(', '), ask])
  printText(formatTable(['NAME', 'TRANSPORT', 'STATE', 'ROLES', 'ASK'], rows))
}

/** Starts servers, and lists their tools. */
export async function mcpCheck(context: CommandContext, name: string | undefined): Promise<void> {
  const names = name === undefined ? (await getServers(context)).servers.map(server => server.name) : [name]
  await forEach(names, async each => {
    const { tools } = await ask<{ tools: Tool[] }>(context, 'GET', `/api/mcp/${encodeURIComponent(each)}`)
    const rows = tools.map(tool => [`${each}.${tool.name}`, tool.asks ? 'yes' : 'no', tool.description.split('\n')[0]!])
    printText(formatTable(['TOOL', 'ASKS', 'DESCRIPTION'], rows))
  })
}

export async function mcpCall(context: CommandContext, tool: string, given = '{}'): Promise<void> {
  const [, server, name] = /^([^.]+)\.(.+)$/.exec(tool) ?? []
  if (!server || !name) throw usageFailure(`"${tool}" is not a tool. Write server.tool, as in "corral mcp check".`)
  const values = parseAnyJson(given)
  if (!isObject(values)) throw usageFailure('The arguments must be a JSON object, such as \'{"path":"."}\'.')
  const path = `/api/mcp/${encodeURIComponent(server)}/call`
  const result = await ask<{ output: string; failed: boolean }>(context, 'POST', path, {
    tool: name,
    arguments: values
  })
  if (result.failed) throw failure(printable(result.output))
  printText(printable(result.output))
}
