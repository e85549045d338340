import { addTo } from '../../../../core/system/open-tables.ts'
import {
  type ClusterView,
  chooseSource,
  freeMemory,
  hashOfName,
  memoryBudget,
  type NodeView,
  rendezvous
} from './choose-node.ts'

/** What a plan needs to know about the replicas of a model. */
export interface PlannedModel {
  /** As `modelKey` returns it. */
  key: string
  wanted: number
  /** At most `wanted`: the minimum, and replicas with requests. Further ones give way to those needed elsewhere. */
  needed: number
  min: number
  /** Nodes that are asked to load it and may not have reported that yet. */
  loads: ReadonlySet<string>
  /** Nodes whose last load failed recently. */
  avoid: ReadonlySet<string>
  /** Nodes that may unload it if fewer replicas are enough. */
  spare: ReadonlySet<string>
  /** Nodes whose replica is unused, so it may be moved. */
  quiet: ReadonlySet<string>
  /** Its measured memory, if it is no longer loaded anywhere. */
  size?: number | undefined
  /** How many nodes should have its files, in memory or not. */
  copies: number
}

export interface PlanStep {
  /** load: after a copy of its files from `from`, if the node lacks them. copy: only the files. */
  action: 'load' | 'unload' | 'copy'
  model: string
  member: string
  from?: string
  /** The model that gets the room. */
  for?: string
  /** It must wait: for memory there, or until the replica that replaces it is loaded. */
  waits?: 'memory' | 'replacement'
}

export interface Plan {
  /** By model: the nodes that should have it in memory. */
  placed: ReadonlyMap<string, readonly string[]>
  steps: readonly PlanStep[]
  /** By model: how many replicas have no place. */
  missing: ReadonlyMap<string, number>
  /** How many more nodes, each as large as the largest, would have room for these. */
  lacking: number
}

/** Maximum placements that one search compares … */
const MAX_TRIES = 200
/** … and maximum replicas that others are moved for, and maximum nodes that are considered for each of them. */
const MAX_CLEARED_NODES = 8
/** Maximum new replicas of one plan. The next plan has the others. */
const MAX_FRESH = 64
/** Nodes that are compared for a replica. If there are more replicas, as many as these can fill and one more. */
const MIN_COMPARED_NODES = 16

interface Facts {
  model: PlannedModel
  hash: number
  size: number
  /** Nodes that have it in memory or are loading it, in the same order at all gateways. */
  present: ReadonlySet<string>
  /** Nodes that have its files. */
  stored: ReadonlySet<string>
  isOpen(member: string): boolean
}

/** A replica that needs a place. */
interface Item {
  of: Facts
  /** The first replica of a model has 1. */
  number: number
  /** Nodes from which it may be moved. It stays on one of them if it can. */
  at: readonly string[]
  /** It is not needed: it stays or goes, but does not move. */
  isSurplus: boolean
}

/**
 * Plans which nodes have which models in memory, and the steps to get there. It depends only on its input, and ties are
 * decided by hashes of names, so gateways with the same view make the same plan.
 *
 * - Replicas stay on their nodes. A new one goes to a node with room, by these preferences: another zone than the
 *   others, a node that has its files, the node with the most free memory.
 * - Minimums come first, then first replicas before further ones, and large models before small ones.
 * - If one has no place, the node is cleared for it from which the fewest replicas have to move. Only replicas that no
 *   client uses are moved, or unloaded if they are not needed. A replica that is needed is never given up for another, and
 *   goes only when another one has replaced it.
 *
 * A branch and bound search places new replicas and the replicas of a node that is cleared. It finds the best places if it
 * need not compare more than `MAX_TRIES`, otherwise places at least as good as placing one replica after the other. It
 * does not search for chains of moves over several nodes.
 */
export function planReplicas(models: readonly PlannedModel[], cluster: ClusterView): Plan {
  const members = cluster.members().sort((a, b) => cluster.hashOf(a.name) - cluster.hashOf(b.name))
  const named = new Map(members.map(member => [member.name, member]))
  const free = new Map(members.map(member => [member.name, freeMemory(member)]))
  const all = [...models].sort((a, b) => (a.key < b.key ? -1 : 1)).map(model => getFacts(model, cluster))
  for (const { model, size } of all) {
    for (const name of model.loads) {
      const isReported = named.get(name)?.models.get(model.key)?.state !== 'stored'
      if (free.has(name) && !isReported) free.set(name, free.get(name)! - size)
    }
  }
  /** Without the memory of replicas that are still to be unloaded. Moves use no other, so that none waits for another. */
  const now = new Map(free)
  const before = new Map(free)

  const placed = new Map<Facts, Set<string>>()
  /** Replicas that are too many. */
  const dropped = new Map<Facts, string[]>()
  const fresh: Item[] = []
  for (const of of all) {
    const { wanted, spare } = of.model
    const kept = [...of.present].filter(name => !spare.has(name))
    const idle = [...of.present].filter(name => spare.has(name))
    const stay = idle.splice(0, Math.max(0, wanted - kept.length))
    placed.set(of, new Set([...kept, ...stay]))
    dropped.set(of, idle)
    for (const name of idle) free.set(name, free.get(name)! + of.size)
    const count = of.stored.size > 0 ? wanted - placed.get(of)!.size : 0
    for (let more = 0; more < count; more++) {
      fresh.push({ of, number: wanted - count + more + 1, at: [], isSurplus: false })
    }
  }
  const rank = ({ of: { model }, number }: Item) => (number <= model.min ? 0 : 1)
  fresh.sort((a, b) => rank(a) - rank(b) || a.number - b.number || b.of.size - a.of.size || a.of.hash - b.of.hash)
  fresh.splice(MAX_FRESH)

  const take = ({ of }: Item, name: string) => {
    placed.get(of)!.add(name)
    free.set(name, free.get(name)! - of.size)
    if (!of.present.has(name)) now.set(name, now.get(name)! - of.size)
  }
  const giveBack = ({ of }: Item, name: string) => {
    placed.get(of)!.delete(name)
    free.set(name, free.get(name)! + of.size)
    if (!of.present.has(name)) now.set(name, now.get(name)! + of.size)
  }
  const rankAt = (of: Facts, name: string) => rendezvous(cluster.hashOf(name), of.hash)
  const mayTake = ({ of }: Item, name: string) => of.isOpen(name) && !placed.get(of)!.has(name)
  const fits = (item: Item, name: string) => free.get(name)! >= item.of.size && !placed.get(item.of)!.has(name)
  /** Returns the nodes with room, best first. */
  function candidates(item: Item, names: Iterable<string>): string[] {
    const { of } = item
    const zoneOf = (name: string) => named.get(name)?.zone
    const inZone = new Map<string | undefined, number>()
    for (const name of placed.get(of)!) addTo(inZone, zoneOf(name), 1)
    inZone.delete(undefined)
    const isMove = item.at.length > 0
    return [...names]
      .filter(name => fits(item, name) && of.isOpen(name) && (!isMove || now.get(name)! >= of.size))
      .map(name => ({
        name,
        others: inZone.get(zoneOf(name)) ?? 0,
        isStored: Number(of.stored.has(name)),
        free: free.get(name)!,
        rank: rankAt(of, name)
      }))
      .sort((a, b) => a.others - b.others || b.isStored - a.isStored || b.free - a.free || b.rank - a.rank)
      .map(({ name }) => name)
  }

  /**
   * Finds the best places of items, which are in the order of their importance: first as many as possible, then as few
   * moves as possible.
   */
  function search(items: readonly Item[]): (string | undefined)[] {
    const most = Math.max(MIN_COMPARED_NODES, items.length + 1)
    const first = new Map<Facts, string[]>()
    const compared = items.map(item => {
      const names = first.get(item.of) ?? candidates(item, free.keys()).slice(0, most)
      first.set(item.of, names)
      return names
    })
    const needed = items.filter(({ isSurplus }) => !isSurplus).length
    const least = items.filter(({ at }, index) => at.length === 0 && compared[index]!.length > 0).length
    let best: { chosen: (string | undefined)[]; moves: number; isWhole: boolean } | undefined
    let tries = 0
    const isOver = () => best !== undefined && (tries >= MAX_TRIES || (best.isWhole && best.moves <= least))
    const visit = (chosen: (string | undefined)[], moves: number): void => {
      if (isOver()) return
      if (best) tries++
      const differs = best ? chosen.findIndex((name, index) => index < needed && !name !== !best!.chosen[index]) : -1
      if (differs !== -1 && !chosen[differs]) return
      const index = chosen.length
      const item = items[index]
      if (!item) {
        const isWhole = chosen.every((name, index) => index >= needed || name || compared[index]!.length === 0)
        if (!best || differs !== -1 || moves < best.moves) best = { chosen, moves, isWhole }
        return
      }
      const stays = item.at.filter(name => fits(item, name))
      const others = item.isSurplus ? [] : candidates(item, compared[index]!).filter(name => !item.at.includes(name))
      for (const name of [...stays, ...others]) {
        if (isOver()) return
        take(item, name)
        visit([...chosen, name], moves + (stays.includes(name) ? 0 : 1))
        giveBack(item, name)
      }
      visit([...chosen, undefined], moves)
    }
    visit([], 0)
    return best!.chosen
  }

  let movable: Map<string, Facts[]> | undefined
  /** The movable replicas of each node. */
  function findMovable(): Map<string, Facts[]> {
    if (movable) return movable
    movable = new Map()
    for (const of of all) {
      for (const name of of.present) {
        if (!of.model.quiet.has(name)) continue
        const others = movable.get(name)
        if (others) others.push(of)
        else movable.set(name, [of])
      }
    }
    return movable
  }

  /** Places a replica on the node from which the fewest others must move. @returns whether there is such a node */
  function makeRoom(item: Item): boolean {
    const ways = [...findMovable()]
      .map(([name, others]) => {
        const here = others.filter(other => placed.get(other)!.has(name))
        return { name, here, lack: item.of.size - free.get(name)! }
      })
      .filter(
        ({ name, here, lack }) => here.reduce((bytes, { size }) => bytes + size, 0) >= lack && mayTake(item, name)
      )
      .sort((a, b) => a.lack - b.lack || rankAt(item.of, b.name) - rankAt(item.of, a.name))
    let best: { name: string; items: Item[]; chosen: (string | undefined)[]; moves: number } | undefined
    for (const { name, here } of ways.slice(0, MAX_CLEARED_NODES)) {
      const items = here.map((of): Item => {
        const isSurplus = placed.get(of)!.size > of.model.needed
        return { of, number: 1, at: [name, ...dropped.get(of)!], isSurplus }
      })
      items.sort((a, b) => Number(a.isSurplus) - Number(b.isSurplus) || b.of.size - a.of.size || a.of.hash - b.of.hash)
      for (const other of items) giveBack(other, name)
      take(item, name)
      const chosen = search(items)
      giveBack(item, name)
      for (const other of items) take(other, name)
      if (items.some(({ isSurplus }, index) => !isSurplus && chosen[index] === undefined)) continue
      const moves = chosen.filter(place => place !== undefined && place !== name).length
      if (!best || moves < best.moves) best = { name, items, chosen, moves }
    }
    if (!best) return false
    const { name, items, chosen } = best
    for (const other of items) giveBack(other, name)
    take(item, name)
    settle(items, chosen)
    return true
  }

  const settle = (items: readonly Item[], chosen: readonly (string | undefined)[]) =>
    items.filter((item, index) => {
      const name = chosen[index]
      if (name !== undefined) take(item, name)
      return name === undefined
    })
  const missing = settle(fresh, search(fresh)).filter((item, index) => index >= MAX_CLEARED_NODES || !makeRoom(item))

  const steps: PlanStep[] = []
  const stateOf = (of: Facts, name: string) => named.get(name)?.models.get(of.model.key)?.state
  for (const of of all) {
    const { key, copies } = of.model
    const sources = cluster.hosts(key).all
    const from = (name: string) => (of.stored.has(name) ? undefined : chooseSource(sources, of.hash)?.name)
    const add = (action: 'load' | 'copy', member: string, waits?: PlanStep['waits']) => {
      const source = from(member)
      steps.push({ action, model: key, member, ...(source !== undefined && { from: source }), ...(waits && { waits }) })
    }
    const places = placed.get(of)!
    for (const name of places) {
      if (of.present.has(name)) continue
      const hasRoom = before.get(name)! >= of.size
      if (hasRoom) before.set(name, before.get(name)! - of.size)
      add('load', name, hasRoom ? undefined : 'memory')
    }
    const holders = new Set([...of.stored, ...places])
    const lacking = copies - holders.size
    if (lacking > 0) {
      const others = members.map(({ name }) => name).filter(name => of.isOpen(name) && !holders.has(name))
      const large = others.filter(name => memoryBudget(named.get(name)!) >= of.size)
      const order = (name: string) => -rankAt(of, name)
      for (const name of large.sort((a, b) => order(a) - order(b)).slice(0, lacking)) add('copy', name)
    }
  }
  for (const of of all) {
    const places = placed.get(of)!
    const ready = [...places].filter(name => stateOf(of, name) === 'loaded').length
    for (const member of of.present) {
      if (places.has(member) || stateOf(of, member) !== 'loaded') continue
      const coming = steps.find(step => step.action === 'load' && step.member === member)
      const moved = steps.find(step => step.action === 'load' && step.model === of.model.key)
      if (coming && moved) moved.for = coming.model
      steps.push({
        action: 'unload',
        model: of.model.key,
        member,
        ...(coming && { for: coming.model }),
        ...(ready < Math.min(of.model.needed, of.model.wanted) && { waits: 'replacement' })
      })
    }
  }
  const counts = new Map<string, number>()
  for (const { of } of missing) counts.set(of.model.key, (counts.get(of.model.key) ?? 0) + 1)
  return {
    placed: new Map(all.map(of => [of.model.key, [...placed.get(of)!]])),
    steps,
    missing: counts,
    lacking: countLacking(missing, Math.max(...members.map(memoryBudget)), cluster)
  }
}

function getFacts(model: PlannedModel, cluster: ClusterView): Facts {
  const { key, loads, avoid } = model
  const only = cluster.only(key)
  const isAllowed = ({ name, state }: NodeView) => state === 'up' && (!only || only.has(name))
  const [present, stored] = [new Set<string>(), new Set<string>()]
  let { size = 0 } = model
  for (const { member, model } of cluster.hosts(key).all) {
    size = Math.max(size, model.size)
    if (member.state !== 'away') stored.add(member.name)
    if ((model.state !== 'stored' || loads.has(member.name)) && isAllowed(member)) present.add(member.name)
  }
  for (const name of loads) present.add(name)
  return {
    ...{ model, size, present, stored },
    hash: hashOfName(key),
    isOpen(name) {
      const member = cluster.get(name)
      return member !== undefined && isAllowed(member) && !member.isGuest && !avoid.has(name)
    }
  }
}

/**
 * Returns how many empty nodes with this budget the replicas fill. A replica needs no new node if it is bound to certain
 * nodes, or if a node whose load failed is tried again.
 */
function countLacking(missing: readonly Item[], budget: number, cluster: ClusterView): number {
  const nodes: { free: number; models: Set<string> }[] = []
  const failed = new Map(missing.map(({ of }) => [of, of.model.avoid.size]))
  for (const { of } of [...missing].sort((a, b) => b.of.size - a.of.size)) {
    const { key } = of.model
    failed.set(of, failed.get(of)! - 1)
    if (cluster.only(key) || failed.get(of)! >= 0) continue
    const node = nodes.find(({ free, models }) => free >= of.size && !models.has(key)) ?? {
      free: budget,
      models: new Set()
    }
    if (node.models.size === 0) nodes.push(node)
    node.free -= of.size
    node.models.add(key)
  }
  return nodes.length
}
