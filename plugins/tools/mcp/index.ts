import { ConfigError } from '../../../core/config/config-error.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { toolRoutes } from './routes.ts'
import { ToolSection, type ToolServer } from './tool-settings.ts'

export default definePlugin({
  name: 'mcp',
  api: 1,
  description: 'Tools that corral runs for models: servers of the Model Context Protocol',
  optional: true,
  offers: ['tools'],
  options: ToolSection,
  async setup({ log, hooks }, options) {
    checkServers(options)
    // Most configurations have no servers of tools.
    if (Object.keys(options.servers).length === 0) {
      return { services: { tools: {} }, routes: async app => toolRoutes(app, undefined) }
    }
    const { ToolServers } = await import('./tool-servers.ts')
    const servers = new ToolServers(options, log, hooks)
    return {
      services: { tools: { host: servers } },
      routes: async app => toolRoutes(app, servers),
      stop: () => servers.close()
    }
  }
})

/** @throws ConfigError for servers without an address, and targets of `map` that do not exist */
function checkServers({ servers, map }: ToolSection): void {
  const mistake = (setting: string, message: string) => ({ where: setting, setting, message })
  const unclear = Object.entries(servers as Record<string, ToolServer>)
    .filter(([, { command, url }]) => (command === undefined) === (url === undefined))
    .map(([name]) => mistake(`mcp.servers.${name}`, 'It needs either "command" or "url".'))
  const unknown = Object.entries(map)
    .map(([type, target]) => [type, target.slice(0, target.indexOf('.'))] as const)
    .filter(([, server]) => !Object.hasOwn(servers, server))
    .map(([type, server]) => mistake(`mcp.map.${type}`, `There is no server "${server}" under "mcp.servers".`))
  const mistakes = [...unclear, ...unknown]
  if (mistakes.length > 0) throw new ConfigError(mistakes)
}
