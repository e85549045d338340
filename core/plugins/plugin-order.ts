import { type FoundPlugin, PLUGIN_API } from './plugin.ts'
import { PluginError, type PluginErrorCode } from './plugin-error.ts'

export interface LeftOut {
  definition: FoundPlugin
  state: 'disabled' | 'failed'
  reason: string
}

/**
 * Decides which plugins are active, and the order of their start: each after the plugins whose services it needs,
 * whatever the order of the list. Optional plugins that cannot run are left out.
 * @throws PluginError if two plugins have the same name or offer the same service, if needs form a cycle, or if a
 * required plugin has another contract version or an unmet need
 */
export function planPlugins(definitions: readonly FoundPlugin[], isEnabled: (definition: FoundPlugin) => boolean) {
  const leftOut: LeftOut[] = []
  const active = new Map<string, FoundPlugin>()
  const fail = (definition: FoundPlugin, code: PluginErrorCode, reason: string) => {
    if (!definition.optional) throw new PluginError(code, definition.name, reason)
    active.delete(definition.name)
    leftOut.push({ definition, state: 'failed', reason })
  }

  const sound = definitions.filter(definition => {
    if (definition.fault !== undefined) leftOut.push({ definition, state: 'failed', reason: definition.fault })
    return definition.fault === undefined
  })
  // Built-in plugins come first, so that no other plugin takes their names.
  const rank = ({ path, name }: FoundPlugin) => `${path === undefined ? 0 : 1} ${name}`
  for (const definition of sound.sort((a, b) => (rank(a) < rank(b) ? -1 : 1))) {
    const { name } = definition
    if (definition.optional && !isEnabled(definition)) {
      leftOut.push({ definition, state: 'disabled', reason: `${name}.enabled is false` })
    } else if (definition.api !== PLUGIN_API) {
      const reason = `Plugin "${name}" is written for version ${definition.api} of the plugin contract, but this corral supports version ${PLUGIN_API}. Install matching versions.`
      fail(definition, 'plugin_api_unsupported', reason)
    } else active.set(name, definition)
  }

  const providers = new Map<string, FoundPlugin>()
  for (const definition of active.values()) {
    for (const service of definition.offers ?? []) {
      const other = providers.get(service)
      if (!other) {
        providers.set(service, definition)
        continue
      }
      const reason = `Both plugins "${other.name}" and "${definition.name}" offer the service "${service}"; disable one of them or leave it out.`
      if (definition.path === undefined) throw new PluginError('plugin_service_conflict', definition.name, reason)
      fail(definition, 'plugin_service_conflict', reason)
      break
    }
  }

  const provider = (service: string) => {
    const found = providers.get(service)
    return found && active.has(found.name) ? found : undefined
  }
  // Each round may remove services that others need. The loop ends when all remaining needs are met.
  for (let settled = false; !settled; ) {
    settled = true
    for (const definition of active.values()) {
      const missing = definition.needs?.find(service => !provider(service))
      if (missing === undefined) continue
      settled = false
      const absent = leftOut.find(left => (left.definition.offers ?? []).some(service => service === missing))
      const lacks = `Plugin "${definition.name}" needs the service "${missing}"`
      if (absent?.state === 'disabled' && definition.optional) {
        const reason = `${lacks}, and "${absent.definition.name}", which offers it, is disabled.`
        active.delete(definition.name)
        leftOut.push({ definition, state: 'disabled', reason })
        continue
      }
      const why = absent
        ? `, and "${absent.definition.name}", which offers it, is ${absent.state === 'disabled' ? 'disabled' : 'left out because it failed'}: ${absent.reason}`
        : ', which no plugin offers. Add one that does, or leave this one out'
      fail(definition, 'plugin_service_missing', `${lacks}${why}.`.replace(/\.\.$/, '.'))
    }
  }

  const order: FoundPlugin[] = []
  const visit = (definition: FoundPlugin, trail: string[]) => {
    if (order.includes(definition)) return
    const path = [...trail, definition.name]
    if (trail.includes(definition.name)) {
      const circle = path.slice(path.indexOf(definition.name)).map(name => `"${name}"`)
      const message = `Plugins need each other in a circle: ${circle.join(' → ')}. One of them must work without the other's service.`
      throw new PluginError('plugin_cycle', definition.name, message)
    }
    for (const service of [...(definition.needs ?? [])].sort()) visit(provider(service)!, path)
    order.push(definition)
  }
  for (const definition of active.values()) visit(definition, [])
  return { order, leftOut }
}
