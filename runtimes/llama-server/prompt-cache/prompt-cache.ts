import { chmod, stat } from 'node:fs/promises'
import { messageOf } from '../../../core/errors.ts'
import type { LlamaServerEngine } from '../engine.ts'
import type { LaunchSpec } from '../launch-spec.ts'
import {
  type CacheStore,
  type CacheStoreLog,
  discard,
  newFileName,
  openCacheStore,
  type SavedSlot
} from './cache-store.ts'
import {
  bytesPerToken,
  cacheKey,
  outsideFiles,
  promptPace,
  type SlotUse,
  savesSlots,
  slotAction,
  usedSlots
} from './slots.ts'
import { checksumOf, continues, readLayout, rewriteForStreams } from './state-file.ts'

export type PromptCache = ReturnType<typeof createPromptCache>

/** Reading fewer tokens than these again is faster than restoring them. */
const LEAST_TOKENS = 64
/** Milliseconds for the engine to say what is in its slots. */
const ASK_LIMIT = 3000
/** Milliseconds that saving or restoring may take whatever the size, at most, and bytes a millisecond on top. */
const BASE_LIMIT = 10_000
const LONGEST = 60_000
const SLOWEST = 100_000
/** Milliseconds to check a file for at least, however quickly its tokens could be read again. */
const LEAST_CHECK = 20

function timeLimit(bytes: number): AbortSignal {
  return AbortSignal.timeout(Math.ceil(Math.min(LONGEST, BASE_LIMIT + bytes / SLOWEST)))
}

/**
 * The caches of engines' slots on disk: a conversation goes on after its model was unloaded without being read again.
 * @param directory a folder of its own; it need not exist
 * @param budget bytes on disk; 0 saves nothing and deletes what was saved
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
  /** Opened on first use: until the server owns its data directory, another one may be using it. */
  const open = () =>
    (opened ??= openCacheStore(directory, budget, log).catch(error => {
      log.warn({ directory }, `prompt caches cannot be saved: ${messageOf(error)}`)
      return undefined
    }))
  /** Files that were given to the slots of an engine. */
  const given = new WeakMap<LlamaServerEngine, Map<number, SavedSlot>>()

  async function keyOf(engine: LlamaServerEngine): Promise<string> {
    const stamps = await Promise.all(
      outsideFiles(engine.spec).map(async path => {
        const { size, mtimeMs } = await stat(path)
        return `${size} ${mtimeMs}`
      })
    )
    return cacheKey(engine, stamps)
  }

  /** What is done for an engine never harms it or the scheduler: failures are only logged. */
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
      log.warn({ model: engine.spec.alias }, `${what}: ${messageOf(error)}`)
    }
  }

  async function restoreAll(store: CacheStore, engine: LlamaServerEngine, signal: AbortSignal): Promise<void> {
    const { alias, variant } = engine.spec
    const began = Date.now()
    const key = await keyOf(engine)
    const stale = store.slots(variant.key).filter(saved => saved.revision !== variant.revision)
    if (stale.length) await store.replace(variant.key, [], stale)
    const fitting = store
      .slots(variant.key)
      .filter(saved => saved.key === key && saved.tokens < engine.contextSize)
      .sort((a, b) => b.usedAt - a.usedAt)
      .slice(0, engine.slots)
    if (!fitting.length) return
    const limit = AbortSignal.any([signal, timeLimit(fitting.reduce((sum, saved) => sum + saved.bytes, 0))])
    const slots = new Map<number, SavedSlot>()
    given.set(engine, slots)
    let gone = false
    void engine.exited.then(() => {
      gone = true
    })
    for (const saved of fitting) {
      if (limit.aborted || gone) break
      // New conversations take the last slots first.
      if (await restoreOne(store, engine, slots.size, saved, limit)) slots.set(slots.size, saved)
    }
    if (!slots.size) return
    const tokens = [...slots.values()].reduce((sum, saved) => sum + saved.tokens, 0)
    log.info({ slots: slots.size, tokens, ms: Date.now() - began }, `restored prompt caches of ${alias}`)
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
    const pace = saved.pace === undefined ? undefined : Math.ceil(Math.max(LEAST_CHECK, saved.tokens * saved.pace))
    const check = pace === undefined ? limit : AbortSignal.any([limit, AbortSignal.timeout(pace)])
    let rewritten: string | undefined
    try {
      const found = await checksumOf(path, check)
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
      if (tokens !== saved.tokens) throw new Error(`${tokens} tokens came back`)
      return true
    } catch (error) {
      // A timeout does not mean that the file is bad: it is kept.
      if (limit.aborted) log.warn(context, 'restoring a prompt cache took too long or was called off')
      else if (error === check.reason)
        log.debug(context, 'a prompt is read again faster than its saved cache can be checked')
      else {
        log.warn(context, `a saved prompt cache is of no use and is deleted: ${messageOf(error)}`)
        await store.replace(variant.key, [], [saved])
      }
      return false
    } finally {
      if (rewritten !== undefined) await discard(store.path(variant.key, rewritten))
    }
  }

  async function saveAll(store: CacheStore, engine: LlamaServerEngine): Promise<void> {
    const { spec } = engine
    const began = Date.now()
    const ask = AbortSignal.timeout(ASK_LIMIT)
    const used = (await usedSlots(engine, ask)).filter(slot => (slot.tokens ?? LEAST_TOKENS) >= LEAST_TOKENS)
    if (!used.length) return
    used.sort((a, b) => b.task - a.task)
    // Only what decides later whether restoring pays; without it, it is taken to.
    const pace = await promptPace(engine, ask).catch(() => undefined)
    const common = { key: await keyOf(engine), revision: spec.variant.revision, slots: engine.slots, pace }
    const size = tokenSize(store, engine, common.key)
    const limit = timeLimit(used.reduce((sum, slot) => sum + sizeOf(slot, size), 0))
    // The files are read again for their sums while the engine writes the next ones.
    const saved: Promise<SavedSlot | undefined>[] = []
    for (const [rank, slot] of used.entries()) {
      if (limit.aborted) break
      const release = await store.reserve(sizeOf(slot, size), given.get(engine)?.get(slot.id)?.file)
      if (!release) {
        log.warn({ model: spec.alias, tokens: slot.tokens }, 'no room on the disk or in its budget for a prompt cache')
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
        if (written.tokens < LEAST_TOKENS) {
          await discard(path)
          continue
        }
        const sealed = seal(path, written.bytes, spec.projectorPath !== undefined, limit).then(
          sums => ({ ...common, ...sums, file, tokens: written.tokens, usedAt: began - rank }),
          error => abandon(messageOf(error))
        )
        saved.push(sealed.finally(release))
      } catch (error) {
        release()
        await abandon(limit.aborted ? 'it took too long' : messageOf(error))
      }
    }
    const added = (await Promise.all(saved)).filter(slot => slot !== undefined)
    if (!added.length) return
    await store.replace(spec.variant.key, added, await outdated(store, engine, added))
    const tokens = added.reduce((sum, slot) => sum + slot.tokens, 0)
    const bytes = added.reduce((sum, slot) => sum + slot.bytes, 0)
    log.info({ slots: added.length, tokens, bytes, ms: Date.now() - began }, `saved prompt caches of ${spec.alias}`)
  }

  /** Bytes of a token: as it was with this engine's like before, else estimated, else unknown. */
  function tokenSize(store: CacheStore, { spec }: LlamaServerEngine, key: string): number {
    const before = store.slots(spec.variant.key).find(slot => slot.key === key)
    return before ? before.bytes / before.tokens : (bytesPerToken(spec) ?? 0)
  }

  /** Files of earlier states of the conversations that were saved now. */
  async function outdated(store: CacheStore, { spec }: LlamaServerEngine, added: SavedSlot[]): Promise<SavedSlot[]> {
    const layoutOf = (slot: SavedSlot) => readLayout(store.path(spec.variant.key, slot.file)).catch(() => undefined)
    const leaving: SavedSlot[] = []
    const now = await Promise.all(added.map(layoutOf))
    for (const old of store.slots(spec.variant.key)) {
      if (old.key !== added[0]!.key) continue
      const earlier = await layoutOf(old)
      // Of what cannot be compared only the new one stays.
      if (!earlier || now.some(later => later && continues(later, earlier))) leaving.push(old)
    }
    return leaving
  }

  return {
    /** Folder for `LaunchSpec.slotFolder`; undefined where this engine's caches cannot be saved. Never rejects. */
    async folderFor(spec: LaunchSpec): Promise<string | undefined> {
      // Also without a budget: opening deletes what an earlier budget left.
      const store = await open()
      if (budget === 0 || !savesSlots(spec)) return undefined
      return await store?.open(spec.variant.key).catch(error => {
        log.warn({ model: spec.alias, directory }, `prompt caches cannot be saved: ${messageOf(error)}`)
        return undefined
      })
    },
    /** Gives an engine that has just started what was saved of its like, before it serves. Never rejects; is bounded. */
    restore: (engine: LlamaServerEngine, signal: AbortSignal): Promise<void> =>
      safely('prompt caches could not be restored', engine, store => restoreAll(store, engine, signal)),
    /** Saves the caches of an engine that is about to be stopped and answers nothing. Never rejects; is bounded. */
    save: (engine: LlamaServerEngine): Promise<void> =>
      safely('prompt caches could not be saved', engine, store => saveAll(store, engine)),
    /** Deletes all that was saved of a variant (`StoredVariant.key`), as when it is removed. Never rejects. */
    async forget(variantKey: string): Promise<void> {
      const store = await open()
      await store?.forget(variantKey).catch(error => {
        log.warn({ directory }, `saved prompt caches could not be deleted: ${messageOf(error)}`)
      })
    }
  }
}

function sizeOf(slot: SlotUse, bytesPerToken: number): number {
  return Math.ceil((slot.tokens ?? LEAST_TOKENS) * bytesPerToken)
}

/** Checks a written file: complete, restorable, and readable for its owner only. */
async function seal(path: string, bytes: number, seesMedia: boolean, signal: AbortSignal) {
  await chmod(path, 0o600)
  const { size, crc32 } = await checksumOf(path, signal)
  if (size !== bytes) throw new Error(`${size} of ${bytes} bytes are on the disk`)
  const layout = await readLayout(path)
  if (layout ? layout.media : seesMedia) throw new Error('images and sounds are not saved')
  return { bytes: size, crc32, streams: layout?.streams }
}
