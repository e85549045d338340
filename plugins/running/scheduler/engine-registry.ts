import type { FastifyBaseLogger } from 'fastify'
import type { PoolsInUse } from '../../../core/contracts/built-in-services.ts'
import type { EngineMode, EngineProvider, Engines, MemoryUse } from '../../../core/contracts/engines.ts'
import type { Capability, Model } from '../../../core/contracts/models.ts'
import { CorralError } from '../../../core/errors.ts'
import { listOperations } from '../../../core/models/model-operations.ts'
import { addTo } from '../../../core/system/collections.ts'

/** The registry of engine providers, with members that only the scheduler uses. */
export interface EngineRegistry extends Engines {
  /** Like `providerOf`. @throws CorralError `unsupported_capability`, which lists the model's abilities */
  requireProvider(model: Model, mode: EngineMode): EngineProvider
  /** Bytes of main memory that providers give up as soon as an engine needs them. */
  reclaimable(): number
  budget(held: MemoryUse): Promise<MemoryUse>
  close(): Promise<void>
}

const PURPOSES: Record<string, string> = {
  chat: 'generate text',
  embedding: 'make embeddings',
  rerank: 'rank documents'
}
const PLACES: Partial<Record<Capability, string>> = {
  completion: 'generates text',
  embedding: 'makes embeddings (/v1/embeddings, /api/embed)',
  rerank: 'ranks documents (/v1/rerank)'
}

function unsupported({ publicName, metadata }: Model, mode: EngineMode): CorralError {
  const others = listOperations({ metadata }).map(operation => `does "${operation}"`)
  const able = [...metadata.capabilities.flatMap(capability => PLACES[capability] ?? []), ...others]
  const kind = metadata.architecture ? ` (${metadata.architecture})` : ''
  const instead = able.length ? `it ${able.join(' and ')}` : `corral cannot run models of its kind${kind}`
  return new CorralError(
    'unsupported_capability',
    `Model "${publicName}" cannot ${PURPOSES[mode] ?? `do "${mode}"`}: ${instead}. Use a model that can.`,
    { param: 'model' }
  )
}

export function createEngineRegistry(
  limits: Pick<Engines, 'settings' | 'hostMemory'> & { hostUsed?(): Promise<PoolsInUse> },
  log?: Pick<FastifyBaseLogger, 'error'>
): EngineRegistry {
  const providers: EngineProvider[] = []
  const faulty = new Set<EngineProvider>()

  /** Returns the score of a provider for a model. A provider that throws gets 0, so the others are still asked. */
  function getScore(provider: EngineProvider, model: Model, mode: EngineMode): number {
    try {
      return provider.serves(model, mode)
    } catch (error) {
      if (!faulty.has(provider)) {
        log?.error({ err: error }, `The engine provider "${provider.name}" throws in "serves", so it serves no model.`)
      }
      faulty.add(provider)
      return 0
    }
  }

  function providerOf(model: Model, mode: EngineMode): EngineProvider | undefined {
    let best: EngineProvider | undefined
    let most = 0
    for (const provider of providers) {
      const score = getScore(provider, model, mode)
      if (score > most) [best, most] = [provider, score]
    }
    return best
  }

  return {
    ...limits,
    add(provider) {
      if (providers.some(({ name }) => name === provider.name)) {
        throw new Error(`An engine provider named "${provider.name}" already exists.`)
      }
      return addTo(providers, provider)
    },
    providerOf,
    storedConversations: async () =>
      (await Promise.all(providers.map(provider => provider.storedConversations?.() ?? []))).flat(),
    async forgetConversations(of) {
      const counts = await Promise.all(providers.map(provider => provider.forgetConversations?.(of) ?? 0))
      return counts.reduce((sum, count) => sum + count, 0)
    },
    reclaimable: () => providers.reduce((sum, provider) => sum + (provider.reclaimable?.() ?? 0), 0),
    requireProvider(model, mode) {
      const provider = providerOf(model, mode)
      if (!provider) throw unsupported(model, mode)
      return provider
    },
    async checkTemplate(template, signal) {
      for (const provider of providers) await provider.checkTemplate?.(template, signal)
    },
    knownOptions() {
      const lists = providers.flatMap(({ knownOptions }) => knownOptions ?? [])
      return lists.length === 0 ? undefined : new Set(lists.flatMap(list => [...list]))
    },
    elsewhere() {
      const all = providers.flatMap(provider => provider.elsewhere?.() ?? [])
      return {
        running: all.flatMap(({ running }) => running),
        loading: all.flatMap(({ loading }) => loading),
        members: all.flatMap(({ members }) => members),
        replicas: all.flatMap(({ replicas }) => replicas),
        prefixes: all.find(({ prefixes }) => prefixes !== undefined)?.prefixes,
        wanted: all.find(({ wanted }) => wanted !== undefined)?.wanted
      }
    },
    held() {
      const all = providers.flatMap(provider => provider.held?.() ?? [])
      return { running: all.flatMap(({ running }) => running), loading: all.flatMap(({ loading }) => loading) }
    },
    standIn(model, mode, slots) {
      for (const provider of providers) {
        const engine = provider.standIn?.(model, mode, slots)
        if (engine) return engine
      }
      return undefined
    },
    logs: model => providers.flatMap(provider => provider.logs?.(model) ?? []),
    async budget(held) {
      const [host, ...pools] = await Promise.all([
        limits.hostMemory(),
        ...providers.map(provider => provider.budgets?.(held))
      ])
      return Object.assign({}, ...pools, { host })
    },
    used: async () =>
      Object.assign({}, ...(await Promise.all([limits.hostUsed?.(), ...providers.map(provider => provider.used?.())]))),
    async close() {
      await Promise.all(providers.map(provider => provider.close?.()))
    }
  }
}
