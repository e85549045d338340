import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { readCases } from '../../../support/cases.ts'
import { DEMO, newKey, startCorral } from '../../../support/corral.ts'
import { each } from '../../../support/each.ts'
import { begin, line, openai, reaches, results, sendFile, textOf } from './support.ts'

const corral = await startCorral(t)
const client = openai(corral)
const CASES = readCases('batches')

t.test('the SDK uploads a file, runs a batch and reads its results', async t => {
  const lines = [
    line('capital', { messages: [{ role: 'user', content: 'What is the capital of France?' }] }),
    line('unknown', { model: 'nobody/nothing' }),
    line('wrong', { messages: 'none' }),
    line('last')
  ]
  const file = await sendFile(client, lines, 'questions.jsonl')
  const bytes = Buffer.byteLength(textOf(lines))
  t.match(file, { object: 'file', filename: 'questions.jsonl', purpose: 'batch', status: 'processed', bytes })
  t.equal(await (await client.files.content(file.id)).text(), textOf(lines))

  const metadata = { of: 'a test' }
  const asked = { input_file_id: file.id, completion_window: '24h', metadata } as const
  const created = await client.batches.create({ ...asked, endpoint: '/v1/chat/completions' })
  t.match(created, { object: 'batch', status: 'validating', ...asked })
  t.equal(created.expires_at, created.created_at + 24 * 3600)
  t.same(each((await client.batches.list()).data, 'id'), [created.id])

  const batch = await reaches(client, created.id, 'completed')
  t.same(batch.request_counts, { total: 4, completed: 2, failed: 2 })
  t.ok(batch.in_progress_at && batch.finalizing_at && batch.completed_at)
  const answers = await results(client, batch.output_file_id)
  t.same(answers.map(({ custom_id }) => custom_id).sort(), ['capital', 'last'])
  const capital = answers.find(({ custom_id }) => custom_id === 'capital')
  t.match(capital, { id: /^batch_req_/, error: null, response: { status_code: 200, request_id: /\S/ } })
  t.match(capital.response.body, {
    object: 'chat.completion',
    model: DEMO,
    choices: [{ message: { role: 'assistant', content: /Paris/ } }],
    usage: { completion_tokens: Number }
  })
  const errors = await results(client, batch.error_file_id)
  const refused = (status_code: number, error: object) => ({ error: null, response: { status_code, body: { error } } })
  t.match(Object.fromEntries(errors.map(each => [each.custom_id, each])), {
    unknown: refused(404, { code: 'model_not_found' }),
    wrong: refused(400, { code: 'invalid_request', param: 'messages' })
  })
  const files = await client.files.list()
  t.same(files.data.map(({ purpose }) => purpose).sort(), ['batch', 'batch_output', 'batch_output'])
  t.same(each((await client.files.list({ purpose: 'batch' })).data, 'id'), [file.id])
  for (const { id } of files.data) t.match(await client.files.delete(id), { id, deleted: true, object: 'file' })
  t.same((await client.files.list()).data, [])
  t.same(readdirSync(join(corral.home, 'batches', 'files')), [], 'the files are deleted from the disk')
  await t.rejects(client.files.retrieve(file.id), { status: 404, code: 'file_not_found' })
})

t.test('batches support completions, embeddings and responses', async t => {
  const cases = [
    ['/v1/completions', { prompt: 'Once', messages: undefined }, { object: 'text_completion' }],
    [
      '/v1/embeddings',
      { input: ['one', 'two'], messages: undefined },
      { object: 'list', data: [{ index: 0 }, { index: 1 }] }
    ],
    // Enough texts that the reply is written in several pieces.
    [
      '/v1/embeddings',
      { input: Array.from({ length: 300 }, (_, index) => `number ${index}`), messages: undefined },
      { object: 'list', data: { length: 300, 299: { index: 299, embedding: Array } } }
    ],
    ['/v1/responses', { input: 'Hello', messages: undefined }, { object: 'response', status: /completed|incomplete/ }]
  ] as const
  for (const [endpoint, body, expected] of cases) {
    const { id } = await begin(client, [line('one', body, endpoint)], { endpoint })
    const batch = await reaches(client, id, 'completed')
    const [answer] = await results(client, batch.output_file_id)
    t.match(answer?.response, { status_code: 200, body: expected }, endpoint)
  }
})

t.test('a batch with invalid lines fails and lists them by number', async t => {
  const lines = [
    line('first'),
    '{"custom_id": "no JSON"',
    '',
    { method: 'POST', url: '/v1/chat/completions', body: {} },
    line('first'),
    { ...line('get'), method: 'GET' },
    line('other', {}, '/v1/embeddings'),
    line('../../etc/passwd', {}, '/api/delete'),
    { ...line('body'), body: [] },
    line('stream', { stream: true }),
    '[]',
    { ...line('x'), custom_id: 7 }
  ]
  const { id } = await begin(client, lines)
  const batch = await reaches(client, id, 'failed')
  t.same(
    batch.errors?.data?.map(({ line, code, param }) => [line, code, param]),
    CASES.faults
  )
  t.match(batch, { output_file_id: null, error_file_id: null, request_counts: { total: 0 } })
  const empty = await reaches(client, (await begin(client, ['', ' '])).id, 'failed')
  t.match(empty.errors?.data, [{ code: 'empty_file', line: null }])
  await t.rejects(client.batches.cancel(id), { status: 409, code: 'batch_ended' })
})

t.test('a cancelled batch keeps its answers, and an expired one reports every request', async t => {
  const long = Array.from({ length: 200 }, (_, n) => line(`line-${n}`, { max_tokens: 100, ignore_eos: true }))
  const { id } = await begin(client, long)
  const { input_file_id } = await client.batches.retrieve(id)
  await t.rejects(client.files.delete(input_file_id), { status: 409, code: 'file_in_use' })
  while (!(await client.batches.retrieve(id)).request_counts?.completed)
    await new Promise(resolve => setTimeout(resolve, 50))
  t.match(await client.batches.cancel(id), { status: 'cancelling', cancelling_at: Number })
  const cancelled = await reaches(client, id, 'cancelled')
  const { completed, failed, total } = cancelled.request_counts!
  t.ok(completed > 0 && completed < 200)
  t.same([failed, total], [0, 200])
  t.equal((await results(client, cancelled.output_file_id)).length, completed)

  const { id: short } = await begin(client, long, { completion_window: '4s' as '24h' })
  const expired = await reaches(client, short, 'expired')
  const counts = expired.request_counts!
  t.equal(counts.completed + counts.failed, 200)
  const answers = await results(client, expired.output_file_id)
  const errors = await results(client, expired.error_file_id)
  t.equal(
    new Set([...answers, ...errors].map(({ custom_id }) => custom_id)).size,
    200,
    'each request has exactly one result'
  )
  t.match(errors.at(-1), { response: null, error: { code: 'batch_expired', message: /window expired/ } })
})

t.test('the batches API refuses invalid requests', async t => {
  const file = await sendFile(client, [line('a')])
  const valid = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' } as const
  const cases: [fields: object, status: number, code: string, param?: string][] = [
    [{ endpoint: '/v1/moderations' }, 400, 'invalid_request', 'endpoint'],
    [{ completion_window: 'soon' }, 400, 'invalid_request', 'completion_window'],
    [{ completion_window: '1000h' }, 400, 'invalid_request', 'completion_window'],
    [{ input_file_id: 'file-none' }, 404, 'file_not_found', 'input_file_id'],
    [{ metadata: { a: 7 } }, 400, 'invalid_request']
  ]
  for (const [fields, status, code, param] of cases) {
    await t.rejects(client.batches.create({ ...valid, ...fields }), { status, code, ...(param && { param }) })
  }
  const missing = { status: 404, code: 'batch_not_found' }
  await t.rejects(client.batches.retrieve('batch_none'), missing)
  await t.rejects(client.batches.list({ after: 'batch_none' }), { ...missing, param: 'after' })
  const tuning = client.files.create({ file: new File(['x'], 'x'), purpose: 'fine-tune' })
  await t.rejects(tuning, { status: 400, code: 'invalid_request', param: 'purpose' })
  const form = new FormData()
  form.set('purpose', 'batch')
  const post = async (body: string | FormData) => {
    const reply = await fetch(`${corral.url}/v1/files`, { method: 'POST', body })
    return { status: reply.status, body: await reply.json() }
  }
  t.match(await post(form), { status: 400, body: { error: { param: 'file', code: 'invalid_request' } } })
  t.match(await post('{}'), { status: 400, body: { error: { message: /multipart/ } } })
  await client.files.delete(file.id)
})

t.test('lists of files and batches have pages', async t => {
  const made: string[] = []
  for (const name of ['a', 'b', 'c']) made.push((await sendFile(client, [line(name)], `${name}.jsonl`)).id)
  const newest = await client.files.list({ purpose: 'batch', limit: 2 })
  t.same(each(newest.data.slice(0, 2), 'id'), [made[2], made[1]])
  t.equal(newest.hasNextPage(), true)
  t.ok((await newest.getNextPage()).data.some(({ id }) => id === made[0]))
  t.ok(existsSync(join(corral.home, 'batches', 'files', `${made[0]}.jsonl`)))
})

t.test('the SDK can set expires_after', async t => {
  const client = openai(corral, await newKey(corral, 'alice'))
  const lines = new File([textOf([line('a')])], 'lines.jsonl')
  const send = (seconds: number) =>
    client.files.create({ file: lines, purpose: 'batch', expires_after: { anchor: 'created_at', seconds } })
  const file = await send(3600)
  t.equal(file.expires_at! - file.created_at, 3600)
  t.equal((await client.files.retrieve(file.id)).expires_at, file.expires_at)
  t.equal((await sendFile(client, [line('b')])).expires_at, undefined)
  for (const seconds of [59, -1, 0.5]) {
    await t.rejects(send(seconds), { status: 400, code: 'invalid_request', param: 'expires_after' })
  }
  t.equal((await client.files.list()).data.length, 2)
})
