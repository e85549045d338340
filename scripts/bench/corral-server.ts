import { mkdtempSync, rmSync } from 'node:fs'
import { availableParallelism, tmpdir } from 'node:os'
import { join } from 'node:path'
import { frontConfig, untilStates } from '../../test/plugins/machines/cluster/support.ts'
import { type Corral, type CorralOptions, startCorral } from '../../test/support/corral.ts'

export const MODEL = 'corral/tiny-chat'

/**
 * Half of the cores: llama-server's threads wait for each other at every step, so with one for each core an engine that
 * shares them with a gateway and its clients is slowed down by luck, many times over.
 */
export const ENGINE_THREADS = Math.max(1, Math.floor(availableParallelism() / 2))

/**
 * Runs `use` with a corral of its own, which is ended afterwards.
 * @param use gets the milliseconds from the start of its process until it listened too
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
  // Ctrl-C reaches it by itself.
  const end = () => {
    corral.process.kill()
    process.exit(143)
  }
  process.once('SIGTERM', end)
  try {
    // Its own word counts: whoever waits for it looks only now and then.
    const listens = /"time":(\d+),.*"msg":"corral \S+ listens/.exec(corral.log())?.[1]
    return await use(corral, Number(listens) - began)
  } finally {
    process.off('SIGTERM', end)
    for (const ending of endings) await ending()
  }
}

/** Runs `use` with a front of a cluster whose only member is that corral. */
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
      { config: frontConfig(members, `storage:\n  demo_model: false\n${config}`) }
    )
  } finally {
    rmSync(home, { recursive: true, force: true })
  }
}
