import { mkdtempSync, rmSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join } from 'node:path'
import { gatewayConfig, untilStates } from '../../test/plugins/machines/cluster/support.ts'
import { type Corral, type CorralOptions, startCorral } from '../../test/support/corral.ts'

export const MODEL = 'corral/tiny-chat'

/**
 * Half of the cores. llama-server's threads wait for each other at every step. With one thread per core, an engine that
 * shares the cores with a gateway and clients becomes several times slower at random.
 */
export const ENGINE_THREADS = Math.max(1, Math.floor(availableParallelism() / 2))

/**
 * Runs `use` with its own corral and stops it afterwards.
 * @param use also gets the milliseconds from the start of the process until it listened
 */
export async function withCorral<T>(
  home: string,
  use: (corral: Corral, startedIn: number) => Promise<T>,
  options: CorralOptions = {}
): Promise<T> {
  const endings: (() => unknown)[] = []
  const began = Date.now()
  const corral = await startCorral(
    { teardown: (ending: () => unknown) => endings.push(ending) },
    { ...options, home, threads: ENGINE_THREADS }
  )
  // Ctrl-C also reaches the server directly.
  const end = () => {
    corral.process.kill()
    process.exit(143)
  }
  process.once('SIGTERM', end)
  try {
    // The log has the exact time. The test helper checks only at intervals.
    const listens = /"time":(\d+),.*"msg":"corral \S+ listens/.exec(corral.log())?.[1]
    return await use(corral, Number(listens) - began)
  } finally {
    process.off('SIGTERM', end)
    for (const ending of endings) await ending()
  }
}

/** Runs `use` with a gateway in front of a cluster whose only node is that corral. */
export async function withFront<T>(corral: Corral, config: string, use: (front: Corral) => Promise<T>): Promise<T> {
  const home = mkdtempSync(join(tmpdir(), 'corral-bench-'))
  const members = [{ name: 'node', url: corral.url }]
  try {
    return await withCorral(
      home,
      async front => {
        await untilStates(front, { node: 'up' })
        return await use(front)
      },
      { config: gatewayConfig(members, `storage:\n  demo_model: false\n${config}`) }
    )
  } finally {
    rmSync(home, { recursive: true, force: true })
  }
}
