/**
 * Loaded into a corral (`node --import`): SIGURG, which nobody else listens to, begins a profile of its main thread, the next one ends it and writes it
 * to BENCH_PROFILE.
 */
import { renameSync, writeFileSync } from 'node:fs'
import { Session } from 'node:inspector/promises'
import { isMainThread } from 'node:worker_threads'

/** Microseconds between two looks at what runs. */
const INTERVAL = 200

const file = process.env.BENCH_PROFILE
if (isMainThread && file !== undefined) {
  const session = new Session()
  session.connect()
  let profiling = false
  process.on('SIGURG', async () => {
    profiling = !profiling
    if (profiling) {
      await session.post('Profiler.enable')
      await session.post('Profiler.setSamplingInterval', { interval: INTERVAL })
      await session.post('Profiler.start')
      writeFileSync(`${file}.started`, '')
    } else {
      const { profile } = await session.post('Profiler.stop')
      writeFileSync(`${file}.part`, JSON.stringify(profile))
      renameSync(`${file}.part`, file)
    }
  })
}
