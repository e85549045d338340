import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { packageRoot } from '../../core/system/package-info.ts'
import type { Corral } from '../../test/support/corral.ts'
import { type Client, createClient } from './client.ts'
import { threadTime } from './measuring.ts'

/** A server that is asked for answers, in processes of its own. */
export interface Contender {
  name: string
  client: Client
  /** What each request to it carries. */
  headers: Record<string, string>
  /** Its processes, without those of the engine behind it. */
  pids: number[]
  /** Microseconds of processor time of one of them: in ticks of 10 ms where their threads come and go. */
  timeOf: (pid: number) => number
  close(): Promise<void>
}

/** Where the engine listens that corral started. */
export interface EngineSocket {
  socketPath: string
  key: string
}

export const BASELINE = 'pipe'
export const ENGINE_ITSELF = 'direct'

/** The engine itself, at its Unix socket: requests to it have the shortest way there is. */
export function direct({ socketPath, key }: EngineSocket): Contender {
  const client = createClient({ origin: 'http://localhost', socketPath })
  return {
    name: ENGINE_ITSELF,
    client,
    headers: { authorization: `Bearer ${key}` },
    pids: [],
    timeOf: threadTime,
    close: () => client.close()
  }
}

/** A corral that runs already, and is ended by whoever started it. */
export function corralItself(corral: Corral, headers: Record<string, string> = {}, name = 'corral'): Contender {
  const client = createClient({ origin: corral.url })
  return {
    name,
    client,
    headers,
    pids: [corral.process.pid!],
    timeOf: threadTime,
    close: () => client.close()
  }
}

/** The bare pipe in front of the same engine, in a process of its own. */
export async function startPipe({ socketPath, key }: EngineSocket): Promise<Contender> {
  const program = join(packageRoot, 'dist', 'scripts', 'bench', 'pipe.js')
  const child = spawn(process.execPath, [program, socketPath], {
    env: { ...process.env, ENGINE_KEY: key },
    stdio: ['pipe', 'pipe', 'inherit']
  })
  const exited = once(child, 'exit')
  const [url] = (await once(createInterface(child.stdout), 'line')) as [string]
  const client = createClient({ origin: url })
  return {
    name: BASELINE,
    client,
    headers: {},
    pids: [child.pid!],
    timeOf: threadTime,
    async close() {
      await client.close()
      child.kill()
      await exited
    }
  }
}
