import type { PromptBlocks } from './prompt-blocks.ts'

/** Characters of a token, about. */
const CHARACTERS_PER_TOKEN = 4
/** What goes on with at least this share of what a slot holds takes its place, as engines choose their slots. */
const KEPT_SHARE = 0.5

/** What one slot has read. */
interface Sequence {
  readonly digests: readonly number[]
  readonly length: number
  readonly usedAt: number
  inSlot: boolean
}

/** What the slots of a model at one member have read. */
interface SlotMemory {
  slots: number
  /** Characters that its slots can hold together. */
  capacity: number
  /** Characters of all sequences. */
  length: number
  /** In its slots, the one used least recently first: as many as there are slots. */
  readonly inSlots: Set<Sequence>
  /** Were in its slots before, and may still be in the engine's cache beside them; the oldest first. */
  readonly beside: Set<Sequence>
}

/** That sequences of a member contain a digest. */
interface Holding {
  readonly member: string
  count: number
  /** The latest of them. */
  last: Sequence | undefined
}

/** Who reads a prompt: the engine of a model (`modelKey`) at a member, with what a `MemberModel` says of it. */
export interface Reader {
  member: string
  model: string
  slots: number
  context: number
}

/** What members have read of a prompt. */
export interface PrefixMatches {
  /** Those that have read most of it first, at most `most`. */
  longest(most: number): string[]
  /** Characters from the beginning that a member has read. */
  common(member: string): number
  /** Whether a slot has read a prompt that this one begins with: the conversation goes on. */
  goesOn(member: string): boolean
  /** Whether the last request of this session went to the member. */
  hasSession(member: string): boolean
}

/**
 * Remembers which member's slots have read what: digests of beginnings of prompts, with bounds on both sides. A member
 * is not believed to hold more than its slots can (slots × context); all members together no more than so many
 * conversations, of which each gets the same share. It is a guess: other fronts send there as well.
 */
export class PrefixMemory {
  readonly #most: number
  readonly #holdings = new Map<number, Holding | Map<string, Holding>>()
  /** By member, then by model. */
  readonly #members = new Map<string, Map<string, SlotMemory>>()
  #memories = 0
  #sequences = 0

  /** @param most conversations that are remembered */
  constructor(most = 100_000) {
    this.#most = most
  }

  /** Conversations that are remembered, and digests. */
  get size(): { sequences: number; digests: number } {
    return { sequences: this.#sequences, digests: this.#holdings.size }
  }

  /** A member reads this prompt now. */
  read({ member, model, slots, context }: Reader, prompt: PromptBlocks, now: number): void {
    const memory = this.#memoryOf(member, model)
    memory.slots = Math.max(1, slots)
    memory.capacity = memory.slots * (context || 4096) * CHARACTERS_PER_TOKEN
    const before = this.#match(prompt).find(({ holding }) => of(holding, member))
    const earlier = before && goingOn(of(before.holding, member)!, before.end)
    if (earlier) this.#drop(member, memory, earlier)
    const digests = prompt.blocks.filter(({ kept }) => kept).map(({ digest }) => digest)
    if (prompt.session !== undefined) digests.push(prompt.session)
    const sequence = { digests, length: prompt.length, usedAt: now, inSlot: true }
    memory.inSlots.add(sequence)
    memory.length += sequence.length
    this.#sequences++
    for (const digest of digests) this.#hold(digest, member, sequence)
    this.#shrink(member, memory)
    if (this.#sequences <= this.#most) return
    // The share of each has become smaller.
    for (const [name, models] of this.#members) for (const other of models.values()) this.#shrink(name, other)
  }

  /** An engine has gone, or a member with all that it had. */
  forget(member: string, model?: string): void {
    const models = this.#members.get(member)
    if (!models) return
    for (const [key, memory] of models) {
      if (model !== undefined && key !== model) continue
      for (const sequence of [...memory.beside, ...memory.inSlots]) this.#drop(member, memory, sequence)
      models.delete(key)
      this.#memories--
    }
    if (!models.size) this.#members.delete(member)
  }

  find(prompt: PromptBlocks): PrefixMatches {
    const matches = this.#match(prompt)
    const session = prompt.session === undefined ? undefined : this.#holdings.get(prompt.session)
    const first = (member: string) => matches.find(({ holding }) => of(holding, member))
    return {
      longest: most => {
        const found = new Set<string>()
        for (const { holding } of session ? [{ holding: session }, ...matches] : matches) {
          for (const member of holding instanceof Map ? holding.keys() : [holding.member]) {
            if (found.size >= most) return [...found]
            found.add(member)
          }
        }
        return [...found]
      },
      common: member => first(member)?.end ?? 0,
      goesOn: member => {
        const match = first(member)
        const last = match && of(match.holding, member)?.last
        return last?.inSlot === true && last.length === match?.end
      },
      hasSession: member => session !== undefined && of(session, member) !== undefined
    }
  }

  /** How long (milliseconds) the conversation has rested that a new one pushes out of this member's slots; infinite while one is empty. */
  oldest(member: string, model: string, now: number): number {
    const memory = this.#members.get(member)?.get(model)
    if (!memory || memory.inSlots.size < memory.slots) return Number.POSITIVE_INFINITY
    return Math.max(0, now - firstOf(memory.inSlots)!.usedAt)
  }

  /** Conversations that the slots of this member have read. */
  held(member: string, model: string): number {
    const memory = this.#members.get(member)?.get(model)
    return memory ? memory.inSlots.size + memory.beside.size : 0
  }

  /** What of the prompt is remembered of whom, the longest first. */
  #match({ blocks }: PromptBlocks): { end: number; holding: Holding | Map<string, Holding> }[] {
    const found: { end: number; holding: Holding | Map<string, Holding> }[] = []
    for (let index = blocks.length - 1; index >= 0; index--) {
      const { digest, end } = blocks[index]!
      const holding = this.#holdings.get(digest)
      if (holding) found.push({ end, holding })
    }
    return found
  }

  #memoryOf(member: string, model: string): SlotMemory {
    const models = this.#members.get(member) ?? new Map<string, SlotMemory>()
    this.#members.set(member, models)
    let memory = models.get(model)
    if (!memory) {
      memory = { slots: 1, capacity: 0, length: 0, inSlots: new Set(), beside: new Set() }
      models.set(model, memory)
      this.#memories++
    }
    return memory
  }

  #shrink(member: string, memory: SlotMemory): void {
    while (memory.inSlots.size > memory.slots) {
      const oldest = firstOf(memory.inSlots)!
      memory.inSlots.delete(oldest)
      memory.beside.add(oldest)
      oldest.inSlot = false
    }
    const share = this.#most / this.#memories
    while (
      memory.beside.size &&
      (memory.length > memory.capacity || memory.inSlots.size + memory.beside.size > share)
    ) {
      this.#drop(member, memory, firstOf(memory.beside)!)
    }
  }

  #drop(member: string, memory: SlotMemory, sequence: Sequence): void {
    if (!memory.inSlots.delete(sequence)) memory.beside.delete(sequence)
    memory.length -= sequence.length
    this.#sequences--
    for (const digest of sequence.digests) this.#release(digest, member, sequence)
  }

  #hold(digest: number, member: string, sequence: Sequence): void {
    const known = this.#holdings.get(digest)
    const own = known && of(known, member)
    if (own) {
      own.count++
      own.last = sequence
      return
    }
    const holding: Holding = { member, count: 1, last: sequence }
    if (!known) this.#holdings.set(digest, holding)
    else if (known instanceof Map) known.set(member, holding)
    else {
      const both = new Map([
        [known.member, known],
        [member, holding]
      ])
      this.#holdings.set(digest, both)
    }
  }

  #release(digest: number, member: string, sequence: Sequence): void {
    const known = this.#holdings.get(digest)
    const own = known && of(known, member)
    if (!own) return
    own.count--
    if (own.last === sequence) own.last = undefined
    if (own.count > 0) return
    if (known instanceof Map && known.size > 1) known.delete(member)
    else this.#holdings.delete(digest)
  }
}

function of(holding: Holding | Map<string, Holding>, member: string): Holding | undefined {
  if (holding instanceof Map) return holding.get(member)
  return holding.member === member ? holding : undefined
}

/** The sequence of which so much is in the new prompt that this goes on with it. */
function goingOn({ last }: Holding, common: number): Sequence | undefined {
  return last && common >= KEPT_SHARE * last.length ? last : undefined
}

function firstOf<T>(set: ReadonlySet<T>): T | undefined {
  return set.values().next().value
}
