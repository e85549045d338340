import type { FastifyInstance } from 'fastify'
import { ConfigError } from '../../../core/config/config-error.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { toolRoutes } from './routes.ts'
import { ToolSection, type ToolServer } from './tool-settings.ts'

export default definePlugin({
  name: 'mcp',
  api: 1,
  description: 'Tools that corral runs for models: servers of the Model Context Protocol',
  optional: true,
  offers: ['tools'],
  needs: ['downloads'],
  options: ToolSection,
  async setup(context, options) {
    checkServers(options)
    // Most configurations have no servers of tools.
    if (Object.keys(options.servers).length === 0) {
      return { services: { tools: {} }, routes: async app => toolRoutes(app, undefined) }
    }
    const { ToolServers } = await import('./tool-servers.ts')
    let server: FastifyInstance | undefined
    const builtIn = {
      app: () => server!,
      limits: context.config.limits,
      settings: options,
      privateAddresses: context.service('downloads').privateAddresses
    }
    const servers = new ToolServers(options, context.log, context.hooks, builtIn)
    return {
      services: { tools: { host: servers } },
      routes: async app => {
        server = app
        toolRoutes(app, servers)
      },
      stop: () => servers.close(parseDuration(context.config.shutdown_grace)!)
    }
  }
})

/** @throws ConfigError for servers that are not exactly one of a program, an address and built-in tools, and targets of `map` that do not exist */
function checkServers({ servers, map }: ToolSection): void {
  const mistake = (setting: string, message: string) => ({ where: setting, setting, message })
  const unclear = Object.entries(servers as Record<string, ToolServer>)
    .filter(
      ([, { command, url, built_in: own }]) => [command, url, own].filter(each => each !== undefined).length !== 1
    )
    .map(([name]) => mistake(`mcp.servers.${name}`, 'It needs one of "command", "url" and "built_in".'))
  const unknown = Object.entries(map)
    .map(([type, target]) => [type, target.slice(0, target.indexOf('.'))] as const)
    .filter(([, server]) => !Object.hasOwn(servers, server))
    .map(([type, server]) => mistake(`mcp.map.${type}`, `There is no server "${server}" under "mcp.servers".`))
  const mistakes = [...unclear, ...unknown]
  if (mistakes.length > 0) throw new ConfigError(mistakes)
}
