import { getHeapSpaceStatistics, setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import type { FastifyBaseLogger } from 'fastify'

/** Milliseconds between two looks at V8's young generation, and the bytes of it that are worth a collection. */
const LOOK_EVERY = 5000
const WORTH_SHRINKING = 4 * 1024 * 1024
/** Collections of the small young generation until its memory must be back: V8 of Node.js 26 keeps it until the second. */
const COLLECTIONS = 2

/**
 * Has V8 collect all garbage and give the memory back to the system. By itself it does so only while a program goes on
 * making garbage: one that rests keeps what its last work took.
 *
 * The program stands still meanwhile, for some 0.1 s, and most of what V8 compiled goes too, so that what runs next is slow
 * at first. Call it only where nothing that is in a hurry can follow. It never rejects.
 */
export async function giveBackMemory(log: Pick<FastifyBaseLogger, 'warn'>): Promise<void> {
  // Node.js may be built without it.
  if (!process.features.inspector) return
  try {
    const { Session } = await import('node:inspector/promises')
    const session = new Session()
    session.connect()
    // Other than `gc()` it shrinks the heap too.
    await session.post('HeapProfiler.collectGarbage')
    session.disconnect()
  } catch (error) {
    log.warn({ err: error }, 'The memory of what was done before was not given back.')
  }
}

/**
 * From now on a server gives back the memory that the garbage of a load took, once the load has ended: V8's young
 * generation, which grows to 32 MiB and more.
 *
 * V8 changes its size at collections only, and a server that rests makes too little garbage for one. So it is collected
 * every few seconds while it is large: that takes 1 to 4 ms and drops nothing that is compiled. V8 shrinks it where less
 * than 1 MB a second was allocated of late (`Heap::ShouldResizeNewSpace`); under load it stays as it is. V8 of Node.js 22
 * and 24 may keep its pages all the same, until all garbage is collected (`giveBackMemory`).
 * @param isAtRest whether nothing is in a hurry
 */
export function giveBackMemoryAtRest(isAtRest: () => boolean, log: Pick<FastifyBaseLogger, 'warn'>): void {
  let collect: ((options: { type: 'minor' }) => void) | undefined
  /** What a load made of it: bytes of the young generation, and of the process in RAM; and what was done about it. */
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
  setInterval(look, LOOK_EVERY).unref()
}

/** V8's `gc`: contexts that are made while the flag is set have it. */
function minorCollector(): (options: { type: 'minor' }) => void {
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc')
  setFlagsFromString('--no-expose-gc')
  return collect
}
