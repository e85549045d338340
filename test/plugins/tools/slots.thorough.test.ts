import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import {
  activeRequests,
  CAPITAL_ANSWER,
  CAPITAL_QUESTION,
  DEMO,
  newKey,
  startCorral,
  until
} from '../../support/corral.ts'
import { newFolder } from '../../support/folder.ts'
import { toolProgram } from './support.ts'

// The real engine with one slot, which is free while tools run.

/** A server whose tool waits for a file. The demo model calls it if it is asked for the weather. */
async function serverWithWait(t: Test, config = '') {
  const folder = newFolder(t)
  const [log, go] = [join(folder, 'log'), join(folder, 'go')]
  const program = toolProgram(
    t,
    `const about = { description: 'Get the weather', inputSchema: schema({ city: { type: 'string' } }), annotations: { readOnlyHint: true } }
  server.registerTool('weather', about, async (_, { mcpReq: { signal } }) => {
    const { existsSync } = await import('node:fs')
    appendFileSync('${log}', 'begins ')
    while (!existsSync('${go}') && !signal.aborted) await new Promise(done => setTimeout(done, 20))
    appendFileSync('${log}', signal.aborted ? 'cancelled ' : 'ends ')
    return text('sunny')
  })`
  )
  const corral = await startCorral(t, {
    config: `defaults: { num_parallel: 1 }\n${config}mcp: { servers: { get: { command: node, arguments: [${program}], roles: [user] } } }\n`
  })
  const ask = (key?: string, more: { signal?: AbortSignal } = {}) => {
    const body = {
      model: DEMO,
      max_tokens: 100,
      temperature: 0,
      messages: [{ role: 'user', content: 'What is the weather in Paris?' }],
      tools: [{ type: 'mcp_toolset', mcp_server_name: 'configured:get' }]
    }
    const headers: Record<string, string> = key === undefined ? {} : { authorization: `Bearer ${key}` }
    return corral.json('/v1/messages', body, { headers, ...more })
  }
  const read = () => (existsSync(log) ? readFileSync(log, 'utf8') : '')
  return {
    corral,
    ask,
    /** Asks, and waits until the tool runs. */
    async begin(key?: string, more: { signal?: AbortSignal } = {}) {
      rmSync(go, { force: true })
      rmSync(log, { force: true })
      const answer = ask(key, more)
      const failed = answer.then(({ body }) => `no call, but ${JSON.stringify(body)}`)
      const faults = await Promise.race([failed, until('the tool runs', () => read() === 'begins ')])
      t.equal(faults, true)
      return { answer }
    },
    /** How many calls have begun. */
    count: () => read().split('begins').length - 1,
    cancelled: () => until('the tool is cancelled', () => read() === 'begins cancelled '),
    finish: () => writeFileSync(go, '')
  }
}

const isAnswer = (t: Test, { status, body }: { status: number; body: any }) => {
  t.equal(status, 200, JSON.stringify(body))
  // The small model may call it again.
  t.match(body.content.slice(0, 2), [
    { type: 'mcp_tool_use', name: 'weather', input: { city: 'Paris' } },
    { type: 'mcp_tool_result', is_error: false, content: [{ type: 'text', text: 'sunny' }] }
  ])
  t.match(body.stop_reason, /^(end_turn|max_tokens)$/)
}

t.test('a client whose tool runs leaves its slot to others, and continues with its prompt', async t => {
  const { corral, ask, begin, cancelled, finish } = await serverWithWait(t)
  const patient = await newKey(corral, 'patient', { limits: { requests_per_minute: 1 } })
  const other = await newKey(corral, 'other')
  const chat = async () => {
    const headers = { authorization: `Bearer ${other}` }
    const question = { model: DEMO, messages: [CAPITAL_QUESTION], temperature: 0 }
    const { body } = await corral.json('/v1/chat/completions', question, { headers })
    t.equal(body.choices?.[0].message.content, CAPITAL_ANSWER, JSON.stringify(body))
  }
  const countTokens = async (more: Record<string, string>) => {
    const headers = { authorization: `Bearer ${other}`, ...more }
    const question = { model: DEMO, messages: [CAPITAL_QUESTION] }
    const { body } = await corral.json('/v1/chat/completions/input_tokens', question, { headers })
    return body.input_tokens
  }
  const active = () => activeRequests({ ...corral, json: path => corral.json(path, undefined, { local: true }) })

  const first = await begin(patient)
  t.equal(await active(), 0, 'it takes no slot')
  await chat()
  t.ok((await countTokens({ 'x-corral-tools': 'get' })) > (await countTokens({})), 'the prompt contains the tools')
  finish()
  const answer = await first.answer
  isAnswer(t, answer)
  const { input_tokens, cache_read_input_tokens: cached } = answer.body.usage
  t.ok(cached > 0.3 * (input_tokens + cached), `the second turn finds its prompt: ${JSON.stringify(answer.body.usage)}`)
  t.match(await ask(patient), { status: 429 }, 'all turns count as one request')

  const leave = new AbortController()
  const left = await begin(other, { signal: leave.signal })
  leave.abort()
  await t.rejects(left.answer, { name: 'AbortError' })
  await cancelled()
  await until('nothing is left', async () => (await active()) === 0)
  await chat()

  const stopped = await begin(other)
  t.equal((await corral.json('/api/stop', { model: DEMO }, { local: true })).status, 200)
  t.strictSame(corral.enginePids(), [], 'a model can be unloaded while a tool runs')
  finish()
  isAnswer(t, await stopped.answer)

  const keys = await Promise.all(Array.from({ length: 20 }, (_, at) => newKey(corral, `client-${at}`)))
  for (const each of await Promise.all(keys.map(key => ask(key)))) isAnswer(t, each)
  const { usage } = (await corral.json('/api/usage?by=key', undefined, { local: true })).body
  for (const { name, requests } of usage.filter(({ name }: any) => name.startsWith('client-')))
    t.equal(requests, 1, `requests of ${name}`)
})

t.test('a model that is unloaded when idle, or by the end of corral, stays while a tool runs', async t => {
  const { corral, begin, finish } = await serverWithWait(t, `models: { ${DEMO}: { keep_alive: 0s } }\n`)
  const first = await begin()
  const pids = corral.enginePids()
  t.equal(pids.length, 1)
  finish()
  isAnswer(t, await first.answer)
  await until('it is unloaded', () => corral.enginePids().length === 0)

  const last = await begin()
  const ended = corral.end()
  await until('it ends', () => corral.log().includes('shutting down'))
  finish()
  isAnswer(t, await last.answer)
  t.equal(await ended, 0)
})

t.test('a client runs 16 calls at a time, which do not delay the calls of others', async t => {
  const { corral, count, finish } = await serverWithWait(t)
  const keys = [await newKey(corral, 'many', { role: 'operator' }), await newKey(corral, 'one', { role: 'operator' })]
  const call = (key: string) =>
    corral.json('/api/mcp/get/call', { tool: 'weather' }, { headers: { authorization: `Bearer ${key}` } })
  const many = Array.from({ length: 40 }, () => call(keys[0]!))
  await until('many calls run', () => count() >= 16)
  const one = call(keys[1]!)
  await until('the call of the other client runs', () => count() >= 17)
  t.equal(count(), 17)
  finish()
  for (const { body } of await Promise.all([...many, one])) t.match(body, { failed: false, output: 'sunny' })
})
