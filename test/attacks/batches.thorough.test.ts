import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { begin, line, openai, reaches, results, sendFile } from '../plugins/apis/batches/support.ts'
import { type Corral, DEMO, newKey, startCorral, until } from '../support/corral.ts'
import { thorough } from '../support/thorough.ts'

const batchFiles = (corral: Corral) => readdirSync(join(corral.home, 'batches', 'files'))

t.test('files and batches of another key do not exist, and batch lines have no more rights than their key', async t => {
  const corral = await startCorral(t)
  const alice = openai(corral, await newKey(corral, 'alice'))
  const mallory = openai(corral, await newKey(corral, 'mallory', { models: ['nobody/else'] }))
  const { id, input_file_id: file } = await begin(alice, [line('secret')])
  const batch = await reaches(alice, id, 'completed')
  const missing = { status: 404, code: 'file_not_found' }
  for (const theirs of [file, batch.output_file_id!]) {
    await t.rejects(mallory.files.retrieve(theirs), missing)
    await t.rejects(mallory.files.content(theirs), missing)
    await t.rejects(mallory.files.delete(theirs), missing)
    await t.rejects(mallory.files.list({ after: theirs }), missing)
  }
  const create = { endpoint: '/v1/chat/completions', completion_window: '24h' } as const
  await t.rejects(mallory.batches.create({ ...create, input_file_id: file }), missing)
  await t.rejects(mallory.batches.retrieve(id), { status: 404, code: 'batch_not_found' })
  await t.rejects(mallory.batches.cancel(id), { status: 404, code: 'batch_not_found' })
  t.same([(await mallory.files.list()).data, (await mallory.batches.list()).data], [[], []])
  await t.rejects(alice.batches.create({ ...create, input_file_id: batch.output_file_id! }), {
    status: 400,
    code: 'invalid_request'
  })

  const own = await begin(mallory, [line('forbidden'), line('keep', { keep_alive: -1 })])
  const refused = await reaches(mallory, own.id, 'completed')
  const errors = await results(mallory, refused.error_file_id)
  t.same(
    errors.map(({ response }) => [response.status_code, response.body.error.code]),
    [
      [403, 'forbidden_model'],
      [403, 'forbidden_model']
    ]
  )
  const { usage } = (await corral.json('/api/usage?by=key', undefined, { local: true })).body
  t.match(usage, [{ name: 'alice', requests: 1 }])

  const many = Array.from({ length: 200 }, (_, n) => line(`line-${n}`, { max_tokens: 100, ignore_eos: true }))
  const last = await begin(alice, many)
  await until('it is answered', async () => (await alice.batches.retrieve(last.id)).request_counts!.completed > 0)
  await corral.json('/api/keys/alice', undefined, { method: 'DELETE', local: true })
  await until('the batch has ended with its key', () => /ended: failed/.test(corral.log()))
  t.equal((await corral.json('/api/ps', undefined, { local: true })).status, 200, 'the server keeps working')
})

t.test('oversized, too many and malformed files are refused', async t => {
  const config =
    'api-batches:\n  file_size: 1MB\n  bytes: 2MB\n  files: 3\n  line_size: 1000\n  lines: 5\n  batches: 2\n'
  const corral = await startCorral(t, { config: `${config}limits:\n  upload_stall: 2s\n` })
  const client = openai(corral)
  await t.rejects(sendFile(client, ['x'.repeat(1_000_001)]), { status: 413, code: 'body_too_large' })
  t.same(batchFiles(corral), [], 'nothing is stored')
  for (const name of ['../../../etc/passwd', 'C:\\boot.ini', 'a\u0000b\r\nx: y"; name="purpose.jsonl']) {
    const { id, filename } = await sendFile(client, [line('a')], name)
    t.notMatch(filename, /[/\\\r\n]/)
    const content = await client.files.content(id)
    t.match(content.headers.get('content-disposition'), /^attachment; filename\*=UTF-8''[\w.%'()*~!-]+$/)
    if (batchFiles(corral).length > 4) await client.files.delete(id)
  }
  t.ok(batchFiles(corral).every(name => /^file-[0-9a-f]{32}\.jsonl?(on)?$/.test(name)))
  await sendFile(client, [line('third')])
  await t.rejects(sendFile(client, [line('fourth')]), { status: 400, code: 'over_limit' })
  for (const { id } of (await client.files.list()).data) await client.files.delete(id)

  const long = line('long', { messages: [{ role: 'user', content: 'x'.repeat(2000) }] })
  const six = Array.from({ length: 6 }, (_, n) => line(`${n}`))
  const deep = `{"custom_id":"deep","method":"POST","url":"/v1/chat/completions","body":${'['.repeat(400)}${']'.repeat(400)}}`
  for (const [lines, code] of [
    [[long], 'line_too_long'],
    [six, 'too_many_requests'],
    [[deep], 'invalid_json_line']
  ] as const) {
    const batch = await reaches(client, (await begin(client, lines)).id, 'failed')
    t.equal(batch.errors?.data?.[0]?.code, code)
    await client.files.delete(batch.input_file_id)
  }
  t.equal((await client.batches.list()).data.length, 2, 'the oldest finished batch made room for the third')

  for (const id of ['../files', '..%2F..%2Fkeys.json', 'file-00', '%00', '__proto__']) {
    const found = await corral.json(`/v1/files/${id}/content`)
    t.match(found.body, { error: { code: /file_not_found|route_not_found|invalid_request/ } }, id)
  }
})

t.test('a hundred thousand lines of invalid JSON block no other client', thorough, async t => {
  const corral = await startCorral(t)
  const client = openai(corral)
  const bad = Array.from({ length: 100_000 }, (_, n) => `{"custom_id": ${n}, no JSON`)
  const { id } = await begin(client, bad)
  const batch = await reaches(client, id, 'failed')
  t.equal(batch.errors!.data!.length, 100, 'as many are named')
  t.match((await corral.json('/api/health')).body, { status: 'ok' })

  // Forms that end too early, are empty, or name their parts oddly.
  const head = { 'content-type': 'multipart/form-data; boundary=b' }
  const part = '--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'
  for (const form of [
    '',
    '--b--\r\n',
    part,
    `${part}{}\r\n--b\r\n`,
    `--b\r\n\r\nx\r\n--b--\r\n`,
    `${part}x\r\n${part}y\r\n--b--\r\n`
  ]) {
    const signal = AbortSignal.timeout(20_000)
    const reply = await corral.json('/v1/files', form, { method: 'POST', headers: head, signal })
    t.match(reply, { status: 400, body: { error: { code: 'invalid_request' } } }, JSON.stringify(form))
  }
  const none = await corral.json('/v1/files', 'x', { headers: { 'content-type': 'multipart/form-data' } })
  t.equal(none.status, 400)
  t.equal(batchFiles(corral).length, 2, 'only the complete file is stored')
  t.equal((await corral.json('/v1/models')).body.data[0].id, DEMO)
})
