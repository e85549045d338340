import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { median, residentMemory } from '../../scripts/bench/measuring.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, startCorral, until } from '../support/corral.ts'
import { pick, randomNumbers } from '../support/random.ts'
import { answerRequest, readOutcome, record, within, writeModelCopy } from './support.ts'

const MINUTES = Number(process.env.CORRAL_LONG_MINUTES ?? 4)
const CLIENTS = 16
const MODELS = ['churn/one', 'churn/two', 'churn/three', 'churn/four', 'churn/five']
/** A request that takes longer hangs (milliseconds). */
const PATIENCE = 90_000
/** Codes that a request may get while others load, stop, delete and kill. */
const EXPECTED = new Set([
  'done',
  'left',
  'model_not_found',
  'model_not_loaded',
  'model_stopped',
  'model_deleted',
  'engine_crashed',
  'load_failed'
])

/** The server's own faults in its log, which explain unexpected replies. */
function faultsIn(log: string): string[] {
  return log.split('\n').filter(line => /"level":50/.test(line) && !/the engine died/.test(line))
}

t.test(`${CLIENTS} clients do everything at once for ${MINUTES} minutes, and engines are killed`, async t => {
  const seed = Number(process.env.CORRAL_LONG_SEED ?? Date.now() % 1e6)
  t.comment(`CORRAL_LONG_SEED=${seed}`)
  const corral = await startCorral(t, { config: 'scheduler:\n  max_loaded_models: 3\n' })
  const files = MODELS.flatMap((_, index) => [
    join(corral.home, `${index}-a.gguf`),
    join(corral.home, `${index}-b.gguf`)
  ])
  for (const [index, file] of files.entries()) writeModelCopy(file, index)
  const pickFile = (model: string, random: () => number) => files[MODELS.indexOf(model) * 2 + (random() < 0.5 ? 0 : 1)]!

  const outcomes = new Map<string, number>()
  const end = Date.now() + MINUTES * 60_000
  let longest = 0

  async function act(random: () => number): Promise<string> {
    const model = pick(random, MODELS)
    const dice = random()
    const send = async (path: string, body: unknown, init = {}) => readOutcome(await corral.send(path, body, init))
    if (dice < 0.5) {
      const { path, body, headers } = answerRequest(
        pick(random, ['sse', 'ndjson', 'hosted'] as const),
        model,
        Math.ceil(random() * 60)
      )
      return await send(path, random() < 0.25 ? { ...body, stream: false } : body, { headers })
    }
    if (dice < 0.65) {
      const { path, body, headers } = answerRequest(pick(random, ['sse', 'ndjson', 'hosted'] as const), model, 3000)
      const signal = AbortSignal.timeout(Math.ceil(random() * 1500))
      try {
        return await send(path, body, { headers, signal })
      } catch (error) {
        if (signal.aborted) return 'left'
        throw error
      }
    }
    if (dice < 0.75) {
      const options = { num_parallel: Math.ceil(random() * 4), num_ctx: pick(random, [512, 1024, 2048]) }
      return await send('/api/load', { model, options })
    }
    if (dice < 0.83) return await send('/api/stop', { model })
    if (dice < 0.88) return await send('/api/delete', { model }, { method: 'DELETE' })
    if (dice < 0.97) return await send('/api/import', { model, path: pickFile(model, random) })
    if (dice < 0.985) return await send('/api/generate', { model, keep_alive: 0, stream: false })
    await corral.json('/api/tags')
    return await send('/api/ps', undefined)
  }

  async function client(number: number): Promise<void> {
    const random = randomNumbers(seed + number)
    while (Date.now() < end) {
      const began = Date.now()
      const outcome = await within(PATIENCE, `a request of client ${number}`, act(random))
      longest = Math.max(longest, Date.now() - began)
      outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1)
    }
  }

  let kills = 0
  const memory: number[] = []
  async function killer(): Promise<void> {
    const random = randomNumbers(seed - 1)
    while (Date.now() < end) {
      await sleep(1000 + random() * 6000)
      const pid = pick(random, corral.enginePids())
      if (pid === undefined) continue
      process.kill(pid, 'SIGKILL')
      kills++
    }
  }
  async function watcher(): Promise<void> {
    while (Date.now() < end) {
      memory.push(residentMemory(corral.process.pid!))
      await sleep(500)
    }
  }
  await Promise.all([killer(), watcher(), ...Array.from({ length: CLIENTS }, (_, number) => client(number))])

  t.comment(JSON.stringify(Object.fromEntries(outcomes)))
  const unexpected = [...outcomes.keys()].filter(outcome => !EXPECTED.has(outcome))
  if (unexpected.length) for (const line of faultsIn(corral.log())) t.comment(line)
  t.same(unexpected, [], 'every reply is an answer or an expected error')
  t.ok(outcomes.get('done')! > 100, 'requests were answered')
  t.ok(kills > 0, 'engines were killed')

  await until('abandoned requests are forgotten', async () => {
    const { body } = await corral.json('/api/ps')
    return body.models.every((model: any) => model.running === 0 && model.queued === 0) && body.loading.length === 0
  })
  for (const model of MODELS) {
    await corral.json('/api/import', { model, path: pickFile(model, () => 0) })
    const { body } = await corral.json('/api/chat', {
      model,
      messages: [CAPITAL_QUESTION],
      options: { temperature: 0 },
      stream: false
    })
    t.equal(body.message?.content, CAPITAL_ANSWER, `${model} answers afterwards`)
    await corral.json('/api/stop', { model })
  }
  await until('no engine remains', () => corral.enginePids().length === 0, 10_000)
  t.same(readdirSync(join(corral.home, 'models', '.staging')), [], 'no unfinished import remains')

  const third = Math.floor(memory.length / 3)
  const [middle, last] = [median(memory.slice(third, 2 * third)), median(memory.slice(2 * third))]
  t.ok(last < middle * 1.5 + 50, `memory has settled: ${middle.toFixed(0)} MiB, then ${last.toFixed(0)} MiB`)
  t.equal(await corral.end('SIGTERM'), 0)

  const requests = [...outcomes.values()].reduce((sum, count) => sum + count, 0)
  record(t, 'Churn', {
    'minutes, clients, models': `${MINUTES}, ${CLIENTS}, ${MODELS.length} (3 loaded at once)`,
    requests,
    'how they ended': [...outcomes].map(([outcome, count]) => `${outcome} ${count}`).join(', '),
    'engines killed with -9': kills,
    'longest request': `${(longest / 1000).toFixed(1)} s`,
    'memory of the gateway': `${middle.toFixed(0)} MiB in the middle third, ${last.toFixed(0)} MiB in the last`,
    seed
  })
})
