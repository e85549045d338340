import type { Engine, EngineProvider } from '../core/contracts/engines.ts'
import type { Hub } from '../core/contracts/hubs.ts'
import type { ModelSource } from '../core/contracts/models.ts'
import type { PluginContext, PluginDefinition } from '../core/plugins/plugin.ts'

/** The additions of a plugin to the services of others in its setup, and its started engines. */
export interface Added {
  hubs: Hub[]
  providers: EngineProvider[]
  sources: ModelSource[]
  engines: Engine[]
}

/** The methods by which plugins add to services. */
const METHODS = { downloads: ['addHub', 'hubs'], engines: ['add', 'providers'], catalog: ['add', 'sources'] } as const

/** Wraps an engine so that its promises settle when the signal is aborted at the latest, even if it is faulty. */
function boundedEngine(engine: Engine, ended: AbortSignal): Engine {
  const bounded = Object.create(engine) as Record<string, unknown>
  const orEnd = <Value>(value: Promise<Value>, end: (settle: (value?: never) => void, fail: () => void) => void) =>
    new Promise<Value>((resolve, reject) => {
      value.then(resolve, reject)
      const atEnd = () => end(resolve as never, () => reject(ended.reason))
      if (ended.aborted) atEnd()
      else ended.addEventListener('abort', atEnd)
    })
  for (const name of ['chat', 'completion', 'embed', 'rerank', 'tokenize', 'stop', 'saveSlots'] as const) {
    const call = engine[name] as ((...values: unknown[]) => Promise<unknown>) | undefined
    if (!call) continue
    bounded[name] = (...values: unknown[]) => {
      const settle = name === 'stop' || name === 'saveSlots'
      return orEnd(call.apply(engine, values), (resolve, fail) => (settle ? resolve() : fail()))
    }
  }
  const gone = { code: null, signal: null, expected: true }
  bounded.exited = orEnd(Promise.resolve(engine.exited), resolve => resolve(gone as never))
  return bounded as unknown as Engine
}

/**
 * Wraps a plugin, and returns what it adds once it is set up.
 * @param ended ends engines that do not end by themselves
 */
export function watchedPlugin<Definition extends PluginDefinition>(
  plugin: Definition,
  ended?: AbortSignal
): { plugin: Definition; added: Added } {
  const added: Added = { hubs: [], providers: [], sources: [], engines: [] }
  const watched = (provider: EngineProvider): EngineProvider => {
    const start: EngineProvider['start'] = async (...values) => {
      const engine = await provider.start(...values)
      added.engines.push(engine)
      return ended ? boundedEngine(engine, ended) : engine
    }
    return Object.defineProperty(Object.create(provider), 'start', { value: start })
  }
  const setup: PluginDefinition['setup'] = async (context, options) => {
    const service = (name: keyof typeof METHODS) => {
      const found = context.service(name)
      if (!Object.hasOwn(METHODS, name)) return found
      const [method, list] = METHODS[name]
      return new Proxy(found, {
        get(target, key) {
          const value = Reflect.get(target, key)
          if (typeof value !== 'function') return value
          return (...values: unknown[]) => {
            const [first, ...rest] = values
            const isProvider = name === 'engines' && key === method
            const result = value.call(target, isProvider ? watched(first as EngineProvider) : first, ...rest)
            if (key === method) (added[list] as unknown[]).push(first)
            return result
          }
        }
      })
    }
    return await plugin.setup({ ...context, service: service as PluginContext['service'] }, options)
  }
  return { plugin: { ...plugin, setup }, added }
}
