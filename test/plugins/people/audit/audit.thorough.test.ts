import { once } from 'node:events'
import { chmodSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import {
  beginReading,
  CAPITAL_QUESTION,
  type Corral,
  DEMO,
  endlessHosted,
  startCorral,
  until
} from '../../../support/corral.ts'
import { bearer, local, newKey } from '../support.ts'

const messages = [CAPITAL_QUESTION]
const ask = (corral: Corral, headers = {}, more = {}) =>
  corral.json('/v1/chat/completions', { model: DEMO, messages, max_tokens: 6, ...more }, { headers })
const entries = async (corral: Corral, query = ''): Promise<any[]> =>
  (await corral.json(`/api/audit?${query}`, undefined, local)).body.entries
const auditFile = ({ home }: Corral) => join(home, 'logs', 'audit', 'audit.jsonl')
const headersOf = (key: string) => bearer(key).headers

t.test('audit log records who called what, how it ended and its usage, but no prompts or answers', async t => {
  const corral = await startCorral(t)
  const key = await newKey(corral, 'alice', { role: 'operator' })
  const alice = headersOf(key)
  const { body } = await ask(corral, alice)
  const { headers } = await corral.send('/api/stop', { model: DEMO }, { headers: alice })
  await corral.json('/api/tags', undefined, { headers: alice })
  await corral.json('/api/show', { model: DEMO }, { headers: alice })
  await corral.json('/api/health')
  await corral.json('/api/tags', undefined, { headers: headersOf('wrong') })
  await corral.json('/api/delete', { model: 'no\u001bbody/\u202enone' }, { headers: alice, method: 'DELETE' })
  await corral.json('/api/keys', undefined, { headers: alice })
  await corral.json('/api/copy', { source: DEMO, destination: 'my/copy' }, { headers: alice })
  await corral.json('/api/log-levels', { part: 'audit', level: 'info' }, { method: 'PUT', local: true })

  const gone = new AbortController()
  const answer = await corral.send('/v1/chat/completions', endlessHosted(DEMO), { headers: alice, signal: gone.signal })
  await beginReading(answer)
  gone.abort()
  const all = await until('the entry of a disconnected client', async () => {
    const found = await entries(corral, 'limit=50')
    return found.some(({ status }) => status === 499) ? found : undefined
  })

  const byAlice = { key: 'alice', role: 'operator', address: '127.0.0.1' }
  t.match(
    all.filter(({ requestId }) => requestId),
    [
      { operation: 'createKey', target: 'alice', address: 'local', role: 'admin', status: 200 },
      {
        ...byAlice,
        surface: 'api-openai',
        operation: 'chat',
        model: DEMO,
        status: 200,
        tokens: { in: body.usage.prompt_tokens, out: body.usage.completion_tokens }
      },
      { ...byAlice, operation: 'stopModel', target: DEMO, status: 200, requestId: headers.get('x-request-id') },
      { operation: 'listLocalModels', role: undefined, status: 401, code: 'unauthorized', address: '127.0.0.1' },
      { ...byAlice, operation: 'deleteModel', status: 400, target: 'no\\u001bbody/\\u202enone' },
      { ...byAlice, operation: 'listKeys', status: 403, code: 'forbidden_role' },
      { ...byAlice, operation: 'copyModel', target: `${DEMO} my/copy` },
      { operation: 'setLogLevel', target: 'audit info', address: 'local', status: 200 },
      { ...byAlice, operation: 'chat', status: 499, code: 'client_left' }
    ],
    'reads and health checks are not logged'
  )
  t.match(all, [{ event: 'started' }, { event: 'key_created', target: 'alice', by: 'keys.json' }], 'events')
  t.ok(all.at(-1).tokens.out > 0, 'tokens generated for a disconnected client are included')
  t.ok(
    all.every(({ wait, ms }) => wait === undefined || (wait >= 0 && wait <= ms + 1)),
    'the wait is part of the duration'
  )
  const text = readFileSync(auditFile(corral), 'utf8')
  for (const secret of [CAPITAL_QUESTION.content, body.choices[0].message.content, key, 'wrong']) {
    t.notOk(text.includes(secret), 'no prompts, answers or keys')
  }
  t.equal(statSync(auditFile(corral)).mode & 0o777, 0o600)
  t.equal((await entries(corral, 'key=alice&limit=2')).length, 2)
  t.same(await entries(corral, `since=${new Date().toISOString()}`), [])
  for (const since of ['yesterday', '2999-01-01']) {
    t.match(await corral.json(`/api/audit?since=${since}`, undefined, local), { status: 400 }, since)
  }
  t.equal((await corral.json('/api/audit', undefined, { headers: alice })).status, 403)
})

t.test('audit log counts a flood of refusals without hiding other callers or earlier entries', async t => {
  const corral = await startCorral(t)
  const key = await newKey(corral, 'bob')
  const flood = async (count: number, headers: Record<string, string>) => {
    for (let at = 0; at < count; at += 50) {
      await Promise.all(Array.from({ length: 50 }, () => corral.json('/api/ps', undefined, { headers })))
    }
  }
  await flood(400, headersOf('guess'))
  t.match(await corral.json('/api/delete', { model: DEMO }, { method: 'DELETE', headers: headersOf(key) }), {
    status: 403
  })
  const told = await until('the entry of another caller', async () => {
    const found = await entries(corral, 'limit=1000')
    return found.some(({ key }) => key === 'bob') ? found : undefined
  })
  t.equal(told.filter(({ status, key }) => status >= 400 && key === undefined).length, 30)
  await corral.end()
  const last = readFileSync(auditFile(corral), 'utf8')
    .trim()
    .split('\n')
    .slice(-2)
    .map(line => JSON.parse(line))
  t.match(last, [{ event: 'refusals_omitted', omitted: 370 }, { event: 'stopped' }])
})

t.test('refusals do not hide an action whose client did not wait for the reply', async t => {
  const corral = await startCorral(t)
  const key = await newKey(corral, 'eve', { role: 'operator' })
  await Promise.all(Array.from({ length: 40 }, () => corral.json('/api/keys', undefined, { headers: headersOf(key) })))
  const { port, hostname } = new URL(corral.url)
  const socket = connect(Number(port), hostname)
  const head = [`authorization: Bearer ${key}`, 'host: localhost', 'content-length: 9', 'expect: 100-continue']
  socket.write(`POST /api/blobs/sha256:${'a'.repeat(64)} HTTP/1.1\r\n${head.join('\r\n')}\r\n\r\n`)
  // "100 Continue": the server is working on it.
  await once(socket, 'data')
  socket.destroy()
  const upload = await until('the upload is logged', async () =>
    (await entries(corral, 'key=eve&limit=100')).find(({ operation }) => operation === 'storeBlob')
  )
  t.match(upload, { key: 'eve', status: 499, code: 'client_left' })
})

t.test('audit files are rotated by size, pruned as configured and read in order', async t => {
  const corral = await startCorral(t, { config: 'audit: { max_size: 2000, max_files: 3, reads: true }' })
  for (let at = 0; at < 60; at += 6) {
    await Promise.all(Array.from({ length: 6 }, () => corral.json('/api/tags')))
    await entries(corral)
  }
  const files = readdirSync(join(corral.home, 'logs', 'audit'))
  t.equal(files.filter(file => file !== 'audit.jsonl').length, 3)
  const all = await entries(corral, 'limit=5000')
  const lines = files.flatMap(file =>
    readFileSync(join(corral.home, 'logs', 'audit', file), 'utf8')
      .trim()
      .split('\n')
  )
  t.ok(all.length >= lines.filter(line => line !== '').length - 1 && all.length < 60)
  const actual = all.map(({ time }) => time)
  t.same(actual, all.map(({ time }) => time).sort(), 'oldest first')
  t.match(await corral.json('/api/audit?key=nobody', undefined, local), { body: { entries: [] } })
})

t.test('reload is logged and changes what is logged', async t => {
  const corral = await startCorral(t, { config: 'audit: { reads: false }' })
  await corral.json('/api/tags')
  const file = join(corral.home, 'config.yaml')
  writeFileSync(file, readFileSync(file, 'utf8').replace('reads: false', 'reads: true'))
  t.equal((await corral.json('/api/reload', {}, local)).status, 200)
  await corral.json('/api/tags')
  const all = await until('the entry of a read', async () => {
    const found = await entries(corral)
    return found.some(({ operation }) => operation === 'listLocalModels') ? found : undefined
  })
  t.equal(all.filter(({ operation }) => operation === 'listLocalModels').length, 1)
  t.ok(all.some(({ event, target }) => event === 'config_reloaded' && target === file))
})

t.test('a line truncated by a kill hides no other line', async t => {
  const corral = await startCorral(t)
  await ask(corral)
  await entries(corral)
  await corral.end('SIGKILL')
  const file = auditFile(corral)
  const before = readFileSync(file, 'utf8')
  writeFileSync(file, `${before}{"time":"2026-`)
  const again = await startCorral(t, { home: corral.home })
  await ask(again)
  const all = await entries(again)
  t.equal(all.filter(({ operation }) => operation === 'chat').length, 2)
  t.match(all.map(({ event }) => event).filter(event => event === 'started').length, 2)
})

t.test('requests continue while the log cannot be written, with one error and a count of lost lines', async t => {
  const corral = await startCorral(t)
  await ask(corral)
  await entries(corral)
  const folder = join(corral.home, 'logs', 'audit')
  // A file in place of the folder, because permissions do not restrict root.
  rmSync(folder, { recursive: true })
  writeFileSync(folder, '')
  for (let at = 0; at < 3; at++) {
    t.equal((await ask(corral)).status, 200)
    t.equal((await corral.json('/api/audit', undefined, local)).status, 200)
  }
  const complaints = () => corral.log().match(/cannot be written/g)?.length ?? 0
  await until('a line in the log', () => complaints() > 0)
  t.equal(complaints(), 1)
  rmSync(folder)
  await until(
    'lines that were waiting',
    async () => (await entries(corral)).filter(({ operation }) => operation).length === 3
  )
  t.match(corral.log(), /can be written again; 0 lines were lost/)
})

t.test('a linked folder is used, a link in place of the file is not followed', async t => {
  const corral = await startCorral(t)
  await corral.end()
  const { home } = corral
  const folder = join(home, 'logs', 'audit')
  rmSync(folder, { recursive: true })
  mkdirSync(join(home, 'elsewhere'))
  chmodSync(join(home, 'elsewhere'), 0o755)
  symlinkSync(join(home, 'elsewhere'), folder)
  const second = await startCorral(t, { home })
  await ask(second)
  await entries(second)
  t.match(readFileSync(join(home, 'elsewhere', 'audit.jsonl'), 'utf8'), /"operation":"chat"/)
  await second.end()

  rmSync(join(home, 'elsewhere', 'audit.jsonl'))
  writeFileSync(join(home, 'victim'), 'mine')
  symlinkSync(join(home, 'victim'), join(home, 'elsewhere', 'audit.jsonl'))
  const third = await startCorral(t, { home })
  t.equal((await ask(third)).status, 200)
  await until('a line in the log', () => /audit\.jsonl cannot be written/.test(third.log()))
  t.equal(readFileSync(join(home, 'victim'), 'utf8'), 'mine')
})

t.test('an admin can follow the audit log', async t => {
  const corral = await startCorral(t)
  await ask(corral)
  const answer = await corral.send('/api/audit?follow=1&limit=1', undefined, local)
  const reader = answer.body!.getReader()
  let seen = ''
  const read = async () => {
    seen += Buffer.from((await reader.read()).value!).toString()
  }
  while (!seen.includes('"operation":"chat"')) await read()
  await corral.json('/api/stop', { model: DEMO })
  while (!seen.includes('"operation":"stopModel"')) await read()
  t.equal(seen.match(/"operation":"chat"/g)!.length, 1)
  await reader.cancel()
})
