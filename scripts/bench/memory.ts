import { execFile } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { COMMAND, type Corral } from '../../test/support/corral.ts'
import { type EngineKind, withEngineBuild } from './benched-engines.ts'
import { corralItself } from './benched-servers.ts'
import { MODEL, withCorral } from './corral-server.ts'
import { type Load, listWays } from './loads.ts'
import { median, REST, residentMemory, short } from './measuring.ts'
import { runRound } from './rounds.ts'
import type { Row } from './starts.ts'

const SHORT: Load = { group: 'short', engines: ['burst'], stream: false, concurrent: 16, requests: 5000, tokens: 8 }
/** Minimum duration of each stream in seconds. */
const MIN_STREAM_SECONDS = 30
/** Time for memory to settle after a load, and interval between samples while streams run. */
const SETTLE_MS = 5000
const POLL_INTERVAL_MS = 500
/** Number of streams started at the same time. */
const MAX_STARTED_TOGETHER = 50
/** Runs per measurement, because processor time has a resolution of 10 ms. */
const RUNS = 5

const mib = (value: number) => `${short(value)} MiB`
const readMemory = ({ process: { pid } }: Corral) => residentMemory(pid!)

/** Runs `use` with the bundle, like `npm start`, with the model loaded in a stand-in engine. */
async function withBundle<T>(home: string, kind: EngineKind, slots: number, use: (corral: Corral) => Promise<T>) {
  return await withEngineBuild(
    kind,
    build =>
      withCorral(
        home,
        async corral => {
          const { status, body } = await corral.json('/api/load', { model: MODEL, keep_alive: -1 })
          if (status !== 200) throw new Error(`The model was not loaded: ${JSON.stringify(body)}`)
          return await use(corral)
        },
        {
          program: COMMAND,
          env: { CORRAL_LLAMA_CPP: build },
          config: `limits:\n  connections: ${2 * slots}`
        }
      ),
    { pace: 1, slots }
  )
}

/**
 * Memory with this many open streams that get one token per second.
 * @param seconds minimum duration of the streams
 * @throws Error if a stream was refused or is incomplete
 */
export async function memoryOfStreams(
  home: string,
  count: number,
  seconds: number
): Promise<{ before: number; most: number }> {
  return await withBundle(home, 'paced', count, async corral => {
    const contender = corralItself(corral)
    const load: Load = { ...SHORT, stream: true, concurrent: count, requests: count, tokens: seconds }
    const { request } = listWays(contender, load)[0]!
    const before = readMemory(corral)
    let ended = 0
    const streams: Promise<{ status: number; events: number }>[] = []
    while (streams.length < count) {
      for (let begun = 0; begun < MAX_STARTED_TOGETHER && streams.length < count; begun++) {
        streams.push(contender.client.send(request).finally(() => ended++))
      }
      await sleep(POLL_INTERVAL_MS / 10)
    }
    const looks: number[] = []
    while (ended === 0) {
      looks.push(readMemory(corral))
      await sleep(POLL_INTERVAL_MS)
    }
    const outcomes = await Promise.all(streams)
    await contender.client.close()
    const cut = outcomes.filter(({ status, events }) => status !== 200 || events < seconds).length
    if (cut > 0) throw new Error(`${cut} of ${count} streams were refused or incomplete`)
    return { before, most: Math.max(...looks) }
  })
}

/** Processor time of one run of a command in milliseconds. */
export async function timeOfCommand(home: string, args: readonly string[]): Promise<number> {
  const script = 'n=$1; shift; while [ $n -gt 0 ]; do "$@" >/dev/null || exit; n=$((n - 1)); done; times'
  const { stdout } = await promisify(execFile)(
    'sh',
    ['-c', script, 'sh', `${RUNS}`, process.execPath, COMMAND, ...args],
    { cwd: home, env: { ...process.env, CORRAL_HOME: home } }
  )
  // The second line has the user and system time of child processes.
  const parts = [
    ...stdout
      .trim()
      .split('\n')
      .at(-1)!
      .matchAll(/(\d+)m([\d.]+)s/g)
  ]
  return (1000 * parts.reduce((sum, [, minutes, seconds]) => sum + 60 * Number(minutes) + Number(seconds), 0)) / RUNS
}

async function measureCommands(home: string, rounds: number): Promise<Row[]> {
  const times: Record<string, number[]> = { '--help': [], ps: [] }
  for (let round = 0; round < rounds; round++) {
    for (const [command, all] of Object.entries(times)) all.push(await timeOfCommand(home, [command]))
  }
  return Object.entries(times).map(
    ([command, all]): Row => [`processor time of corral ${command}`, `${short(median(all))} ms`]
  )
}

/**
 * Measures corral's resident memory, started like `npm start`: idle, after a load, and with many open streams. Also
 * measures the cost of light commands.
 * @param streams number of concurrent streams
 * @param idleSeconds time until the server counts as idle
 */
export async function measureMemory(home: string, streams: number, idleSeconds: number): Promise<Row[]> {
  // The first start with a data directory stores the model.
  await withCorral(home, async () => {}, { program: COMMAND })
  const idle = await withCorral(
    home,
    async corral => {
      await sleep(idleSeconds * 1000)
      return readMemory(corral)
    },
    { program: COMMAND }
  )
  const { after, rested, commands } = await withBundle(home, 'burst', SHORT.concurrent, async corral => {
    const contender = corralItself(corral)
    await runRound(listWays(contender, SHORT)[0]!, SHORT)
    await contender.client.close()
    await sleep(SETTLE_MS)
    const after = readMemory(corral)
    await sleep(REST)
    return { after, rested: readMemory(corral), commands: await measureCommands(home, 3) }
  })
  const many = await memoryOfStreams(home, streams, MIN_STREAM_SECONDS)
  return [
    ['memory when idle', mib(idle)],
    [`memory after ${SHORT.requests} short answers`, `${mib(after)}, half a minute later ${mib(rested)}`],
    [`memory with ${streams} open streams`, `${mib(many.most)} (before ${mib(many.before)})`],
    ...commands
  ]
}
