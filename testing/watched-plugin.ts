import type { EngineProvider } from '../core/contracts/engines.ts'
import type { Hub } from '../core/contracts/hubs.ts'
import type { ModelSource } from '../core/contracts/models.ts'
import type { PluginContext, PluginDefinition } from '../core/plugins/plugin.ts'

/** What a plugin added to the services of others in its setup. */
export interface Added {
  hubs: Hub[]
  providers: EngineProvider[]
  sources: ModelSource[]
}

/** The methods by which plugins add to services. */
const METHODS = { downloads: ['addHub', 'hubs'], engines: ['add', 'providers'], catalog: ['add', 'sources'] } as const

/** The same plugin, and what it adds once it is set up. */
export function watchedPlugin<Definition extends PluginDefinition>(
  plugin: Definition
): { plugin: Definition; added: Added } {
  const added: Added = { hubs: [], providers: [], sources: [] }
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
            const result = value.apply(target, values)
            if (key === method) (added[list] as unknown[]).push(values[0])
            return result
          }
        }
      })
    }
    const watched = { ...context, service: service as PluginContext['service'] }
    return await plugin.setup(watched, options)
  }
  return { plugin: { ...plugin, setup }, added }
}
