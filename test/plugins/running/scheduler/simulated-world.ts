import type { MemoryUse } from '../../../../core/contracts/engines.ts'
import type { LoadOptions } from '../../../../core/models/load-options.ts'
import type { Limits } from '../../../../plugins/running/scheduler/scheduler-state.ts'
import { randomNumbers } from '../../../support/random.ts'

/* The parts of a simulation: chance, time, and a world of models and memory. */

/** Random choices, the same for the same seed. */
export class Dice {
  readonly random: () => number

  constructor(seed: number) {
    this.random = randomNumbers(seed)
  }

  under(most: number): number {
    return Math.floor(this.random() * most)
  }

  between(least: number, most: number): number {
    return least + this.under(most - least + 1)
  }

  chance(share: number): boolean {
    return this.random() < share
  }

  pick<T>(list: readonly T[]): T {
    return list[this.under(list.length)]!
  }
}

/** A clock with an agenda. Entries of the same time run in order of their creation. */
export class Agenda {
  now = 0
  /** Number of the next entry. */
  order = 0
  readonly #entries: { at: number; order: number; act: () => void }[] = []

  get isEmpty(): boolean {
    return !this.#entries.length
  }

  after(delay: number, act: () => void): undefined {
    const entry = { at: this.now + delay, order: this.order++, act }
    let low = 0
    for (let high = this.#entries.length; low < high; ) {
      const middle = (low + high) >> 1
      const other = this.#entries[middle]!
      if (other.at > entry.at || (other.at === entry.at && other.order > entry.order)) low = middle + 1
      else high = middle
    }
    this.#entries.splice(low, 0, entry)
  }

  /** Runs the next entry. Returns false if it would be later than `horizon`. */
  step(horizon: number): boolean {
    const { at, act } = this.#entries.pop()!
    this.now = Math.max(this.now, at)
    if (this.now > horizon) return false
    act()
    return true
  }
}

export interface Model {
  key: string
  /** Fixed memory, and memory per thousand tokens of all slots. */
  base: number
  each: number
  pool: string
  /** Factor by which its need is misjudged before it was measured. */
  error: number
  certain: boolean
  pinned: boolean
  groups: string[]
  maxConcurrent: number | undefined
  keepAlive: number | undefined
  /** Slots of a program that its command fixes. Load options do not matter to it. */
  slots: number | undefined
  /** Needs that have been learned, by options. */
  learned: Map<string, number>
}

export interface World {
  /** Nothing breaks or changes, so waits have limits. */
  calm: boolean
  /** Maximum duration of each step, in milliseconds. */
  longest: { answer: number; load: number; stop: number; prepare: number }
  pools: string[]
  models: Model[]
  limits: Limits
  /** Maximum wait for room in a calm world. */
  bound: number
  budget: MemoryUse
}

export function createWorld(dice: Dice): World {
  const calm = dice.chance(0.5)
  const longest = {
    answer: dice.between(50, 6000),
    load: dice.between(20, 1500),
    stop: dice.between(5, 400),
    prepare: dice.between(1, 200)
  }
  const pools = dice.chance(0.3) ? ['host', 'GPU0'] : ['host']
  const models = ['a#chat', 'b#chat', 'c#chat', 'a#embedding', 'd#chat', 'e#chat']
    .slice(0, dice.between(2, 6))
    .map(key => createModel(dice, key, pools))
  const limits: Limits = {
    maxLoaded: dice.between(1, 4),
    maxQueue: dice.between(3, 60),
    keepAlive: dice.between(50, 20_000),
    fairWait: dice.between(20, 4000),
    fairCount: dice.between(1, 20),
    roomTimeout: 0,
    loadGrace: dice.between(0, 3000),
    queuePerKey: dice.between(2, 60),
    reloads: dice.between(0, 6)
  }
  // Each of the other models may get a turn first.
  const clientId = limits.fairWait + longest.answer + 3 * (longest.stop + 2 * longest.load + longest.prepare) + 200
  const bound = (models.length + 1) * clientId
  limits.roomTimeout = calm ? 2 * bound : dice.between(500, bound)
  let budget: MemoryUse = {}
  for (const pool of pools) if (dice.chance(0.9)) budget[pool] = dice.between(40, 400)
  if (dice.chance(0.2)) {
    // A model that needs nearly all memory, among small models that could always overtake it.
    budget = { host: 200 }
    for (const [index, model] of models.entries()) {
      Object.assign(model, { pool: 'host', base: index === 0 ? 190 : 30, each: 0, error: 1, pinned: false, groups: [] })
    }
    Object.assign(limits, { maxLoaded: 10, keepAlive: 20 })
  }
  return { calm, longest, pools, models, limits, bound, budget }
}

function createModel(dice: Dice, key: string, pools: readonly string[]): Model {
  const isProgram = dice.chance(0.3)
  return {
    key,
    base: dice.between(10, 100),
    each: isProgram ? 0 : dice.between(0, 3),
    slots: isProgram ? dice.between(1, 8) : undefined,
    pool: dice.pick(pools),
    error: dice.chance(0.7) ? 1 : 0.6 + dice.random(),
    certain: dice.chance(0.6),
    pinned: dice.chance(0.07),
    groups: dice.chance(0.2) ? ['g'] : [],
    maxConcurrent: dice.chance(0.2) ? dice.between(1, 3) : undefined,
    keepAlive: dice.chance(0.1) ? 0 : undefined,
    learned: new Map()
  }
}

/** Memory that a model really needs with these options. */
export function takes(model: Model, options: LoadOptions): number {
  return Math.round(model.base + (model.each * options.num_ctx * options.num_parallel) / 1000)
}

/** Key under which needs are learned. */
export function formatName(options: LoadOptions): string {
  return `${options.num_ctx}/${options.num_parallel}/${options.cache_type_k}`
}
