import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { corral as command } from '../command-line/command.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, endless, startCorral, until } from '../support/corral.ts'
import { readCases } from '../support/fixture.ts'
import { newFolder } from '../support/folder.ts'
import { thorough } from '../support/thorough.ts'

const chat = (more: object = {}) => ({
  model: DEMO,
  messages: [CAPITAL_QUESTION],
  options: { temperature: 0 },
  ...more
})
const ONE_SLOT = 'defaults: { num_parallel: 1 }'
/** Occupies the only slot until its client leaves. */
const holding = endless(DEMO)
/** Waits for that slot, and ends by itself. */
const following = endless(DEMO, { max_tokens: 300 })
const corral = await startCorral(t, { config: ONE_SLOT })

t.test('only admins may drain a server, and only with a valid request', async t => {
  t.match(await corral.json('/api/drain', {}), { status: 403, body: { code: 'forbidden_role' } })
  for (const method of ['POST', 'DELETE']) {
    const wrong = await corral.json('/api/drain', '[]', { local: true, method })
    t.match(wrong, { status: 400, body: { code: 'invalid_request' } }, method)
  }
  t.match((await corral.json('/api/drain')).body, { draining: false, open: 0 })
  t.match(await command(['drain', '--undo', '--wait'], { home: corral.home }), { code: 2 })
  t.match(await command(['drain', '--timeout', 'soon'], { home: corral.home }), { code: 2, stderr: /"soon"/ })
  t.match(await command(['drain'], { home: newFolder(t) }), { code: 3 })
})

t.test('a draining server finishes accepted requests and refuses new ones on every API', async t => {
  const { home } = corral
  t.equal((await corral.json('/api/chat', chat({ stream: false }))).status, 200)

  const controller = new AbortController()
  const running = await corral.send('/api/chat', holding, { signal: controller.signal })
  await until('it runs', async () => (await corral.json('/api/drain')).body.open === 1)
  const queued = corral.events('/api/chat', following)
  await until('the other one waits', async () => (await corral.json('/api/drain')).body.open === 2)

  const early = await command(['drain', '--wait', '--timeout', '1ms'], { home })
  t.match(early, { code: 1, stdout: '', stderr: /2 requests are open.*\n?.*The server still accepts no new requests/ })
  t.match((await corral.json('/api/drain')).body, { draining: true, since: String, open: 2 })

  for (const [path, body] of readCases<[path: string, body: object][]>('service-cases.yaml', 'draining')) {
    const reply = await corral.send(path, { model: DEMO, ...body })
    t.equal(reply.status, 503, path)
    t.match(await reply.text(), /does not accept new requests/, path)
    t.equal(reply.headers.get('retry-after'), '5', path)
    t.equal(reply.headers.get('connection'), 'close', path)
    t.equal(reply.headers.get('x-should-retry'), null, 'clients may retry automatically')
  }
  t.match(await corral.json('/api/chat', chat()), { body: { code: 'draining', errorCode: 503 } })
  t.match(await corral.json('/readyz'), { status: 503, body: { code: 'draining' } })
  for (const path of ['/api/health', '/health']) {
    t.match(await corral.json(path), { status: 200, body: { status: 'ok', draining: true } }, path)
  }
  for (const path of ['/livez', '/api/tags', '/v1/models', '/api/ps', '/api/version']) {
    t.equal((await corral.send(path)).status, 200, path)
  }
  t.equal((await corral.send('/api/keys', undefined, { local: true })).status, 200)

  const waiting = command(['drain', '--wait'], { home })
  t.match((await corral.json('/api/drain')).body, { open: 2 }, 'running answers continue')
  controller.abort()
  await running.text().catch(() => {})
  t.match((await queued).at(-1), { done: true, done_reason: 'length' }, 'waiting requests are answered')
  t.match(await waiting, { code: 0, stderr: /All requests have finished/ }, 'disconnected clients are not waited for')
  t.match((await corral.json('/api/drain')).body, { draining: true, open: 0 })

  t.match(await command(['drain', '--undo'], { home }), { code: 0 })
  t.equal((await corral.json('/api/chat', chat({ stream: false }))).body.message.content, CAPITAL_ANSWER)
  t.match((await corral.json('/api/health')).body, { status: 'ok', draining: undefined })
  t.equal((await corral.send('/readyz')).status, 200)

  t.equal(await corral.end('SIGTERM'), 0)
})

t.test('an engine that dies during a drain is replaced for its running request', thorough, async t => {
  const corral = await startCorral(t, { config: ONE_SLOT })
  const running = corral.events('/api/chat', holding)
  await until('it runs', async () => (await corral.json('/api/ps')).body.models[0]?.running === 1)
  const queued = corral.json('/api/chat', { ...following, stream: false })
  await until('the other one waits', async () => (await corral.json('/api/drain')).body.open === 2)
  t.match(await corral.json('/api/drain', {}, { local: true }), { body: { draining: true, open: 2 } })
  for (const engine of corral.enginePids()) process.kill(engine, 'SIGKILL')
  t.match((await running).at(-1), { code: 'engine_crashed' }, 'half an answer cannot be restarted')
  t.match(await queued, { status: 200, body: { done_reason: 'length' } })
})

t.test('a server without a llama.cpp build is not ready unless it serves remote models', thorough, async t => {
  const broken = newFolder(t)
  writeFileSync(join(broken, 'llama-server'), '#!/bin/sh\nexit 1\n', { mode: 0o755 })
  const env = { CORRAL_LLAMA_CPP: broken }
  const corral = await startCorral(t, { env, runtimes: '  sources: [system]\n' })
  const refusal = await until('the search has failed', async () => {
    const reply = await corral.json('/readyz')
    return /works on this machine/.test(reply.body.error) ? reply : undefined
  })
  t.match(refusal, { status: 503, body: { code: 'runtime_missing' } })
  t.notOk(refusal.body.error.includes(broken), 'everyone may ask, so it names no path')
  t.equal((await corral.send('/livez')).status, 200)

  const config = `remote:\n  models:\n    far/tiny: { model: tiny, servers: [{ url: http://127.0.0.1:9/v1 }] }\n`
  const able = await startCorral(t, { env, config, runtimes: '  sources: [system]\n' })
  t.equal((await able.send('/readyz')).status, 200)
})
