import type { AnswerSink, EngineFields, StoredConversations } from '../../../core/contracts/engines.ts'
import { abortAfter, withResolver } from '../../../core/system/abort-signals.ts'
import { merged } from '../../../core/system/collections.ts'
import {
  choosePlacement,
  isBackground,
  type PlacedPrompt,
  SHORT_PROMPT,
  type SlotState,
  shouldWait
} from './placement.ts'
import { getSaveDelay, isWorthSaving, type SavedState } from './retention.ts'
import type { SentRequest } from './slot-requests.ts'
import { continues, getTrail, type Trail } from './trail.ts'

/*
 * The slots of one engine. llama-server ignores owners, and its own cache of earlier prompts (`--cache-ram`) does too. So
 * that cache is off, and corral chooses the slot of each answer (`id_slot`), remembers whose prompt is in it, and disables
 * the comparison for a slot with another owner's prompt (`cache_prompt: false`). Before a conversation loses its slot, the
 * slot's state is saved. It is restored when the conversation returns.
 */

/** The request fields of one answer, and the events of its slot. */
export type SlotUse = Awaited<ReturnType<PromptSlots['take']>>

/** Saves and restores the states of an engine's slots. Its functions never reject. */
export interface SlotStates {
  /** Whether a state can only be continued from its very end. */
  readonly exact: boolean
  /** Milliseconds to process a token, and bytes that are restored in a millisecond. */
  readonly pace: number
  readonly restoreSpeed: number
  find(owner: string): readonly SavedState[]
  /** Whether a state has been neither evicted nor deleted. */
  has(state: SavedState): boolean
  /**
   * Resolves with the saved state, or undefined if there is none.
   * @param slot `copied` is called as soon as the slot may be used again
   */
  save(slot: {
    id: number
    owner: string
    trail: Trail
    last: SentRequest | undefined
    copied(): void
  }): Promise<SavedState | undefined>
  /** Resolves with whether the slot now has this state. Otherwise it is empty. */
  restore(slot: number, state: SavedState): Promise<boolean>
  /** The stored conversations with the engine's model. */
  summary(): Omit<StoredConversations, 'model'>
  /** Counts a prompt, and whether its conversation was found. */
  count(isFound: boolean): void
}

/** A save in progress. */
interface Save {
  slot: Slot
  owner: string
  trail: Trail
  /** Resolves when the slot may be used again. */
  copied: Promise<unknown>
  saved: Promise<SavedState | undefined>
}

/** A slot, and the data needed to save it. */
class Slot implements SlotState {
  readonly id: number
  owner: string | undefined
  trail: Trail | undefined
  usedAt = 0
  background = false
  /** Whether it has changed since it was last saved or restored. */
  changed = false
  allowed = true
  last: SentRequest | undefined
  /** The state that it was last saved to or restored from, until it changes. */
  saved: SavedState | undefined
  /** Its latest save, while it is in progress. */
  saving: Save | undefined
  timer: NodeJS.Timeout | undefined

  constructor(id: number) {
    this.id = id
  }

  clear(): void {
    Object.assign(this, { owner: undefined, trail: undefined, changed: false, last: undefined, saved: undefined })
  }
}

/** The owner of requests that no client sent. */
const SERVER = ''
/** Milliseconds that a background request waits rather than displace a long conversation. */
const MAX_WAIT_MS = 1000

const mayStore = ({ cache_prompt, cache }: EngineFields) => cache_prompt !== false && cache !== false

type Prompt = Pick<PlacedPrompt, 'owner' | 'trail' | 'background'>

export class PromptSlots {
  readonly #slots: Slot[]
  readonly #free: Set<Slot>
  readonly #waiting: (() => void)[] = []
  readonly #saves = new Set<Save>()
  #uses = 0
  #states: SlotStates | undefined
  /** When a conversation last lost its slot to another one. */
  #displacedAt = Number.NEGATIVE_INFINITY

  /** @param count how many slots the engine has */
  constructor(count: number) {
    this.#slots = Array.from({ length: count }, (_, id) => new Slot(id))
    this.#free = new Set(this.#slots)
  }

  attach(states: SlotStates): void {
    this.#states = states
  }

  /** Stops saving and restoring states, because the engine has ended. */
  detach(): void {
    this.#states = undefined
    for (const { timer } of this.#slots) clearTimeout(timer)
  }

  /**
   * Takes a slot for one answer, and waits until one is free. If the prompt's conversation was saved, it is restored
   * first.
   *
   * An answer that is disconnected before it reached its slot might reach it later, when the slot already belongs to
   * another owner. So the slot stays taken until llama-server has responded at all, which it does a moment after the
   * request, just before it processes the prompt.
   * @param sink its `owner` is the server itself if absent
   * @param body with `cache_prompt: false` or `cache: false`, nothing is reused or stored
   * @throws the signal's reason
   */
  async take(sink: Pick<AnswerSink, 'owner' | 'background' | 'signal'>, body: EngineFields) {
    const { owner: client = SERVER, signal } = sink
    const trail = getTrail(body)
    const background = isBackground(body, trail, sink.background)
    const isStorable = mayStore(body)
    const prompt = { owner: client, trail, background }
    let mayWait = background
    while (!signal.aborted) {
      const saving = this.#findSave(client, trail)
      if (saving) await saving
      else if (this.#free.size === 0) await this.#untilFree(signal)
      else if (mayWait && shouldWait(this.#slots, this.#free, this.#candidates(prompt, isStorable))) {
        // Once only: this request may have been woken for a slot that others are waiting for too.
        mayWait = false
        await this.#untilFree(AbortSignal.any([signal, abortAfter(MAX_WAIT_MS)])).catch(() => {
          // The time is over, or the client has left.
        })
      } else break
    }
    if (signal.aborted) {
      // A caller that was woken for this slot but gave up passes it to the next.
      this.#waiting.shift()?.()
      throw signal.reason
    }
    const slot = await this.#place(prompt, isStorable)
    if (signal.aborted) {
      this.#release(slot)
      throw signal.reason
    }
    const isOwn = slot.owner === client
    // Until the answer begins, the slot holds the earlier prompt, this one, or parts of both.
    slot.owner = isOwn ? client : undefined
    slot.trail = isOwn ? slot.trail : undefined
    slot.allowed = isStorable
    let request: SentRequest | undefined
    return {
      fields: isOwn && isStorable ? { id_slot: slot.id } : { id_slot: slot.id, cache_prompt: false },
      sent: (sent: SentRequest) => {
        if (this.#states?.exact) request = sent
      },
      /** The first part of the answer has arrived: the slot now holds this prompt and no part of an earlier one. */
      begun: () => {
        slot.owner = client
        slot.trail = trail
        slot.changed = true
        slot.last = request
        slot.saved = undefined
      },
      end: () => {
        this.#release(slot)
        this.#saveLater(slot)
      }
    }
  }

  get uses(): number {
    return this.#uses
  }

  get isIdle(): boolean {
    return this.#free.size === this.#slots.length
  }

  /** The stored conversations with the engine's model. Undefined if none can be stored. */
  get summary(): Omit<StoredConversations, 'model'> | undefined {
    return this.#states?.summary()
  }

  /** Keeps the current prompts of an owner, or of all, from being stored. */
  forget(owner: string | undefined): void {
    for (const slot of this.#slots) if (owner === undefined || slot.owner === owner) slot.allowed = false
  }

  /** Saves all changed slots. Call it when the engine is idle. */
  async saveAll(): Promise<void> {
    const saves = [...this.#saves]
    for (const { saved } of saves) await saved
    for (const slot of this.#slots) await this.#save(slot)?.saved
  }

  /** Whether the state of a prompt can be copied to other slots, and this is faster than to process it in each. */
  canCopy(body: EngineFields): boolean {
    const { length } = getTrail(body)
    return this.#states !== undefined && this.#slots.length > 1 && length >= SHORT_PROMPT && mayStore(body)
  }

  /** Saves the state of a prompt that was just processed. */
  async save(owner = SERVER, body: EngineFields): Promise<void> {
    const { length, sums } = getTrail(body)
    const slot = [...this.#free].find(({ owner: its, trail }) => {
      return its === owner && trail?.length === length && trail.sums.at(-1) === sums.at(-1)
    })
    if (slot) await (slot.saving ?? this.#save(slot))?.saved
  }

  /** Finds the save of a prompt's conversation whose slot another request has just taken. */
  #findSave(owner: string, trail: Trail): Promise<unknown> | undefined {
    return [...this.#saves].find(save => {
      const isTaken = save.slot.trail !== save.trail || !this.#free.has(save.slot)
      return isTaken && save.owner === owner && continues(trail, save.trail)
    })?.saved
  }

  /** Completes a prompt with the states that it could start from. */
  #candidates(prompt: Prompt, mayRestore: boolean): PlacedPrompt {
    const { exact = true, pace = 0, restoreSpeed = 1 } = this.#states ?? {}
    const saved = (mayRestore && this.#states?.find(prompt.owner)) || []
    return merged(prompt, { saved, exact, pace, restoreSpeed })
  }

  /** Takes the best free slot for a prompt, and restores the best state into it. */
  async #place(prompt: Prompt, mayRestore: boolean): Promise<Slot> {
    const { owner, trail, background } = prompt
    const states = this.#states
    const { slot, source } = choosePlacement(this.#free, this.#candidates(prompt, mayRestore))
    this.#free.delete(slot)
    slot.usedAt = ++this.#uses
    clearTimeout(slot.timer)
    let isFound = slot.owner === owner && slot.trail !== undefined && continues(trail, slot.trail)
    slot.background = background && (slot.background || !isFound)
    if (!states) return slot
    // Otherwise llama-server might defer the save until the next answer has ended.
    await slot.saving?.copied
    if (!isFound) {
      if (isWorthSaving({ ...slot, changed: true })) this.#displacedAt = performance.now()
      await this.#save(slot)?.copied
    }
    const saved = source && ('saved' in source ? source.saved : await this.#saveSource(source.slot))
    if (saved) {
      isFound = await states.restore(slot.id, saved)
      slot.clear()
      if (isFound) Object.assign(slot, { owner, trail: saved.trail, saved })
    }
    states.count(isFound)
    return slot
  }

  /** Saves another free slot, so that its state can be copied. */
  async #saveSource(slot: Slot): Promise<SavedState | undefined> {
    this.#free.delete(slot)
    try {
      await slot.saving?.saved
      return (await this.#save(slot)?.saved) ?? slot.saved
    } finally {
      this.#release(slot)
    }
  }

  /** The saved state of an unchanged slot may have been evicted meanwhile. */
  #isWorthSaving(slot: Slot): boolean {
    const isLost = slot.saved !== undefined && !this.#states?.has(slot.saved)
    return isWorthSaving({ ...slot, changed: slot.changed || isLost })
  }

  #save(slot: Slot): Save | undefined {
    const { id, owner, trail, last } = slot
    if (!this.#states || !this.#isWorthSaving(slot)) return undefined
    slot.changed = false
    const { promise: copied, resolve } = withResolver<unknown>()
    const saved = this.#states.save({ id, owner: owner!, trail: trail!, last, copied: () => resolve(undefined) })
    void saved.then(resolve)
    const save: Save = { slot, owner: owner!, trail: trail!, copied, saved }
    slot.saving = save
    this.#saves.add(save)
    void saved.then(state => {
      this.#saves.delete(save)
      if (slot.saving === save) slot.saving = undefined
      if (slot.trail === trail && !slot.changed) slot.saved = state
    })
    return save
  }

  #saveLater(slot: Slot): void {
    const { owner, trail } = slot
    if (!this.#states || !this.#isWorthSaving(slot)) return
    const earlier = this.#states.find(owner!).filter(state => continues(trail!, state.trail))
    const unsaved = trail!.length - Math.max(0, ...earlier.map(state => state.trail.length))
    const delay = getSaveDelay(this.#states.exact, performance.now() - this.#displacedAt, unsaved)
    if (delay === undefined) return
    clearTimeout(slot.timer)
    slot.timer = setTimeout(() => {
      if (this.#free.has(slot)) void this.#save(slot)
    }, delay).unref()
  }

  #release(slot: Slot): void {
    this.#free.add(slot)
    this.#waiting.shift()?.()
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
