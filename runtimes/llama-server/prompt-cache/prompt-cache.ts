import { createHash } from 'node:crypto'
import { chmod, rename, rm, stat } from 'node:fs/promises'
import type { StoredConversations } from '../../../core/contracts/engines.ts'
import { errorMessage } from '../../../core/errors.ts'
import { abortAfter } from '../../../core/system/abort-signals.ts'
import { getOrAdd } from '../../../core/system/collections.ts'
import { oneByOne } from '../../../core/system/keyed-queue.ts'
import architectures from '../architectures.json' with { type: 'json' }
import type { LlamaServerEngine } from '../engine.ts'
import type { LaunchSpec } from '../launch-spec.ts'
import { cacheByLayer, modelShape } from '../memory/model-shape.ts'
import { MIN_TOKENS } from './placement.ts'
import type { SlotStates } from './prompt-slots.ts'
import type { SavedState, Tier } from './retention.ts'
import { millisecondsPerToken, rollBack, slotAction } from './slot-requests.ts'
import { addWindowCell, readParts, rewriteForStreams, type StateKind } from './state-file.ts'
import { openStateStore, type StateStore, type StateStoreOptions } from './state-store.ts'

/** Milliseconds for any save or restore, and bytes per millisecond on top. */
const BASE_LIMIT = 10_000
const MAX_LENGTH = 60_000
const SLOWEST = 100_000
/** Assumed until they are measured: milliseconds to process a token, and bytes that are restored in a millisecond. */
const USUAL_PACE = 1
const USUAL_SPEED = 500_000
const SEAL_DELAY_MS = 3000
/** The weight of the latest measurement, and the bytes of a state whose restore is measured. */
const LATEST_WEIGHT = 0.3
const MEASURED_BYTES = 8 * 2 ** 20
/** Milliseconds after which an engine's pace is asked for again. */
const PACE_AGE = 30_000
/** Bytes of text for a token, at least. */
const BYTES_PER_TOKEN = 2

function timeLimit(bytes: number): AbortSignal {
  return abortAfter(Math.ceil(Math.min(MAX_LENGTH, BASE_LIMIT + bytes / SLOWEST)))
}

type CacheCounts = Pick<StoredConversations, 'hits' | 'misses' | 'restoredTokens' | 'restoreTime'>

export type PromptCache = ReturnType<typeof createPromptCache>

export interface PromptCacheOptions extends Omit<StateStoreOptions, 'memoryDirectory' | 'log'> {
  memoryDirectory?: () => Promise<string | undefined>
  log: StateStoreOptions['log'] & { info(object: object, message: string): void }
}

/** Stores the states of conversations, so that no prompt is processed twice, also after unloads and restarts. */
export function createPromptCache({ memoryDirectory, log, ...options }: PromptCacheOptions) {
  let opened: Promise<StateStore | undefined> | undefined
  let store: StateStore | undefined
  const counts = new Map<string, CacheCounts>()
  /** Owners whose key was revoked. Their slots may still hold prompts, which must not be saved again. */
  const revoked = new Set<string>()
  /** Engines whose slots may hold prompts that are stored later. */
  const engines = new Set<LlamaServerEngine>()
  /** How often states were deleted on request. A save in progress meanwhile is discarded. */
  let deletions = 0
  /** States that do not survive a restart yet. */
  const unsealed = new Map<SavedState, StateStore>()
  const alone = oneByOne()
  let sealTimer: NodeJS.Timeout | undefined

  /**
   * Reads the saved files again for their checksums, one after another. Not at once: the next request waits for the disk
   * and the processor, and the next turn of the conversation replaces the file.
   */
  function sealLater(store: StateStore, state: SavedState): void {
    unsealed.set(state, store)
    sealTimer ??= setTimeout(() => void sealAll(), SEAL_DELAY_MS).unref()
  }

  function sealAll(): Promise<void> {
    clearTimeout(sealTimer)
    sealTimer = undefined
    return alone(async () => {
      for (const [state, store] of unsealed) {
        unsealed.delete(state)
        await store.seal(state, timeLimit(state.bytes)).catch(error => {
          log.debug({ err: error }, 'a saved prompt cache will not survive a restart')
        })
      }
    })
  }

  const warnUnsaved = (error: unknown, model?: string) =>
    void log.warn({ directory: options.directory, model }, `prompt caches cannot be saved: ${errorMessage(error)}`)

  /** Opened on first use. Until the server owns its data directory, another server may be using it. */
  const open = () =>
    (opened ??= (async () => {
      try {
        store = await openStateStore({ ...options, log, memoryDirectory: await memoryDirectory?.() })
        return store
      } catch (error) {
        warnUnsaved(error)
        return undefined
      }
    })())

  const getCounts = (variant: string) =>
    getOrAdd(counts, variant, () => ({ hits: 0, misses: 0, restoredTokens: 0, restoreTime: 0 }))

  function summarize(variant: string, states: readonly SavedState[]): Omit<StoredConversations, 'model'> {
    const own = states.filter(state => state.variant === variant)
    const getBytes = (wanted: Tier) => own.reduce((sum, { tier, bytes }) => sum + (tier === wanted ? bytes : 0), 0)
    return {
      conversations: own.length,
      tokens: own.reduce((sum, { tokens }) => sum + tokens, 0),
      memory: getBytes('memory'),
      disk: getBytes('disk'),
      ...getCounts(variant)
    }
  }

  async function toKey(engine: LlamaServerEngine): Promise<string> {
    const { settings, projectorPath = [] } = engine.spec
    const outside = [...(settings?.loras ?? []).map(lora => lora.path), projectorPath].flat()
    const stamps = await Promise.all(
      outside.map(async path => {
        const { size, mtimeMs } = await stat(path)
        return `${size} ${mtimeMs}`
      })
    )
    return getEngineKey(engine, stamps)
  }

  function createStates(store: StateStore, engine: LlamaServerEngine, key: string): SlotStates {
    const { spec } = engine
    const { variant, alias } = spec
    const kind = getStateKind(spec)!
    const window = shapeOf(spec)?.window ?? 0
    const thinks = variant.metadata.capabilities.includes('thinking')
    const count = getCounts(variant.key)
    const flags = [...engine.sharedArguments, ...(spec.settings?.arguments ?? [])]
    const streams = flags.some(flag => flag === '--kv-unified' || flag === '-kvu') ? 1 : engine.slots
    let tokenBytes = bytesPerToken(spec) ?? 0
    let pace = store.list().find(state => state.key === key && state.pace !== undefined)?.pace
    let paceAt = Number.NEGATIVE_INFINITY
    let restoreSpeed = USUAL_SPEED

    async function measurePace(): Promise<void> {
      if (performance.now() - paceAt < PACE_AGE) return
      paceAt = performance.now()
      pace = (await millisecondsPerToken(engine, abortAfter(BASE_LIMIT)).catch(() => undefined)) ?? pace
    }

    /** Finishes a file that llama-server wrote. Returns how many streams it has. */
    async function finish(path: string, tokens: number, bytes: number, signal: AbortSignal) {
      await chmod(path, 0o600)
      const { size } = await stat(path)
      if (size !== bytes) throw new Error(`${size} of ${bytes} bytes are on the disk`)
      if (kind === 'windowed') {
        const patched = `${path}.patched`
        if (!(await addWindowCell(path, patched, tokens, window, signal))) return null
        await rename(patched, path)
      }
      const parts = await readParts(path, kind)
      return parts && (parts[0]?.streams ?? 0)
    }

    async function save(slot: Parameters<SlotStates['save']>[0]): Promise<SavedState | undefined> {
      if (revoked.has(slot.owner)) return undefined
      const before = deletions
      const guess = Math.min(engine.contextSize, Math.ceil(slot.trail.length / BYTES_PER_TOKEN)) * tokenBytes
      const room = await store.reserve(variant.key, Math.ceil(guess), slot.owner).catch(error => {
        log.warn({ model: alias }, `a prompt cache is not saved: ${errorMessage(error)}`)
        return undefined
      })
      if (!room) return undefined
      const { id, tier, path } = room
      const limit = timeLimit(guess)
      const discardFile = async () => void (await rm(path, { force: true }).catch(() => undefined))
      let link: Awaited<ReturnType<StateStore['link']>> | undefined
      try {
        if (kind !== 'full' && slot.last) await rollBack(engine, slot.id, slot.last, thinks, limit)
        link = await store.link(variant.key, tier, `${id}.slot`)
        const { tokens, bytes } = await slotAction(engine, slot.id, 'save', link.name, limit)
        slot.copied()
        const streams = tokens < MIN_TOKENS ? null : await finish(path, tokens, bytes, limit)
        if (streams === null) {
          await discardFile()
          return undefined
        }
        await measurePace()
        const { size } = await stat(path)
        tokenBytes = size / tokens
        const state: SavedState = {
          id,
          tier,
          variant: variant.key,
          key,
          revision: variant.revision,
          owner: slot.owner,
          trail: slot.trail,
          tokens,
          bytes: size,
          slots: engine.slots,
          ...(streams !== undefined && { streams }),
          ...(pace !== undefined && { pace }),
          usedAt: Date.now()
        }
        await store.add(state)
        if (before !== deletions) {
          await store.remove([state])
          return undefined
        }
        sealLater(store, state)
        log.debug({ model: alias, tokens, bytes: size, tier }, 'saved a prompt cache')
        return state
      } catch (error) {
        const reason = limit.aborted ? 'it took too long' : errorMessage(error)
        log.warn({ model: alias }, `a prompt cache is not saved: ${reason}`)
        await discardFile()
        // The engine may still be writing it.
        void engine.exited.then(discardFile)
        return undefined
      } finally {
        room.release()
        await link?.remove()
      }
    }

    async function restore(slot: number, state: SavedState): Promise<boolean> {
      const limit = timeLimit(state.bytes)
      const began = performance.now()
      const temporary: (() => Promise<void>)[] = []
      try {
        const path = await store.verify(state, limit)
        let { id, tier } = state
        if (state.slots !== engine.slots && state.streams !== 0 && state.streams !== streams) {
          const parts = await readParts(path, kind)
          const room = parts && (await store.reserve(variant.key, state.bytes, state.owner))
          if (!room) return false
          ;({ id, tier } = room)
          temporary.push(async () => {
            room.release()
            await rm(room.path, { force: true })
          })
          await rewriteForStreams(path, room.path, parts, streams, limit)
        }
        const link = await store.link(variant.key, tier, `${id}.slot`)
        temporary.push(link.remove)
        // What guesses ahead has a cache of its own, whose positions would not fit the restored ones.
        const { mtp, companion } = spec.settings?.speculation ?? {}
        if (mtp || companion) await slotAction(engine, slot, 'erase', '', limit)
        // Without a time limit: a restore that was given up might still happen once the slot belongs to another owner.
        const { tokens } = await slotAction(engine, slot, 'restore', link.name, new AbortController().signal)
        if (tokens !== state.tokens) throw new Error(`only ${tokens} tokens were restored`)
        const ms = performance.now() - began
        // With small files the time for the request would count most.
        if (state.bytes >= MEASURED_BYTES) restoreSpeed += LATEST_WEIGHT * (state.bytes / ms - restoreSpeed)
        state.usedAt = Date.now()
        count.restoredTokens += tokens
        count.restoreTime += ms
        log.debug({ model: alias, slot, tokens, ms: Math.round(ms) }, 'restored a prompt cache')
        return true
      } catch (error) {
        const context = { model: alias, tokens: state.tokens, bytes: state.bytes }
        // A timeout does not mean that the file is bad, so the file stays.
        if (limit.aborted) log.warn(context, 'restoring a prompt cache took too long')
        else {
          log.warn(context, `deleting a useless saved prompt cache: ${errorMessage(error)}`)
          await store.remove([state])
        }
        return false
      } finally {
        for (const remove of temporary) await remove().catch(() => undefined)
      }
    }

    return {
      exact: kind !== 'full',
      get pace() {
        return pace ?? USUAL_PACE
      },
      get restoreSpeed() {
        return restoreSpeed
      },
      find: owner =>
        store
          .find(variant.key, owner)
          .filter(
            state =>
              state.key === key &&
              state.tokens < engine.contextSize &&
              (state.slots === engine.slots || state.streams !== undefined)
          ),
      has: store.has,
      save,
      restore,
      summary: () => summarize(variant.key, store.list()),
      count: isFound => void (isFound ? count.hits++ : count.misses++)
    }
  }

  return {
    /** Returns the folder for `LaunchSpec.slotFolder`, or undefined if states cannot be saved. Never rejects. */
    async folderFor(spec: LaunchSpec): Promise<string | undefined> {
      // Also without a budget, because opening deletes the files of an earlier budget.
      const store = await open()
      if (options.budget === 0 || getStateKind(spec) === undefined) return undefined
      return await store?.open(spec.variant.key).catch(error => warnUnsaved(error, spec.alias))
    },
    /** Lets an engine save and restore the states of its slots. Never rejects. */
    async attach(engine: LlamaServerEngine): Promise<void> {
      const { slotFolder, variant, alias } = engine.spec
      const store = slotFolder === undefined ? undefined : await open()
      if (!store) return
      try {
        const key = await toKey(engine)
        const stale = store.list().filter(state => state.variant === variant.key && state.revision !== variant.revision)
        if (stale.length > 0) await store.remove(stale)
        engine.promptSlots.attach(createStates(store, engine, key))
        engines.add(engine)
        void engine.exited.then(() => {
          engines.delete(engine)
          engine.promptSlots.detach()
        })
      } catch (error) {
        warnUnsaved(error, alias)
      }
    },
    /** Resolves once all saved states survive a restart. */
    sealed: sealAll,
    /**
     * Deletes the states of a variant (`StoredVariant.key`), of an owner whose key was revoked, or all. What slots hold
     * now is not stored either. Resolves with how many were deleted. Never rejects.
     */
    async forget({ variant, owner }: { variant?: string | undefined; owner?: string | undefined }): Promise<number> {
      const store = await open()
      if (owner !== undefined) revoked.add(owner)
      deletions++
      for (const engine of engines) {
        if ((variant ?? engine.spec.variant.key) === engine.spec.variant.key) engine.promptSlots.forget(owner)
      }
      if (!store) return 0
      const states = store
        .list()
        .filter(state => (variant ?? state.variant) === state.variant && (owner ?? state.owner) === state.owner)
      await store.remove(states)
      return states.length
    },
    /** Summarizes the stored states by variant. Never rejects. */
    async summaries(): Promise<StoredConversations[]> {
      const states = (await open())?.list() ?? []
      const variants = new Set([...counts.keys(), ...states.map(state => state.variant)])
      return [...variants].map(model => ({ model, ...summarize(model, states) }))
    },
    /** Bytes of main memory that can be given up for a model. */
    memoryUse: () => store?.getUse('memory') ?? 0,
    /** Moves states to the disk until they use at most this much memory. Never rejects. */
    async shrinkMemory(most: number): Promise<void> {
      await store?.shrinkMemory(most).catch(error => {
        log.warn({}, `prompt caches could not be moved to the disk: ${errorMessage(error)}`)
      })
    }
  }
}

/** Recurrent and hybrid models (`llm_arch_is_recurrent`, `llm_arch_is_hybrid` in llama-arch.cpp). */
const RECURRENT = new Set([...architectures.recurrent, ...architectures.hybrid])
/** Models with sliding windows of one size and one more cache for them (`swa_type` in src/models). */
const WINDOWED = new Set(architectures.oneWindowCache)
/** Models with other caches, windows in chunks, or no cache. Their files were never tried. */
const UNSUITABLE = new Set(architectures.otherCaches)

/**
 * Returns the kind of state that such an engine's slots have, or undefined if it cannot be saved: engines that are no
 * chats or have a draft model. A draft model's cache is not in the file, so it would guess badly for the rest of the
 * conversation (7 of 100 guesses were right instead of 57). Decided by metadata. An unknown architecture is assumed to
 * have cells for all tokens. If it does not, llama-server notices and processes the prompt again.
 */
export function getStateKind(spec: LaunchSpec): StateKind | undefined {
  const architecture = spec.variant.metadata.architecture ?? ''
  if (spec.mode !== 'chat' || spec.settings?.speculation.draft || UNSUITABLE.has(architecture)) return undefined
  const shape = shapeOf(spec)
  if (RECURRENT.has(architecture)) return 'recurrent'
  if (WINDOWED.has(architecture)) {
    // With all cells in the engine but only the window in the file, llama-server would accept a state with a gap.
    const isFull = spec.settings?.arguments.includes('--swa-full')
    return shape && shape.window > 0 && !isFull ? 'windowed' : undefined
  }
  if (!shape) return 'full'
  return shape.window === 0 && shape.layers.every(layer => layer.state === 0) ? 'full' : undefined
}

function shapeOf({ variant }: LaunchSpec) {
  const { architecture, info } = variant.metadata
  return modelShape({ ...info, 'general.architecture': architecture }, undefined, variant.size)
}

/**
 * Identifies everything that a state depends on. A saved state is restored only in engines with the same key. `stamps`
 * distinguish files outside the model's revision, such as LoRA adapters (size and modification time).
 *
 * Excluded are the context size, which may differ as long as the tokens fit (except for models that choose their rope
 * factors by it), the number of slots, and the placement of layers.
 */
export function getEngineKey(
  { spec, build, sharedArguments }: Pick<LlamaServerEngine, 'spec' | 'build' | 'sharedArguments'>,
  stamps: readonly string[]
): string {
  const { variant, options, settings } = spec
  const { architecture, info } = variant.metadata
  const original = Number(info[`${architecture}.rope.scaling.original_context_length`] ?? 0)
  const parts = {
    format: 2,
    revision: variant.revision,
    dtype: variant.format === 'gguf' ? undefined : options.dtype,
    mode: spec.mode,
    build: [build.version, build.commit, build.commit === undefined ? build.digest : undefined],
    types: [options.cache_type_k, options.cache_type_v],
    // Recurrent states are then stored with the ones before.
    guesses: RECURRENT.has(architecture ?? '')
      ? Boolean(settings?.speculation.mtp ?? settings?.speculation.companion)
      : false,
    longRope: original > 0 && options.num_ctx > original,
    projector: spec.projectorPath !== undefined,
    loras: settings?.loras,
    arguments: [...sharedArguments, ...(settings?.arguments ?? [])],
    environment: settings?.environment,
    stamps
  }
  return createHash('sha256').update(JSON.stringify(parts)).digest('hex')
}

/** Bytes that llama-server writes for each token beside the cache itself: its number, position and sequence. */
const TOKEN_BYTES = 16
/** Tokens for which the size of a state is estimated. */
const STEP = 256

/** Estimates the bytes of a token in a saved state by the model's metadata, if that is sufficient. */
export function bytesPerToken(spec: LaunchSpec): number | undefined {
  const shape = shapeOf(spec)
  if (!shape) return undefined
  const layers = cacheByLayer(shape, { ...spec.options, num_ctx: STEP, num_parallel: 1, batch: STEP })
  return layers.reduce((sum, bytes) => sum + bytes, 0) / STEP + TOKEN_BYTES
}
