/**
 * Whether corral's own work has grown: its processor time for a request and for a chunk, as ratios to the bare pipe in the
 * same run, beside the figures that are kept in bench/figures.json. Prints what became worse or better; fails only where a
 * ratio is twice what it was in three measurements one after the other, since machines are shared.
 *
 *     npm run bench:check                compares
 *     npm run bench:check -- --write     keeps what is measured now; for a quiet machine
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { formatTable } from '../command-line/output.ts'
import { packageRoot } from '../core/system/package-info.ts'
import { type Load, waysOf } from './bench/loads.ts'
import { describeMachine, type Estimate } from './bench/measuring.ts'
import { compare } from './bench/rounds.ts'
import { withServers } from './bench/servers.ts'
import { formatEstimate } from './bench/tables.ts'
import { warmUp } from './bench/warmth.ts'

const KEPT = join(packageRoot, 'scripts', 'bench', 'figures.json')
/** So many times what it was is a failure … */
const TOO_MUCH = 2
/** … where it is measured so often. */
const ATTEMPTS = 3
/** What the check itself sends before it measures: enough for most of what V8 compiles. */
const WARM_UP = 1000

const REQUESTS: Load = { group: 'short', engines: ['burst'], stream: false, concurrent: 4, requests: 100, tokens: 8 }
/** Tokens come one by one, as from a real engine; nearly all that such a stream costs are its 200 chunks. */
const CHUNKS: Load = { group: 'streams', engines: ['fast'], stream: true, concurrent: 8, requests: 8, tokens: 200 }

type Ratios = Record<string, Estimate>

async function measure(load: Load, what: string, rounds: number): Promise<Ratios> {
  const home = mkdtempSync(join(tmpdir(), 'corral-bench-'))
  try {
    return await withServers(home, load.engines[0]!, ['pipe', 'corral'], async ({ contenders }) => {
      const ways = contenders.flatMap(contender => waysOf(contender, load))
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
  console.log('NOT CHECKED: processor times are read from /proc, which only Linux has.')
  process.exit(0)
}
const { values } = parseArgs({ options: { write: { type: 'boolean', default: false } } })
const kept = values.write ? {} : (JSON.parse(readFileSync(KEPT, 'utf8')).ratios as Record<string, number>)
const tooMuch = (ratios: Ratios) =>
  Object.keys(kept).filter(name => !(name in ratios) || ratios[name]!.median > TOO_MUCH * kept[name]!)

console.log(`Processor time beside the bare pipe (${describeMachine()})`)
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
      `FAILED: ${bad.join('; ')}: twice as much as before, ${ATTEMPTS} times in a row. Look for what costs it with "npm run bench:profile"; where it is meant to, keep the new figures with "npm run bench:check -- --write".`
    )
    process.exit(1)
  }
  console.log('Once more, since the machine may have been busy:')
  ratios = await measureAll()
  bad = tooMuch(ratios).filter(name => bad.includes(name))
}
