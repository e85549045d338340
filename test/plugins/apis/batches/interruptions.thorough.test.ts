import { appendFileSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { startCorral, until } from '../../../support/corral.ts'
import { begin, line, openai, reaches, results } from './support.ts'

/** Returns the number of complete lines. */
function linesIn(path: string): number {
  try {
    return readFileSync(path, 'utf8').split('\n').length - 1
  } catch {
    return 0
  }
}

t.test('a batch resumes after a kill without lost, duplicate or repeated requests', async t => {
  let corral = await startCorral(t)
  const { home } = corral
  const lines = Array.from({ length: 60 }, (_, n) =>
    n % 10 === 3
      ? line(`line-${n}`, { model: 'nobody/nothing' })
      : line(`line-${n}`, { max_tokens: 30, ignore_eos: true })
  )
  const { id } = await begin(openai(corral), lines)
  const { outputFile } = JSON.parse(readFileSync(join(home, 'batches', `${id}.json`), 'utf8'))
  const output = join(home, 'batches', 'files', `${outputFile}.jsonl`)
  await until('some requests are answered', () => linesIn(output) >= 10)
  await corral.end('SIGKILL')
  const before = readFileSync(output, 'utf8').split('\n').slice(0, -1)
  // The remains of an interrupted write.
  appendFileSync(output, '{"id":"batch_req_torn","custom_id":"line-')
  corral = await startCorral(t, { home })
  const client = openai(corral)
  const batch = await reaches(client, id, 'completed')
  t.same(batch.request_counts, { total: 60, completed: 54, failed: 6 })
  const answers = await results(client, batch.output_file_id)
  const errors = await results(client, batch.error_file_id)
  const all = [...answers, ...errors].map(({ custom_id }) => custom_id)
  t.same(all.sort(), lines.map(each => (each as { custom_id: string }).custom_id).sort())
  const kept = new Set(answers.map(each => JSON.stringify(each)))
  t.ok(
    before.every(each => kept.has(JSON.stringify(JSON.parse(each)))),
    'answers from before the kill are kept'
  )
  t.same(readdirSync(join(home, 'batches')).sort(), [`${id}.json`, 'files'])

  await corral.end()
  corral = await startCorral(t, { home })
  t.match(await openai(corral).batches.retrieve(id), { status: 'completed', request_counts: { total: 60 } })
  t.equal((await results(openai(corral), batch.output_file_id)).length, 54, 'the files exist after the next start')
})

t.test('requests of a batch make way for clients and are retried', async t => {
  const corral = await startCorral(t, { config: 'defaults:\n  num_parallel: 2\n' })
  const client = openai(corral)
  const long = { max_tokens: 200, ignore_eos: true }
  const { id } = await begin(
    client,
    Array.from({ length: 12 }, (_, n) => line(`line-${n}`, long))
  )
  const answered = async () => (await client.batches.retrieve(id)).request_counts!.completed
  await until('a request is answered', async () => (await answered()) > 0)
  const figure = async (name: string) => {
    const text = await (await corral.send('/metrics', undefined, { local: true })).text()
    return Number(new RegExp(`^${name}\\{[^}]*tiny-chat[^}]*\\} (\\d+)`, 'm').exec(text)![1])
  }
  /** Starts a long answer for a client, and returns once it has begun. */
  const begun = async (text: string, tokens = 1000) => {
    const messages = [{ role: 'user' as const, content: text }]
    const stream = await client.chat.completions.create({
      ...{ model: 'corral/tiny-chat', messages, max_tokens: tokens, stream: true as const },
      ...{ ignore_eos: true }
    })
    const chunks = stream[Symbol.asyncIterator]()
    await chunks.next()
    let isRunning = true
    const rest = async () => {
      let reason: string | null | undefined
      for (let chunk = await chunks.next(); !chunk.done; chunk = await chunks.next()) {
        reason = chunk.value.choices[0]?.finish_reason ?? reason
      }
      isRunning = false
      return reason
    }
    return { ended: rest(), isRunning: () => isRunning, leave: () => stream.controller.abort() }
  }
  // There are as many clients as slots, so the running request of the batch must make way.
  const both = await Promise.all([begun('one', 2500), begun('two', 2500)])
  const areBothRunning = () => both.every(({ isRunning }) => isRunning())
  const before = await answered()
  const seen: { waiting: number; free: number; answered: number }[] = []
  while (seen.length < 5) {
    const now = {
      waiting: await figure('corral_requests_waiting'),
      free: await figure('corral_slots_free'),
      answered: await answered()
    }
    // The last values may be from after the end of an answer.
    if (!areBothRunning()) break
    seen.push(now)
  }
  t.ok(seen.length > 0, 'both clients were running')
  t.same(
    seen.filter(({ waiting, free, answered }) => waiting > 0 || free > 0 || answered > before),
    [],
    'the clients have all slots, and no request of the batch is answered'
  )
  t.same(await Promise.all(both.map(({ ended }) => ended)), ['length', 'length'])

  const others = await Promise.all([begun('four', 4000), begun('five', 4000)])
  const third = begun('three')
  await until('a waiting client is counted', async () => (await figure('corral_requests_waiting')) === 1)
  t.ok(
    others.every(({ isRunning }) => isRunning()),
    'the client waits for other clients'
  )
  for (const { leave } of others) leave()
  t.equal(await (await third).ended, 'length')
  t.ok((await answered()) < 12, 'the batch is still running')
  const batch = await reaches(client, id, 'completed')
  t.same(batch.request_counts, { total: 12, completed: 12, failed: 0 })
  const { usage } = (await corral.json('/api/usage?by=model', undefined, { local: true })).body
  t.equal(usage[0].requests, 17, 'interrupted requests are counted once')
})

t.test('a batch pauses while the server drains', async t => {
  const corral = await startCorral(t)
  const client = openai(corral)
  const { id } = await begin(
    client,
    Array.from({ length: 30 }, (_, n) => line(`line-${n}`, { max_tokens: 60, ignore_eos: true }))
  )
  await until('a request is answered', async () => (await client.batches.retrieve(id)).request_counts!.completed > 0)
  await corral.json('/api/drain', {}, { local: true, method: 'POST' })
  await until(
    'no request runs',
    async () => (await corral.json('/api/drain', undefined, { local: true })).body.open === 0
  )
  // Results are written shortly after the answers end.
  await sleep(1000)
  const { request_counts: paused } = await client.batches.retrieve(id)
  await sleep(1500)
  t.same((await client.batches.retrieve(id)).request_counts, paused, 'no request is sent')
  await corral.json('/api/drain', undefined, { local: true, method: 'DELETE' })
  t.same((await reaches(client, id, 'completed')).request_counts, { total: 30, completed: 30, failed: 0 })
})

t.test('requests for a deleted model fail with a reason', async t => {
  const corral = await startCorral(t)
  const client = openai(corral)
  const many = Array.from({ length: 40 }, (_, n) => line(`line-${n}`, { max_tokens: 60, ignore_eos: true }))
  const { id } = await begin(client, many)
  await until('a request is answered', async () => (await client.batches.retrieve(id)).request_counts!.completed > 0)
  await corral.json('/api/delete', { model: 'corral/tiny-chat' }, { method: 'DELETE', local: true })
  const batch = await reaches(client, id, 'completed')
  const errors = await results(client, batch.error_file_id)
  t.equal(batch.request_counts!.completed + errors.length, 40)
  t.ok(errors.every(({ response }) => /model_(not_found|deleted)/.test(response.body.error.code)))
})
