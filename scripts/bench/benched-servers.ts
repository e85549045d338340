import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { packageRoot } from '../../core/system/package-info.ts'
import type { Corral } from '../../test/support/corral.ts'
import { type Client, createClient } from './client.ts'
import { threadTime } from './measuring.ts'

/** A server under test, with its own processes. */
export interface Contender {
  name: string
  client: Client
  headers: Record<string, string>
  /** Process ids, without those of the engine behind it. */
  pids: number[]
  /**
   * Processor time of a process in microseconds. It has a resolution of 10 ms if the process starts and ends threads.
   */
  measureTime: (pid: number) => number
  close(): Promise<void>
}

/** Address of the engine that corral started. */
export interface EngineSocket {
  socketPath: string
  key: string
}

export const BASELINE = 'pipe'
export const ENGINE_ITSELF = 'direct'

/** The engine itself at its Unix socket, the shortest path for requests. */
export function direct({ socketPath, key }: EngineSocket): Contender {
  const client = createClient({ origin: 'http://localhost', socketPath })
  return {
    name: ENGINE_ITSELF,
    client,
    headers: { authorization: `Bearer ${key}` },
    pids: [],
    measureTime: threadTime,
    close: () => client.close()
  }
}

/** A running corral. Its starter must stop it. */
export function corralItself(corral: Corral, headers: Record<string, string> = {}, name = 'corral'): Contender {
  const client = createClient({ origin: corral.url })
  return {
    name,
    client,
    headers,
    pids: [corral.process.pid!],
    measureTime: threadTime,
    close: () => client.close()
  }
}

/** Starts the bare pipe in front of the same engine, in its own process. */
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
    measureTime: threadTime,
    async close() {
      await client.close()
      child.kill()
      await exited
    }
  }
}
