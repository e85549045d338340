import { crc32 } from 'node:zlib'
import { type Static, Type } from 'typebox'
import type { EngineFields } from '../../core/contracts/engines.ts'

/*
 * llama-server compares a prompt with what a slot has read before, and reads only what is new: whoever asks sees in the
 * counts, and in the time to the first token, how much of somebody's prompt was the same. Its cache knows no owners. So
 * where several owners share an engine, corral chooses the slot of each answer (`id_slot`), remembers whose prompt is in
 * it, and asks a slot with somebody else's prompt not to compare (`cache_prompt: false`).
 *
 * llama-server has a second cache (`--cache-ram`): prompts of idle slots, copied into whichever slot fits. That one goes
 * by no slot, so it has to be off where several owners share an engine, from the engine's start.
 */

/** How one answer is asked for, and what becomes of its slot. */
export interface SlotUse {
  /** Fields of the request that no client may choose. */
  readonly fields: { readonly id_slot?: number; readonly cache_prompt?: false }
  /** Whether an answer whose client has gone must reach its slot before it is cut; see `SlotOwners.take`. */
  readonly tracked: boolean
  /** Something of the answer has come: the slot holds this prompt now, and nothing of an earlier one. */
  begun(): void
  /** The answer has ended, in whichever way. */
  end(): void
}

/** What is known of a slot. */
export interface SlotState {
  id: number
  /** Whose prompt it holds; undefined where that is not known, or it has none. */
  owner: string | undefined
  /** Beginnings of the prompt that it holds. */
  trail: Trail | undefined
  /** Counts up with each use; 0 before the first one. */
  usedAt: number
}

const nothing = () => {}
const UNTRACKED: SlotUse = { fields: {}, tracked: false, begun: nothing, end: nothing }
const UNCACHED: SlotUse = { ...UNTRACKED, fields: { cache_prompt: false } }
/** The owner of what no client asked for. */
const SERVER = ''

/** Whose prompts the slots of one engine hold. */
export class SlotOwners {
  readonly #isolated: boolean
  readonly #slots: SlotState[]
  readonly #free: Set<SlotState>
  /** Those who wait for a slot to become free, in order. */
  readonly #waiting: (() => void)[] = []
  #uses = 0
  /** Of an engine that is not isolated: the one owner that it has served, `null` once there were several. */
  #sole: string | null | undefined

  /**
   * @param slots how many the engine has
   * @param isolated whether it was started for several owners; one that was not is left to itself while it has one only
   */
  constructor(slots: number, isolated: boolean) {
    this.#isolated = isolated
    this.#slots = Array.from({ length: slots }, (_, id) => ({ id, owner: undefined, trail: undefined, usedAt: 0 }))
    this.#free = new Set(this.#slots)
  }

  /** Whether each answer takes a slot of corral's choice, so that no request may take several. */
  get isolated(): boolean {
    return this.#isolated
  }

  /** Whose prompt a slot holds; undefined where that is not known for sure. */
  ownerOf(slot: number): string | undefined {
    if (!this.#isolated) return this.#sole ?? undefined
    return this.#slots[slot]?.owner
  }

  /** What a slot's prompt begins with; undefined where that is not known. */
  trailOf(slot: number): Trail | undefined {
    return this.#slots[slot]?.trail
  }

  /** A slot was filled with a prompt of this owner, before the engine served anybody; the oldest one first. */
  restored(slot: number, owner: string, trail: Trail | undefined): void {
    if (!this.#isolated) this.#sole = owner
    const state = this.#slots[slot]
    if (state) Object.assign(state, { owner, trail, usedAt: ++this.#uses })
  }

  /**
   * Takes a slot for one answer; waits until one is free.
   *
   * An answer that is cut before it reached its slot might reach it later, when the slot has been given to another owner
   * already: so the slot counts as taken until llama-server has answered at all. That is where its prompt is about to be
   * read, a moment after the request.
   * @param owner the server itself where absent
   * @throws the signal's reason
   */
  async take(owner: string | undefined, body: EngineFields, signal: AbortSignal): Promise<SlotUse> {
    if (!this.#isolated) return this.#untracked(owner)
    while (this.#free.size === 0) await this.#untilFree(signal)
    if (signal.aborted) {
      // Who was woken for this slot leaves it to the next one.
      this.#waiting.shift()?.()
      throw signal.reason
    }
    const client = owner ?? SERVER
    const trail = trailOf(body)
    const slot = chooseSlot(this.#free, client, trail)
    this.#free.delete(slot)
    slot.usedAt = ++this.#uses
    const isOwn = slot.owner === client
    // Until the answer begins, it holds the earlier prompt, this one or parts of both.
    slot.owner = isOwn ? client : undefined
    slot.trail = isOwn ? slot.trail : undefined
    return {
      fields: isOwn ? { id_slot: slot.id } : { id_slot: slot.id, cache_prompt: false },
      tracked: true,
      begun: () => {
        slot.owner = client
        slot.trail = trail
      },
      end: () => {
        this.#free.add(slot)
        this.#waiting.shift()?.()
      }
    }
  }

  #untracked(owner: string | undefined): SlotUse {
    if (owner !== undefined && this.#sole !== owner) this.#sole = this.#sole === undefined ? owner : null
    return this.#sole === null ? UNCACHED : UNTRACKED
  }

  #untilFree(signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const onAbort = () => {
        this.#waiting.splice(this.#waiting.indexOf(go), 1)
        reject(signal.reason)
      }
      const go = () => {
        signal.removeEventListener('abort', onAbort)
        resolve()
      }
      this.#waiting.push(go)
      signal.addEventListener('abort', onAbort, { once: true })
    })
  }
}

/** Of a conversation that goes on, so much of what a slot holds is in the new prompt too. */
const KEPT_SHARE = 0.5
/** A slot of another conversation is worth taking where it has so much of the new prompt. */
const FOUND_SHARE = 0.5

/**
 * The slot for a prompt, of those that are free (at least one):
 *
 * 1. the owner's own whose conversation goes on, the one with most in common;
 * 2. the owner's own with a conversation that is not known, such as one that was saved and restored;
 * 3. one that was never used;
 * 4. the owner's own that has at least half of the prompt already, such as instructions that all conversations share;
 * 5. the one that was used least recently, whoever's it was.
 */
export function chooseSlot(free: Iterable<SlotState>, owner: string, trail: Trail): SlotState {
  let going: SlotState | undefined
  let similar: SlotState | undefined
  let mostKept = 0
  let mostFound = 0
  let unknown: SlotState | undefined
  let oldest: SlotState | undefined
  for (const slot of free) {
    if (!oldest || slot.usedAt < oldest.usedAt) oldest = slot
    if (slot.owner !== owner) continue
    if (!slot.trail) {
      unknown ??= slot
      continue
    }
    const common = commonLength(slot.trail, trail)
    if (common > mostKept && common >= KEPT_SHARE * slot.trail.length) {
      going = slot
      mostKept = common
    }
    if (common > mostFound && common >= FOUND_SHARE * trail.length) {
      similar = slot
      mostFound = common
    }
  }
  const unused = oldest!.usedAt === 0 ? oldest : undefined
  return going ?? unknown ?? unused ?? similar ?? oldest!
}

export const TrailSchema = Type.Object({
  sums: Type.Array(Type.Integer()),
  /** Bytes of the whole prompt. */
  length: Type.Integer()
})
/** What a prompt begins with: checksums of its first so many bytes, at `nextBoundary`. */
export type Trail = Static<typeof TrailSchema>

/**
 * Where sums are taken, first and behind another: closely at the beginning, where short conversations differ; they say no
 * more than which slot is best.
 */
const FIRST = 4
const nextBoundary = (at: number) => at + (at < 64 ? 4 : at < 1024 ? 16 : at < 65_536 ? 256 : 4096)

/** The beginnings of a request's prompt, as far as it is the same in each turn of a conversation. */
export function trailOf({ tools, messages, prompt, input_prefix }: EngineFields): Trail {
  const parts = [
    tools,
    ...(Array.isArray(messages)
      ? messages.map(textOf)
      : [input_prefix === undefined ? prompt : `${input_prefix}${prompt ?? ''}`])
  ]
  const text = Buffer.from(parts.map(part => (typeof part === 'string' ? part : JSON.stringify(part))).join('\n'))
  const sums: number[] = []
  let sum = 0
  let from = 0
  for (let to = FIRST; to < text.length; to = nextBoundary(to)) {
    sum = crc32(text.subarray(from, to), sum)
    sums.push(sum)
    from = to
  }
  return { sums, length: text.length }
}

/** What a message says, where that is plain text: what all messages have in common would make short ones look alike. */
function textOf(message: { content?: unknown; tool_calls?: unknown }): unknown {
  return typeof message.content === 'string' && !message.tool_calls ? message.content : message
}

/** Bytes that two prompts begin with alike, down to the boundary before. */
function commonLength(one: Trail, other: Trail): number {
  const length = Math.min(one.length, other.length)
  let common = 0
  let at = 0
  for (let boundary = FIRST; boundary < length; boundary = nextBoundary(boundary)) {
    if (one.sums[at] !== other.sums[at]) break
    common = boundary
    at++
  }
  return common
}
