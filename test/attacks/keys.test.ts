import { readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { corral as command, newHome } from '../command-line/command.ts'
import {
  CAPITAL_QUESTION,
  type Corral,
  DEMO,
  endless,
  endlessHosted,
  newKey,
  startCorral,
  until
} from '../support/corral.ts'
import { readCases } from '../support/fixture.ts'
import { sendExactly } from '../support/raw-requests.ts'
import { thorough } from '../support/thorough.ts'

const bearer = (key: string) => ({ headers: { authorization: `Bearer ${key}` } })
const getStatus = async (corral: Corral, path: string, headers: Record<string, string> = {}, body?: unknown) => {
  const reply = await corral.send(path, body, { headers })
  await reply.text()
  return reply.status
}

/** The reply without its ids and the name that it quotes. */
const withoutIds = (reply: object, name: string) =>
  JSON.stringify(reply, (key, value) => (/request_?id/i.test(key) ? undefined : value)).replaceAll(name, '<name>')

/** Tests without other settings share this server. */
const corral = await startCorral(t, { config: 'limits: { stored_responses: 3 }' })

t.test('the forwarded header is ignored without trusted proxies', async t => {
  t.equal(await getStatus(corral, '/api/tags', { 'x-forwarded-for': '203.0.113.5' }), 200)
})

t.test('corral key creates, lists, rotates and removes keys beside a running server', async t => {
  const home = newHome(t)
  const corral = await startCorral(t, { home })
  t.equal(await getStatus(corral, '/api/pulls'), 200, 'without any key a caller on this machine is an operator')
  t.equal(await getStatus(corral, '/api/pulls', bearer('what SDKs send').headers), 200, 'whatever it sends')

  const first = await command(['key', 'create', 'alice'], { home })
  t.equal(first.code, 0, first.stderr)
  t.match(first.stdout, /^corral_[0-9a-f]{16}_[\w-]{43}\n$/, 'only the key is printed')
  t.match(first.stderr, /first key.*every request needs a key/)
  const alice = first.stdout.trim()
  t.equal(await getStatus(corral, '/api/tags'), 401, 'from now on a key is required')
  t.equal(await getStatus(corral, '/api/health'), 200)
  t.equal(await getStatus(corral, '/api/tags', bearer(alice).headers), 200)
  t.equal(await getStatus(corral, '/api/tags', { 'x-api-key': alice }), 200)
  t.match(await corral.json('/api/pulls', undefined, bearer(alice)), {
    status: 403,
    body: { code: 'forbidden_role', role: 'user', neededRole: 'operator', error: /"alice".*corral key create/ }
  })

  const path = join(home, 'keys.json')
  t.equal(statSync(path).mode & 0o777, 0o600)
  t.notOk(readFileSync(path, 'utf8').includes(alice.slice(-43)), 'only a hash is stored')
  t.match(await command(['key', 'create', 'ALICE'], { home }), { code: 1, stdout: '', stderr: /"ALICE" already/ })
  for (const wrong of [
    ['--role', 'root'],
    ['--limit', 'lots'],
    ['--expires', 'never'],
    ['--models', 'a b']
  ]) {
    const { code, stdout } = await command(['key', 'create', 'bob', ...wrong], { home })
    t.same([code, stdout], [2, ''], wrong.join(' '))
  }
  const root = (await command(['key', 'create', 'root', '--role', 'admin', '--expires', '90d'], { home })).stdout.trim()
  t.match(JSON.parse((await command(['key', 'list', '--json'], { home })).stdout), [
    { name: 'alice', role: 'user' },
    { name: 'root', role: 'admin' }
  ])
  const table = (await command(['key', 'list'], { home })).stdout
  t.notMatch(table, /hash|salt|corral_/)
  t.match(table, new Date(Date.now() + 90 * 86_400_000).toISOString().slice(0, 7), 'the day on which it expires')

  const rotated = (await command(['key', 'rotate', 'alice'], { home })).stdout.trim()
  t.equal(await getStatus(corral, '/api/tags', bearer(alice).headers), 401, 'the old key is revoked')
  t.equal(await getStatus(corral, '/api/tags', bearer(rotated).headers), 200)

  // The same over REST, for admins only.
  t.match(await corral.json('/api/keys', undefined, bearer(rotated)), { status: 403 })
  const made = await corral.json('/api/keys', { name: 'carol', limits: { n: 1 } }, bearer(root))
  t.match(made, { status: 200, body: { key: /^corral_/, record: { name: 'carol', role: 'user' } } })
  t.match(await corral.json('/api/keys', { name: 'carol' }, bearer(root)), {
    status: 409,
    body: { code: 'key_exists' }
  })
  t.match(await corral.json('/api/keys', { name: 'dave', role: 'root' }, bearer(root)), { status: 400 })
  t.match(await corral.json('/api/keys', { name: 'x\ny' }, bearer(root)), { status: 400 })
  const turned = await corral.json('/api/keys/carol/rotate', {}, bearer(root))
  t.equal(await getStatus(corral, '/api/tags', bearer(made.body.key).headers), 401)
  t.equal(await getStatus(corral, '/api/tags', bearer(turned.body.key).headers), 200)
  const listed = await corral.json('/api/keys', undefined, bearer(root))
  t.match(listed.body, { required: true, keys: [{ name: 'alice' }, { name: 'root' }, { name: 'carol' }] })
  t.notMatch(JSON.stringify(listed.body), /hash|salt/)
  t.match(await corral.json('/api/keys/carol', undefined, { method: 'DELETE', ...bearer(root) }), { status: 200 })
  t.match(await corral.json('/api/keys/carol', undefined, { method: 'DELETE', ...bearer(root) }), {
    status: 404,
    body: { code: 'key_not_found' }
  })

  for (const name of ['alice', 'root'])
    t.match(await command(['key', 'revoke', name], { home }), { code: 0, stdout: '' })
  t.match(await command(['key', 'revoke', 'root'], { home }), { code: 4 })
  for (const headers of [{}, bearer(root).headers, bearer(rotated).headers]) {
    t.equal(await getStatus(corral, '/api/tags', headers), 401, 'the last key is gone, and requests are still refused')
  }
  const line = /"address":"127\.0\.0\.1","key":"alice","code":"\w+","msg":"GET \/api\/pulls 403"/
  await until('the log names the key', () => line.test(corral.log()))
  t.notMatch(corral.log(), /corral_[0-9a-f]{16}_/, 'the log does not contain the key')
  await corral.end()

  const again = await startCorral(t, { home })
  t.equal(await getStatus(again, '/api/tags'), 401, 'nor after a restart')
  const last = (await command(['key', 'create', 'eve', '--expires', '1s'], { home })).stdout.trim()
  await until('the key ends', async () => (await getStatus(again, '/api/tags', bearer(last).headers)) === 401)
  t.match(await again.json('/api/tags', undefined, bearer(last)), { body: { error: /"eve" was valid until/ } })
})

t.test('revoking a key ends its answers', async t => {
  const key = await newKey(corral, 'alice')
  const other = await newKey(corral, 'bob')
  const { headers } = bearer(key)
  const long = endless(DEMO)
  const events = (path: string, body: unknown, sent = headers) => corral.send(path, body, { headers: sent })
  const [native, hosted, others] = await Promise.all([
    events('/api/chat', { ...long, options: { ...long.options, num_parallel: 4 } }),
    events('/v1/chat/completions', { ...endlessHosted(DEMO), num_parallel: 4 }),
    events('/api/chat', { ...long, options: { ...long.options, num_parallel: 4 } }, bearer(other).headers)
  ])
  const pending = events('/api/chat', { ...long, stream: false, options: { ...long.options, num_parallel: 4 } })
  await command(['key', 'revoke', 'alice'], { home: corral.home })
  t.match(await native.text(), /revoked.*"code":"unauthorized"|"code":"unauthorized".*revoked/, 'an event says why')
  t.match(await hosted.text(), /revoked[^\n]*"code":"unauthorized"/)
  const cut = await pending
  t.equal(cut.status, 401)
  await cut.text()
  const reader = others.body!.getReader()
  for (let chunks = 0; chunks < 3; chunks++) t.notOk((await reader.read()).done, "another key's answer continues")
  await reader.cancel()
})

t.test('a flood of wrong keys does not lock out a right one', thorough, async t => {
  const corral = await startCorral(t, { env: { CORRAL_API_KEYS: 'short-key,quite-a-long-key-of-the-admin' } })
  t.match(corral.log(), /1 of the keys.*shorter than 20 characters/)
  const key = await newKey(corral, 'alice')
  t.equal(await getStatus(corral, '/api/tags', bearer('short-key').headers), 200)
  const found: Record<number, number> = {}
  let retryAfter: string | null = null
  await Promise.all(
    Array.from({ length: 20 }, async (_, worker) => {
      for (let at = 0; at < 50; at++) {
        const reply = await corral.send('/api/tags', undefined, bearer(`corral_wrong-${worker}-${at}`))
        await reply.text()
        found[reply.status] = (found[reply.status] ?? 0) + 1
        if (reply.status === 429) retryAfter = reply.headers.get('retry-after')
      }
    })
  )
  t.ok(found[401]! < 100, `${found[401]} of 1000 were checked`)
  t.ok(found[429]! > 900, `${found[429]} of 1000 were told to wait`)
  t.match(retryAfter, /^\d+$/)
  t.equal(await getStatus(corral, '/api/tags', bearer(key).headers), 200, 'a right key from the same address works')
  t.equal(await getStatus(corral, '/api/tags', bearer('quite-a-long-key-of-the-admin').headers), 200)
  const actual = await getStatus(corral, '/api/tags', bearer('short-key').headers)
  t.equal(actual, 200, 'a short key that worked before still works')
  const fresh = await newKey(corral, 'bob')
  t.equal(await getStatus(corral, '/api/tags', bearer(fresh).headers), 200, 'a new key works')
  const lines = corral.log().split('\n')
  t.ok(lines.filter(line => /wrong API key/i.test(line)).length <= 5, 'the log is not flooded')
  t.ok(lines.some(line => /Too many wrong API keys/.test(line) && /"address":"127\.0\.0\.1"/.test(line)))

  t.match(await corral.json('/v1/models', undefined, bearer('wrong-again')), {
    status: 429,
    body: { error: { type: 'rate_limit_error', code: 'rate_limited' } }
  })
  t.match(await corral.json('/anthropic/v1/models', undefined, bearer('wrong-again')), {
    status: 429,
    body: { error: { type: 'rate_limit_error' } }
  })
})

const proxied = startCorral(t, { config: 'security: { trusted_proxies: [127.0.0.0/8, "::1"] }' })

t.test('clients behind trusted proxies are told apart by the forwarded address', async t => {
  const forwarded = (address: string) => ({ 'x-forwarded-for': address })
  const corral = await proxied
  const claims: Record<string, string>[] = [
    {},
    forwarded('203.0.113.5'),
    forwarded('127.0.0.1'),
    forwarded('::1'),
    forwarded('127.0.0.1, 127.0.0.1'),
    forwarded('203.0.113.5, 127.0.0.1'),
    forwarded('unknown'),
    { forwarded: 'for=127.0.0.1' },
    { 'x-real-ip': '127.0.0.1' }
  ]
  for (const headers of claims) {
    t.equal(await getStatus(corral, '/api/tags', headers), 401, JSON.stringify(headers))
  }
  const key = await newKey(corral, 'alice', { role: 'operator' })
  t.equal(await getStatus(corral, '/api/tags', { ...forwarded('203.0.113.5'), ...bearer(key).headers }), 200)
  for (let at = 0; at < 60; at++) {
    await getStatus(corral, '/api/tags', { ...forwarded('127.0.0.1, 203.0.113.6'), ...bearer(`guess-${at}`).headers })
  }
  const wrong = bearer('wrong').headers
  t.equal(await getStatus(corral, '/api/tags', { ...forwarded('10.9.9.9, 203.0.113.6'), ...wrong }), 429)
  t.equal(await getStatus(corral, '/api/tags', { ...forwarded('203.0.113.7'), ...wrong }), 401, 'another address')
  t.equal(
    await getStatus(
      corral,
      '/api/stop',
      { ...forwarded('198.51.100.1, 203.0.113.8'), ...bearer(key).headers },
      { model: DEMO }
    ),
    404
  )
  const line = /"address":"203\.0\.113\.8","key":"alice","code":"\w+","msg":"POST \/api\/stop 404"/
  await until('the log names the forwarded address', () => line.test(corral.log()))
})

t.test('a short key cannot be guessed, since right and wrong look alike during the lock', async t => {
  const corral = await proxied
  await corral.reload('security: { api_keys: [short-key] }')
  for (let at = 0; at < 60; at++) await getStatus(corral, '/api/tags', bearer(`guess-${at}`).headers)
  t.equal(await getStatus(corral, '/api/tags', bearer('short-key').headers), 429)
})

t.test('"insecure" keeps the checks of Host and Origin, and makes nobody an admin', async t => {
  const corral = await startCorral(t, { flags: ['--host', '0.0.0.0', '--insecure'] })
  const url = corral.url.replace('0.0.0.0', '127.0.0.1')
  const raw = (path: string, headers: Record<string, string>) => sendExactly({ url }, path, { headers })
  const { port } = new URL(url)
  for (const host of ['evil.com', `evil.com:${port}`, `127.0.0.1.evil.com:${port}`]) {
    for (const path of ['/api/tags', '/api/health', '/v1/models']) {
      const { status, body } = await raw(path, { host })
      t.equal(status, 403, `${host} ${path}`)
      t.match(JSON.stringify(body), /host_not_allowed/)
    }
  }
  for (const host of [`127.0.0.1:${port}`, `192.0.2.7:${port}`, `[::1]:${port}`, 'localhost']) {
    t.equal((await raw('/api/pulls', { host })).status, 200, `${host}: an operator`)
  }
  t.equal((await raw('/api/tags', { host: `localhost:${port}`, origin: 'https://evil.com' })).status, 403)
  t.match(await raw('/api/keys', { host: `localhost:${port}` }), { status: 403, body: { code: 'forbidden_role' } })
})

t.test('a key for some models sees and uses only these', async t => {
  await corral.json('/api/copy', { source: DEMO, destination: 'lab/helper' }, { local: true })
  const { headers } = bearer(await newKey(corral, 'lab', { models: ['lab/*'] }))
  const operator = bearer(await newKey(corral, 'lab-admin', { models: ['lab/*'], role: 'operator' })).headers
  const messages = [CAPITAL_QUESTION]
  const asks: [string, object][] = readCases('attack-cases.yaml', 'modelRequests')
  for (const [path, body] of asks) {
    const replies = []
    for (const model of [DEMO, DEMO.toUpperCase(), 'corral/not-here']) {
      const { status, body: reply } = await corral.json(path, { stream: false, ...body, model }, { headers })
      t.equal(status, 403, `${path} ${model}: ${JSON.stringify(reply).slice(0, 200)}`)
      t.match(JSON.stringify(reply), /forbidden_model/)
      replies.push(withoutIds(reply, model))
    }
    t.same(replies[2], replies[0], `${path}: the error does not reveal whether the model exists`)
  }
  for (const path of ['/ollama/api/chat', '/ollama/v1/chat/completions', '/ollama/api/show']) {
    const ask = async (model: string) => {
      const { status, body } = await corral.json(path, { model, messages, stream: false }, { headers })
      return { status, body: withoutIds(body, model) }
    }
    t.match(await ask('tiny-chat'), { status: 404 })
    t.same(await ask('not-here'), await ask('tiny-chat'), `${path} by a name without an owner`)
  }
  for (const path of ['/v1/models/', '/anthropic/v1/models/', '/ollama/v1/models/']) {
    for (const name of [DEMO, 'corral/not-here']) t.equal(await getStatus(corral, `${path}${name}`, headers), 403, name)
  }
  for (const name of ['tiny-chat', 'not-here']) {
    t.equal(await getStatus(corral, `/ollama/v1/models/${name}`, headers), 404, name)
  }
  for (const [path, body] of [
    ['/api/load', {}],
    ['/api/stop', {}],
    ['/api/default', {}],
    ['/api/delete', {}],
    ['/api/convert', {}],
    ['/api/copy', { source: DEMO, destination: 'lab/stolen' }],
    ['/api/create', { model: 'lab/stolen', from: DEMO }]
  ] as const) {
    const method = path === '/api/delete' ? 'DELETE' : 'POST'
    const { status, body: reply } = await corral.json(path, { model: DEMO, ...body }, { headers: operator, method })
    t.match({ status, reply }, { status: 403, reply: { code: 'forbidden_model' } }, path)
  }
  t.equal(await getStatus(corral, `/api/files/${DEMO}`, operator), 403)

  const answer = await corral.json('/api/chat', { model: 'lab/helper', messages, stream: false }, { headers })
  t.equal(answer.status, 200, 'its own model answers')
  const names = async (path: string, pick: (body: any) => string[]) => {
    const { body } = await corral.json(path, undefined, { headers })
    t.same(pick(body), ['lab/helper'], path)
  }
  await names('/api/tags', ({ models }) => models.map((model: any) => model.name))
  await names('/api/ps', ({ models }) => models.map((model: any) => model.name))
  await names('/ollama/api/tags', ({ models }) => models.map((model: any) => model.name.replace(/:.*/, '')))
  await names('/v1/models', ({ data }) => data.map((model: any) => model.id))
  await names('/anthropic/v1/models', ({ data }) => data.map((model: any) => model.id))
  t.equal(await getStatus(corral, `/v1/models/${DEMO}`, headers), 403)
  t.equal(await getStatus(corral, `/anthropic/v1/models/${DEMO}`, headers), 403)
})

t.test('stored responses of another key cannot be read, continued or deleted', async t => {
  const keys = { victim: await newKey(corral, 'victim'), other: await newKey(corral, 'other') }
  const as = (owner: keyof typeof keys, path: string, body?: object, method?: string) =>
    corral.json(path, body, { ...(method && { method }), ...bearer(keys[owner]) })
  const respond = (owner: keyof typeof keys, more: object) =>
    as(owner, '/v1/responses', { model: DEMO, max_output_tokens: 4, temperature: 0, ...more })

  const { body: mine } = await respond('victim', { input: 'The code of the vault is 4711.' })
  const [item] = (await as('victim', `/v1/responses/${mine.id}/input_items`)).body.data
  t.match(item.content[0].text, 'vault is 4711')

  const reference = { type: 'item_reference', id: item.id }
  const attempts = (id: string): [string, string, object?, string?][] => [
    ['show', `/v1/responses/${id}`],
    ['stream', `/v1/responses/${id}?stream=true`],
    ['its input', `/v1/responses/${id}/input_items`],
    ['cancel', `/v1/responses/${id}/cancel`, {}],
    ['delete', `/v1/responses/${id}`, undefined, 'DELETE'],
    ['continue', '/v1/responses', { model: DEMO, input: 'Which code?', previous_response_id: id }],
    ['count', '/v1/responses/input_tokens', { model: DEMO, input: 'x', previous_response_id: id }]
  ]
  const absent = 'resp_0123456789abcdef0123456789abcdef'
  const withoutId = ({ status, body }: { status: number; body: any }) => ({ status, error: body.error })
  for (const [index, [what, path, body, method]] of attempts(mine.id).entries()) {
    const found = await as('other', path, body, method)
    t.match(found, { status: 404, body: { error: { code: 'response_not_found' } } }, what)
    const [, nowhere, same, how] = attempts(absent)[index]!
    const never = await as('other', nowhere, same && { ...same }, how)
    t.strictSame(withoutId(found), withoutId(never), 'as if it did not exist')
  }
  const quoting = await respond('other', { input: [{ role: 'user', content: 'Which code?' }, reference] })
  const nothing = await respond('other', {
    input: [
      { role: 'user', content: 'Which code?' },
      { ...reference, id: 'msg_0' }
    ]
  })
  t.equal(quoting.status, nothing.status)
  t.not(quoting.status, 200, 'an item of another key does not exist')
  t.notMatch(JSON.stringify(quoting.body), '4711')

  for (let count = 0; count < 5; count++) await respond('other', { input: `Response ${count}` })
  t.equal((await as('victim', `/v1/responses/${mine.id}`)).body.id, mine.id, 'no key evicts the responses of another')
  const { body: next } = await respond('victim', { input: 'Which code?', previous_response_id: mine.id })
  t.equal(next.previous_response_id, mine.id)
  for (let count = 0; count < 3; count++) await respond('victim', { input: `Response ${count}` })
  t.equal((await as('victim', `/v1/responses/${mine.id}`)).status, 404, 'each key stores as many as the limit allows')
})
