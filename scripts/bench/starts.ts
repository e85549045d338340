import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Corral, startCorral } from '../../test/support/corral.ts'
import { createClient } from './client.ts'
import { residentMemory, startOf } from './process-figures.ts'
import { median } from './statistics.ts'
import { MODEL } from './targets.ts'

/** Milliseconds, each the median of some turns. */
export interface StartFigures {
  /** From the start of the process until corral listens, on a data directory that exists. */
  listening: number
  /** The same of a Node that does nothing, from start to end. */
  emptyNode: number
  /** MiB in RAM, some seconds after the start, no model loaded. */
  idleMemory: number
}

export interface LoadFigures {
  /** llama-server alone, with the same arguments, from its start until it is ready. */
  direct: number
  /** `POST /api/load` of a model that is not loaded. */
  load: number
  /** The first chat of a model that is not loaded, until its answer of one token. */
  firstChat: number
}

/**
 * Half of the cores: llama-server's threads wait for each other at every step, so with one for each core an engine that
 * shares them with a gateway and its clients is slowed down by luck, many times over.
 */
export const ENGINE_THREADS = Math.max(1, Math.floor(availableParallelism() / 2))

/** Runs `use` with a corral of its own, which is ended afterwards. */
export async function withCorral<T>(home: string, use: (corral: Corral, startedIn: number) => Promise<T>): Promise<T> {
  const endings: (() => unknown)[] = []
  const began = Date.now()
  const corral = await startCorral(
    { teardown: (ending: () => unknown) => endings.push(ending) },
    { home, threads: ENGINE_THREADS }
  )
  try {
    // Its own word counts: whoever waits for it looks only now and then.
    const listens = /"time":(\d+),"msg":"corral \S+ listens/.exec(corral.log())?.[1]
    return await use(corral, Number(listens) - began)
  } finally {
    for (const ending of endings) await ending()
  }
}

async function runEmptyNode(): Promise<number> {
  const began = performance.now()
  await once(spawn(process.execPath, ['--eval', '0'], { stdio: 'ignore' }), 'exit')
  return performance.now() - began
}

export async function measureStarts(home: string, turns: number, idleSeconds: number): Promise<StartFigures> {
  const listening: number[] = []
  const emptyNode: number[] = []
  let idleMemory = Number.NaN
  for (let turn = 0; turn < turns; turn++) {
    emptyNode.push(await runEmptyNode())
    await withCorral(home, async (corral, startedIn) => {
      listening.push(startedIn)
      if (turn < turns - 1) return
      await sleep(idleSeconds * 1000)
      idleMemory = residentMemory(corral.process.pid!)
    })
  }
  return { listening: median(listening), emptyNode: median(emptyNode), idleMemory }
}

/** Starts llama-server as corral started it, at an address of its own; milliseconds until it is ready. */
async function loadDirectly({ command, args, env }: ReturnType<typeof startOf>, folder: string): Promise<number> {
  const socketPath = join(folder, 'direct.sock')
  const own = args.map(argument => (argument.endsWith('engine.sock') ? socketPath : argument))
  const began = performance.now()
  const child = spawn(command, own, { env: { ...env, XDG_CONFIG_HOME: folder }, stdio: ['pipe', 'ignore', 'ignore'] })
  const exited = once(child, 'exit')
  const client = createClient({ origin: 'http://localhost', socketPath })
  try {
    for (;;) {
      if (child.exitCode !== null) throw new Error(`llama-server ended at once with code ${child.exitCode}`)
      const status = await client.ask({ method: 'GET', path: '/health', headers: {}, stream: true }).then(
        ({ status }) => status,
        // It does not listen yet.
        () => 0
      )
      if (status === 200) return performance.now() - began
      await sleep(5)
    }
  } finally {
    child.kill('SIGKILL')
    await exited
    await client.close()
    rmSync(socketPath, { force: true })
  }
}

export async function measureLoads(corral: Corral, turns: number): Promise<LoadFigures> {
  const folder = mkdtempSync(join(tmpdir(), 'corral-bench-'))
  const direct: number[] = []
  const load: number[] = []
  const firstChat: number[] = []
  const stop = () => corral.json('/api/stop', { model: MODEL })
  try {
    for (let turn = 0; turn < turns; turn++) {
      const began = performance.now()
      await corral.json('/api/load', { model: MODEL })
      load.push(performance.now() - began)
      const [pid] = corral.enginePids()
      const started = startOf(pid!)
      await stop()
      direct.push(await loadDirectly(started, folder))
      const asked = performance.now()
      await corral.json('/api/chat', {
        model: MODEL,
        messages: [{ role: 'user', content: 'Hello' }],
        options: { max_tokens: 1 },
        stream: false
      })
      firstChat.push(performance.now() - asked)
      await stop()
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
  return { direct: median(direct), load: median(load), firstChat: median(firstChat) }
}
