import t from 'tap'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, type Corral, DEMO, endless, startCorral, until } from '../support/corral.ts'
import { clientFrom } from '../support/other-client.ts'

/*
 * One client that takes everything, beside a client with occasional requests. Clients without keys are distinguished by
 * their addresses.
 */

const SLOTS = 2
const SETTINGS = `defaults: { num_ctx: 2048, num_parallel: ${SLOTS}, temperature: 0 }
shutdown_grace: 0s`

const greedyAddress = '127.0.0.2'
const honestAddress = '127.0.0.3'

const answer = (tokens: number) => ({
  model: DEMO,
  messages: [{ role: 'user', content: 'Count to 30.' }],
  stream: false,
  options: { max_tokens: tokens, ignore_eos: true }
})
const question = { model: DEMO, messages: [CAPITAL_QUESTION], stream: true }

const waitingFor = async (corral: Corral, count: number) =>
  await until(`${count} wait`, async () => {
    const { body } = await corral.json('/api/ps')
    return body.models.some(({ queued }: any) => queued >= count)
  })

t.test('500 requests of one client delay only that client', async t => {
  const corral = await startCorral(t, { config: SETTINGS })
  const greedy = clientFrom(t, corral, greedyAddress)
  const honest = clientFrom(t, corral, honestAddress)
  const leave = new AbortController()
  let ended = 0
  for (let number = 0; number < 500; number++) {
    void greedy
      .ask('/api/chat', answer(60), leave.signal)
      .then(({ text }) => text)
      .then(() => ended++)
      .catch(() => undefined)
  }
  await waitingFor(corral, 300)
  for (let round = 0; round < 5; round++) {
    const before = ended
    const reply = await honest.ask('/api/chat', question)
    t.equal(reply.status, 200)
    await reply.first
    t.ok(ended - before <= 4 * SLOTS, `${ended - before} answers of the other client ended before its first token`)
    t.match(await reply.text, /Paris/)
  }
  t.ok(ended > 0 && ended < 400, `the other client was served too, and still had requests: ${ended}`)
  leave.abort()
})

t.test('a full queue drops requests of the busiest client, and each client has a limit', async t => {
  const corral = await startCorral(t, {
    config: `${SETTINGS}\nscheduler: { max_queue: 30 }\nlimits: { queue_per_key: 25 }`
  })
  const greedy = clientFrom(t, corral, greedyAddress)
  const honest = clientFrom(t, corral, honestAddress)
  const third = clientFrom(t, corral, '127.0.0.4')
  const leave = new AbortController()
  const codes: string[] = []
  const flood = (client: typeof greedy, count: number) =>
    Array.from({ length: count }, async () => {
      try {
        const { status, headers, text } = await client.ask('/api/chat', answer(1500), leave.signal)
        if (status === 200) return void text.catch(() => undefined)
        const { code, error } = JSON.parse(await text)
        codes.push(
          `${status} ${code} ${/limits\.queue_per_key|scheduler\.max_queue/.exec(error)} ${headers.get('retry-after')}`
        )
      } catch {
        // The client has disconnected.
      }
    })
  flood(greedy, 40)
  await waitingFor(corral, 25 - SLOTS)
  await until('other requests are refused', () => codes.length >= 40 - 25 - SLOTS)
  t.same([...new Set(codes)], ['503 queue_full limits.queue_per_key 1'])
  codes.length = 0
  flood(third, 10)
  await until('the client with the most requests loses its newest ones', () => codes.length > 0)
  t.same([...new Set(codes)], ['503 queue_full scheduler.max_queue 1'])
  const queued = (await corral.json('/api/ps')).body.models[0].queued
  t.ok(queued <= 30, `${queued} wait`)
  const reply = honest.json('/api/chat', { ...question, stream: false })
  leave.abort()
  t.match(await reply, { status: 200, body: { message: { content: CAPITAL_ANSWER } } })
})

t.test('long embedding lists give way to other requests', async t => {
  const corral = await startCorral(t, { config: SETTINGS })
  const greedy = clientFrom(t, corral, greedyAddress)
  const honest = clientFrom(t, corral, honestAddress)
  await honest.json('/v1/embeddings', { model: DEMO, input: 'warm' })
  const text = 'A sentence that takes its time to be read. '.repeat(4)
  let ended = 0
  const lists = Array.from({ length: SLOTS + 2 }, async () => {
    const { status, body } = await greedy.json('/v1/embeddings', { model: DEMO, input: Array(100).fill(text) })
    ended++
    return [status, body.data.length, body.data.every(({ index }: any, at: number) => index === at)]
  })
  await waitingFor(corral, 1)
  for (let round = 0; round < 3; round++) {
    const { status, body } = await honest.json('/v1/embeddings', { model: DEMO, input: ['one', 'two'] })
    t.same([status, body.data.length], [200, 2])
    t.equal(ended, 0, 'it does not wait for the end of a list')
  }
  for (const list of lists) t.same(await list, [200, 100, true], 'the lists are answered completely')
})

t.test('endless answers leave a slot for recent clients', async t => {
  const corral = await startCorral(t, { config: SETTINGS })
  const greedy = clientFrom(t, corral, greedyAddress)
  const honest = clientFrom(t, corral, honestAddress)
  t.equal((await honest.json('/api/chat', { ...question, stream: false })).status, 200)
  const leave = new AbortController()
  const { options, ...body } = endless(DEMO)
  const { num_ctx: _, ...forever } = options
  for (let number = 0; number < 4 * SLOTS; number++) {
    const asked = greedy.ask('/api/chat', { ...body, stream: true, options: forever }, leave.signal)
    asked.then(({ text }) => text).catch(() => undefined)
  }
  await waitingFor(corral, 1)
  for (let round = 0; round < 3; round++) {
    const { running } = (await corral.json('/api/ps')).body.models[0]
    t.ok(running < SLOTS, 'a slot is free')
    t.equal((await honest.json('/api/chat', { ...question, stream: false })).status, 200)
  }
  leave.abort()
})

t.test('keep_alive 0 of one client does not unload a model that another client uses', async t => {
  const corral = await startCorral(t, { config: SETTINGS })
  const greedy = clientFrom(t, corral, greedyAddress)
  const honest = clientFrom(t, corral, honestAddress)
  t.equal((await honest.json('/api/chat', { ...question, stream: false })).status, 200)
  const engines = corral.enginePids()
  for (const path of ['/api/chat', '/v1/chat/completions']) {
    t.equal((await greedy.json(path, { ...question, stream: false, keep_alive: 0 })).status, 200)
    t.equal((await honest.json('/api/chat', { ...question, stream: false })).status, 200)
  }
  t.same(corral.enginePids(), engines, 'it is the same engine')
})
