import { createHash, randomBytes } from 'node:crypto'
import { chmod, mkdir, readdir, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { type Static, Type } from 'typebox'
import { errorMessage, isSystemError } from '../../../core/errors.ts'
import { freeSpace } from '../../../core/system/disk-space.ts'
import { readJsonFile, writeJsonFile } from '../../../core/system/json-file.ts'
import { TrailSchema } from '../slot-owners.ts'

/*
 * The saved caches on disk:
 *
 *   <directory>/<hash of the variant's key>/manifest.json
 *                                          <random>.slot …
 *
 * A file exists for corral once the manifest names it. The manifest is written last, atomically. A file that no
 * manifest names is left over from an interrupted save and is deleted at the next start. Folders are 0700 and files
 * 0600, because they contain users' text.
 */

const SavedSlotSchema = Type.Object({
  file: Type.String({ pattern: '^[0-9a-f]{16}\\.slot$' }),
  /** From `cacheKey`. */
  key: Type.String(),
  revision: Type.String(),
  /** Owner of the prompt (`Caller.owner`). Prompts of other owners are never compared with it. */
  owner: Type.String(),
  /** Beginnings of the prompt, if known. */
  trail: Type.Optional(TrailSchema),
  tokens: Type.Integer({ minimum: 1 }),
  bytes: Type.Integer({ minimum: 1 }),
  crc32: Type.Integer({ minimum: 0 }),
  /** Slots of the engine that wrote it. */
  slots: Type.Integer({ minimum: 1 }),
  /** Streams of its file. Absent if the format of the file is unknown. */
  streams: Type.Optional(Type.Integer({ minimum: 1 })),
  /** Milliseconds per token that the engine took for prefill. */
  pace: Type.Optional(Type.Number({ minimum: 0 })),
  /** When the conversation last continued, in milliseconds since 1970. */
  usedAt: Type.Number()
})
export type SavedSlot = Static<typeof SavedSlotSchema>

const ManifestSchema = Type.Object({
  version: Type.Literal(1),
  variant: Type.String(),
  slots: Type.Array(SavedSlotSchema)
})

const MANIFEST = 'manifest.json'
/** Bytes of the disk that are left free. */
const KEPT_FREE = 256 * 2 ** 20
/** Conversations to store per variant, however small they are. */
const MAX_PER_VARIANT = 32

export interface CacheStoreLog {
  debug(object: object, message: string): void
  warn(object: object, message: string): void
}

export type CacheStore = Awaited<ReturnType<typeof openCacheStore>>

export function newFileName(): string {
  return `${randomBytes(8).toString('hex')}.slot`
}

/** Deletes a file. A file that cannot be deleted yet (on Windows, while it is open) is deleted at the next start. */
export async function discard(path: string): Promise<void> {
  await rm(path, { force: true }).catch(() => {
    // No manifest names it.
  })
}

/**
 * Opens the saved caches under a folder, which need not exist. Deletes incomplete and damaged files, and enforces the
 * budget (bytes; 0 deletes all).
 */
export async function openCacheStore(directory: string, budget: number, log: CacheStoreLog) {
  const saved = new Map<string, SavedSlot[]>()
  let reserved = 0
  let queue: Promise<unknown> = Promise.resolve()

  const getFolder = (variant: string) =>
    join(directory, createHash('sha256').update(variant).digest('hex').slice(0, 32))
  const getPath = (variant: string, file: string) => join(getFolder(variant), file)

  /** Changes are made one after another. */
  function alone<T>(work: () => Promise<T>): Promise<T> {
    const done = queue.then(work)
    queue = done.catch(() => {
      // The caller handles it.
    })
    return done
  }

  function all(): { variant: string; slot: SavedSlot }[] {
    return [...saved].flatMap(([variant, slots]) => slots.map(slot => ({ variant, slot })))
  }

  async function put(variant: string, slots: SavedSlot[]): Promise<void> {
    const manifest: Static<typeof ManifestSchema> = { version: 1, variant, slots }
    await writeJsonFile(getPath(variant, MANIFEST), manifest, { mode: 0o600 })
    const kept = new Set(slots.map(slot => slot.file))
    const gone = (saved.get(variant) ?? []).filter(slot => !kept.has(slot.file))
    saved.set(variant, slots)
    for (const { file } of gone) await discard(getPath(variant, file))
  }

  /** Deletes files until this many bytes are free within the budget. */
  async function makeRoom(bytes: number, expendable?: string): Promise<boolean> {
    if (bytes + reserved > budget) return false
    const size = all().reduce((sum, { slot }) => sum + slot.bytes, reserved + bytes)
    const leaving = leastUsed(all(), size - budget, expendable)
    const slots = new Set(leaving.map(entry => entry.slot))
    for (const variant of new Set(leaving.map(entry => entry.variant))) {
      const staying = saved.get(variant)!.filter(slot => !slots.has(slot))
      await put(variant, staying)
    }
    if (leaving.length) log.debug({ files: leaving.length }, 'saved prompt caches made room for newer ones')
    return true
  }

  /** Reads a folder's manifest. Returns undefined if it is damaged, or missing after an interrupted save. */
  async function readManifest(path: string): Promise<Static<typeof ManifestSchema> | undefined> {
    const file = await readJsonFile(path, ManifestSchema).catch(error => ({
      fault: errorMessage(error),
      value: undefined
    }))
    if (file?.fault) log.warn({ path }, `Deleting saved prompt caches that cannot be used: ${file.fault}`)
    return file?.value
  }

  async function load(folder: string): Promise<void> {
    const path = join(directory, folder)
    const manifest = await readManifest(join(path, MANIFEST))
    if (!manifest || getFolder(manifest.variant) !== path) {
      await rm(path, { recursive: true, force: true })
      return
    }
    const sizes = await Promise.all(manifest.slots.map(({ file }) => stat(join(path, file)).catch(() => undefined)))
    const slots = manifest.slots.filter(({ bytes }, at) => sizes[at]?.size === bytes)
    const wanted = new Set([MANIFEST, ...slots.map(slot => slot.file)])
    for (const name of await readdir(path)) {
      if (!wanted.has(name)) await rm(join(path, name), { recursive: true, force: true })
    }
    if (slots.length) saved.set(manifest.variant, slots)
    else await rm(path, { recursive: true, force: true })
  }

  if (budget === 0) await rm(directory, { recursive: true, force: true })
  for (const entry of await readdir(directory, { withFileTypes: true }).catch(noFolder)) {
    if (entry.isDirectory()) await load(entry.name)
    else await rm(join(directory, entry.name), { force: true })
  }
  await makeRoom(0)

  return {
    /** Returns the variant's folder, after creating it if necessary. */
    async open(variant: string): Promise<string> {
      const folder = getFolder(variant)
      await mkdir(folder, { recursive: true, mode: 0o700 })
      await chmod(directory, 0o700)
      return folder
    },
    slots: (variant: string): readonly SavedSlot[] => saved.get(variant) ?? [],
    path: getPath,
    /**
     * Reserves bytes for a file, deleting the least recently used ones if the budget requires it, `expendable` first.
     * Returns a function that releases the reservation, or undefined when budget or disk have no room.
     */
    reserve: (bytes: number, expendable?: string) =>
      alone(async () => {
        if (!(await makeRoom(bytes, expendable))) return undefined
        if ((await freeSpace(directory)) < bytes + KEPT_FREE) return undefined
        reserved += bytes
        return () => {
          reserved -= bytes
        }
      }),
    /** Adds complete files and deletes others of the variant, then enforces the budget. */
    replace: (variant: string, added: SavedSlot[], removed: readonly SavedSlot[]): Promise<void> =>
      alone(async () => {
        const slots = [...(saved.get(variant) ?? []).filter(slot => !removed.includes(slot)), ...added]
        slots.sort((a, b) => b.usedAt - a.usedAt)
        const extra = slots.splice(MAX_PER_VARIANT)
        await put(variant, slots)
        for (const { file } of extra) await discard(getPath(variant, file))
        await makeRoom(0)
      }),
    forget: (variant: string): Promise<void> =>
      alone(async () => {
        saved.delete(variant)
        await rm(getFolder(variant), { recursive: true, force: true })
      })
  }
}

/** Chooses which files to delete to free this many bytes: the expendable one first, then the least recently used. */
export function leastUsed<Entry extends { slot: SavedSlot }>(
  entries: readonly Entry[],
  bytes: number,
  expendable?: string
): Entry[] {
  const rank = ({ slot }: Entry) => (slot.file === expendable ? Number.NEGATIVE_INFINITY : slot.usedAt)
  const leaving: Entry[] = []
  let left = bytes
  for (const entry of [...entries].sort((a, b) => rank(a) - rank(b))) {
    if (left <= 0) break
    leaving.push(entry)
    left -= entry.slot.bytes
  }
  return leaving
}

function noFolder(error: unknown): never[] {
  if (isSystemError(error, 'ENOENT')) return []
  throw error
}
