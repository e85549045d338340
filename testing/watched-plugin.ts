import type { EngineProvider } from '../core/contracts/engines.ts'
import type { Hub } from '../core/contracts/hubs.ts'
import type { ModelSource } from '../core/contracts/models.ts'
import type { PluginContext, PluginDefinition } from '../core/plugins/plugin.ts'

/** What a plugin added to the services of others in its setup. */
export interface Added {
  hubs: Hub[]
  providers: EngineProvider[]
  sources: ModelSource[]
  /** Keys of what `setup` returned that mean nothing to corral. */
  unknownKeys: string[]
}

const DEFINITION = ['name', 'api', 'description', 'offers', 'needs', 'optional', 'options', 'setup']
const OFFER = ['services', 'hooks', 'on', 'routes', 'web', 'start', 'check', 'reload', 'stop']
const ON = ['request', 'event', 'modelLoaded', 'modelUnloaded', 'pullFinished']

/** The methods by which plugins add to services. */
const METHODS = { downloads: ['addHub', 'hubs'], engines: ['add', 'providers'], catalog: ['add', 'sources'] } as const

const unknown = (value: object, known: string[], where: string) =>
  Object.keys(value)
    .filter(key => !known.includes(key))
    .map(key => `"${key}" in ${where} (known are ${known.join(', ')})`)

/** Keys of a definition that mean nothing to corral, such as misspelled ones. */
export const unknownDefinitionKeys = (definition: object) => unknown(definition, DEFINITION, 'the definition')

/** The same plugin, and what it adds once it is set up. */
export function watchedPlugin<Definition extends PluginDefinition>(
  plugin: Definition
): { plugin: Definition; added: Added } {
  const added: Added = { hubs: [], providers: [], sources: [], unknownKeys: [] }
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
    const offer = await plugin.setup(watched, options)
    if (offer) {
      added.unknownKeys.push(...unknown(offer, OFFER, 'what setup returns'), ...unknown(offer.on ?? {}, ON, '"on"'))
    }
    return offer
  }
  return { plugin: { ...plugin, setup }, added }
}
