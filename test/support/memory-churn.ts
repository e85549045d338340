import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
import { SseParser } from '../../core/answers/openai-events.ts'
import { within, writeModelCopy } from '../long/support.ts'
import { CAPITAL_QUESTION, type Corral, startCorral, until } from './corral.ts'
import { newFolder } from './folder.ts'
import { pick, randomNumbers } from './random.ts'

const MODELS = ['budget/one', 'budget/two', 'budget/three']
const CLIENTS = 16
/** Parallel answers of each engine, and a context that fits the longest. */
const OPTIONS = { num_ctx: 2048, num_parallel: 2 }
const MAX_ANSWER_LENGTH = 1500
const FAIR_WAIT = 1500
/** A client that waits longer than this is considered hung (milliseconds). */
const PATIENCE = 120_000

const SURFACES = ['native stream', 'native', 'hosted stream', 'hosted'] as const

interface Reply {
  /** `done`, or the code of the error. */
  outcome: string
  /** Whether any output had arrived before. */
  begun: boolean
  /** Why the answer ended, and its number of tokens, if the API reports them. */
  reason?: string
  tokens?: number
}

export interface ChurnFigures {
  requests: number
  outcomes: Record<string, number>
  kills: number
  evictions: number
  longestWait: number
  bound: number
  /** Bytes: the maximum reserved at one time, and the budget. */
  mostReserved: number
  budget: number
}

async function ask(corral: Corral, surface: (typeof SURFACES)[number], model: string, tokens: number): Promise<Reply> {
  const sampling = { max_tokens: tokens, temperature: 0, ignore_eos: true }
  const stream = surface.endsWith('stream')
  const messages = [CAPITAL_QUESTION]
  const response = surface.startsWith('native')
    ? await corral.send('/api/chat', { model, messages, stream, options: { ...sampling, ...OPTIONS } })
    : await corral.send('/v1/chat/completions', { model, messages, stream, ...sampling, options: OPTIONS })
  if (response.headers.get('content-type')?.includes('application/json')) {
    const body: any = await response.json()
    if (response.status !== 200) return { outcome: body.code ?? body.error.code, begun: false }
    const ended = body.choices?.[0]
    const reason = ended?.finish_reason ?? body.done_reason
    return { outcome: 'done', begun: true, reason, tokens: body.usage?.completion_tokens ?? body.eval_count }
  }
  const lines = new SseParser()
  const reply: Reply = { outcome: 'cut', begun: false }
  for await (const chunk of response.body!) {
    for (const payload of lines.push(chunk)) {
      if (payload === '[DONE]') {
        reply.outcome = 'done'
        continue
      }
      const event = JSON.parse(payload)
      const code = event.code ?? event.error?.code
      if (code) reply.outcome = code
      else if (event.done)
        Object.assign(reply, { outcome: 'done', reason: event.done_reason, tokens: event.eval_count })
      else if (event.choices?.[0]?.finish_reason) reply.reason = event.choices[0].finish_reason
      else reply.begun = true
    }
  }
  return reply
}

/** The maximum reservation, the longest load and the evictions, from the scheduler's log. */
function readLog(log: string): { mostReserved: number; longestLoad: number; evictions: number } {
  const reserved = new Map<string, number>()
  let mostReserved = 0
  let longestLoad = 0
  let evictions = 0
  for (const line of log.split('\n')) {
    if (!line.startsWith('{')) continue
    const { msg, model, need, use, ms } = JSON.parse(line)
    const [, does, name] = /^(loading|loaded|unloading|unloaded) (\S+\/\S+)$/.exec(msg) ?? []
    if (does === 'loading') reserved.set(name!, need.host)
    else if (does === 'loaded') {
      reserved.set(name!, use.host)
      longestLoad = Math.max(longestLoad, ms)
    } else if (does === 'unloading') evictions++
    else if (does === 'unloaded') reserved.delete(name!)
    else if (msg === 'the engine died' || msg === 'loading failed') reserved.delete(model)
    mostReserved = Math.max(
      mostReserved,
      [...reserved.values()].reduce((sum, bytes) => sum + bytes, 0)
    )
  }
  return { mostReserved, longestLoad, evictions }
}

/** The memory of one of these models, as the scheduler sees it. */
async function needOfOne(t: Test, home: string): Promise<number> {
  const corral = await startCorral(t, { home })
  for (const [number, model] of MODELS.entries()) {
    const path = join(home, `${number}.gguf`)
    writeModelCopy(path, number)
    const { status, body } = await corral.json('/api/import', { model, path })
    t.equal(status, 200, JSON.stringify(body))
  }
  const { status, body } = await corral.json('/api/load', { model: MODELS[0], options: OPTIONS })
  t.equal(status, 200, JSON.stringify(body))
  const need = readLog(corral.log()).mostReserved
  t.equal(await corral.end('SIGTERM'), 0)
  return need
}

/**
 * Sixteen clients take turns using three models, of which only two fit into memory, and engines are killed now and
 * then. Only the clients of a killed engine notice, no answer is truncated, the budget is respected, and no client
 * waits longer than the limit.
 */
export async function memoryChurn(t: Test, minutes: number, seed: number): Promise<ChurnFigures> {
  t.comment(`seed ${seed}`)
  const home = newFolder(t)
  const need = await needOfOne(t, home)
  const budget = Math.round(need * 2.5)
  const config = `scheduler:\n  memory: ${budget}\n  max_loaded_models: 10\n  fair_wait: ${FAIR_WAIT}ms\n`
  const corral = await startCorral(t, { home, config })

  const end = Date.now() + minutes * 60_000
  const outcomes: Record<string, number> = {}
  const killed: number[] = []
  const faults: string[] = []
  let requests = 0
  let longestWait = 0
  let longestAnswer = 0
  async function client(number: number): Promise<void> {
    const random = randomNumbers(seed + number)
    while (Date.now() < end) {
      const [surface, model] = [pick(random, SURFACES), pick(random, MODELS)]
      const tokens = Math.ceil(random() ** 3 * MAX_ANSWER_LENGTH)
      const began = Date.now()
      const what = `${tokens} tokens of ${model} (${surface}) for client ${number}`
      const {
        outcome,
        begun,
        reason,
        tokens: given
      } = await within(PATIENCE, what, ask(corral, surface, model, tokens))
      requests++
      longestWait = Math.max(longestWait, Date.now() - began)
      outcomes[outcome] = (outcomes[outcome] ?? 0) + 1
      const kills = killed.filter(at => at >= began - 1000).length
      if (outcome === 'done') {
        if (reason !== 'length' || (given ?? tokens) !== tokens) faults.push(`${what}: cut at ${given} by ${reason}`)
      } else if (outcome !== 'engine_crashed' || kills < (begun ? 1 : 2)) {
        faults.push(`${what}: ${outcome} after ${kills} kills, ${begun ? 'begun' : 'not begun'}`)
      }
    }
  }
  async function killer(): Promise<void> {
    const random = randomNumbers(seed - 1)
    while (Date.now() < end) {
      await sleep(3000 + random() * 5000)
      const pid = pick(random, corral.enginePids())
      if (pid === undefined) continue
      killed.push(Date.now())
      process.kill(pid, 'SIGKILL')
    }
  }
  async function watcher(): Promise<void> {
    while (Date.now() < end) {
      const { body } = await corral.json('/api/ps')
      const size = body.models.reduce((sum: number, model: any) => sum + model.size, 0)
      if (size > budget) faults.push(`/api/ps reports ${size} bytes of a budget of ${budget}`)
      const engines = corral.enginePids().length
      if (engines > 2) faults.push(`${engines} engines where two fit`)
      await sleep(100)
    }
  }
  // Duration of one undisturbed answer. A client may have to wait for one such answer per turn.
  async function longest(): Promise<void> {
    while (Date.now() < end) {
      const { body } = await corral.json('/api/chat', {
        model: MODELS[0],
        messages: [CAPITAL_QUESTION],
        stream: false,
        options: { max_tokens: MAX_ANSWER_LENGTH, temperature: 0, ignore_eos: true }
      })
      const took = ((body.eval_duration ?? 0) + (body.prompt_eval_duration ?? 0)) / 1e6
      longestAnswer = Math.max(longestAnswer, took)
      await sleep(2000)
    }
  }
  const clients = Array.from({ length: CLIENTS }, (_, number) => client(number))
  await Promise.all([killer(), watcher(), longest(), ...clients])

  const { mostReserved, longestLoad, evictions } = readLog(corral.log())
  // Each of the other models may get a turn first, half of the clients may be ahead, and a killed engine restarts its
  // turn.
  const turn = FAIR_WAIT + longestAnswer + longestLoad + 3000
  const bound = 2 * MODELS.length * turn
  t.same(faults.slice(0, 5), [], 'every request is answered in full, but for those whose engine was killed under them')
  t.ok(mostReserved <= budget, `${mostReserved} bytes were reserved at most, of ${budget}`)
  t.ok(longestWait <= bound, `the longest wait for an answer was ${longestWait} ms of ${Math.round(bound)}`)
  t.ok(evictions > minutes * 5, `models took turns: ${evictions} times`)
  t.ok(killed.length > minutes * 3, `${killed.length} engines were killed`)
  await until('nothing runs', async () =>
    (await corral.json('/api/ps')).body.models.every((model: any) => !model.running && !model.queued)
  )
  t.equal(await corral.end('SIGTERM'), 0)
  return { requests, outcomes, kills: killed.length, evictions, longestWait, bound, mostReserved, budget }
}
