import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { FastifyInstance } from 'fastify'
import { pino } from 'pino'
import { loadConfig } from '../core/config/load.ts'
import { createApplication } from '../core/http/application.ts'
import type { PluginDefinition } from '../core/plugins/plugin.ts'
import { PluginHost } from '../core/plugins/plugin-host.ts'
import { LogLevels } from '../core/system/log-levels.ts'
import { builtInPlugins } from '../plugins/built-in.ts'
import { type RoleRow, renderRoleDocs } from './role-docs.ts'

/**
 * The API document of a server with default settings, and the roles of its routes. Registers all routes without
 * starting anything.
 */
export async function renderApiDocument(
  definitions: readonly PluginDefinition[] = builtInPlugins
): Promise<{ 'openapi.json': string; 'roles.md': string }> {
  const home = mkdtempSync(join(tmpdir(), 'corral-document-'))
  const over = new AbortController()
  const config = await loadConfig({ flags: { home }, env: {}, cwd: home, definitions })
  const log = pino({ level: 'silent' })
  const app = await createApplication(config.core, log)
  const routes = rememberRoles(app)
  const host = new PluginHost({ definitions, config, logs: new LogLevels(log), signal: over.signal })
  try {
    await host.register(app)
    const { payload } = await app.inject({ url: '/openapi.json', headers: { host: 'localhost' } })
    return { 'openapi.json': `${JSON.stringify(JSON.parse(payload), null, 2)}\n`, ...renderRoleDocs(routes) }
  } finally {
    over.abort()
    await app.close()
    await host.stop()
    rmSync(home, { recursive: true, force: true })
  }
}

/** Collects the routes registered from now on, without the HEAD route of each GET. */
function rememberRoles(app: FastifyInstance): readonly RoleRow[] {
  const rows: RoleRow[] = []
  app.addHook('onRoute', ({ method, url, config, schema }) => {
    const methods = [method].flat()
    const isTwin = methods.join() === 'HEAD' && rows.some(row => row.url === url && row.methods.includes('GET'))
    if (!isTwin) rows.push({ methods, url, role: config?.role ?? 'user', summary: schema?.summary })
  })
  return rows
}
