/**
 * Measures corral against its own engine: `npm run bench -- [--quick] [--rounds N]`.
 *
 * "Direct" is the very llama-server that corral started, asked at its Unix socket: a second one could have other luck
 * with memory and threads, and would share the processors while idle. Direct requests so have the shortest way there is.
 */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { formatPairs } from '../command-line/output.ts'
import { version } from '../core/system/package-info.ts'
import type { Corral } from '../test/support/corral.ts'
import { type Load, MODEL, measureLoad } from './bench/loads.ts'
import { createClient, describeMachine, startOf } from './bench/measuring.ts'
import { ENGINE_THREADS, measureColdLoads, measureManyModels, measureStarts, withCorral } from './bench/starts.ts'

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

const { values } = parseArgs({ options: { quick: { type: 'boolean', default: false }, rounds: { type: 'string' } } })
if (process.platform !== 'linux') {
  console.error('The benchmark reads processor times and addresses of processes from /proc, so it runs on Linux only.')
  process.exit(2)
}
const rounds = Number(values.rounds ?? (values.quick ? 3 : 9))
const progress = (text: string) => process.stderr.write(`${text}\n`)

async function measureLoads(corral: Corral): Promise<string[]> {
  await corral.json('/api/load', { model: MODEL, options: LOAD_OPTIONS, keep_alive: -1 })
  const { args, env } = startOf(corral.enginePids()[0]!)
  const engine = createClient({ origin: 'http://localhost', socketPath: args[args.indexOf('--host') + 1]! })
  const gateway = createClient({ origin: corral.url })
  const servers = { engine, key: env.LLAMA_API_KEY!, gateway, gatewayPid: corral.process.pid! }
  const tables: string[] = []
  for (const load of LOADS) {
    progress(`${load.name}, ${load.concurrent} at once …`)
    const scaled = values.quick ? { ...load, requests: Math.max(load.concurrent, load.requests / 4) } : load
    tables.push(await measureLoad(servers, scaled, rounds))
  }
  await Promise.all([engine.close(), gateway.close()])
  return tables
}

const home = mkdtempSync(join(tmpdir(), 'corral-bench-'))
try {
  const machine = describeMachine()
  const turns = values.quick ? 2 : 5
  progress('Starts …')
  await withCorral(home, async () => {})
  const start = await measureStarts(home, turns, values.quick ? 2 : 10)
  const { coldLoads, engine, loads } = await withCorral(home, async corral => {
    progress('Cold loads …')
    const coldLoads = await measureColdLoads(corral, turns)
    const engine = /llama\.cpp (\S+ \([^)]*\))/.exec(corral.log())?.[1] ?? 'unknown'
    return { coldLoads, engine, loads: await measureLoads(corral) }
  })
  progress('Ten thousand models …')
  const manyModels = await measureManyModels(home, 10_000, values.quick ? 1 : 3)
  const head = [
    `corral ${version}, ${new Date().toISOString()}${values.quick ? ', quick' : ''}`,
    `${machine} before, llama.cpp ${engine} with ${ENGINE_THREADS} threads`,
    '"direct" is the engine that corral started, asked at its own socket with the same work; ratios are the median of the rounds, speed against direct.'
  ]
  console.log([head.join('\n'), ...loads, formatPairs([...start, ...coldLoads, ...manyModels], '')].join('\n\n'))
} finally {
  rmSync(home, { recursive: true, force: true })
}
