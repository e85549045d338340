import type { EngineMode, EngineProvider } from '../../../core/contracts/engines.ts'
import type { Capability, Model } from '../../../core/contracts/models.ts'
import { MODES } from './asking/ask-protocol.ts'
import { callNode } from './asking/node-call.ts'
import { createClusterEngine, type WithoutBytes } from './cluster-engine.ts'
import type { Copies } from './copying/copies.ts'
import type { ClusterNodes } from './nodes/nodes.ts'
import { modelKey } from './placement/cluster-view.ts'
import type { ReplicaKeeper } from './replica-keeper.ts'

/** The capability that a mode needs, if no node has described the model. */
const NEEDED: Record<EngineMode, Capability> = { chat: 'completion', embedding: 'embedding', rerank: 'rerank' }

export function clusterProvider(
  members: ClusterNodes,
  copies: Copies,
  replicas: Pick<ReplicaKeeper, 'records'>
): EngineProvider {
  const withoutBytes: WithoutBytes = new Set()

  /** Sends a request to each node that has the model in memory. Nodes that do not answer are ignored. */
  async function atEach(variant: Model, path: string, body: (name: string) => object): Promise<boolean> {
    const holders = members.all().filter(member => isHeld(member.view.models, variant))
    const done = await Promise.all(
      holders.map(async member => {
        const name = members.nameAt(member, variant)
        if (name === undefined) return false
        try {
          const reply = await callNode(member, path, { body: body(name) })
          await reply.body.dump()
          return true
        } catch {
          // The node refused, or it is gone with its models.
          return false
        }
      })
    )
    return done.includes(true)
  }

  return {
    name: 'cluster',
    serves({ format, key, metadata }, mode) {
      if (format !== 'cluster') return 0
      const described = members.all().flatMap(({ models }) => models.get(key) ?? [])
      const isServed =
        described.length === 0
          ? metadata.capabilities.includes(NEEDED[mode])
          : described.some(({ modes }) => modes.includes(mode))
      return isServed ? 1 : 0
    },
    // Nodes load models. The options of a request are sent along with it.
    loadOptions: () => ({}),
    start: async spec => createClusterEngine(spec, members, copies, withoutBytes),
    elsewhere() {
      const held = members.elsewhere()
      return { ...held, loading: [...held.loading, ...copies.loading()], replicas: replicas.records() }
    },
    unload: variant => atEach(variant, '/api/stop', model => ({ model })),
    keepAlive(variant, ms) {
      void atEach(variant, '/api/generate', model => ({ model, keep_alive: ms / 1000, stream: false }))
    }
  }
}

const isHeld = (models: ReadonlyMap<string, { state: string }>, { key }: Model) =>
  MODES.some(mode => {
    const state = models.get(modelKey(key, mode))?.state
    return state === 'loaded' || state === 'loading'
  })
