import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pino from 'pino'
import { SseParser } from '../core/answers/openai-events.ts'
import { loadConfig } from '../core/config/load.ts'
import { startServer } from '../core/http/server.ts'
import { definePlugin, type FoundPlugin, type PluginDefinition } from '../core/plugins/plugin.ts'
import type { PluginReport } from '../core/plugins/plugin-report.ts'
import { LogLevels } from '../core/system/log-levels.ts'
import { builtInPlugins } from '../plugins/built-in.ts'
import { echoEngine } from './echo-engine.ts'

export interface TestCorralOptions {
  /** The plugins under test, as their modules export them. */
  plugins?: readonly PluginDefinition[]
  /** Additional text of its config.yaml, such as the section of a plugin. */
  config?: string
  /** False to leave out the echo engine, so that only the engines of `plugins` answer. */
  echo?: boolean
}

/** A corral server in this process, with its own data directory and the demo model `corral/tiny-chat`. */
export interface TestCorral {
  /** Such as `http://127.0.0.1:40123`. */
  readonly url: string
  readonly home: string
  /** Sends a request, a POST if there is a body, and parses the reply if it is JSON. */
  json(path: string, body?: unknown, headers?: Record<string, string>): Promise<{ status: number; body: any }>
  /** Sends a request for a stream and parses the JSON of all its events. */
  events(path: string, body: unknown, headers?: Record<string, string>): Promise<any[]>
  /** The state of the plugin with this name, and what it offers. */
  plugin(name: string): Promise<PluginReport | undefined>
  log(): string
  close(): Promise<void>
}

/**
 * Starts a server with the built-in plugins, the echo engine and the plugins under test. Close it when the test ends.
 * @throws if the start fails, such as a PluginError that names the plugin
 */
export async function startTestCorral(options: TestCorralOptions = {}): Promise<TestCorral> {
  const { plugins = [], config: text = '', echo = true } = options
  const home = await mkdtemp(join(tmpdir(), 'corral-test-'))
  const lines: string[] = []
  const remove = () => rm(home, { recursive: true, force: true, maxRetries: 3 })
  try {
    // Do not search for llama.cpp, which might even compile one.
    await writeFile(join(home, 'config.yaml'), `${text}\n`)
    const found = plugins.map((plugin): FoundPlugin => ({ ...definePlugin(plugin), path: 'under test' }))
    const definitions = [...builtInPlugins, ...(echo ? [echoEngine] : []), ...found]
    const env = { CORRAL_HOME: home, CORRAL_PORT: '0', CORRAL_HOST: '127.0.0.1' }
    const load = async (file?: string) =>
      withoutSearch(await loadConfig({ flags: {}, env, cwd: home, definitions, file }))
    const logs = new LogLevels(pino({ level: 'debug' }, { write: line => void lines.push(line) }))
    const server = await startServer({ config: await load(), definitions, logs, load })
    return {
      url: server.address,
      home,
      async json(path, body, headers) {
        const reply = await fetch(server.address + path, request(body, headers))
        const content = await reply.text()
        const isJson = /\bjson\b/.test(reply.headers.get('content-type') ?? '')
        return { status: reply.status, body: isJson && content !== '' ? JSON.parse(content) : content || undefined }
      },
      async events(path, body, headers) {
        const reply = await fetch(server.address + path, request(body, headers))
        const content = await reply.text()
        if (!/event-stream/.test(reply.headers.get('content-type') ?? '')) {
          return content.split('\n').flatMap(line => (line.trim() ? [JSON.parse(line)] : []))
        }
        const events = new SseParser().push(Buffer.from(content))
        return events.flatMap(event => (event === '[DONE]' ? [] : [JSON.parse(event)]))
      },
      async plugin(name) {
        const reply = await fetch(`${server.address}/api/plugins`)
        return ((await reply.json()) as { plugins: PluginReport[] }).plugins.find(plugin => plugin.name === name)
      },
      log: () => lines.join(''),
      async close() {
        await server.close()
        await remove()
      }
    }
  } catch (error) {
    await remove()
    throw error
  }
}

function request(body: unknown, headers: Record<string, string> = {}): RequestInit {
  if (body === undefined) return { headers }
  return { method: 'POST', headers: { 'content-type': 'application/json', ...headers }, body: JSON.stringify(body) }
}

/** The same configuration without searching for, downloading or compiling llama.cpp. */
function withoutSearch<Config extends { sections: Readonly<Record<string, Readonly<Record<string, unknown>>>> }>(
  config: Config
): Config {
  return { ...config, sections: { ...config.sections, runtimes: { ...config.sections.runtimes, sources: [] } } }
}
