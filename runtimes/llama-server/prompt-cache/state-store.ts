import { createHash, randomBytes } from 'node:crypto'
import type { Stats } from 'node:fs'
import { chmod, copyFile, mkdir, readdir, rm, stat, symlink } from 'node:fs/promises'
import { join } from 'node:path'
import { errorMessage, whenMissing } from '../../../core/errors.ts'
import { freeSpace } from '../../../core/system/disk-space.ts'
import { namesIn } from '../../../core/system/folder-names.ts'
import { readJsonFile, writeJsonFile } from '../../../core/system/json-file.ts'
import { oneByOne } from '../../../core/system/keyed-queue.ts'
import type { EngineLog } from '../launch.ts'
import { ORIGIN } from './memory-directory.ts'
import { chooseEvicted, type SavedState, type StateRecord, StateRecordSchema, type Tier } from './retention.ts'
import { computeChecksum } from './state-file.ts'
import { continues } from './trail.ts'

/*
 * The saved states of conversations, in memory and on disk:
 *
 *   <disk>/<hash of the variant's key>/<id>.json   what is known about a state, wherever its file is
 *                                      <id>.slot   its file, if it is on disk
 *   <memory>/<the same hash>/<id>.slot             its file, if it is in memory (tmpfs)
 *
 * A state survives a restart once its .json exists, which is written last, atomically, with the checksum of the whole
 * file. Files without one are left over from interrupted saves and are deleted at the next start. Folders are 0700 and
 * files 0600, because they contain users' text.
 */

/** Bytes of a disk or of the memory's file system that are left free. */
const KEPT_FREE = 256 * 2 ** 20
/** The maximum share of the free disk space that states may use. */
const MAX_DISK_SHARE = 0.5
const MAX_STATES = 4096
const RECORD_NAME = /^[0-9a-f]{16}\.json$/

export interface StateStoreOptions {
  /** A dedicated folder, which need not exist. */
  directory: string
  /** A dedicated folder on a file system in memory. Undefined without one. */
  memoryDirectory?: string | undefined
  /** Bytes on disk. 0 stores nothing and deletes all. */
  budget: number
  /** Returns the bytes that the states in memory may use now. */
  memoryBudget?: () => Promise<number>
  log: EngineLog
}

export type StateStore = Awaited<ReturnType<typeof openStateStore>>

/** Deletes a file. A file that cannot be deleted yet (on Windows, while it is open) is deleted at the next start. */
async function discard(path: string): Promise<void> {
  await rm(path, { force: true }).catch(() => {
    // No record names it.
  })
}

/** Opens the saved states. Deletes incomplete and damaged ones, and enforces the budgets. */
export async function openStateStore({ directory, memoryDirectory, budget, memoryBudget, log }: StateStoreOptions) {
  const states = new Map<string, SavedState>()
  /** The files that were read completely since they last changed. */
  const verified = new WeakMap<SavedState, string>()
  const reserved = { memory: 0, disk: 0 }
  /** Runs changes. */
  const alone = oneByOne()

  const hash = (variant: string) => createHash('sha256').update(variant).digest('hex').slice(0, 32)
  const roots = { disk: directory, memory: memoryDirectory }
  const getPath = (tier: Tier, variant: string, name: string) => join(roots[tier]!, hash(variant), name)
  const pathOf = ({ tier, variant, id }: SavedState) => getPath(tier, variant, `${id}.slot`)

  const inTier = (tier: Tier) => [...states.values()].filter(state => state.tier === tier)
  const getUse = (tier: Tier) => inTier(tier).reduce((sum, { bytes }) => sum + bytes, reserved[tier])

  async function writeRecord({ id, ...state }: SavedState): Promise<void> {
    if (state.crc32 === undefined) return
    const record: StateRecord = { version: 2, ...state, crc32: state.crc32 }
    await writeJsonFile(getPath('disk', state.variant, `${id}.json`), record, { mode: 0o600 })
  }

  async function remove(state: SavedState): Promise<void> {
    states.delete(state.id)
    await discard(getPath('disk', state.variant, `${state.id}.json`))
    await discard(pathOf(state))
  }

  function findEarlierTurns({ id, key, owner, trail }: SavedState): SavedState[] {
    return [...states.values()].filter(
      old => old.id !== id && old.key === key && old.owner === owner && continues(trail, old.trail)
    )
  }

  async function getBudget(tier: Tier): Promise<number> {
    if (budget === 0) return 0
    if (tier === 'memory') return memoryDirectory === undefined ? 0 : ((await memoryBudget?.()) ?? 0)
    const free = await freeSpace(directory).catch(() => Number.POSITIVE_INFINITY)
    return Math.min(budget, MAX_DISK_SHARE * (free + getUse('disk')))
  }

  /** Evicts states until an owner's bytes fit into the budget. Returns false if they can never fit. */
  async function makeRoom(tier: Tier, bytes: number, owner: string): Promise<boolean> {
    const most = await getBudget(tier)
    if (bytes + reserved[tier] > most) return false
    await evict(tier, most, bytes, owner)
    return true
  }

  async function evict(tier: Tier, budget: number, added = 0, owner = ''): Promise<void> {
    const excess = getUse(tier) + added - budget
    if (excess <= 0) return
    const evicted = chooseEvicted(inTier(tier), excess, { owner, added, budget, now: Date.now() })
    for (const state of evicted) if (tier === 'disk' || !(await moveToDisk(state))) await remove(state)
    log.debug({ files: evicted.length, tier }, 'saved prompt caches made room for newer ones')
  }

  async function moveToDisk(state: SavedState): Promise<boolean> {
    if (!(await makeRoom('disk', state.bytes, state.owner))) return false
    const from = pathOf(state)
    try {
      await mkdir(join(directory, hash(state.variant)), { recursive: true, mode: 0o700 })
      await copyFile(from, getPath('disk', state.variant, `${state.id}.slot`))
      state.tier = 'disk'
      verified.set(state, getMark(await stat(pathOf(state))))
      await writeRecord(state)
      await discard(from)
      return true
    } catch (error) {
      log.debug({ err: error }, 'a saved prompt cache could not be moved to the disk')
      await discard(getPath('disk', state.variant, `${state.id}.slot`))
      state.tier = 'memory'
      return false
    }
  }

  async function load(folder: string, name: string): Promise<void> {
    const path = join(directory, folder, name)
    const file = await readJsonFile(path, StateRecordSchema).catch(error => ({
      fault: errorMessage(error),
      value: undefined
    }))
    if (file?.fault) log.warn({ path }, `Deleting a saved prompt cache that cannot be used: ${file.fault}`)
    const record = file?.value
    if (!record || hash(record.variant) !== folder || (record.tier === 'memory' && memoryDirectory === undefined))
      return
    const { version, ...known } = record
    const state: SavedState = { ...known, id: name.slice(0, -'.json'.length) }
    const found = await stat(pathOf(state)).catch(() => undefined)
    if (found?.size === state.bytes) states.set(state.id, state)
  }

  for (const folder of budget === 0 ? [] : await namesIn(directory)) {
    for (const name of await namesIn(join(directory, folder))) {
      if (RECORD_NAME.test(name)) await load(folder, name)
    }
  }
  // Everything that no record names is deleted.
  for (const tier of ['disk', 'memory'] as const) {
    const root = roots[tier]
    if (root === undefined) continue
    for (const folder of (await readdir(root, { withFileTypes: true }).catch(whenMissing)) ?? []) {
      if (folder.name === ORIGIN) continue
      const path = join(root, folder.name)
      const names = folder.isDirectory() ? await readdir(path) : []
      const useless = names.filter(name => {
        const state = states.get(name.slice(0, 16))
        if (!state || hash(state.variant) !== folder.name) return true
        return name === `${state.id}.slot` ? state.tier !== tier : tier !== 'disk' || name !== `${state.id}.json`
      })
      const paths = useless.length === names.length ? [path] : useless.map(name => join(path, name))
      for (const each of paths) await rm(each, { recursive: true, force: true })
    }
  }
  if (states.size > 0) await Promise.all([makeRoom('memory', 0, ''), makeRoom('disk', 0, '')])

  return {
    /** Returns the folder for the files of a variant's engines, after creating it. */
    async open(variant: string): Promise<string> {
      await mkdir(join(directory, hash(variant)), { recursive: true, mode: 0o700 })
      await chmod(directory, 0o700)
      if (memoryDirectory === undefined) return join(directory, hash(variant))
      await mkdir(join(memoryDirectory, hash(variant)), { recursive: true, mode: 0o700 })
      return join(memoryDirectory, hash(variant))
    },

    list: (): readonly SavedState[] => [...states.values()],
    find: (variant: string, owner: string): readonly SavedState[] =>
      [...states.values()].filter(state => state.variant === variant && state.owner === owner),
    has: ({ id }: SavedState) => states.has(id),
    getUse,

    /** Reserves bytes for a file, evicting others if needed. Undefined if neither memory nor disk has room. */
    reserve: (variant: string, bytes: number, owner: string) =>
      alone(async () => {
        for (const tier of ['memory', 'disk'] as const) {
          const root = roots[tier]
          if (root === undefined || !(await makeRoom(tier, bytes, owner))) continue
          // Somebody may have deleted the folder.
          await mkdir(join(root, hash(variant)), { recursive: true, mode: 0o700 })
          if ((await freeSpace(root)) < bytes + KEPT_FREE) continue
          const id = createId()
          reserved[tier] += bytes
          return {
            id,
            tier,
            path: getPath(tier, variant, `${id}.slot`),
            release: () => {
              reserved[tier] -= bytes
            }
          }
        }
        return undefined
      }),

    /**
     * Makes a file accessible to engines. They use one folder only, so a file elsewhere gets a link there. The link has
     * its own name, because several slots may restore the same file. Returns the name, and a function that removes the
     * link.
     */
    async link(variant: string, tier: Tier, file: string): Promise<{ name: string; remove(): Promise<void> }> {
      if (tier === 'memory' || memoryDirectory === undefined) return { name: file, remove: async () => {} }
      const name = `${createId()}.slot`
      const path = getPath('memory', variant, name)
      await symlink(getPath('disk', variant, file), path)
      return { name, remove: () => discard(path) }
    },

    /** Adds a complete file, and removes earlier turns that would not survive a restart. Others stay until `seal`. */
    add: (state: SavedState): Promise<void> =>
      alone(async () => {
        verified.set(state, getMark(await stat(pathOf(state))))
        states.set(state.id, state)
        for (const old of findEarlierTurns(state)) if (old.crc32 === undefined) await remove(old)
        if (states.size > MAX_STATES) await remove(findOldest([...states.values()]))
        await makeRoom(state.tier, 0, state.owner)
      }),

    /** Computes the checksum of a state's file, and records it, so that the state survives a restart. */
    async seal(state: SavedState, signal: AbortSignal): Promise<void> {
      if (!states.has(state.id)) return
      const { crc32, size } = await computeChecksum(pathOf(state), signal)
      await alone(async () => {
        if (!states.has(state.id)) return
        if (size !== state.bytes) return await remove(state)
        state.crc32 = crc32
        await writeRecord(state)
        for (const old of findEarlierTurns(state)) await remove(old)
      })
    },

    /** Returns a state's path. Reads its whole file unless it is unchanged. @throws Error if it is damaged */
    async verify(state: SavedState, signal: AbortSignal): Promise<string> {
      const path = pathOf(state)
      const before = getMark(await stat(path))
      if (verified.get(state) === before) return path
      const found = await computeChecksum(path, signal)
      if (found.size !== state.bytes || found.crc32 !== state.crc32) throw new Error('the file is damaged')
      verified.set(state, before)
      return path
    },

    remove: (removed: readonly SavedState[]): Promise<void> =>
      alone(async () => {
        for (const state of removed) await remove(state)
      }),

    /** Moves states from memory to the disk until this much memory is left to them. */
    shrinkMemory: (most: number): Promise<void> => alone(() => evict('memory', Math.max(0, most)))
  }
}

const createId = () => randomBytes(8).toString('hex')

/** Changes whenever a file does. */
const getMark = ({ size, ctimeMs }: Stats) => `${size} ${ctimeMs}`

/** Finds the oldest state of the owner with most states, so that no owner loses states because others have many. */
function findOldest(states: readonly SavedState[]): SavedState {
  const counts = new Map<string, number>()
  for (const { owner } of states) counts.set(owner, (counts.get(owner) ?? 0) + 1)
  const [most] = [...counts].reduce((one, other) => (other[1] > one[1] ? other : one))
  return states.filter(({ owner }) => owner === most).reduce((one, other) => (other.usedAt < one.usedAt ? other : one))
}
