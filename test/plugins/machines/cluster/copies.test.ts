import t from 'tap'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, type Corral, DEMO, startCorral, until } from '../../../support/corral.ts'
import { refusedWith } from '../../../support/failure.ts'
import { getNodes, startGateway, untilStates } from './support.ts'

// A holder whose key the gateway knows, a node without the model, and the permission to read files.

const keyed = (key: string) => `security:\n  api_keys: [${key}]\n`
const KEYS = ['a-key-of-the-holder-that-nobody-guesses', 'a-key-of-the-lacking-one-that-nobody-guesses']
const [holder, lacking] = await Promise.all([
  startCorral(t, { config: keyed(KEYS[0]!) }),
  startCorral(t, { config: `${keyed(KEYS[1]!)}storage:\n  demo_model: false\n` })
])
const as = (key: string | undefined) => ({ headers: { authorization: `Bearer ${key}` } })
const gateway = await startGateway(t, [
  { name: 'holder', url: holder.url, key: KEYS[0]! },
  { name: 'lacking', url: lacking.url, key: KEYS[1]! }
])
await untilStates(gateway, { holder: 'up', lacking: 'up' })
const { files, digest } = await (async () => {
  const shown = (await holder.json('/api/show', { model: DEMO }, as(KEYS[0]))).body
  return { files: shown.files as { path: string; size: number; sha256: string }[], digest: shown.details.digest }
})()
const FILE = `/api/cluster/files/${files[0]!.sha256}`
const ticketOf = async (server: Corral, key: string | undefined) =>
  (await server.json('/api/cluster/tickets', { model: DEMO }, as(key))).body.ticket as string

t.test('tickets are issued to operators and work once, for the files of one model', async t => {
  const made = await holder.json('/api/keys', { name: 'someone', role: 'user' }, { local: true })
  t.match(await holder.json('/api/cluster/tickets', { model: DEMO }), { status: 401, body: { code: 'unauthorized' } })
  t.match(
    await holder.json('/api/cluster/tickets', { model: DEMO }, as(made.body.key)),
    refusedWith(403, 'forbidden_role')
  )
  const ticket = await ticketOf(holder, KEYS[0])
  const redeemed = await holder.json('/api/cluster/tickets/redeem', { ticket })
  t.match(redeemed, { status: 200, body: { name: 'tiny-chat', digest, files, origin: { kind: 'bundled' } } })
  t.match(await holder.json('/api/cluster/tickets/redeem', { ticket }), { status: 401, body: { code: 'unauthorized' } })
  const { token } = redeemed.body
  const range = { headers: { authorization: `Bearer ${token}`, range: 'bytes=0-3' } }
  t.equal(await (await holder.send(FILE, undefined, range)).text(), 'GGUF')
  t.equal((await holder.send(FILE, undefined, { ...range, method: 'HEAD' })).status, 200)
  const other = `/api/cluster/files/${'0'.repeat(64)}`
  t.match(await holder.json(other, undefined, as(token)), { status: 404, body: { code: 'model_not_found' } })
  for (const wrong of [ticket, 'x', KEYS[0]]) t.match(await holder.json(FILE, undefined, as(wrong)), { status: 401 })
  t.match(await holder.json(FILE), { status: 401 })
  t.match(await holder.json('/api/cluster/files/..%2F..%2Fkeys.json', undefined, as(token)), { status: 404 })
  t.match(await holder.json('/api/tags', undefined, as(token)), { status: 401 }, 'it is not a key')
})

t.test('only an operator may start a copy, and a ticket is valid for one model', async t => {
  const ticket = await ticketOf(holder, KEYS[0])
  const body = { source: 'holder', url: holder.url, ticket, digest }
  t.match(await lacking.json('/api/cluster/copy', body), { status: 401 })
  for (const wrong of [{ url: 'file:///etc/passwd' }, { url: 'http://g\u00cf\u{d06a2}' }, { tls_name: '\u0e01' }]) {
    const reply = await lacking.json('/api/cluster/copy', { ...body, ...wrong }, as(KEYS[1]))
    t.match(reply, { status: 400, body: { code: 'invalid_request' } }, JSON.stringify(wrong))
  }
  const refused = await lacking.json('/api/cluster/copy', { ...body, digest: '0'.repeat(64) }, as(KEYS[1]))
  t.match(refused, { status: 502, body: { code: 'copy_failed', error: /other files/ } })
  t.match(await lacking.json('/api/cluster/copy', body, as(KEYS[1])), { status: 502 }, 'the ticket is used up')
  t.same((await lacking.json('/api/tags', undefined, as(KEYS[1]))).body.models, [])
})

t.test('a model whose holder is drained is copied to another member on request', async t => {
  await gateway.json('/api/cluster/drain', { member: 'holder' }, { local: true })
  await untilStates(gateway, { holder: 'draining' })
  const ask = () =>
    gateway.json('/v1/chat/completions', { model: DEMO, messages: [CAPITAL_QUESTION], temperature: 0, max_tokens: 20 })
  const replies = await Promise.all([ask(), ask(), ask()])
  for (const { body } of replies) t.equal(body.choices?.[0].message.content, CAPITAL_ANSWER, JSON.stringify(body))
  const shown = (await lacking.json('/api/show', { model: DEMO }, as(KEYS[1]))).body
  t.match(shown, { details: { digest }, origin: { kind: 'bundled' } }, 'same model and origin')
  t.equal(gateway.log().match(/a model was copied from one member to another/g)?.length, 1, 'one copy for all of them')
  await until('the gateway knows', async () =>
    (await getNodes(gateway)).some(({ name, loaded }) => name === 'lacking' && loaded.length === 1)
  )
  t.notMatch(holder.log() + lacking.log() + gateway.log(), new RegExp(KEYS.join('|')), 'no key is logged')
})
