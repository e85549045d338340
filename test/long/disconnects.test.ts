import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { createClient } from '../../scripts/bench/client.ts'
import { readStart, residentMemory } from '../../scripts/bench/measuring.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, type Corral, DEMO, startCorral, until } from '../support/corral.ts'
import { pick, randomNumbers } from '../support/random.ts'
import { answerRequest, record, within } from './support.ts'

const STREAMS = Number(process.env.CORRAL_LONG_STREAMS ?? 500)

/** Busy slots of the engine, according to the engine itself. */
async function busySlots(corral: Corral): Promise<number> {
  const { args, env } = readStart(corral.enginePids()[0]!)
  const engine = createClient({ origin: 'http://localhost', socketPath: args[args.indexOf('--host') + 1]! })
  const { status, text } = await engine.send({
    method: 'GET',
    path: '/slots',
    headers: { authorization: `Bearer ${env.LLAMA_API_KEY}` },
    stream: false
  })
  await engine.close()
  if (status !== 200) throw new Error(`/slots answered ${status}: ${text}`)
  return JSON.parse(text).filter((slot: { is_processing: boolean }) => slot.is_processing).length
}

t.test(`slots become free after ${STREAMS} clients disconnect, with 1 to 4 slots`, async t => {
  const seed = Number(process.env.CORRAL_LONG_SEED ?? Date.now() % 1e6)
  t.comment(`CORRAL_LONG_SEED=${seed}`)
  const random = randomNumbers(seed)
  const corral = await startCorral(t)
  const memory: number[] = []
  let early = 0
  for (let slots = 1; slots <= 4; slots++) {
    await corral.json('/api/stop', { model: DEMO })
    await corral.json('/api/load', { model: DEMO, options: { num_parallel: slots, num_ctx: 4096 } })
    let remaining = STREAMS / 4
    const client = async () => {
      while (remaining-- > 0) {
        const { path, body, headers } = answerRequest(pick(random, ['sse', 'ndjson', 'hosted']), DEMO, 4000)
        const controller = new AbortController()
        const asked = random() < 0.1 ? { ...body, stream: false } : body
        // Half of them disconnect early at a random time, the others after some of the answer.
        const enough = random() < 0.5 ? Number.POSITIVE_INFINITY : 1 + random() * 100_000
        const patience = enough === Number.POSITIVE_INFINITY ? random() * 400 : 3000
        let bytes = 0
        const reading = (async () => {
          const response = await corral.send(path, asked, { headers, signal: controller.signal })
          t.equal(response.status, 200)
          for await (const chunk of response.body!) {
            bytes += chunk.length
            if (bytes >= enough) return
          }
        })()
        await Promise.race([sleep(patience), reading])
        controller.abort()
        await reading.catch(error => t.equal(error.name, 'AbortError'))
        if (!bytes) early++
      }
    }
    await within(300_000, `streams on ${slots} slots`, Promise.all(Array.from({ length: slots + 1 }, client)))
    await until('corral has forgotten them', async () => {
      const [model] = (await corral.json('/api/ps')).body.models
      return model.running === 0 && model.queued === 0
    })
    // llama-server looks for closed connections of whole requests only after a second without a result of any request,
    // and the question for its slots is a request, too.
    await until(
      'the engine has only free slots',
      async () => {
        await sleep(2500)
        return (await busySlots(corral)) === 0
      },
      10_000
    )
    t.equal(corral.enginePids().length, 1)
    const asks = Array.from({ length: slots }, () =>
      corral.json('/api/chat', {
        model: DEMO,
        messages: [CAPITAL_QUESTION],
        options: { temperature: 0 },
        stream: false
      })
    )
    for (const { body } of await within(60_000, 'answers on all slots', Promise.all(asks))) {
      t.equal(body.message.content, CAPITAL_ANSWER)
    }
    memory.push(residentMemory(corral.process.pid!))
  }
  record(t, 'Disconnects', {
    'streams cut': `${STREAMS}, a quarter each with 1, 2, 3 and 4 slots`,
    'of them before the first byte': early,
    'slots at work afterwards': 0,
    'memory of the gateway after each quarter': `${memory.map(mib => mib.toFixed(0)).join(', ')} MiB`,
    seed
  })
})

t.test('a whole answer ends when its client disconnects while others stream', async t => {
  const corral = await startCorral(t)
  await corral.json('/api/load', { model: DEMO, options: { num_parallel: 2, num_ctx: 30_000 } })
  const leave = new AbortController()
  const { path, body } = answerRequest('sse', DEMO, 25_000)
  const other = await corral.send(path, body, { signal: leave.signal })
  const reading = (async () => {
    for await (const _ of other.body!);
  })().catch(error => error.name)
  await until('it streams', async () => (await busySlots(corral)) === 1)
  const signal = AbortSignal.timeout(1000)
  const name = await corral.send(path, { ...body, stream: false }, { signal }).catch(error => error.name)
  t.equal(name, 'TimeoutError')
  await until('its slot is free', async () => (await busySlots(corral)) === 1, 5000)
  leave.abort()
  t.equal(await reading, 'AbortError')
})
