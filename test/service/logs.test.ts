import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import t from 'tap'
import { serverLogLine } from '../../plugins/apis/native/log-routes.ts'
import { MAIN } from '../command-line/command.ts'
import { CAPITAL_QUESTION, DEMO, startCorral, until } from '../support/corral.ts'
import { refusedWith } from '../support/failure.ts'

/** All tests share this server. */
const corral = await startCorral(t, { config: 'log_levels: { nothing-such: debug }' })
const lines = (): any[] =>
  corral
    .log()
    .trim()
    .split('\n')
    .map(line => JSON.parse(line))
const messages = [CAPITAL_QUESTION]
const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736'

t.test('log levels of parts are set by the configuration and changed at run time', async t => {
  await corral.reload('log_levels: { http: debug, security: warn }')
  const levels = (body?: object, method = 'PUT') =>
    corral.json('/api/log-levels', body, { local: true, ...(body && { method }) })
  t.match(await levels(), {
    status: 200,
    body: { default: 'info', parts: { http: 'debug', security: 'warn', server: 'info' } }
  })

  const logsReads = async () => {
    const before = corral.log().length
    await corral.json('/api/tags')
    // The request's last line comes at the latest after one line of the next request.
    await corral.json('/api/stop', { model: DEMO })
    await until('the line of the second request', () => corral.log().slice(before).includes('POST /api/stop'))
    return corral.log().slice(before).includes('GET /api/tags')
  }
  t.ok(await logsReads(), 'reads are logged at debug')
  t.match(await levels({ part: 'http', level: null }), { body: { parts: { http: 'info' } } })
  t.notOk(await logsReads())
  t.match(await levels({ level: 'debug' }), { body: { default: 'debug', parts: { http: 'debug', security: 'warn' } } })
  t.ok(await logsReads())

  const unknown = /There is no part with this name\. Known are: .*scheduler/
  t.match(await levels({ part: 'http\u001b', level: 'debug' }), refusedWith(400, 'invalid_option', unknown))
  t.match(await levels({ part: 'http', level: 'loud' }), { status: 400, body: { code: 'invalid_option' } })
  t.match(await levels({ part: 7 }), { status: 400 })
  t.match(await corral.json('/api/log-levels', { level: 'silent' }, { method: 'PUT' }), { status: 403 })
})

t.test('admins read and follow the server log, which shows no secrets', async t => {
  await corral.reload('log_levels: { http: debug }')
  const secret = `corral_0123456789abcdef_${'x'.repeat(43)}`
  await corral.json(`/api/none/${secret}?token=hf_${'y'.repeat(30)}`)
  const read = async (query = '') => (await corral.json(`/api/logs${query}`, undefined, { local: true })).body.lines
  const line = await until('the line of the request', async () =>
    (await read()).find(({ message }: any) => message.includes('corral_0123456789abcdef_'))
  )
  t.match(line, { part: 'http', level: 'info', time: /^\d{4}-/, details: { requestId: String } })
  t.notMatch(JSON.stringify(await read()), /x{8}|y{8}/)
  t.same([...new Set((await read('?level=warn')).map(({ level }: any) => level))], ['warn'])
  t.match(await corral.json('/api/logs'), { status: 403, body: { code: 'forbidden_role' } })
  t.match(serverLogLine(`{"level":50,"time":1,"part":"a","msg":"torn Bearer abc…`), {
    level: 'error',
    message: /"torn Bearer …/
  })
  t.match(serverLogLine('null'), { level: 'info', message: 'null' })

  const control = new AbortController()
  const init = { local: true, signal: control.signal }
  const followed = await corral.send('/api/logs?follow=1&level=info', undefined, init)
  let text = ''
  const reading = (async () => {
    for await (const chunk of followed.body!) text += Buffer.from(chunk as Uint8Array).toString()
  })().catch(() => undefined)
  await corral.reload('log_levels: { http: info }')
  await until('a new line', () => text.includes('reloaded'))
  control.abort()
  await reading
})

t.test('engine output is attributed to requests', async t => {
  await corral.reload('log_levels: { llama-server: debug }')
  const answer = await corral.send('/v1/chat/completions', { model: DEMO, messages, max_tokens: 4 })
  await answer.text()
  const id = answer.headers.get('x-request-id')!
  const { body } = await corral.json(`/api/logs/${DEMO}`, undefined, { local: true })
  const kept: string[] = body.engines[0].lines
  const at = (text: string) => kept.findIndex(line => line.includes(text))
  t.ok(
    at(`request ${id} begins`) !== -1 && at(`request ${id} begins`) < at('launch_slot_'),
    'it starts before its task'
  )
  t.ok(at(`request ${id} ends`) > at(`request ${id} begins`))
})

t.test('corral log-level shows and changes levels', async t => {
  const run = async (...words: string[]) => {
    const env = { ...process.env, CORRAL_HOME: corral.home }
    const { stdout } = await promisify(execFile)(process.execPath, [MAIN, 'log-level', ...words], { env })
    return stdout
  }
  t.match(await run('scheduler', 'debug'), /scheduler +debug/)
  t.match(await run(), /scheduler +debug/)
  t.match(await run('scheduler', 'default'), /scheduler +info/)
  await t.rejects(run('nothing', 'debug'), /Known are: /)
})

t.test('every line names its part, and lines of a request its id and trace', async t => {
  const ask = (headers: Record<string, string>) =>
    corral.send('/v1/chat/completions', { model: DEMO, messages, max_tokens: 4 }, { headers })
  const first = await ask({ traceparent: `00-${TRACE}-00f067aa0ba902b7-01` })
  await first.text()
  const second = await ask({ traceparent: `00-${TRACE.slice(1)}"\u0000}-00f067aa0ba902b7-01`.replace('\u0000', ' ') })
  await second.text()
  const id = first.headers.get('x-request-id')
  const line = await until('the line of the request', () => lines().find(({ requestId }) => requestId === id))
  t.match(line, { part: 'http', traceId: TRACE, msg: 'POST /v1/chat/completions 200' })
  const other = await until('the line of the other request', () =>
    lines().find(({ requestId }) => requestId === second.headers.get('x-request-id'))
  )
  t.notOk('traceId' in other, 'an invalid trace id is ignored')
  await corral.end()
  const all = lines()
  const odd = all.filter(({ part, level, time, msg }) => !(part && level && time && msg))
  t.same(odd, [], 'one shape')
  t.ok(all.some(({ part }) => part === 'scheduler' || part === 'llama-server' || part === 'runtimes'))
  const warning = all.find(({ msg }) => msg.includes('nothing-such'))
  t.match(warning, { part: 'server', msg: /There is no part "nothing-such"\. Known are: .*scheduler/ })
})
