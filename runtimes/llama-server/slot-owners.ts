import { crc32 } from 'node:zlib'
import { type Static, Type } from 'typebox'
import type { EngineFields } from '../../core/contracts/engines.ts'

/*
 * llama-server compares a prompt with the cached prompt of a slot and processes only the new part. Its token counts,
 * and the time to the first token, show a client how much of another client's prompt was the same. Its cache ignores
 * owners. So if several owners share an engine, corral chooses the slot of each answer (`id_slot`), remembers whose
 * prompt is in it, and disables the comparison for a slot with another owner's prompt (`cache_prompt: false`).
 *
 * llama-server has a second cache (`--cache-ram`): prompts of idle slots, which it copies into any slot that fits. That
 * cache is not tied to slots, so it must be off from the start of an engine that several owners share.
 */

/** How one answer is requested, and what happens to its slot. */
export interface SlotUse {
  /** Fields of the request that no client may set. */
  readonly fields: { readonly id_slot?: number; readonly cache_prompt?: false }
  /** Whether an answer whose client has left must reach its slot before it is disconnected, see `SlotOwners.take`. */
  readonly tracked: boolean
  /** The first part of the answer has arrived: the slot now holds this prompt and no part of an earlier one. */
  begun(): void
  /** The answer has ended, in whatever way. */
  end(): void
}

export interface SlotState {
  id: number
  /** The owner of its prompt. Undefined if unknown, or if the slot is empty. */
  owner: string | undefined
  /** Beginnings of its prompt. */
  trail: Trail | undefined
  /** Increases with each use. 0 before the first one. */
  usedAt: number
}

const nothing = () => {}
const UNTRACKED: SlotUse = { fields: {}, tracked: false, begun: nothing, end: nothing }
const UNCACHED: SlotUse = { ...UNTRACKED, fields: { cache_prompt: false } }
/** The owner of requests that no client sent. */
const SERVER = ''

/** Tracks whose prompts the slots of one engine hold. */
export class SlotOwners {
  readonly #isolated: boolean
  readonly #slots: SlotState[]
  readonly #free: Set<SlotState>
  /** Callers that wait for a free slot, in order. */
  readonly #waiting: (() => void)[] = []
  #uses = 0
  /** For an engine that is not isolated: the only owner so far, or `null` after several. */
  #sole: string | null | undefined

  /**
   * @param slots how many the engine has
   * @param isolated whether it was started for several owners. Otherwise corral does not choose slots while there is
   * only one owner
   */
  constructor(slots: number, isolated: boolean) {
    this.#isolated = isolated
    this.#slots = Array.from({ length: slots }, (_, id) => ({ id, owner: undefined, trail: undefined, usedAt: 0 }))
    this.#free = new Set(this.#slots)
  }

  /** Whether corral chooses the slot of each answer, so that no request may take several. */
  get isolated(): boolean {
    return this.#isolated
  }

  /** Returns the owner of a slot's prompt. Undefined if it is not known for sure. */
  getOwner(slot: number): string | undefined {
    if (!this.#isolated) return this.#sole ?? undefined
    return this.#slots[slot]?.owner
  }

  /** Returns the beginnings of a slot's prompt. Undefined if unknown. */
  getTrail(slot: number): Trail | undefined {
    return this.#slots[slot]?.trail
  }

  /**
   * Records that a slot was filled with a prompt of this owner before the engine served anyone. Call it in order,
   * oldest first.
   */
  restored(slot: number, owner: string, trail: Trail | undefined): void {
    if (!this.#isolated) this.#sole = owner
    const state = this.#slots[slot]
    if (state) Object.assign(state, { owner, trail, usedAt: ++this.#uses })
  }

  /**
   * Takes a slot for one answer, and waits until one is free.
   *
   * An answer that is disconnected before it reached its slot might reach it later, when the slot already belongs to
   * another owner. So the slot stays taken until llama-server has responded at all, which it does a moment after the
   * request, just before it processes the prompt.
   * @param owner the server itself if absent
   * @throws the signal's reason
   */
  async take(owner: string | undefined, body: EngineFields, signal: AbortSignal): Promise<SlotUse> {
    if (!this.#isolated) return this.#untracked(owner)
    while (this.#free.size === 0) await this.#untilFree(signal)
    if (signal.aborted) {
      // A caller that was woken for this slot but gave up passes it to the next.
      this.#waiting.shift()?.()
      throw signal.reason
    }
    const client = owner ?? SERVER
    const trail = getTrail(body)
    const slot = chooseSlot(this.#free, client, trail)
    this.#free.delete(slot)
    slot.usedAt = ++this.#uses
    const isOwn = slot.owner === client
    // Until the answer begins, the slot holds the earlier prompt, this one, or parts of both.
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

/** Minimum share of a slot's prompt that a new prompt must repeat to continue its conversation. */
const KEPT_SHARE = 0.5
/** Minimum share of a new prompt that a slot of another conversation must hold to be worth taking. */
const FOUND_SHARE = 0.5

/**
 * Chooses a slot for a prompt among the free ones (at least one):
 *
 * 1. the owner's own slot whose conversation continues, with the most in common,
 * 2. the owner's own slot with an unknown conversation, for example a restored one,
 * 3. an unused slot,
 * 4. the owner's own slot that already has at least half of the prompt, such as instructions that all conversations
 *    share,
 * 5. the least recently used slot of any owner.
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
  length: Type.Integer()
})
/** The beginnings of a prompt: checksums of its first bytes up to each `nextBoundary`. */
export type Trail = Static<typeof TrailSchema>

/**
 * Boundaries for the checksums. They are close at the beginning, where short conversations differ. They only help to
 * choose the best slot.
 */
const FIRST = 4
const nextBoundary = (at: number) => at + (at < 64 ? 4 : at < 1024 ? 16 : at < 65_536 ? 256 : 4096)

/** Computes the beginnings of a request's prompt, as far as they are the same in each turn of a conversation. */
export function getTrail({ tools, messages, prompt, input_prefix }: EngineFields): Trail {
  const parts = [
    tools,
    ...(Array.isArray(messages)
      ? messages.map(readText)
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

/**
 * Returns a message's content if it is plain text. The fields that all messages share would make short ones look alike.
 */
function readText(message: { content?: unknown; tool_calls?: unknown }): unknown {
  return typeof message.content === 'string' && !message.tool_calls ? message.content : message
}

/** Returns how many bytes two prompts have in common at the beginning, rounded down to a boundary. */
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
