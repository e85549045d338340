/**
 * Measures corral against its own engine: `npm run bench -- [--quick] [--json FILE] [--rounds N]`.
 *
 * "Direct" is the very llama-server that corral started, asked at its Unix socket: a second one could have other luck
 * with memory and threads, and would share the processors while idle. Direct requests so have the shortest way there is.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { cpus, loadavg, release, type as systemName, tmpdir, totalmem } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { version } from '../core/system/package-info.ts'
import type { Corral } from '../test/support/corral.ts'
import { createClient } from './bench/client.ts'
import { measureManyModels } from './bench/many-models.ts'
import { startOf } from './bench/process-figures.ts'
import { formatReport, type Report } from './bench/report.ts'
import { type Load, measure } from './bench/rounds.ts'
import { ENGINE_THREADS, measureLoads, measureStarts, withCorral } from './bench/starts.ts'
import { MODEL, targets } from './bench/targets.ts'

const LOADS: Load[] = [
  { name: 'Short answers', stream: false, concurrent: 1, requests: 60, tokens: 8 },
  { name: 'Short answers', stream: false, concurrent: 4, requests: 120, tokens: 8 },
  { name: 'Short answers', stream: false, concurrent: 16, requests: 240, tokens: 8 },
  { name: 'Streams', stream: true, concurrent: 1, requests: 8, tokens: 256 },
  { name: 'Streams', stream: true, concurrent: 4, requests: 16, tokens: 256 },
  { name: 'Streams', stream: true, concurrent: 16, requests: 48, tokens: 128 }
]
/** Slots for all that run at once, so that it is streams and not queues that are compared. */
const LOAD_OPTIONS = { num_parallel: 16, num_ctx: 1024 }

const { values } = parseArgs({
  options: { quick: { type: 'boolean', default: false }, json: { type: 'string' }, rounds: { type: 'string' } }
})
if (process.platform !== 'linux') {
  console.error('The benchmark reads processor times and addresses of processes from /proc, so it runs on Linux only.')
  process.exit(2)
}
const rounds = Number(values.rounds ?? (values.quick ? 3 : 9))
const progress = (text: string) => process.stderr.write(`${text}\n`)

async function measureLoadsOf(corral: Corral): Promise<Report['loads']> {
  await corral.json('/api/load', { model: MODEL, options: LOAD_OPTIONS, keep_alive: -1 })
  const { args, env } = startOf(corral.enginePids()[0]!)
  const engine = createClient({ origin: 'http://localhost', socketPath: args[args.indexOf('--host') + 1]! })
  const gateway = createClient({ origin: corral.url })
  const results: Report['loads'] = []
  for (const load of LOADS) {
    progress(`${load.name}, ${load.concurrent} at once …`)
    const scaled = values.quick ? { ...load, requests: Math.max(load.concurrent, load.requests / 4) } : load
    const all = targets(engine, env.LLAMA_API_KEY!, gateway, load.stream)
    results.push({ load: scaled, rounds, figures: await measure(all, scaled, rounds, corral.process.pid!) })
  }
  await Promise.all([engine.close(), gateway.close()])
  return results
}

const home = mkdtempSync(join(tmpdir(), 'corral-bench-'))
try {
  const loadBefore = Number(loadavg()[0]!.toFixed(1))
  const turns = values.quick ? 2 : 5
  progress('Starts …')
  await withCorral(home, async () => {})
  const start = await measureStarts(home, turns, values.quick ? 2 : 10)
  const measured = await withCorral(home, async corral => {
    progress('Cold loads …')
    const coldLoad = await measureLoads(corral, turns)
    const engine = /llama\.cpp (\S+ \([^)]*\))/.exec(corral.log())?.[1] ?? 'unknown'
    return { coldLoad, engine, loads: await measureLoadsOf(corral) }
  })
  progress('Ten thousand models …')
  const manyModels = await measureManyModels(home, 10_000, values.quick ? 1 : 3)
  const report: Report = {
    date: new Date().toISOString(),
    corral: version,
    quick: values.quick,
    machine: {
      processor: cpus()[0]!.model.trim(),
      cores: cpus().length,
      memoryGiB: Math.round(totalmem() / 2 ** 30),
      system: `${systemName()} ${release()}`,
      node: process.versions.node,
      engine: measured.engine,
      engineThreads: ENGINE_THREADS,
      loadBefore
    },
    loads: measured.loads,
    start,
    coldLoad: measured.coldLoad,
    manyModels
  }
  console.log(formatReport(report))
  if (values.json) writeFileSync(values.json, `${JSON.stringify(report, null, 2)}\n`)
} finally {
  rmSync(home, { recursive: true, force: true })
}
