import { networkInterfaces } from 'node:os'
import t from 'tap'
import { corral as command } from '../../../command-line/command.ts'
import {
  CAPITAL_QUESTION,
  type Corral,
  DEMO,
  endlessHosted,
  newKey,
  startCorral,
  until
} from '../../../support/corral.ts'
import { bearer } from '../../people/support.ts'
import { startReadyGateway } from './support.ts'

/* A client is limited and counted by the gateway alone. */

const ADMIN = 'key-of-the-admin-of-both'
const address = Object.values(networkInterfaces())
  .flat()
  .find(each => each?.family === 'IPv4' && !each.internal)?.address
const node = await startCorral(t, {
  config: `limits: { requests_per_minute: 2, connections: 20, connections_per_address: 4 }
security: { api_keys: ["${ADMIN}"] }
models: { ${DEMO}: { limits: { requests_per_minute: 2 } } }
`,
  flags: address === undefined ? [] : ['--host', address]
})
const url = node.url
const front = await newKey(node, 'front', { role: 'operator' })
const gateway = await startReadyGateway(t, [{ name: 'node-1', url, key: front }])
const alice = await newKey(gateway, 'alice', { limits: { requests_per_minute: 4 } })
const chat = { model: DEMO, messages: [CAPITAL_QUESTION], temperature: 0 }

const admin = await newKey(gateway, 'admin', { role: 'admin' })

const stateOfNode = async () => (await gateway.json('/api/cluster', undefined, bearer(admin))).body.members[0].state

async function used(corral: Corral, key = ADMIN): Promise<Record<string, number[]>> {
  const { usage } = (await corral.json('/api/usage', undefined, bearer(key))).body
  return Object.fromEntries(
    usage.map(({ name, requests, tokens_in, tokens_out }: any) => [name, [requests, tokens_in, tokens_out]])
  )
}

t.test('requests and tokens are limited and counted for the client at the gateway', async t => {
  const sum = [0, 0, 0]
  for (let count = 0; count < 4; count++) {
    const { status, body } = await gateway.json('/v1/chat/completions', chat, bearer(alice))
    t.equal(status, 200, JSON.stringify(body))
    for (const [at, more] of [1, body.usage.prompt_tokens, body.usage.completion_tokens].entries()) sum[at]! += more
  }
  const refused = await gateway.json('/v1/chat/completions', chat, bearer(alice))
  t.match(refused, { status: 429, body: { error: { code: 'rate_limited', message: /The API key "alice"/ } } })
  t.same(await used(gateway, admin), { alice: sum })
  t.same(await used(node), { front: sum }, 'the node knows only the key of the gateway')
  const own = await newKey(node, 'carol')
  const statuses = []
  for (let count = 0; count < 3; count++) {
    statuses.push((await node.json('/v1/chat/completions', chat, bearer(own))).status)
  }
  t.same(statuses, [200, 200, 429], "the node's own clients keep its limits")
})

t.test('the gateway may open more connections than one client', { skip: address === undefined }, async t => {
  const [bob, dora] = [await newKey(gateway, 'bob'), await newKey(gateway, 'dora')]
  const leaving = new AbortController()
  const streams = Array.from({ length: 14 }, (_, index) =>
    gateway.send('/v1/chat/completions', endlessHosted(DEMO), {
      ...bearer(index % 2 === 0 ? bob : dora),
      signal: leaving.signal
    })
  )
  await until('all are at the node', async () => {
    const [model] = (await node.json('/api/ps', undefined, bearer(ADMIN))).body.models
    return model && model.running + model.queued === 14
  })
  t.equal(await stateOfNode(), 'up')
  leaving.abort()
  await Promise.allSettled(streams)
})

t.test('a node drains itself without a key, and the gateway sends it nothing', async t => {
  t.match(await command(['drain'], { home: node.home }), { code: 0 })
  await until('the gateway knows', async () => (await stateOfNode()) === 'draining')
  const carol = await newKey(gateway, 'eve')
  t.match(await gateway.json('/v1/chat/completions', chat, bearer(carol)), {
    body: { error: { code: 'engine_unreachable' } }
  })
  t.match(await command(['drain', '--undo'], { home: node.home }), { code: 0 })
  await until('the gateway knows', async () => (await stateOfNode()) === 'up')
  t.equal((await gateway.json('/v1/chat/completions', chat, bearer(carol))).status, 200)
})
