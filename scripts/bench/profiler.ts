/**
 * Loaded into corral with `node --import`. The first SIGURG starts a profile of the main thread, and the next one ends
 * it and writes it to BENCH_PROFILE. It profiles processor time, or with BENCH_PROFILE_OF=memory objects in V8's old
 * generation.
 */
import { renameSync, writeFileSync } from 'node:fs'
import { Session } from 'node:inspector/promises'
import { isMainThread } from 'node:worker_threads'

/** Sampling intervals in microseconds, and in bytes. */
const INTERVAL = 200
const SAMPLED = 2048

const file = process.env.BENCH_PROFILE
if (isMainThread && file !== undefined) {
  const session = new Session()
  session.connect()
  let profiling = false
  const isMemory = process.env.BENCH_PROFILE_OF === 'memory'
  process.on('SIGURG', async () => {
    profiling = !profiling
    if (profiling) {
      await (isMemory ? beginMemory(session) : beginTime(session))
      writeFileSync(`${file}.started`, '')
    } else {
      const { profile } = await (isMemory ? session.post('HeapProfiler.stopSampling') : session.post('Profiler.stop'))
      writeFileSync(`${file}.part`, JSON.stringify(profile))
      renameSync(`${file}.part`, file)
    }
  })
}

async function beginTime(session: Session): Promise<void> {
  await session.post('Profiler.enable')
  await session.post('Profiler.setSamplingInterval', { interval: INTERVAL })
  await session.post('Profiler.start')
}

async function beginMemory(session: Session): Promise<void> {
  await session.post('HeapProfiler.enable')
  await session.post('HeapProfiler.collectGarbage')
  // Objects freed by minor collections are cheap. Most of the others are garbage that waits for a major collection.
  const options = { samplingInterval: SAMPLED, includeObjectsCollectedByMajorGC: true }
  await session.post('HeapProfiler.startSampling', options)
}
