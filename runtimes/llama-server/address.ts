import { randomBytes } from 'node:crypto'
import { mkdir } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { CorralError, messageOf } from '../../core/errors.ts'
import type { Listen } from './arguments.ts'

/** Where an engine is reached, and by whom. */
export interface EngineAddress {
  listen: Listen
  /** What every request must carry. */
  key: string
  /** The engine's private folder: its socket, and an empty home for configuration. */
  folder: string
}

/** What the names of engines' private folders begin with. */
export const FOLDER_PREFIX = 'corral-'

/** Systems take 103 to 107 bytes; a little room is left. */
const MAX_SOCKET_PATH = 100

/** Whether llama-server can listen at this path: short enough for the system, and `--host` splits at commas. */
export function isUsableSocketPath(path: string): boolean {
  return Buffer.byteLength(path) <= MAX_SOCKET_PATH && !path.includes(',')
}

async function freePort(host: string): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(0, host, resolve)
  })
  const address = server.address()
  await new Promise(resolve => server.close(resolve))
  if (address === null || typeof address === 'string') throw new Error('The system gave no free port.')
  return address.port
}

/**
 * A fresh address: a Unix socket in a folder that only this user can enter, or where that cannot be (Windows, a long
 * temporary folder) a free port on loopback. The port may be taken by another process before the engine listens. The
 * folder is only named: it is made once it is written down that it is to be removed. `tcp` rules a socket out.
 */
export async function allocateAddress(
  socketRoot = tmpdir(),
  platform = process.platform,
  tcp = false
): Promise<EngineAddress> {
  const folder = join(socketRoot, FOLDER_PREFIX + randomBytes(6).toString('hex'))
  const key = randomBytes(24).toString('base64url')
  const socketPath = join(folder, 'engine.sock')
  if (!tcp && platform !== 'win32' && isUsableSocketPath(socketPath)) return { listen: { socketPath }, key, folder }
  return { listen: { host: '127.0.0.1', port: await freePort('127.0.0.1') }, key, folder }
}

/**
 * Makes the engine's folder. When anything is there already it would not be ours alone.
 * @throws CorralError `load_failed` when it cannot be made
 */
export async function makePrivateFolder({ folder }: EngineAddress): Promise<void> {
  try {
    await mkdir(folder, { mode: 0o700 })
  } catch (error) {
    const reason = (error as NodeJS.ErrnoException).code ?? messageOf(error)
    throw new CorralError(
      'load_failed',
      `No private folder for the engine could be made in ${dirname(folder)} (${reason}). Make room there and let the user that runs corral write to it, or set TMPDIR to another folder.`,
      { cause: error, details: { cause: 'cannot_listen' } }
    )
  }
}
