import { machineTicks, processorTime, residentMemory } from './process-figures.ts'
import { median, percentile, sum } from './statistics.ts'
import type { Target } from './targets.ts'

export interface Load {
  name: string
  stream: boolean
  /** Requests that run at the same time. */
  concurrent: number
  /** Requests of each round and target. */
  requests: number
  /** Tokens of each answer. */
  tokens: number
}

export interface Figures {
  target: string
  requestsPerSecond: number
  tokensPerSecond: number
  /** Milliseconds; the whole answer where it is not streamed. */
  firstText: { p50: number; p99: number }
  /** Milliseconds between two tokens. */
  betweenTokens: { p50: number; p99: number }
  /** Microseconds of the gateway's processor time. */
  gatewayPerRequest: number
  gatewayPerChunk: number
  /** Most memory of the gateway after a round, MiB. */
  gatewayMemory: number
  /** Share of the machine that was busy, 0 to 1. */
  machineBusy: number
  /** Against direct, each the median of the rounds: of rates more is better, of times less. */
  ratio?: { requestsPerSecond: number; tokensPerSecond: number }
  /** Milliseconds more than direct (p50 of p50). */
  addedToFirstText?: number
}

interface Round {
  seconds: number
  requests: number
  events: number
  first: number[]
  gaps: number[]
  gatewayTime: number
  memory: number
  busy: number
}

async function runRound(target: Target, load: Load, gatewayPid: number): Promise<Round> {
  const ask = target.ask(load.tokens, load.stream)
  const round: Round = { seconds: 0, requests: 0, events: 0, first: [], gaps: [], gatewayTime: 0, memory: 0, busy: 0 }
  const machine = machineTicks()
  const time = processorTime(gatewayPid)
  const began = performance.now()
  let left = load.requests
  const worker = async () => {
    while (left-- > 0) {
      const outcome = await target.client.ask(ask)
      if (outcome.status !== 200) throw new Error(`${target.name} answered ${outcome.status}: ${outcome.text}`)
      if (load.stream && outcome.events < load.tokens / 2) {
        throw new Error(`${target.name} sent ${outcome.events} events instead of ${load.tokens} or more`)
      }
      round.requests++
      round.events += outcome.events
      round.first.push(load.stream ? outcome.firstText : outcome.total)
      for (let index = 1; index < outcome.times.length; index++) {
        round.gaps.push(outcome.times[index]! - outcome.times[index - 1]!)
      }
    }
  }
  await Promise.all(Array.from({ length: load.concurrent }, worker))
  round.seconds = (performance.now() - began) / 1000
  round.gatewayTime = processorTime(gatewayPid) - time
  round.memory = residentMemory(gatewayPid)
  const after = machineTicks()
  round.busy = (after.busy - machine.busy) / Math.max(1, after.all - machine.all)
  return round
}

/**
 * Puts the same load on all targets in turns (A B C, B C A, …), so that whatever else the machine does meets all alike.
 * The first target is the one that the others are compared with.
 */
export async function measure(targets: Target[], load: Load, rounds: number, gatewayPid: number): Promise<Figures[]> {
  const results = new Map<Target, Round[]>(targets.map(target => [target, []]))
  // One round of each that does not count: compilers and caches warm up.
  for (const target of targets) await runRound(target, { ...load, requests: load.concurrent }, gatewayPid)
  for (let round = 0; round < rounds; round++) {
    for (let place = 0; place < targets.length; place++) {
      const target = targets[(round + place) % targets.length]!
      results.get(target)!.push(await runRound(target, load, gatewayPid))
    }
  }
  const direct = results.get(targets[0]!)!
  return targets.map((target, index) => figuresOf(target.name, load, results.get(target)!, index ? direct : undefined))
}

function figuresOf(name: string, load: Load, rounds: Round[], direct: Round[] | undefined): Figures {
  const seconds = sum(rounds.map(round => round.seconds))
  const requests = sum(rounds.map(round => round.requests))
  const events = sum(rounds.map(round => round.events))
  const time = sum(rounds.map(round => round.gatewayTime))
  const first = rounds.flatMap(round => round.first)
  const gaps = rounds.flatMap(round => round.gaps)
  const figures: Figures = {
    target: name,
    requestsPerSecond: requests / seconds,
    tokensPerSecond: (requests * load.tokens) / seconds,
    firstText: { p50: percentile(first, 0.5), p99: percentile(first, 0.99) },
    betweenTokens: { p50: percentile(gaps, 0.5), p99: percentile(gaps, 0.99) },
    gatewayPerRequest: direct ? time / requests : 0,
    gatewayPerChunk: direct && load.stream ? time / events : Number.NaN,
    gatewayMemory: Math.max(...rounds.map(round => round.memory)),
    machineBusy: median(rounds.map(round => round.busy))
  }
  if (!direct) return figures
  // The same amount of work in each round, so rates compare as times do.
  const speed = median(rounds.map((round, index) => direct[index]!.seconds / round.seconds))
  const added = median(rounds.map((round, index) => median(round.first) - median(direct[index]!.first)))
  return { ...figures, ratio: { requestsPerSecond: speed, tokensPerSecond: speed }, addedToFirstText: added }
}
