/**
 * Profiles corral's processor time under a load, after a warm-up: a CPU profile, and a table of the functions with most
 * self time. `--of memory` shows which functions allocate objects that survive V8's minor collections, which objects of
 * a request should not.
 *
 *     npm run bench:profile -- [--load short|streams|many|bodies|turns] [--way 'corral /v1'|'corral /api'|front] [--top
 *     N]
 *                              [--engine real|burst|paced|fast] [--of time|memory]
 *
 * The profile is stored in .cache/profile. Open it in https://www.speedscope.app, or in the developer tools of a
 * browser.
 */
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import type { HeapProfiler, Profiler } from 'node:inspector'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { parseArgs } from 'node:util'
import { formatTable } from '../command-line/output.ts'
import { packageRoot } from '../core/system/package-info.ts'
import { until } from '../test/support/corral.ts'
import { ENGINES } from './bench/benched-engines.ts'
import { formatTitle, LOADS, listWays } from './bench/loads.ts'
import { describeMachine } from './bench/measuring.ts'
import { runRound } from './bench/rounds.ts'
import { withServers } from './bench/servers.ts'
import { warmUp } from './bench/warmth.ts'

/** Minimum duration of the profile. */
const MIN_PROFILE_MS = 5000

const { values } = parseArgs({
  options: {
    load: { type: 'string', default: 'short' },
    way: { type: 'string', default: 'corral /v1' },
    engine: { type: 'string' },
    top: { type: 'string', default: '30' },
    of: { type: 'string', default: 'time' }
  }
})

function usageError(text: string): never {
  console.error(text)
  process.exit(2)
}

/** Self time of each function in microseconds, largest first. */
function selfTimes({ nodes, samples = [], timeDeltas = [] }: Profiler.Profile): [place: string, time: number][] {
  const places = new Map(nodes.map(({ id, callFrame }) => [id, formatPlace(callFrame)]))
  const times = new Map<string, number>()
  for (const [index, id] of samples.entries()) {
    const place = places.get(id)!
    times.set(place, (times.get(place) ?? 0) + (timeDeltas[index] ?? 0))
  }
  times.delete('(idle)')
  return [...times].sort((a, b) => b[1] - a[1])
}

/** Bytes in the old generation by allocating function, largest first. */
function oldBytes({ head }: HeapProfiler.SamplingHeapProfile): [place: string, bytes: number][] {
  const sums = new Map<string, number>()
  const open = [head]
  for (let node = open.pop(); node; node = open.pop()) {
    const place = formatPlace(node.callFrame)
    sums.set(place, (sums.get(place) ?? 0) + node.selfSize)
    open.push(...node.children)
  }
  return [...sums].sort((a, b) => b[1] - a[1])
}

function formatPlace({ functionName, url, lineNumber }: Profiler.Profile['nodes'][number]['callFrame']): string {
  const name = functionName || '(anonymous)'
  if (url === '') return name
  const file = url.startsWith('file:') ? relative(packageRoot, fileURLToPath(url)) : url
  return `${name} ${file}:${lineNumber + 1}`
}

const load = LOADS.findLast(({ group }) => group === values.load)
if (!load)
  usageError(
    `--load cannot be "${values.load}". Use one of: ${[...new Set(LOADS.map(each => each.group))].join(', ')}.`
  )
if (values.of !== 'time' && values.of !== 'memory') usageError('--of must be time or memory.')
const isMemory = values.of === 'memory'
const kind = ENGINES.find(engine => engine === (values.engine ?? load.engines.at(-1)))
if (!kind) usageError(`--engine cannot be "${values.engine}". Use one of: ${ENGINES.join(', ')}.`)
const folder = join(packageRoot, '.cache', 'profile')
const suffix = isMemory ? 'heapprofile' : 'cpuprofile'
const file = join(folder, `${values.load}-${values.way.replace(/\W+/g, '-')}.${suffix}`)
mkdirSync(folder, { recursive: true })
for (const old of [file, `${file}.started`]) rmSync(old, { force: true })
const home = mkdtempSync(join(tmpdir(), 'corral-bench-'))
const hook = pathToFileURL(join(packageRoot, 'dist', 'scripts', 'bench', 'profiler.js')).href
process.env.BENCH_PROFILE = file
process.env.BENCH_PROFILE_OF = values.of
process.env.NODE_OPTIONS = `${process.env.NODE_OPTIONS ?? ''} --import=${hook}`
try {
  console.log(`${formatTitle(load)}, ${values.way} (${describeMachine()})`)
  await withServers(home, kind, [values.way === 'front' ? 'front' : 'corral'], async ({ contenders }) => {
    const ways = contenders.flatMap(contender => listWays(contender, load))
    const way = ways.find(({ name }) => name === values.way)
    if (!way)
      throw new Error(`--way cannot be "${values.way}". Use one of: ${ways.map(({ name }) => name).join(', ')}.`)
    if (kind === 'real' || kind === 'burst') await warmUp([way])
    await runRound(way, load)
    const profiled = way.contender.pids[0]!
    process.kill(profiled, 'SIGURG')
    await until('the profile to start', () => readable(`${file}.started`))
    const began = performance.now()
    let answers = 0
    while (performance.now() - began < MIN_PROFILE_MS) answers += (await runRound(way, load)).answers
    process.kill(profiled, 'SIGURG')
    await until('the profile to be written', () => readable(file))
    const profile = JSON.parse(readFileSync(file, 'utf8'))
    const shares = isMemory ? oldBytes(profile) : selfTimes(profile)
    const all = shares.reduce((sum, [, share]) => sum + share, 0)
    const rows = shares
      .slice(0, Number(values.top))
      .map(([place, share]) => [`${((100 * share) / all).toFixed(1)}%`, (share / answers).toFixed(1), place])
    const whole = isMemory ? "bytes in V8's old generation" : 'µs of its main thread'
    console.log(`${answers} answers, ${(all / answers).toFixed(0)} ${whole} per answer\n`)
    const unit = isMemory ? '>bytes/answer' : '>µs/answer'
    console.log(formatTable(['>self', unit, 'function'], rows, Number.POSITIVE_INFINITY))
    console.log(`\nThe profile: ${file}`)
  })
} finally {
  rmSync(home, { recursive: true, force: true })
}

function readable(path: string): boolean {
  try {
    readFileSync(path)
    return true
  } catch {
    return false
  }
}
