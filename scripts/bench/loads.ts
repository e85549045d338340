import { formatTable } from '../../command-line/output.ts'
import {
  type Client,
  machineTicks,
  median,
  percentile,
  processorTime,
  type Request,
  residentMemory,
  short,
  sum
} from './measuring.ts'

export const MODEL = 'corral/tiny-chat'
const MESSAGES = [{ role: 'user', content: 'What is the capital of France?' }]
/** All that decides the engine's work is said outright, so that each way gives it the same. */
const SAMPLING = { temperature: 0, top_p: 0.9, top_k: 40, seed: -1, ignore_eos: true }

/** One way to get the same answer. */
interface Target {
  name: string
  client: Client
  request(tokens: number): Request
}

/** The engine itself first: the others are compared with it. */
function targets(engine: Client, key: string, gateway: Client, stream: boolean): Target[] {
  const target = (name: string, client: Client, path: string, headers: Record<string, string> = {}): Target => {
    const request = (max_tokens: number): Request => {
      const sampling = { ...SAMPLING, max_tokens }
      const body = {
        model: MODEL,
        messages: MESSAGES,
        stream,
        ...(path === '/api/chat' ? { options: sampling } : sampling)
      }
      return {
        method: 'POST',
        path,
        headers: { 'content-type': 'application/json', ...headers },
        body: JSON.stringify(body),
        stream
      }
    }
    return { name, client, request }
  }
  return [
    target('direct', engine, '/v1/chat/completions', { authorization: `Bearer ${key}` }),
    target('/v1', gateway, '/v1/chat/completions'),
    target(stream ? '/api sse' : '/api', gateway, '/api/chat'),
    ...(stream ? [target('/api ndjson', gateway, '/api/chat', { accept: 'application/x-ndjson' })] : [])
  ]
}

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

interface Round {
  seconds: number
  events: number
  /** Milliseconds until the first text; until the whole answer where it is not streamed. */
  first: number[]
  /** Milliseconds between two tokens. */
  gaps: number[]
  /** Microseconds of the gateway's processor time. */
  gatewayTime: number
  /** Memory of the gateway after the round, MiB. */
  memory: number
  /** Share of the machine that was busy, 0 to 1. */
  busy: number
}

async function runRound(target: Target, load: Load, gatewayPid: number): Promise<Round> {
  const request = target.request(load.tokens)
  const round: Round = { seconds: 0, events: 0, first: [], gaps: [], gatewayTime: 0, memory: 0, busy: 0 }
  const machine = machineTicks()
  const time = processorTime(gatewayPid)
  const began = performance.now()
  let left = load.requests
  const worker = async () => {
    while (left-- > 0) {
      const outcome = await target.client.send(request)
      if (outcome.status !== 200) throw new Error(`${target.name} answered ${outcome.status}: ${outcome.text}`)
      if (load.stream && outcome.events < load.tokens / 2) {
        throw new Error(`${target.name} sent ${outcome.events} events instead of ${load.tokens} or more`)
      }
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
 * @returns a table with a row for each target
 */
export async function measureLoad(
  { engine, key, gateway, gatewayPid }: { engine: Client; key: string; gateway: Client; gatewayPid: number },
  load: Load,
  rounds: number
): Promise<string> {
  const all = targets(engine, key, gateway, load.stream)
  const results = new Map<Target, Round[]>(all.map(target => [target, []]))
  // One round of each that does not count: compilers and caches warm up.
  for (const target of all) await runRound(target, { ...load, requests: load.concurrent }, gatewayPid)
  for (let round = 0; round < rounds; round++) {
    for (let place = 0; place < all.length; place++) {
      const target = all[(round + place) % all.length]!
      results.get(target)!.push(await runRound(target, load, gatewayPid))
    }
  }
  const head = load.stream
    ? [
        '',
        '>tokens/s',
        '>ratio',
        '>first text p50',
        '>p99',
        '>added',
        '>between p50',
        '>p99',
        '>µs/chunk',
        '>MiB',
        '>busy'
      ]
    : ['', '>requests/s', '>ratio', '>answer p50', '>p99', '>added', '>µs/request', '>MiB', '>busy']
  const direct = results.get(all[0]!)!
  const rows = all.map(target => [target.name, ...rowOf(load, results.get(target)!, direct)])
  return `${load.name}: ${load.concurrent} at once, ${load.tokens} tokens each, ${rounds} rounds of ${load.requests} requests\n${formatTable(head, rows)}`
}

function rowOf(load: Load, rounds: Round[], direct: Round[]): string[] {
  const requests = load.requests * rounds.length
  const perSecond = requests / sum(rounds.map(round => round.seconds))
  const first = rounds.flatMap(round => round.first)
  const gaps = rounds.flatMap(round => round.gaps)
  // The same amount of work in each round, so rates compare as times do.
  const ratio = median(rounds.map((round, index) => direct[index]!.seconds / round.seconds))
  const added = median(rounds.map((round, index) => median(round.first) - median(direct[index]!.first)))
  const work = load.stream ? sum(rounds.map(round => round.events)) : requests
  const itself = rounds === direct
  return [
    short(load.stream ? perSecond * load.tokens : perSecond),
    itself ? '1' : ratio.toFixed(2),
    `${short(median(first))} ms`,
    short(percentile(first, 0.99)),
    itself ? '' : `${added < 0 ? '' : '+'}${added.toFixed(2)}`,
    ...(load.stream ? [`${short(median(gaps))} ms`, short(percentile(gaps, 0.99))] : []),
    itself ? '' : short(sum(rounds.map(round => round.gatewayTime)) / work),
    itself ? '' : short(Math.max(...rounds.map(round => round.memory))),
    `${short(median(rounds.map(round => round.busy)) * 100)}%`
  ]
}
