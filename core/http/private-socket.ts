import { createHash, randomBytes } from 'node:crypto'
import { chmod, lstat, mkdir, mkdtemp, rm, rmdir } from 'node:fs/promises'
import type { IncomingMessage } from 'node:http'
import { tmpdir } from 'node:os'
import { isAbsolute, join } from 'node:path'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import { errorMessage, isSystemError } from '../errors.ts'
import type { DataPaths } from '../system/data-paths.ts'
import { listenFurther } from './further-listener.ts'

/** A socket that only the user who runs the server can open. */
export interface PrivateSocket {
  path: string
  stopAccepting(): void
  /** Settles when the last connection has gone, and the socket with it. */
  closed(): Promise<void>
}

const requests = new WeakSet<IncomingMessage>()

/** Whether a request came by the private socket, so that its sender is the user who runs the server. */
export function cameByPrivateSocket(request: IncomingMessage): boolean {
  return requests.has(request)
}

/** Bytes that a socket's address may have; macOS allows the fewest. Longer ones would silently be cut off. */
const MAX_PATH_LENGTH = 103
const NAME = 'corral.sock'

/**
 * Serves the application at a socket that only this user can open: in the data directory, else, where its path is too long
 * or its file system has no sockets, in a private folder among temporary files. What a killed server left there is
 * replaced, since a data directory has only one server.
 * @param ended aborted when no answer runs any longer
 * @returns undefined where no such socket can be made, which the log says
 */
export async function openPrivateSocket(
  app: FastifyInstance,
  { home }: Pick<DataPaths, 'home'>,
  { log, ended }: { log: FastifyBaseLogger; ended: AbortSignal }
): Promise<PrivateSocket | undefined> {
  const failures: string[] = []
  for (const place of process.platform === 'win32' ? [undefined] : placesFor(home)) {
    try {
      return await openAt(app, place, ended)
    } catch (error) {
      failures.push(errorMessage(error))
    }
  }
  log.warn(
    `There is no private socket (${failures.join('; ')}). Commands use the server's address instead, where what needs ` +
      'the role admin needs a key of that role.'
  )
  return undefined
}

async function openAt(app: FastifyInstance, place: Place | undefined, ended: AbortSignal): Promise<PrivateSocket> {
  const folder = place && (await privateFolder(place))
  const path = folder === undefined ? pipeName() : join(folder, NAME)
  if (folder !== undefined) await rm(path, { force: true })
  const listener = await listenFurther(app, { path }, { ended, prepare: request => void requests.add(request) })
  // The folder has kept all others out from the first moment on; this holds if somebody opens the folder later.
  if (folder !== undefined) await chmod(path, 0o600)
  return {
    path,
    stopAccepting: () => listener.stopAccepting(),
    async closed() {
      await listener.closed()
      // Where it cannot be removed, the next server uses it again.
      if (folder !== undefined && place?.temporary) await rmdir(folder).catch(() => {})
    }
  }
}

/** A folder for the socket. */
interface Place {
  path: string
  /** Whether it goes with the socket. */
  temporary: boolean
  /** Whether its name gets a random end. */
  unique?: boolean
}

/** Folders for the socket, in the order in which they are tried. */
function placesFor(home: string): Place[] {
  const own = { path: join(home, 'private'), temporary: false }
  // The same one at each start, so that a killed server's is used again.
  const name = `corral-${createHash('sha256').update(home).digest('hex').slice(0, 16)}`
  const roots = new Set([process.env.XDG_RUNTIME_DIR, tmpdir(), '/tmp'].filter(root => root && isAbsolute(root)))
  const elsewhere = [...(roots as Set<string>)].flatMap(root => [
    { path: join(root, name), temporary: true },
    // Somebody else may have taken that name.
    { path: join(root, 'corral-'), temporary: true, unique: true }
  ])
  return [own, ...elsewhere]
}

/** Makes a folder that only this user can enter. @throws Error where it cannot be had, or is none for a socket */
async function privateFolder({ path, unique }: Place): Promise<string> {
  const longest = join(unique ? `${path}123456` : path, NAME)
  if (Buffer.byteLength(longest) > MAX_PATH_LENGTH) throw new Error(`${longest} is too long for the path of a socket`)
  if (unique) return await mkdtemp(path)
  try {
    await mkdir(path, { mode: 0o700 })
  } catch (error) {
    if (!isSystemError(error, 'EEXIST')) throw error
  }
  const found = await lstat(path)
  if (!found.isDirectory() || found.uid !== process.getuid!()) throw new Error(`${path} belongs to somebody else`)
  if ((found.mode & 0o777) !== 0o700) await chmod(path, 0o700)
  return path
}

/** Others cannot guess it, and only the first one to make a pipe of a name gets it. */
function pipeName(): string {
  return `\\\\.\\pipe\\corral-${randomBytes(16).toString('hex')}`
}
