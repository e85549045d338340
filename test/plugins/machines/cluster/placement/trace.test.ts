import t from 'tap'
import {
  consistentHash,
  corralRouter,
  makeTrace,
  type Replay,
  replay,
  roundRobin,
  type TraceShape
} from './trace-replay.ts'

const NODES = 3
const SLOTS = 4
/** With the minimum share of the single node's hits. */
const shapes: [what: string, shape: TraceShape, least: number][] = [
  [
    'about as many conversations as slots',
    { conversations: 100, within: 1_200_000, systems: 5, systemLength: 2000 },
    0.9
  ],
  ['more conversations than slots', { conversations: 130, within: 1_200_000, systems: 5, systemLength: 2000 }, 0.85]
]

for (const [what, shape, least] of shapes) {
  t.test(`conversations over three nodes: ${what}`, t => {
    const trace = makeTrace(7, shape)
    const single = replay(trace, 1, NODES * SLOTS, corralRouter())
    const spread = replay(trace, NODES, SLOTS, corralRouter())
    const rows: [string, Replay][] = [
      ['one node with all slots', single],
      ['corral', spread],
      ['corral, two fronts', replay(trace, NODES, SLOTS, corralRouter(2))],
      ['round robin', replay(trace, NODES, SLOTS, roundRobin)],
      ['consistent hash', replay(trace, NODES, SLOTS, consistentHash)]
    ]
    for (const [name, result] of rows) t.comment(rowOf(name, result))
    t.ok(spread.hits >= least * single.hits, `hits ${spread.hits} of ${single.hits}`)
    t.ok(spread.spread.requests <= 1.3, `spread ${spread.spread.requests}`)
    t.end()
  })
}

function rowOf(name: string, { hits, spread, wait, firstWord, reasons }: Replay): string {
  const seconds = (milliseconds: number) => `${(milliseconds / 1000).toFixed(2)} s`
  return [
    name.padEnd(24),
    `hits ${(hits * 100).toFixed(1)} %`,
    `spread ${spread.requests.toFixed(2)} (time ${spread.time.toFixed(2)})`,
    `wait ${seconds(wait.mean)} (p95 ${seconds(wait.p95)})`,
    `first word ${seconds(firstWord.mean)} (p95 ${seconds(firstWord.p95)})`,
    JSON.stringify(reasons)
  ].join('  ')
}
