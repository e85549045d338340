import { getHeapSpaceStatistics, setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import type { FastifyBaseLogger } from 'fastify'

/** Milliseconds between two checks of V8's young generation, and the minimum size in bytes for a collection. */
const CHECK_INTERVAL_MS = 5000
const WORTH_SHRINKING = 4 * 1024 * 1024
/** Collections of the small young generation before its memory must be returned. Node.js 26 needs two. */
const COLLECTIONS = 2

/**
 * Lets V8 collect all garbage and return the memory to the system, which an idle program does not do by itself. This
 * stops the program for about 0.1 s and drops most compiled code, so nothing urgent may follow. It never rejects.
 */
export async function giveBackMemory(log: Pick<FastifyBaseLogger, 'warn'>): Promise<void> {
  // Node.js may be built without it.
  if (!process.features.inspector) return
  try {
    const { Session } = await import('node:inspector/promises')
    const session = new Session()
    session.connect()
    // Unlike `gc()` it also shrinks the heap.
    await session.post('HeapProfiler.collectGarbage')
    session.disconnect()
  } catch (error) {
    log.warn({ err: error }, 'The memory of earlier work could not be returned to the system.')
  }
}

/**
 * Makes an idle server return V8's young generation, which grows to 32 MiB and more under load. V8 shrinks it only at
 * collections, and an idle server produces too little garbage to trigger one. So this function collects every few
 * seconds while the generation is large, which takes 1 to 4 ms. V8 of Node.js 22 and 24 may keep its pages until
 * `giveBackMemory`.
 * @param isAtRest whether nothing urgent is in progress
 */
export function giveBackMemoryAtRest(isAtRest: () => boolean, log: Pick<FastifyBaseLogger, 'warn'>): void {
  let collect: ReturnType<typeof minorCollector> | undefined
  /** The peak of a load: bytes of the young generation and of the process in RAM, and the collections since then. */
  let grown: { young: number; memory: number; collections: number } | undefined
  const look = () => {
    const young = getHeapSpaceStatistics().find(({ space_name }) => space_name === 'new_space')?.space_size ?? 0
    const memory = process.memoryUsage.rss()
    const isLarge = young > WORTH_SHRINKING
    if (isLarge) grown = { young, memory, collections: 0 }
    if (!grown) return
    if (memory <= grown.memory - grown.young / 2) grown = undefined
    else if (isLarge || grown.collections++ < COLLECTIONS) {
      collect ??= minorCollector()
      collect({ type: 'minor' })
    } else if (isAtRest()) {
      grown = undefined
      void giveBackMemory(log)
    }
  }
  setInterval(look, CHECK_INTERVAL_MS).unref()
}

/** V8's `gc`, which is defined in contexts that are created while the flag is set. */
function minorCollector() {
  setFlagsFromString('--expose-gc')
  const collect: (options: { type: 'minor' }) => void = runInNewContext('gc')
  setFlagsFromString('--no-expose-gc')
  return collect
}
