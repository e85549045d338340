import { constants } from 'node:fs'
import { access, mkdir, readdir, readFile, rm, stat, utimes } from 'node:fs/promises'
import { hostname } from 'node:os'
import { dirname, join, sep } from 'node:path'
import { isSystemError, reasonOf } from '../errors.ts'
import type { DataPaths } from './data-paths.ts'
import { parseAnyJson } from './json-object.ts'
import { isSameProcess, processStartTime } from './processes.ts'

/** The server that owns a data directory. */
export interface Owner {
  pid: number
  /** From `processStartTime`. */
  startTime: string
  host: string
  /** Its address, such as `http://127.0.0.1:11435`. */
  address: string
  /** The socket that only the user who runs it can open; absent until it listens, and if there is none. */
  socket?: string
  version: string
}

/** Why a server cannot use its data directory: another server owns it, or it is not writable. */
export class DataDirectoryError extends Error {
  override readonly name = 'DataDirectoryError'
  readonly reason: 'held' | 'unusable'
  readonly owner: Owner | undefined
  /** The account that may use the directory, if it belongs to another user, and the directory. */
  readonly account: { name: string; path: string } | undefined

  constructor(
    reason: 'held' | 'unusable',
    message: string,
    { owner, account, cause }: { owner?: Owner; account?: DataDirectoryError['account']; cause?: unknown }
  ) {
    super(message, { cause })
    this.reason = reason
    this.owner = owner
    this.account = account
  }
}

/** How often a server shows other machines that it is alive, and the silence after which it counts as dead. */
const BEAT_INTERVAL = 20_000
const SILENCE_OF_THE_DEAD = 90_000

/**
 * Creates the data directory's folders and makes this process their only server until `release`. The claim includes the
 * models folder if it is elsewhere. A dead process loses its claim.
 * @throws DataDirectoryError that names the owner process, or the path that is not writable
 */
export async function claimDataDirectory(paths: DataPaths, server: { address: string; version: string }) {
  for (const path of [paths.home, paths.models, paths.downloads, paths.runtimes, paths.cache, paths.logs]) {
    await usable(path, async () => {
      const isNew = (await mkdir(path, { recursive: true, mode: 0o700 })) !== undefined
      if (isNew && !path.startsWith(paths.home + sep)) await (await import('./file-writers.ts')).keepPrivate(path)
    })
  }
  const self: Owner = {
    pid: process.pid,
    startTime: (await processStartTime(process.pid)) ?? 'unknown',
    host: hostname(),
    address: server.address,
    version: server.version
  }
  // Two servers with separate data directories must not write to the same models either.
  const isElsewhere = !paths.models.startsWith(paths.home + sep)
  const files = [paths.ownerFile, ...(isElsewhere ? [join(paths.models, '.owner.json')] : [])]
  const claimed: string[] = []
  const versionFile = join(paths.home, 'version')
  let before: string | undefined
  try {
    for (const file of files) {
      await claimFile(file, self)
      claimed.push(file)
    }
    before = (await readFile(versionFile, 'utf8').catch(() => '')).trim() || undefined
    if (before !== server.version) await writeDurably(versionFile, `${server.version}\n`)
  } catch (error) {
    await Promise.all(claimed.map(file => releaseFile(file, self)))
    throw error
  }

  const beat = setInterval(() => {
    const now = new Date()
    // A failed beat does not matter on this machine, and the next one follows.
    for (const file of files) utimes(file, now, now).catch(() => {})
  }, BEAT_INTERVAL).unref()

  return {
    /** The version of corral that used the directory before, if any. */
    before,
    /** Releases the directory; a later server may claim it. */
    async release() {
      clearInterval(beat)
      await Promise.all(files.map(file => releaseFile(file, self)))
    },
    /** Records where the server actually listens. */
    async update({ address, socket }: { address: string; socket: string | undefined }) {
      Object.assign(self, { address }, socket !== undefined && { socket })
      await Promise.all(files.map(file => writeOwner(file, self)))
    }
  }
}

/** Checks whether a server could use these folders, without creating any. @throws DataDirectoryError as a claim does */
export async function checkDataDirectory({ home, models }: Pick<DataPaths, 'home' | 'models'>): Promise<void> {
  for (const path of [home, models]) {
    for (let at = path; ; at = dirname(at)) {
      try {
        // The folder cannot be created below a file.
        await readdir(at)
        await usable(path, () => access(at, constants.W_OK))
        break
      } catch (error) {
        if (error instanceof DataDirectoryError) throw error
        if (!isSystemError(error, 'ENOENT') || dirname(at) === at) throw await unusable(path, error)
      }
    }
  }
}

/** The running server of this data directory, if any. Only reads. */
export const readOwner = ({ ownerFile }: Pick<DataPaths, 'ownerFile'>) => livingOwner(ownerFile)

async function claimFile(file: string, self: Owner): Promise<void> {
  try {
    // Loaded lazily: commands read the owner on each call, and never write it.
    const { withShortLock } = await import('./short-lock.ts')
    // Decides between servers that start at the same time.
    await withShortLock(file, async () => {
      const owner = await livingOwner(file)
      if (owner) throw heldError(dirname(file), owner, self)
      await writeOwner(file, self)
    })
  } catch (error) {
    if (error instanceof DataDirectoryError) throw error
    if (!isSystemError(error, 'ELOCKED')) throw await unusable(dirname(file), error)
    const message =
      `Another corral is starting on ${dirname(file)} and has not finished. Wait a moment and start again; ` +
      `if corral is not running, delete ${file}.lock.`
    throw new DataDirectoryError('held', message, { cause: error })
  }
}

async function livingOwner(file: string): Promise<Owner | undefined> {
  const owner = await readOwnerFile(file)
  if (!owner) return undefined
  if (owner.host === hostname()) return (await isSameProcess(owner.pid, owner.startTime)) ? owner : undefined
  // A process on another machine (or in another container) is not visible, so only its beat shows that it is alive.
  const { mtimeMs } = await stat(file)
  return Date.now() - mtimeMs < SILENCE_OF_THE_DEAD ? owner : undefined
}

async function readOwnerFile(file: string): Promise<Owner | undefined> {
  const text = await readFile(file, 'utf8').catch(async error => {
    if (isSystemError(error, 'ENOENT')) return ''
    throw await unusable(dirname(file), error)
  })
  // Checked by hand: commands read it at each call, and should not load the schema checker. The file is written
  // atomically, so a running server never writes malformed JSON.
  const { pid, startTime, host, address = '', socket, version = '' }: Partial<Owner> = Object(parseAnyJson(text))
  if (typeof pid !== 'number' || typeof startTime !== 'string' || typeof host !== 'string') return undefined
  return { pid, startTime, host, address, ...(typeof socket === 'string' && { socket }), version }
}

const writeOwner = (file: string, owner: Owner) => writeDurably(file, `${JSON.stringify(owner, undefined, 2)}\n`)

async function releaseFile(file: string, self: Owner): Promise<void> {
  const owner = await readOwnerFile(file)
  if (owner?.pid === self.pid && owner.startTime === self.startTime && owner.host === self.host) {
    await rm(file, { force: true })
  }
}

async function writeDurably(file: string, text: string): Promise<void> {
  const { default: writeFileAtomic } = await import('write-file-atomic')
  await usable(dirname(file), () => writeFileAtomic(file, text, { mode: 0o600 }))
}

/** @throws DataDirectoryError that names the path, if the work fails */
async function usable(path: string, work: () => Promise<unknown>): Promise<void> {
  try {
    await work()
  } catch (error) {
    throw await unusable(path, error)
  }
}

function heldError(directory: string, owner: Owner, self: Owner): DataDirectoryError {
  const here = owner.host === self.host
  const stop = here ? `stop it (process ${owner.pid})` : 'stop it there'
  const message =
    `Another corral (process ${owner.pid}${here ? '' : ` on ${owner.host}`}, ${owner.address}) uses ${directory}. ` +
    `Use that server, ${stop}, or choose another directory with CORRAL_HOME.`
  return new DataDirectoryError('held', message, { owner })
}

async function unusable(path: string, cause: unknown): Promise<DataDirectoryError> {
  const { isReadOnly } = await import('./disk-space.ts')
  const isDenied = isSystemError(cause, 'EACCES', 'EPERM')
  const name = isDenied ? await (await import('./file-writers.ts')).otherOwner(path).catch(() => undefined) : undefined
  if (name !== undefined) {
    const message = `The data directory ${path} cannot be used (permission denied). It belongs to user ${name}.`
    return new DataDirectoryError('unusable', message, { account: { name, path }, cause })
  }
  const other = (before: string) => `${before} choose another directory with CORRAL_HOME or CORRAL_MODELS.`
  let advice = 'Choose another directory with CORRAL_HOME.'
  if (isReadOnly(cause) || isDenied) advice = other('Make it writable for this user, or')
  if (isSystemError(cause, 'ENOTDIR', 'EEXIST')) advice = other('A file is in the way: move it, or')
  if (isSystemError(cause, 'ENOSPC', 'EDQUOT')) {
    advice = 'The disk is full: free some space, or choose a directory on another disk with CORRAL_HOME.'
  }
  const message = `The data directory ${path} cannot be used: ${isReadOnly(cause) ? 'it is read-only' : reasonOf(cause)}. ${advice}`
  return new DataDirectoryError('unusable', message, { cause })
}
