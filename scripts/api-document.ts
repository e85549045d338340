import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pino } from 'pino'
import { loadConfig } from '../core/config/load.ts'
import { createApplication } from '../core/http/application.ts'
import type { PluginDefinition } from '../core/plugins/plugin.ts'
import { PluginHost } from '../core/plugins/plugin-host.ts'
import { builtInPlugins } from '../plugins/built-in.ts'

/** The API document as a server with default settings gives it: its routes are registered, but nothing is started. */
export async function renderApiDocument(
  definitions: readonly PluginDefinition[] = builtInPlugins
): Promise<{ 'openapi.json': string }> {
  const home = mkdtempSync(join(tmpdir(), 'corral-document-'))
  const over = new AbortController()
  const config = await loadConfig({ flags: { home }, env: {}, cwd: home, definitions })
  const log = pino({ level: 'silent' })
  const app = await createApplication(config.core, log)
  const host = new PluginHost({ definitions, config, log, signal: over.signal })
  try {
    await host.register(app)
    const { payload } = await app.inject({ url: '/openapi.json', headers: { host: 'localhost' } })
    return { 'openapi.json': `${JSON.stringify(JSON.parse(payload), null, 2)}\n` }
  } finally {
    over.abort()
    await app.close()
    await host.stop()
    rmSync(home, { recursive: true, force: true })
  }
}
