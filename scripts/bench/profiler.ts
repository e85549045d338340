/**
 * Loaded into a corral (`node --import`): SIGURG, which nobody else listens to, begins a profile of its main thread, the next
 * one ends it and writes it to BENCH_PROFILE. It is one of processor time, or with BENCH_PROFILE_OF=memory one of objects
 * that came into V8's old generation.
 */
import { renameSync, writeFileSync } from 'node:fs'
import { Session } from 'node:inspector/promises'
import { isMainThread } from 'node:worker_threads'

/** Microseconds between two looks at what runs, and bytes between two objects that are looked at. */
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
  // Those that minor collections free were no burden; of the others, most are garbage that waits for a major one.
  const options = { samplingInterval: SAMPLED, includeObjectsCollectedByMajorGC: true }
  await session.post('HeapProfiler.startSampling', options)
}
