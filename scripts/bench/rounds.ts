import { setTimeout as sleep } from 'node:timers/promises'
import { BASELINE } from './benched-servers.ts'
import { isDirect, type Load, type Way } from './loads.ts'
import { type Estimate, estimate, machineTicks, median, percentile, residentMemory, sum } from './measuring.ts'

export interface Round {
  seconds: number
  /** Number of answers, and of failures by reason. */
  answers: number
  errors: Record<string, number>
  events: number
  /** Milliseconds to the first text, or to the whole answer if it is not streamed. */
  first: number[]
  /** Milliseconds between two tokens. */
  gaps: number[]
  /** Processor time of the contender in microseconds. */
  processor: number
  /** Memory of the contender after the round, in MiB. */
  memory: number
  /** Share of the machine that was busy, 0 to 1. */
  busy: number
}

async function inClosedLoop({ requests, concurrent }: Load, ask: () => Promise<void>): Promise<void> {
  let left = requests
  const worker = async () => {
    while (left-- > 0) await ask()
  }
  await Promise.all(Array.from({ length: concurrent }, worker))
}

/** Sends requests at fixed times, like independent users: a slow answer does not delay later requests. */
async function inOpenLoop(requests: number, rate: number, ask: (due: number) => Promise<void>): Promise<void> {
  const began = performance.now()
  const asked: Promise<void>[] = []
  for (let index = 0; index < requests; index++) {
    const due = began + (index * 1000) / rate
    const wait = due - performance.now()
    if (wait > 0) await sleep(wait)
    asked.push(ask(due))
  }
  await Promise.all(asked)
}

/** Sends the requests of one round, with the concurrency or rate of the load. */
export async function runRound({ name, contender, request }: Way, load: Load): Promise<Round> {
  const round: Round = {
    ...{ seconds: 0, answers: 0, errors: {}, events: 0, first: [], gaps: [] },
    ...{ processor: 0, memory: 0, busy: 0 }
  }
  const failed = (what: string) => {
    round.errors[what] = (round.errors[what] ?? 0) + 1
  }
  const machine = machineTicks()
  const processor = sum(contender.pids.map(contender.measureTime))
  const began = performance.now()
  /** @param due scheduled start. Waiting for this process counts as part of the request's time */
  const ask = async (due = performance.now()) => {
    const late = performance.now() - due
    const outcome = await contender.client.send(request).catch((error: Error) => error)
    if (outcome instanceof Error) failed(outcome.message)
    else if (outcome.status !== 200) failed(`status ${outcome.status}`)
    else if (load.stream && outcome.events < load.tokens / 2) failed('incomplete answer')
    else {
      round.answers++
      round.events += outcome.events
      round.first.push(late + (load.stream ? outcome.firstText : outcome.total))
      for (let index = 1; index < outcome.times.length; index++) {
        round.gaps.push(outcome.times[index]! - outcome.times[index - 1]!)
      }
    }
  }
  if (load.rate === undefined) await inClosedLoop(load, ask)
  else await inOpenLoop(load.requests, load.rate, ask)
  if (round.answers === 0) throw new Error(`${name} gave no answer: ${JSON.stringify(round.errors)}`)
  round.seconds = (performance.now() - began) / 1000
  round.processor = sum(contender.pids.map(contender.measureTime)) - processor
  round.memory = sum(contender.pids.map(residentMemory))
  const after = machineTicks()
  round.busy = (after.busy - machine.busy) / Math.max(1, after.all - machine.all)
  return round
}

/** Results of one way relative to the others. Times in milliseconds, processor times in microseconds. */
export interface Figures {
  way: string
  requestsPerSecond: number
  /** Relative to the engine itself, by rounds. */
  speedRatio?: Estimate
  /** Time to the first text, or to the whole answer if it is not streamed. */
  first: { p50: number; p99: number }
  /** Difference from the engine itself. */
  added?: number
  between?: { p50: number; p99: number }
  perRequest?: number
  perChunk?: number
  /** Processor time relative to the bare pipe, by rounds. */
  processorRatio?: Estimate
  /** Maximum memory in MiB. */
  memory?: number
  busy: number
  errors: Record<string, number>
}

/**
 * Runs the same load on all ways in rotation (A B C, B C A, …), so that other work on the machine affects all of them
 * equally. Each way first has an unmeasured round.
 */
export async function compare(ways: readonly Way[], load: Load, rounds: number): Promise<Figures[]> {
  const results = new Map<Way, Round[]>(ways.map(way => [way, []]))
  for (const way of ways) await runRound(way, { ...load, requests: load.concurrent })
  for (let round = 0; round < rounds; round++) {
    for (let place = 0; place < ways.length; place++) {
      const way = ways[(round + place) % ways.length]!
      results.get(way)!.push(await runRound(way, load))
    }
  }
  const getRounds = (found: Way | undefined) => found && results.get(found)
  const engine = getRounds(ways.find(isDirect))
  const pipe = getRounds(ways.find(({ contender }) => contender.name === BASELINE))
  return ways.map(way => toFigures(way, load, results.get(way)!, engine, pipe))
}

function toFigures(way: Way, load: Load, rounds: Round[], engine?: Round[], pipe?: Round[]): Figures {
  const first = rounds.flatMap(round => round.first)
  const gaps = rounds.flatMap(round => round.gaps)
  const errors: Record<string, number> = {}
  for (const round of rounds) {
    for (const [what, count] of Object.entries(round.errors)) errors[what] = (errors[what] ?? 0) + count
  }
  const perAnswer = ({ processor, answers }: Round) => processor / answers
  const processor = sum(rounds.map(round => round.processor))
  const own = way.contender.pids.length > 0
  return {
    way: way.name,
    requestsPerSecond: sum(rounds.map(round => round.answers)) / sum(rounds.map(round => round.seconds)),
    ...(engine &&
      rounds !== engine && {
        // Every round has the same work, so rates compare as times do.
        speedRatio: estimate(rounds.map((round, index) => engine[index]!.seconds / round.seconds)),
        added: median(rounds.map((round, index) => median(round.first) - median(engine[index]!.first)))
      }),
    first: { p50: median(first), p99: percentile(first, 0.99) },
    ...(gaps.length > 0 && { between: { p50: median(gaps), p99: percentile(gaps, 0.99) } }),
    ...(own && {
      perRequest: processor / sum(rounds.map(({ answers }) => answers)),
      ...(load.stream && { perChunk: processor / sum(rounds.map(({ events }) => events)) }),
      memory: Math.max(...rounds.map(round => round.memory))
    }),
    ...(own &&
      pipe &&
      rounds !== pipe && {
        processorRatio: estimate(rounds.map((round, index) => perAnswer(round) / perAnswer(pipe[index]!)))
      }),
    busy: median(rounds.map(round => round.busy)),
    errors
  }
}
