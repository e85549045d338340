import { createHash } from 'node:crypto'
import { chmod, stat } from 'node:fs/promises'
import { errorMessage } from '../../../core/errors.ts'
import { abortAfter } from '../../../core/system/abort-signals.ts'
import type { LlamaServerEngine } from '../engine.ts'
import type { LaunchSpec } from '../launch-spec.ts'
import { cacheByLayer, modelShape } from '../memory/model-shape.ts'
import { readJson, readText } from '../response-body.ts'
import {
  type CacheStore,
  type CacheStoreLog,
  discard,
  newFileName,
  openCacheStore,
  type SavedSlot
} from './cache-store.ts'
import { computeChecksum, continues, readLayout, rewriteForStreams } from './state-file.ts'

export type PromptCache = ReturnType<typeof createPromptCache>

/** Processing fewer tokens than this again is faster than restoring them. */
const MIN_TOKENS = 64
/** Milliseconds for the engine to report the contents of its slots. */
const ASK_LIMIT = 3000
/** Milliseconds for any save or restore, and bytes per millisecond on top. */
const BASE_LIMIT = 10_000
const MAX_LENGTH = 60_000
const SLOWEST = 100_000
/** Minimum milliseconds to check a file, however fast its tokens could be processed again. */
const MIN_CHECK = 20

function timeLimit(bytes: number): AbortSignal {
  return abortAfter(Math.ceil(Math.min(MAX_LENGTH, BASE_LIMIT + bytes / SLOWEST)))
}

/**
 * Stores the caches of engines' slots on disk, so that a conversation continues after its model was unloaded without a
 * new prefill.
 * @param directory a dedicated folder, which need not exist
 * @param budget bytes on disk. 0 saves nothing and deletes saved caches
 */
export function createPromptCache({
  directory,
  budget,
  log
}: {
  directory: string
  budget: number
  log: CacheStoreLog & { info(object: object, message: string): void }
}) {
  let opened: Promise<CacheStore | undefined> | undefined
  /** Opened on first use. Until the server owns its data directory, another server may be using it. */
  const open = () =>
    (opened ??= openCacheStore(directory, budget, log).catch(error => {
      log.warn({ directory }, `prompt caches cannot be saved: ${errorMessage(error)}`)
      return undefined
    }))
  /** Files that the slots of an engine were restored from. */
  const restoredFrom = new WeakMap<LlamaServerEngine, Map<number, SavedSlot>>()

  async function toKey(engine: LlamaServerEngine): Promise<string> {
    const stamps = await Promise.all(
      outsideFiles(engine.spec).map(async path => {
        const { size, mtimeMs } = await stat(path)
        return `${size} ${mtimeMs}`
      })
    )
    return cacheKey(engine, stamps)
  }

  /** Failures must not harm the engine or the scheduler, so they are only logged. */
  async function safely(
    what: string,
    engine: LlamaServerEngine,
    work: (store: CacheStore) => Promise<void>
  ): Promise<void> {
    if (engine.spec.slotFolder === undefined) return
    const store = await open()
    if (!store) return
    try {
      await work(store)
    } catch (error) {
      log.warn({ model: engine.spec.alias }, `${what}: ${errorMessage(error)}`)
    }
  }

  async function restoreAll(
    store: CacheStore,
    engine: LlamaServerEngine,
    mayRestore: (owner: string) => boolean,
    signal: AbortSignal
  ): Promise<void> {
    const { alias, variant } = engine.spec
    const began = performance.now()
    if (store.slots(variant.key).length === 0) return
    const key = await toKey(engine)
    const stale = store.slots(variant.key).filter(saved => saved.revision !== variant.revision)
    if (stale.length) await store.replace(variant.key, [], stale)
    const fitting = store
      .slots(variant.key)
      .filter(saved => saved.key === key && saved.tokens < engine.contextSize)
      .sort((a, b) => b.usedAt - a.usedAt)
      .filter(({ owner }) => mayRestore(owner))
      .slice(0, engine.slots)
    if (!fitting.length) return
    const limit = AbortSignal.any([signal, timeLimit(fitting.reduce((sum, saved) => sum + saved.bytes, 0))])
    const slots = new Map<number, SavedSlot>()
    restoredFrom.set(engine, slots)
    let gone = false
    void engine.exited.then(() => {
      gone = true
    })
    for (const saved of fitting) {
      if (limit.aborted || gone) break
      // llama-server uses the last slots first for new conversations.
      if (!(await restoreOne(store, engine, slots.size, saved, limit))) continue
      slots.set(slots.size, saved)
    }
    if (!slots.size) return
    for (const [slot, { owner, trail }] of [...slots].reverse()) engine.slotOwners.restored(slot, owner, trail)
    const tokens = [...slots.values()].reduce((sum, saved) => sum + saved.tokens, 0)
    log.info(
      { slots: slots.size, tokens, ms: Math.round(performance.now() - began) },
      `restored prompt caches of ${alias}`
    )
  }

  async function restoreOne(
    store: CacheStore,
    engine: LlamaServerEngine,
    slot: number,
    saved: SavedSlot,
    limit: AbortSignal
  ) {
    const { variant, alias } = engine.spec
    const path = store.path(variant.key, saved.file)
    const context = { model: alias, tokens: saved.tokens, bytes: saved.bytes }
    const pace = saved.pace === undefined ? undefined : Math.ceil(Math.max(MIN_CHECK, saved.tokens * saved.pace))
    const check = pace === undefined ? limit : AbortSignal.any([limit, abortAfter(pace)])
    let rewritten: string | undefined
    try {
      const found = await computeChecksum(path, check)
      if (found.size !== saved.bytes || found.crc32 !== saved.crc32) throw new Error('the file is damaged')
      if (saved.slots !== engine.slots) {
        const layout = saved.streams === saved.slots ? await readLayout(path) : undefined
        if (!layout && saved.streams !== 1) return false
        if (layout) {
          rewritten = newFileName()
          await rewriteForStreams(path, store.path(variant.key, rewritten), layout, engine.slots, check)
        }
      }
      const { tokens } = await slotAction(engine, slot, 'restore', rewritten ?? saved.file, limit)
      if (tokens !== saved.tokens) throw new Error(`only ${tokens} tokens were restored`)
      return true
    } catch (error) {
      // A timeout does not mean that the file is bad, so the file stays.
      if (limit.aborted) log.warn(context, 'restoring a prompt cache took too long or was cancelled')
      else if (error === check.reason)
        log.debug(context, 'processing the prompt again is faster than checking its saved cache')
      else {
        log.warn(context, `deleting a useless saved prompt cache: ${errorMessage(error)}`)
        await store.replace(variant.key, [], [saved])
      }
      return false
    } finally {
      if (rewritten !== undefined) await discard(store.path(variant.key, rewritten))
    }
  }

  async function saveAll(store: CacheStore, engine: LlamaServerEngine): Promise<void> {
    const { spec } = engine
    const began = performance.now()
    const ask = abortAfter(ASK_LIMIT)
    const used = (await usedSlots(engine, ask)).flatMap(slot => {
      const owner = engine.slotOwners.getOwner(slot.id)
      return owner === undefined || (slot.tokens ?? MIN_TOKENS) < MIN_TOKENS
        ? []
        : { ...slot, owner, trail: engine.slotOwners.getTrail(slot.id) }
    })
    if (!used.length) return
    used.sort((a, b) => b.task - a.task)
    // One time for all, because files are checked in parallel and finish in any order.
    const savedAt = Date.now()
    // Only used later to decide whether restoring pays off. Without it, restoring is assumed to pay off.
    const pace = await promptPace(engine, ask).catch(() => undefined)
    const common = { key: await toKey(engine), revision: spec.variant.revision, slots: engine.slots, pace }
    const size = tokenSize(store, engine, common.key)
    const limit = timeLimit(used.reduce((sum, slot) => sum + getSize(slot, size), 0))
    // The files are read again for their checksums while the engine writes the next ones.
    const saved: Promise<SavedSlot | undefined>[] = []
    for (const [rank, slot] of used.entries()) {
      if (limit.aborted) break
      const release = await store.reserve(getSize(slot, size), restoredFrom.get(engine)?.get(slot.id)?.file)
      if (!release) {
        log.warn({ model: spec.alias, tokens: slot.tokens }, 'no room on the disk or in the budget for a prompt cache')
        continue
      }
      const file = newFileName()
      const path = store.path(spec.variant.key, file)
      const abandon = async (reason: string) => {
        log.warn({ model: spec.alias, tokens: slot.tokens }, `a prompt cache is not saved: ${reason}`)
        await discard(path)
        // The engine may still be writing it.
        void engine.exited.then(() => discard(path))
        return undefined
      }
      try {
        const written = await slotAction(engine, slot.id, 'save', file, limit)
        if (written.tokens < MIN_TOKENS) {
          await discard(path)
          continue
        }
        const sealed = seal(path, written.bytes, spec.projectorPath !== undefined, limit).then(
          sums => ({
            ...common,
            ...sums,
            file,
            owner: slot.owner,
            trail: slot.trail,
            tokens: written.tokens,
            usedAt: savedAt - rank
          }),
          error => abandon(errorMessage(error))
        )
        saved.push(sealed.finally(release))
      } catch (error) {
        release()
        await abandon(limit.aborted ? 'it took too long' : errorMessage(error))
      }
    }
    const added = (await Promise.all(saved)).filter(slot => slot !== undefined)
    if (!added.length) return
    await store.replace(spec.variant.key, added, await outdated(store, engine, added))
    const tokens = added.reduce((sum, slot) => sum + slot.tokens, 0)
    const bytes = added.reduce((sum, slot) => sum + slot.bytes, 0)
    log.info(
      { slots: added.length, tokens, bytes, ms: Math.round(performance.now() - began) },
      `saved prompt caches of ${spec.alias}`
    )
  }

  /** Returns the bytes per token: as measured with a similar engine, otherwise estimated, otherwise unknown. */
  function tokenSize(store: CacheStore, { spec }: LlamaServerEngine, key: string): number {
    const before = store.slots(spec.variant.key).find(slot => slot.key === key)
    return before ? before.bytes / before.tokens : (bytesPerToken(spec) ?? 0)
  }

  /** Finds the files with earlier states of the conversations that were just saved. */
  async function outdated(store: CacheStore, { spec }: LlamaServerEngine, added: SavedSlot[]): Promise<SavedSlot[]> {
    const getLayout = (slot: SavedSlot) => readLayout(store.path(spec.variant.key, slot.file)).catch(() => undefined)
    const leaving: SavedSlot[] = []
    const now = await Promise.all(added.map(async slot => ({ owner: slot.owner, layout: await getLayout(slot) })))
    for (const old of store.slots(spec.variant.key)) {
      const later = now.filter(({ owner }) => owner === old.owner)
      if (old.key !== added[0]!.key || later.length === 0) continue
      const earlier = await getLayout(old)
      // If files cannot be compared, only the new one stays.
      if (!earlier || later.some(({ layout }) => layout && continues(layout, earlier))) leaving.push(old)
    }
    return leaving
  }

  return {
    /**
     * Returns the folder for `LaunchSpec.slotFolder`, or undefined if this engine's caches cannot be saved. Never
     * rejects.
     */
    async folderFor(spec: LaunchSpec): Promise<string | undefined> {
      // Also without a budget, because opening deletes the files of an earlier budget.
      const store = await open()
      if (budget === 0 || !savesSlots(spec)) return undefined
      return await store?.open(spec.variant.key).catch(error => {
        log.warn({ model: spec.alias, directory }, `prompt caches cannot be saved: ${errorMessage(error)}`)
        return undefined
      })
    },
    /**
     * Restores the caches that engines like this one saved for these owners, after its start and before it serves.
     * Never rejects. Takes limited time.
     */
    restore: (engine: LlamaServerEngine, mayRestore: (owner: string) => boolean, signal: AbortSignal): Promise<void> =>
      safely('prompt caches could not be restored', engine, store => restoreAll(store, engine, mayRestore, signal)),
    /** Saves the caches of an idle engine that is about to be stopped. Never rejects. Takes limited time. */
    save: (engine: LlamaServerEngine): Promise<void> =>
      safely('prompt caches could not be saved', engine, store => saveAll(store, engine)),
    /** Deletes all saved caches of a variant (`StoredVariant.key`), for example when it is removed. Never rejects. */
    async forget(variantKey: string): Promise<void> {
      const store = await open()
      await store?.forget(variantKey).catch(error => {
        log.warn({ directory }, `saved prompt caches could not be deleted: ${errorMessage(error)}`)
      })
    }
  }
}

function getSize(slot: SlotUse, bytesPerToken: number): number {
  return Math.ceil((slot.tokens ?? MIN_TOKENS) * bytesPerToken)
}

/** Checks that a written file is complete and restorable, and makes it readable for its owner only. */
async function seal(path: string, bytes: number, seesMedia: boolean, signal: AbortSignal) {
  await chmod(path, 0o600)
  const { size, crc32 } = await computeChecksum(path, signal)
  if (size !== bytes) throw new Error(`${size} of ${bytes} bytes are on the disk`)
  const layout = await readLayout(path)
  if (layout ? layout.media : seesMedia) throw new Error('images and sounds are not saved')
  return { bytes: size, crc32, streams: layout?.streams }
}

/*
 * llama-server's HTTP interface for slots (tools/server/README.md: GET /slots, POST /slots/{id}?action=…, GET
 * /metrics).
 */

interface SlotUse {
  id: number
  /** Tokens in its cache. Undefined if the build does not report them. */
  tokens: number | undefined
  /** Grows with each task of the engine, so the most recently used slot has the highest one. */
  task: number
}

/** Returns the slots that have answered since the engine's start. @throws Error when the engine does not answer */
async function usedSlots(engine: LlamaServerEngine, signal: AbortSignal): Promise<SlotUse[]> {
  const { status, body } = await engine.request({ method: 'GET', path: '/slots', signal })
  const slots = await readJson(body)
  if (status !== 200 || !Array.isArray(slots)) throw new Error(`GET /slots: status ${status}`)
  return slots.flatMap(slot =>
    typeof slot?.id === 'number' && typeof slot.id_task === 'number'
      ? [{ id: slot.id, task: slot.id_task, tokens: numberOf(slot.n_prompt_tokens) }]
      : []
  )
}

/** Saves or restores a slot. Returns its tokens and the bytes written. @throws Error with the engine's own words */
async function slotAction(
  engine: LlamaServerEngine,
  id: number,
  action: 'save' | 'restore',
  filename: string,
  signal: AbortSignal
): Promise<{ tokens: number; bytes: number }> {
  const { status, body } = await engine.request({
    method: 'POST',
    path: `/slots/${id}?action=${action}`,
    body: JSON.stringify({ filename }),
    signal
  })
  const reply = (await readJson(body)) as Record<string, unknown>
  if (status === 200) {
    return { tokens: numberOf(reply.n_saved ?? reply.n_restored) ?? 0, bytes: numberOf(reply.n_written) ?? 0 }
  }
  const message = (reply?.error as { message?: unknown } | undefined)?.message
  throw new Error(typeof message === 'string' ? message : `status ${status}`)
}

/** Returns the average milliseconds per token of prefill, or undefined if too few tokens were processed. */
async function promptPace(engine: LlamaServerEngine, signal: AbortSignal): Promise<number | undefined> {
  const { status, body } = await engine.request({ method: 'GET', path: '/metrics', signal })
  const metrics = await readText(body)
  const count = (name: string) => Number(new RegExp(`^llamacpp:${name} (\\S+)$`, 'm').exec(metrics)?.[1])
  const tokens = count('prompt_tokens_total')
  const seconds = count('prompt_seconds_total')
  // Single tokens take longer than those of a batch.
  return status === 200 && tokens >= 256 && seconds > 0 ? (seconds * 1000) / tokens : undefined
}

function numberOf(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isFinite(value) ? value : undefined
}

/*
 * Decides which engines' slots can be saved, and which saved slot fits which engine. llama-server writes the tokens and
 * the state of a slot's memory, but not its checkpoints (llama.cpp issues 25913, 28194).
 */

/**
 * Architectures without a cell for every token of the conversation: recurrent and hybrid ones (`llm_arch_is_recurrent`,
 * `llm_arch_is_hybrid` in llama-arch.cpp) and those with sliding windows (`swa_type` in src/models). Without their
 * checkpoints llama-server processes the whole prompt again after a restore. `--swa-full` does not help, because cells
 * outside the window are left out of the file in any case. Others here have more than one cache, or none.
 */
const UNSUITABLE = new Set(
  `mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7
  jamba falcon-h1 plamo2 granitehybrid lfm2 lfm2moe nemotron_h nemotron_h_moe qwen3next kimi-linear kimi-k3 bailingmoe3
  qwen35 qwen35moe qwen4exp deepseek4 minimax-01
  gemma2 gemma3 gemma3n gemma4 llama4 cohere2 cohere2moe gpt-oss mimo2 step35 spark2_5 maple muse-glimmer granite_swa
  deepseek32 glm-dsa hy_v4 dots3note minimax-m3 dflash
  t5 dream llada llada-moe rnd1`.split(/\s+/)
)

/**
 * Whether the slots of such an engine can be saved and are useful after a restore: chats of models with attention over
 * the whole context, without a draft model. A draft model's cache is not in the file, so it would guess badly for the
 * rest of the conversation (7 of 100 guesses were right instead of 57). Decided by metadata. An unknown architecture is
 * assumed to be suitable. If it is not, llama-server notices and processes the prompt again.
 */
export function savesSlots(spec: LaunchSpec): boolean {
  if (spec.mode !== 'chat' || spec.settings?.speculation.draft) return false
  if (UNSUITABLE.has(spec.variant.metadata.architecture ?? '')) return false
  const shape = shapeOf(spec)
  return !shape || (shape.window === 0 && shape.layers.every(layer => layer.state === 0))
}

function shapeOf({ variant }: LaunchSpec) {
  const { architecture, info } = variant.metadata
  return modelShape({ ...info, 'general.architecture': architecture }, undefined, variant.size)
}

/**
 * Identifies everything that a slot's cache depends on. A saved cache is restored only in engines with the same key.
 * `stamps` distinguish files outside the model's revision, such as LoRA adapters (size and modification time).
 *
 * Excluded are the context size, which may differ as long as the tokens fit (except for models that choose their rope
 * factors by it), the number of slots, and the placement of layers.
 */
export function cacheKey(
  { spec, build, sharedArguments }: Pick<LlamaServerEngine, 'spec' | 'build' | 'sharedArguments'>,
  stamps: readonly string[]
): string {
  const { variant, options, settings } = spec
  const { architecture, info } = variant.metadata
  const original = Number(info[`${architecture}.rope.scaling.original_context_length`] ?? 0)
  const parts = {
    format: 1,
    revision: variant.revision,
    dtype: variant.format === 'gguf' ? undefined : options.dtype,
    mode: spec.mode,
    build: [build.version, build.commit, build.commit === undefined ? build.digest : undefined],
    types: [options.cache_type_k, options.cache_type_v],
    longRope: original > 0 && options.num_ctx > original,
    projector: spec.projectorPath !== undefined,
    loras: settings?.loras,
    arguments: [...sharedArguments, ...(settings?.arguments ?? [])],
    environment: settings?.environment,
    stamps
  }
  return createHash('sha256').update(JSON.stringify(parts)).digest('hex')
}

/** Files outside the model's revision that its caches depend on. */
function outsideFiles({ settings, projectorPath }: LaunchSpec): string[] {
  return [...(settings?.loras ?? []).map(lora => lora.path), ...(projectorPath === undefined ? [] : [projectorPath])]
}

/** Bytes that llama-server writes for each token beside the cache itself: its number, position and sequence. */
const TOKEN_BYTES = 16
/** Tokens for which the size of a cache is estimated. */
const STEP = 256

/**
 * Estimates the bytes of a token in a saved cache by the model's metadata. Returns undefined if that is insufficient.
 */
export function bytesPerToken(spec: LaunchSpec): number | undefined {
  const shape = shapeOf(spec)
  if (!shape) return undefined
  const layers = cacheByLayer(shape, { ...spec.options, num_ctx: STEP, num_parallel: 1, batch: STEP })
  return layers.reduce((sum, bytes) => sum + bytes, 0) / STEP + TOKEN_BYTES
}
