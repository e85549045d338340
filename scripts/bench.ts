/**
 * Compares corral with its own engine and a bare pipe:
 *
 *     npm run bench -- [--quick] [--only short,streams,many,bodies,turns,open,warmth,keys,starts,memory]
 *                      [--against all|direct,pipe,corral,front,nginx,router,vllm-router,litellm,portkey]
 *                      [--engine real|burst|paced|fast] [--rounds N] [--tokens N] [--json FILE]
 *
 * "direct" sends requests to the Unix socket of the same llama-server that corral started. A second llama-server could
 * be luckier with memory and threads, and would use processor time while idle. "pipe" is a minimal Node.js proxy in
 * front of the same engine. `npm run bench:contenders` installs the other products.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { formatPairs, formatTable } from '../command-line/output.ts'
import { version } from '../core/system/package-info.ts'
import { ENGINES, type EngineKind, PACES } from './bench/benched-engines.ts'
import { ENGINE_THREADS, withCorral } from './bench/corral-server.ts'
import { type KeysCost, measureKeys } from './bench/keys.ts'
import { formatTitle, LOAD_GROUPS, LOADS, type Load, listWays } from './bench/loads.ts'
import { describeMachine, short } from './bench/measuring.ts'
import { measureMemory } from './bench/memory.ts'
import { compare, type Figures } from './bench/rounds.ts'
import { CONTENDERS, withServers } from './bench/servers.ts'
import { measureColdLoads, measureManyModels, measureStarts, type Row } from './bench/starts.ts'
import { formatEstimate, formatFigures } from './bench/tables.ts'
import { measureWarmth, type Warmth, warmUp } from './bench/warmth.ts'

const GROUPS = [...LOAD_GROUPS, 'warmth', 'keys', 'starts', 'memory']
const { values } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    only: { type: 'string', default: GROUPS.join(',') },
    against: { type: 'string', default: 'direct,pipe,corral' },
    engine: { type: 'string' },
    rounds: { type: 'string' },
    tokens: { type: 'string' },
    json: { type: 'string' }
  }
})

function usageError(text: string): never {
  console.error(text)
  process.exit(2)
}

function chosen(option: string, text: string, known: readonly string[]): string[] {
  const parts = text.split(',').map(part => part.trim())
  const wrong = parts.find(part => !known.includes(part))
  if (wrong !== undefined) usageError(`--${option} cannot be "${wrong}". Use one of: ${known.join(', ')}.`)
  return parts
}

function wholeNumber(option: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined
  const value = Number(text)
  if (!Number.isInteger(value) || value < 1) usageError(`--${option} must be a whole number, 1 or more.`)
  return value
}

if (process.platform !== 'linux') {
  usageError('The benchmark reads processor times and addresses of processes from /proc, so it runs only on Linux.')
}
const groups = chosen('only', values.only, GROUPS)
// The gateway uses the same corral, which would be warm before the other contenders.
const all = CONTENDERS.filter(name => name !== 'front')
const names = values.against === 'all' ? all : chosen('against', values.against, CONTENDERS)
const engines = values.engine === undefined ? ENGINES : (chosen('engine', values.engine, ENGINES) as EngineKind[])
const rounds = wholeNumber('rounds', values.rounds) ?? (values.quick ? 3 : 9)
const tokens = wholeNumber('tokens', values.tokens)

const { quick } = values
const turns = quick ? 2 : 5
const home = mkdtempSync(join(tmpdir(), 'corral-bench-'))
const progress = (text: string) => process.stderr.write(`${text}\n`)
const engineNames: Record<EngineKind, string> = {
  real: 'llama-server',
  burst: 'stand-in engine, answers in one burst',
  paced: `stand-in engine, ${PACES.paced} tokens/s per stream`,
  fast: `stand-in engine, ${PACES.fast} tokens/s per stream`
}

interface Result {
  load: Load
  engine: EngineKind
  figures: Figures[]
}

const report = {
  corral: version,
  date: new Date().toISOString(),
  machine: describeMachine(),
  quick,
  rounds,
  /** Contenders that did not take part, with the reason. */
  leftOut: [] as string[],
  warmth: [] as Warmth[],
  keys: undefined as KeysCost | undefined,
  results: [] as Result[],
  starts: [] as Row[],
  memory: [] as Row[],
  text: ''
}

/** Prints a part of the report and saves the report so far, because a run takes half an hour and may be interrupted. */
function print(text: string): void {
  report.text = `${report.text}${text}\n`
  console.log(text)
  if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify(report, null, 2)}\n`)
}

/** Loads for an engine. An engine chosen with `--engine` gets all loads. */
function loadsFor(kind: EngineKind): Load[] {
  return LOADS.filter(
    load => groups.includes(load.group) && (values.engine !== undefined || load.engines.includes(kind))
  ).map(load => ({
    ...load,
    ...(quick && { requests: Math.max(load.concurrent, Math.ceil(load.requests / 4)) }),
    ...(tokens !== undefined && { tokens })
  }))
}

async function measureLoads(kind: EngineKind): Promise<void> {
  const loads = loadsFor(kind)
  if (loads.length === 0) return
  await withServers(
    home,
    kind,
    names,
    async ({ contenders }) => {
      progress(`${engineNames[kind]}: warming up …`)
      const waysFor = (load: Load) => contenders.flatMap(contender => listWays(contender, load))
      await warmUp(waysFor({ ...loads[0]!, stream: false, tokens: 8 }), quick ? 200 : undefined)
      for (const load of loads) {
        progress(`${engineNames[kind]}: ${formatTitle(load)} …`)
        const figures = await compare(waysFor(load), load, rounds)
        report.results.push({ load, engine: kind, figures })
        print(
          `${formatFigures(`${formatTitle(load)}, ${rounds} rounds of ${load.requests} (${engineNames[kind]})`, figures)}\n`
        )
      }
    },
    (name, why) => {
      const line = `${name}: ${why}`
      if (!report.leftOut.includes(line)) report.leftOut.push(line)
    }
  )
}

async function measureAllStarts(): Promise<Row[]> {
  progress('Starts …')
  await withCorral(home, async () => {})
  const start = await measureStarts(home, turns, quick ? 2 : 10)
  progress('Cold loads …')
  const coldLoads = await withCorral(home, corral => measureColdLoads(corral, 3 * turns))
  progress('Ten thousand models …')
  return [...start, ...coldLoads, ...(await measureManyModels(home, 10_000, quick ? 1 : 3))]
}

function formatWarmth(rows: readonly Warmth[]): string {
  const cells = rows.map(({ state, corral, pipe, ratio }) => [state, short(corral), short(pipe), formatEstimate(ratio)])
  return `Processor time of a short answer, µs (${engineNames.burst})\n${formatTable(['', '>corral', '>pipe', '>ratio'], cells)}`
}

function formatKeys({ without, with: withAll, ratio, pairs, rounds }: KeysCost): string {
  const title = `Keys, limits, audit and metrics: processor time of a short answer, ${pairs} pairs of processes with ${rounds} rounds each (${engineNames.burst})`
  const cells = [
    ['without', `${short(without)} µs`, ''],
    ['with', `${short(withAll)} µs`, formatEstimate(ratio)]
  ]
  return `${title}\n${formatTable(['', '>each', '>ratio'], cells, Number.POSITIVE_INFINITY)}`
}

try {
  print(
    `corral ${version}, ${report.date}${quick ? ', quick' : ''}\n${report.machine} before, llama-server with ${ENGINE_THREADS} threads\n`
  )
  if (groups.includes('warmth')) {
    progress('Cold and warm processes …')
    report.warmth = await measureWarmth(use => withServers(home, 'burst', ['pipe', 'corral'], use), quick ? 2 : 6)
    print(`${formatWarmth(report.warmth)}\n`)
  }
  if (groups.includes('keys')) {
    progress('Keys, limits, audit and metrics …')
    report.keys = await measureKeys(home, quick ? 6 : 20, quick ? 2 : 30, ratio =>
      progress(`  a pair of processes: ${short(ratio)}`)
    )
    print(`${formatKeys(report.keys)}\n`)
  }
  for (const kind of engines) await measureLoads(kind)
  for (const each of report.leftOut) print(`Left out: ${each}.`)
  if (groups.includes('memory')) {
    progress('Memory …')
    report.memory = await measureMemory(home, quick ? 200 : 1000, quick ? 2 : 10)
    print(`${formatPairs(report.memory, '')}\n`)
  }
  // Last, because it leaves ten thousand models behind.
  if (groups.includes('starts')) {
    report.starts = await measureAllStarts()
    print(formatPairs(report.starts, ''))
  }
} finally {
  rmSync(home, { recursive: true, force: true })
}
