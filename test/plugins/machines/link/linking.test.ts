import { readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { Agent, request } from 'undici'
import { createIdentity } from '../../../../plugins/machines/link/link-certificate.ts'
import {
  activeRequests,
  begin,
  CAPITAL_ANSWER,
  type Corral,
  capital,
  DEMO,
  endless,
  lastEvent,
  startCorral,
  until
} from '../../../support/corral.ts'

const local = { local: true }
const configOf = (name: string, more = '') => `link: {name: ${name}, port: 0, discovery: false}\n${more}`
const desk = await startCorral(t, { config: configOf('desk') })
const laptop = await startCorral(t, { config: configOf('laptop', 'storage:\n  demo_model: false\n') })

const linkOf = async (corral: Corral) => (await corral.json('/api/link', undefined, local)).body
const machinesOf = async (corral: Corral): Promise<any[]> => (await linkOf(corral)).machines
const newCode = async (corral: Corral): Promise<string> => {
  const { status, body } = await corral.json('/api/link/code', {}, local)
  t.equal(status, 200, JSON.stringify(body))
  return body.code
}
const joinAt = (corral: Corral, code: string, port: number) =>
  corral.json('/api/link/join', { code, host: `127.0.0.1:${port}` }, local)
const untilState = (corral: Corral, name: string, state: string) =>
  until(
    `"${name}" is ${state}`,
    async () => (await machinesOf(corral)).find(each => each.name === name)?.state === state
  )
const untilListed = () =>
  until('its models are listed', async () => {
    const { models } = (await laptop.json('/api/tags')).body
    return models.some(({ name }: any) => name === DEMO)
  })
const wrongCode = (code: string) => (code.endsWith('A') ? `${code.slice(0, -1)}B` : `${code.slice(0, -1)}A`)

/** Sends a request where linked machines connect. */
async function knock(port: number, asked: string, as: { certificate?: string; key?: string } = {}, body?: object) {
  const [method, path] = asked.split(' ') as ['POST', string]
  const { certificate: cert, key } = as
  const dispatcher = new Agent({ connect: { rejectUnauthorized: false, ...(cert && key && { cert, key }) } })
  const { statusCode, body: reply } = await request(`https://127.0.0.1:${port}${path}`, {
    method,
    dispatcher,
    ...(body && { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } })
  })
  const text = await reply.text()
  await dispatcher.destroy()
  return { status: statusCode, body: text === '' ? undefined : JSON.parse(text) }
}

t.test('nothing listens before a code is shown, and a code needs an admin', async t => {
  t.match(await linkOf(desk), { name: 'desk', machines: [] })
  const refused = await desk.json('/api/link/code', {})
  t.match(refused, { status: 403, body: { code: 'forbidden_role' } })
  t.match(await desk.json('/api/link/pair', { begin: 'x' }), { status: 404, body: { code: 'route_not_found' } })
  t.match(await joinAt(laptop, 'no code', 1), { status: 400, body: { code: 'invalid_request' } })
  t.match(await joinAt(laptop, 'ABCD-EFGH', 1), { status: 502, body: { code: 'machine_unreachable' } })
})

t.test('a code is cancelled after three wrong attempts', async t => {
  const code = await newCode(desk)
  const { port } = await linkOf(desk)
  const refusal = { status: 403, body: { code: 'pairing_code_wrong' } }
  for (const _ of [1, 2, 3]) t.match(await joinAt(laptop, wrongCode(code), port), refusal)
  t.match(await joinAt(laptop, code, port), refusal, 'the right code is too late')
  t.strictSame(await machinesOf(desk), [])
  t.strictSame(await machinesOf(laptop), [])
})

t.test('two machines are linked by a code that is never sent', async t => {
  const code = await newCode(desk)
  const { port } = await linkOf(desk)
  const parallel = await Promise.all([joinAt(laptop, code, port), joinAt(laptop, code.toLowerCase(), port)])
  t.strictSame(parallel.map(({ status }) => status).sort(), [200, 403], 'the code is valid once')
  t.match(parallel.find(({ status }) => status === 200)!.body.machine, { name: 'desk', may: 'ask' })
  t.match(await machinesOf(desk), [{ name: 'laptop', may: 'ask' }])
  await untilState(laptop, 'desk', 'here')
  await untilState(desk, 'laptop', 'here')
  t.equal((await linkOf(desk)).code, undefined)
  t.equal(statSync(join(desk.home, 'link.json')).mode & 0o777, 0o600)
})

t.test("a machine's models are listed and answered by the other one", async t => {
  await untilListed()
  const answer = await laptop.json('/api/chat', capital())
  t.equal(answer.body.message?.content, CAPITAL_ANSWER, JSON.stringify(answer.body))
  t.match((await desk.json('/api/ps')).body.models, [{ name: DEMO }])
  const running = await until('it is shown as running there', async () => (await laptop.json('/api/ps')).body.models[0])
  t.match(running, { name: DEMO, member: 'desk' })
})

t.test('an unknown machine is refused, and a linked one may only do what it is allowed to', async t => {
  const { port } = await linkOf(desk)
  const refusal = { status: 403, body: { code: 'forbidden_role' } }
  for (const asked of ['GET /api/tags', 'POST /api/cluster/describe', 'GET /', 'POST /api/link/hello', 'GET /livez']) {
    t.match(await knock(port, asked), refusal, asked)
    t.match(await knock(port, asked, createIdentity()), refusal, `${asked} with another certificate`)
  }
  t.match(await knock(port, 'POST /api/link/pair', {}, { begin: 'x' }), { status: 403 })
  const self = JSON.parse(readFileSync(join(laptop.home, 'link.json'), 'utf8'))
  const ask = (asked: string, body?: object) => knock(port, asked, self, body)
  t.match(await ask('POST /api/cluster/describe', { models: [] }), {
    status: 200,
    body: { models: [{ name: 'tiny-chat' }] }
  })
  const pull = ['POST /api/stop', { model: DEMO }] as const
  const administer = ['GET /api/keys'] as const
  t.equal((await desk.json('/api/load', { model: DEMO })).status, 200)
  t.match(await ask(...pull), refusal)
  t.match(await ask('POST /api/cluster/../stop', { model: DEMO }), refusal)
  const allow = (may: string) => desk.json('/api/link/machines/laptop', { may }, { ...local, method: 'PUT' })
  t.match(await allow('pull'), { status: 200, body: { machine: { may: 'pull' } } })
  t.match(await ask(...pull), { status: 200 })
  t.match(await ask(...administer), refusal)
  await allow('administer')
  t.match(await ask(...administer), { status: 200 })
  await allow('ask')
  t.match(await ask(...pull), refusal)
  t.match(await allow('everything'), { status: 400 })
})

t.test('a model is copied from a linked machine without a hub', async t => {
  const fetched = (model: string, member = 'desk') =>
    laptop.json('/api/cluster/fetch', { model, member, stream: false }, local)
  t.match(await fetched(DEMO, 'nobody'), { status: 404, body: { code: 'member_not_found' } })
  t.match(await fetched('no/model'), { status: 404, body: { code: 'model_not_found' } })
  t.match(await fetched(DEMO), { status: 200, body: { status: 'success' } })
  t.match((await laptop.json('/api/tags')).body.models, [{ name: DEMO, format: 'gguf' }])
  const deleted = await laptop.json('/api/delete', { model: DEMO }, { ...local, method: 'DELETE' })
  t.equal(deleted.status, 200, JSON.stringify(deleted.body))
  const events = await laptop.events('/api/cluster/fetch', { model: DEMO, member: 'desk' })
  t.match(events, [{ status: `pulling ${DEMO}` }])
  t.match(events.at(-1), { status: 'success' })
  await laptop.json('/api/delete', { model: DEMO }, { ...local, method: 'DELETE' })
})

t.test('a machine that leaves is absent, and is found at its new address when it returns', async t => {
  t.equal(await desk.end(), 0)
  await untilState(laptop, 'desk', 'absent')
  const { models } = (await laptop.json('/api/tags')).body
  t.strictSame(models, [], 'its models are not listed')
  const again = await startCorral(t, { home: desk.home, config: configOf('desk') })
  await untilState(laptop, 'desk', 'here')
  await untilListed()
  const answer = await laptop.json('/api/chat', capital())
  t.equal(answer.body.message?.content, CAPITAL_ANSWER, JSON.stringify(answer.body))

  t.test('a removed machine is refused, also during an answer', async t => {
    const answer = await begin(laptop, '/api/chat', endless(DEMO))
    const { status } = await again.json('/api/link/machines/laptop', undefined, { ...local, method: 'DELETE' })
    t.equal(status, 200)
    t.match(await again.json('/api/link/machines/laptop', undefined, { ...local, method: 'DELETE' }), {
      status: 404,
      body: { code: 'machine_not_found' }
    })
    t.match(lastEvent(await answer.rest()), { code: 'engine_crashed' })
    await until('its slot is free', async () => (await activeRequests(again)) === 0)
    await untilState(laptop, 'desk', 'absent')
    t.strictSame((await laptop.json('/api/tags')).body.models, [])
    t.strictSame(await machinesOf(again), [])
  })
})
