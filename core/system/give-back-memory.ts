import { getHeapSpaceStatistics, setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'

/** Milliseconds between two looks at V8's young generation, and the bytes of it that are worth a collection. */
const LOOK_EVERY = 10_000
const WORTH_SHRINKING = 4 * 1024 * 1024
/** Collections until its memory is back at the system: one may still be within a load, and Node.js 26 keeps pages until the next. */
const COLLECTIONS = 3

/**
 * Has V8 collect all garbage and give the memory back to the system. By itself it does so only while a program goes on
 * making garbage: one that rests keeps what its last work took.
 *
 * The program stands still meanwhile, for some 0.1 s, and most of what V8 compiled goes too, so that what runs next is slow
 * at first. Call it only where nothing that is in a hurry can follow.
 */
export async function giveBackMemory(): Promise<void> {
  // Node.js may be built without it.
  if (!process.features.inspector) return
  const { Session } = await import('node:inspector/promises')
  const session = new Session()
  session.connect()
  // Other than `gc()` it shrinks the heap too.
  await session.post('HeapProfiler.collectGarbage')
  session.disconnect()
}

/**
 * From now on V8's young generation, which a load has grown to 32 MiB and more, becomes small again once the load has ended.
 *
 * V8 changes its size at collections only, and a program that rests makes too little garbage for one. So it is collected
 * every ten seconds while it is large: that takes 1 to 4 ms and drops nothing that is compiled. V8 shrinks it where less than
 * 1 MB a second was allocated of late (`Heap::ShouldResizeNewSpace`); under load it stays as it is.
 */
export function shrinkYoungMemoryAtRest(): void {
  let collect: ((options: { type: 'minor' }) => void) | undefined
  let due = 0
  const look = () => {
    const young = getHeapSpaceStatistics().find(({ space_name }) => space_name === 'new_space')
    if (young && young.space_size > WORTH_SHRINKING) due = COLLECTIONS
    if (due === 0) return
    due--
    collect ??= minorCollector()
    collect({ type: 'minor' })
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
