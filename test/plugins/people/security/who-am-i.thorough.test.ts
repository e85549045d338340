import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { CAPITAL_QUESTION, type Corral, DEMO, startCorral, until } from '../../../support/corral.ts'
import { thorough } from '../../../support/thorough.ts'
import { bearer, local, newKey } from '../support.ts'

const whoAmI = (corral: Corral, init: { headers?: Record<string, string>; local?: boolean } = {}) =>
  corral.json('/api/whoami', undefined, init)

t.test('whoami describes the caller, before and after keys exist', async t => {
  const corral = await startCorral(t, { config: 'limits:\n  requests_per_day: 100\n' })
  const { status, body } = await whoAmI(corral)
  t.equal(status, 200)
  t.match(body, { role: 'operator', how: 'keyless', keyless: true, keys_required: false })
  t.match(body.budgets, [{ name: 'requests_per_day', limit: 100, remaining: 100 }])
  t.notOk('key' in body)
  const refused = await corral.json('/api/keys')
  t.ok(refused.body.error.endsWith(body.more), 'in the words of a refusal')
  const owner = await whoAmI(corral, local)
  t.match(owner.body, { role: 'admin', how: 'private_socket', keyless: true })
  t.notOk('more' in owner.body, 'nobody is more than an admin')

  const expires = new Date(Date.now() + 3_600_000).toISOString()
  const limits = { requests_per_day: 5, tokens_per_minute: 1000, max_tokens: 50 }
  const alice = bearer(await newKey(corral, 'alice', { models: [DEMO], limits, expires, role: 'user' }))
  t.match(await whoAmI(corral), { status: 401, body: { code: 'unauthorized' } })
  const before = (await whoAmI(corral, alice)).body
  t.match(before, { role: 'user', how: 'key', keyless: false, keys_required: true })
  t.same(before.key, { name: 'alice', expires_at: expires, models: [DEMO], limits })
  t.match(before.more, /Ask the admin .*corral key create <name> --role admin/)

  const chat = { model: DEMO, messages: [CAPITAL_QUESTION], stream: false }
  const answer = await corral.json('/api/chat', chat, alice)
  t.equal(answer.status, 200)
  const budgets = await until('its tokens are charged', async () => {
    const left = (await whoAmI(corral, alice)).body.budgets
    return left[1].remaining < 1000 && left
  })
  t.match(budgets, [
    { name: 'requests_per_day', limit: 5, remaining: 4 },
    { name: 'tokens_per_minute', limit: 1000 }
  ])
  t.ok(budgets.every((budget: any) => Date.parse(budget.resets_at) > Date.now()))
  t.equal((await whoAmI(corral, alice)).body.budgets[0].remaining, 4, 'whoami itself costs nothing')

  const { body: admin } = await whoAmI(corral, bearer(await newKey(corral, 'root', { role: 'admin' })))
  t.match(admin, { role: 'admin', how: 'key', key: { name: 'root' }, budgets: [{ limit: 100, remaining: 100 }] })
  t.notOk('more' in admin)
})

t.test('keys show when and from where they were last used, also after a restart', async t => {
  const corral = await startCorral(t)
  const list = async (from: Corral) => (await from.json('/api/keys', undefined, local)).body.keys
  const alice = bearer(await newKey(corral, 'alice'))
  await newKey(corral, 'unused')
  const began = Date.now()
  await whoAmI(corral, alice)
  const [used, unused] = await list(corral)
  t.equal(used.last_address, '127.0.0.1')
  t.ok(Date.parse(used.last_used_at) >= began)
  t.notOk('last_used_at' in unused)
  const file = join(corral.home, 'key-uses.json')
  t.notOk(existsSync(file), 'requests do not write to the disk')
  await corral.end()
  t.notOk(readFileSync(file, 'utf8').includes('corral_'), 'it has no keys')
  const next = await startCorral(t, { home: corral.home })
  t.match(await list(next), [{ name: 'alice', last_used_at: used.last_used_at }, { name: 'unused' }])
  await next.json('/api/keys/alice', undefined, { method: 'DELETE', ...local })
  await next.json('/api/keys/unused', undefined, { method: 'DELETE', ...local })
  await next.end()

  t.comment('a damaged file is not fatal')
  writeFileSync(file, '{"version":1,"uses":{"a":{"at":"soon"}}}')
  const last = await startCorral(t, { home: corral.home })
  t.match(last.log(), /key-uses\.json cannot be used/)
  t.same(await list(last), [])
})

t.test('whoami lists no budgets without the usage plugin', thorough, async t => {
  const corral = await startCorral(t, { config: 'usage:\n  enabled: false\n' })
  t.match(await whoAmI(corral), { status: 200, body: { role: 'operator', budgets: [] } })
})
