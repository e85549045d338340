import type { EngineFields } from '../../../../../core/contracts/engines.ts'
import {
  ClusterView,
  modelKey,
  type NodeModel,
  type NodeView
} from '../../../../../plugins/machines/cluster/placement/choose-node.ts'
import { type PromptBlocks, promptBlocks } from '../../../../../plugins/machines/cluster/placement/prefix-memory.ts'

export const MODEL = modelKey('corral/tiny-chat:f16', 'chat')
const GIB = 2 ** 30

/** A model of 1 GiB with four slots, with overrides. */
export function model(more: Partial<NodeModel> = {}): NodeModel {
  return { state: 'loaded', size: GIB, slots: 4, context: 4096, running: 0, queued: 0, ...more }
}

export const stored = (more: Partial<NodeModel> = {}) => model({ state: 'stored', slots: 0, context: 0, ...more })

/** A node with `MODEL`, or the given models, and 8 GiB of free memory. */
export function member(
  name: string,
  models: Record<string, NodeModel> | NodeModel = {},
  more: Partial<NodeView> = {}
): NodeView {
  const all = 'state' in models ? { [MODEL]: models as NodeModel } : (models as Record<string, NodeModel>)
  return {
    name,
    state: 'up',
    models: new Map(Object.entries(all)),
    memory: [{ pool: 'host', reserved: 0, budget: 8 * GIB }],
    ...more
  }
}

export function clusterOf(...members: NodeView[]): ClusterView {
  const cluster = new ClusterView()
  for (const each of members) cluster.set(each)
  return cluster
}

export const holding = (gibibytes: number) => ({
  memory: [{ pool: 'host', reserved: gibibytes * GIB, budget: 8 * GIB }]
})

/** A conversation of alternating messages. */
export function talk(...contents: string[]): EngineFields {
  return { messages: contents.map((content, index) => ({ role: index % 2 ? 'assistant' : 'user', content })) }
}

export const digestsOf = (request: EngineFields, session?: string): PromptBlocks =>
  promptBlocks(request, { model: MODEL, owner: 'anna', session })

/** A text of this length without repetitions. */
export function text(length: number, seed = 0): string {
  let made = ''
  for (let number = seed * 1e6; made.length < length; number++) made += `${number} `
  return made.slice(0, length)
}
