/**
 * Checks whether corral's own work per request and per chunk has grown. Measures its processor time as a ratio to the
 * bare pipe in the same run, and compares it with bench/figures.json. Prints what became better or worse. Because
 * machines are shared, it fails only if a ratio has doubled in three measurements in a row.
 *
 *     npm run bench:check compares
 *     npm run bench:check -- --write stores new figures; use a quiet machine
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { formatTable } from '../command-line/output.ts'
import { packageRoot } from '../core/system/package-info.ts'
import { type Load, listWays } from './bench/loads.ts'
import { describeMachine, type Estimate } from './bench/measuring.ts'
import { compare } from './bench/rounds.ts'
import { withServers } from './bench/servers.ts'
import { formatEstimate } from './bench/tables.ts'
import { warmUp } from './bench/warmth.ts'

const KEPT = join(packageRoot, 'scripts', 'bench', 'figures.json')
/** Ratio to the stored figures that counts as a failure. */
const MAX_RATIO = 2
/** Number of measurements that must all fail. */
const ATTEMPTS = 3
/** Requests before the measurement: enough for V8 to compile most code. */
const WARM_UP = 1000

const REQUESTS: Load = { group: 'short', engines: ['burst'], stream: false, concurrent: 4, requests: 100, tokens: 8 }
/** Tokens arrive one by one, as from a real engine. Almost all the cost of such a stream is its 200 chunks. */
const CHUNKS: Load = { group: 'streams', engines: ['fast'], stream: true, concurrent: 8, requests: 8, tokens: 200 }

type Ratios = Record<string, Estimate>

async function measure(load: Load, what: string, rounds: number): Promise<Ratios> {
  const home = mkdtempSync(join(tmpdir(), 'corral-bench-'))
  try {
    return await withServers(home, load.engines[0]!, ['pipe', 'corral'], async ({ contenders }) => {
      const ways = contenders.flatMap(contender => listWays(contender, load))
      if (!load.stream) await warmUp(ways, WARM_UP)
      const figures = await compare(ways, load, rounds)
      return Object.fromEntries(
        figures.flatMap(({ way, processorRatio }) => (processorRatio ? [[`${what}, ${way}`, processorRatio]] : []))
      )
    })
  } finally {
    rmSync(home, { recursive: true, force: true })
  }
}

const measureAll = async (): Promise<Ratios> => ({
  ...(await measure(REQUESTS, 'a request', 12)),
  ...(await measure(CHUNKS, 'a chunk', 12))
})

if (process.platform !== 'linux') {
  console.log('NOT CHECKED: processor times are read from /proc, which exists only on Linux.')
  process.exit(0)
}
const { values } = parseArgs({ options: { write: { type: 'boolean', default: false } } })
const kept = values.write ? {} : (JSON.parse(readFileSync(KEPT, 'utf8')).ratios as Record<string, number>)
const tooMuch = (ratios: Ratios) =>
  Object.keys(kept).filter(name => !(name in ratios) || ratios[name]!.median > MAX_RATIO * kept[name]!)

console.log(`Processor time relative to the bare pipe (${describeMachine()})`)
let ratios = await measureAll()
if (values.write) {
  const medians = Object.entries(ratios).map(([name, { median }]) => [name, Number(median.toFixed(2))])
  writeFileSync(
    KEPT,
    `${JSON.stringify({ machine: describeMachine(), ratios: Object.fromEntries(medians) }, null, 2)}\n`
  )
  console.log(`Written to ${KEPT}.`)
}
let bad = tooMuch(ratios)
for (let attempt = 1; ; attempt++) {
  const rows = Object.entries(ratios).map(([name, ratio]) => {
    const before = kept[name]
    const change = before === undefined ? '' : ratio.low > before ? 'worse' : ratio.high < before ? 'better' : ''
    return [name, formatEstimate(ratio), before?.toFixed(2) ?? '', bad.includes(name) ? 'TWICE AS MUCH' : change]
  })
  console.log(formatTable(['', '>now', '>kept', ''], rows, Number.POSITIVE_INFINITY))
  if (bad.length === 0) break
  if (attempt === ATTEMPTS) {
    console.error(
      `FAILED: ${bad.join('; ')}: twice as much as before, ${ATTEMPTS} times in a row. Find the cause with "npm run bench:profile". If it is intended, store the new figures with "npm run bench:check -- --write".`
    )
    process.exit(1)
  }
  console.log('Measuring again, because the machine may have been busy:')
  ratios = await measureAll()
  bad = tooMuch(ratios).filter(name => bad.includes(name))
}
