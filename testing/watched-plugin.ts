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

/** The methods of an engine that a faulty one may never end. */
const CALLS = [
  ...(['chat', 'completion', 'embed', 'rerank', 'stop', 'saveSlots'] as const),
  ...(['tokenize', 'detokenize', 'countTokens', 'applyTemplate'] as const)
]

/** Wraps an engine so that its promises settle when the signal is aborted at the latest, even if it is faulty. */
function boundedEngine(engine: Engine, ended: AbortSignal): Engine {
  const bounded = Object.create(engine) as Record<string, unknown>
  const orEnd = <Value>(value: Promise<Value>, end: (settle: (value?: never) => void, fail: () => void) => void) =>
    new Promise<Value>((resolve, reject) => {
      const atEnd = () => end(resolve as never, () => reject(ended.reason))
      if (ended.aborted) atEnd()
      else ended.addEventListener('abort', atEnd)
      const settled = () => ended.removeEventListener('abort', atEnd)
      // Whatever the engine returns: the server finds the fault.
      Promise.resolve(value).then(resolve, reject).then(settled, settled)
    })
  for (const name of CALLS) {
    const call = engine[name] as ((...values: unknown[]) => Promise<unknown>) | undefined
    if (!call) continue
    bounded[name] = (...values: unknown[]) => {
      const settle = name === 'stop' || name === 'saveSlots'
      return orEnd(call.apply(engine, values), (resolve, fail) => (settle ? resolve() : fail()))
    }
  }
  if (typeof engine.exited?.then !== 'function') return engine
  const gone = { code: null, signal: null, expected: true }
  bounded.exited = orEnd(engine.exited, resolve => resolve(gone as never))
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
      // Without an engine, the server says so.
      if (!(engine instanceof Object)) return engine
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
