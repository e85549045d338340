import { createHash, randomBytes } from 'node:crypto'
import { chmod, lstat, mkdir, mkdtemp, rm, rmdir } from 'node:fs/promises'
import type { IncomingMessage } from 'node:http'
import { tmpdir } from 'node:os'
import { isAbsolute, join } from 'node:path'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import { errorMessage, isSystemError } from '../errors.ts'
import type { DataPaths } from '../system/data-paths.ts'
import { openListener } from './listening.ts'

export type PrivateSocket = Awaited<ReturnType<typeof openAt>>

const requests = new WeakSet<IncomingMessage>()

/** Whether a request came through the private socket, so that its sender is the user who runs the server. */
export const cameByPrivateSocket = (request: IncomingMessage) => requests.has(request)

/** Maximum bytes of a socket's path; macOS has the lowest limit. Longer paths would be truncated silently. */
const MAX_PATH_LENGTH = 103
const NAME = 'corral.sock'

/**
 * Serves the application at a socket that only this user can open. It is in the data directory, or, if its path is too
 * long or its file system does not support sockets, in a private folder among temporary files. A leftover of a killed
 * server is replaced, since a data directory has only one server.
 * @param ended aborted when no answer is in progress
 * @returns undefined if no such socket can be created, which is logged
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
    `There is no private socket (${failures.join('; ')}). Commands use the server's address instead, and commands that need ` +
      'the role admin need a key of that role.'
  )
  return undefined
}

async function openAt(app: FastifyInstance, place: Place | undefined, ended: AbortSignal) {
  const folder = place && (await privateFolder(place))
  // Others cannot guess the name, and only the first process to create a pipe owns its name.
  const path = folder === undefined ? `\\\\.\\pipe\\corral-${randomBytes(16).toString('hex')}` : join(folder, NAME)
  if (folder !== undefined) await rm(path, { force: true })
  const listener = await openListener(app, { path }, { ended, prepare: request => void requests.add(request) })
  // Until here, the permissions of the folder protect the socket. The mode of the socket protects it if someone opens
  // the folder later.
  if (folder !== undefined) await chmod(path, 0o600)
  return {
    path,
    stopAccepting: () => listener.stopAccepting(),
    /** Resolves when the last connection has ended and the socket was removed. */
    async closed() {
      await listener.closed()
      // If it cannot be removed, the next server reuses it.
      if (folder !== undefined && place?.temporary) await rmdir(folder).catch(() => {})
    }
  }
}

interface Place {
  path: string
  /** Whether to remove it with the socket. */
  temporary: boolean
  /** Whether its name gets a random suffix. */
  unique?: boolean
}

function placesFor(home: string): Place[] {
  const own = { path: join(home, 'private'), temporary: false }
  // The same name at each start, so that the folder of a killed server is reused.
  const name = `corral-${createHash('sha256').update(home).digest('hex').slice(0, 16)}`
  const roots = new Set([process.env.XDG_RUNTIME_DIR, tmpdir(), '/tmp'].filter(root => root && isAbsolute(root)))
  const elsewhere = [...(roots as Set<string>)].flatMap(root => [
    { path: join(root, name), temporary: true },
    // Another user may already use that name.
    { path: join(root, 'corral-'), temporary: true, unique: true }
  ])
  return [own, ...elsewhere]
}

/** Creates a folder that only this user can enter. @throws Error if that fails, or sockets do not work in it */
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
  if (!found.isDirectory() || found.uid !== process.getuid!()) throw new Error(`${path} belongs to another user`)
  if ((found.mode & 0o777) !== 0o700) await chmod(path, 0o700)
  return path
}
