import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { localCaller } from '../../../../core/contracts/callers.ts'
import { rotateKey } from '../../../../plugins/people/security/key-file.ts'
import { userIn, userOfPeer } from '../../../../plugins/people/security/peer-user.ts'
import { type LinkUser, SessionStore } from '../../../../plugins/people/security/session-store.ts'
import { type Corral, DEMO, endless, type SendOptions, startCorral, until } from '../../../support/corral.ts'
import { newFolder } from '../../../support/folder.ts'
import { thorough } from '../../../support/thorough.ts'
import { bearer, local, newKey } from '../support.ts'

/** The token of a new link, from after "#open=". */
async function newToken(corral: Corral, init: SendOptions = local, body: object = {}): Promise<string> {
  const reply = await corral.json('/api/sessions/links', body, init)
  if (reply.status !== 200) throw new Error(JSON.stringify(reply))
  return new URL(reply.body.address).hash.replace('#open=', '')
}

const begin = (corral: Corral, token: string, headers: Record<string, string> = {}) =>
  corral.json('/api/sessions', { token }, { headers })

async function newSession(corral: Corral, init?: SendOptions): Promise<string> {
  const { status, body } = await begin(corral, await newToken(corral, init))
  if (status !== 200) throw new Error(JSON.stringify(body))
  return body.key
}

/** Tests without settings or a restart share this server. */
const corral = await startCorral(t)

t.test('a link starts one admin session, once', async t => {
  const link = await corral.json('/api/sessions/links', {}, local)
  t.match(link.body.address, /^http:\/\/127\.0\.0\.1:\d+\/#open=[\w-]{43}$/)
  t.ok(link.body.address.startsWith(`${corral.url}/`), link.body.address)
  const life = Date.parse(link.body.expires_at) - Date.now()
  t.ok(life > 0 && life <= 60_000, `${life} ms`)
  t.match(await corral.json('/api/sessions/links', {}), { status: 403, body: { code: 'forbidden_role' } })

  const token = new URL(link.body.address).hash.slice('#open='.length)
  const all = await Promise.all(Array.from({ length: 20 }, () => begin(corral, token, { origin: corral.url })))
  const [made, ...others] = all.sort((a, b) => a.status - b.status)
  t.match(made, { status: 200, body: { key: /^corral_session_/, role: 'admin' } })
  t.same([...new Set(others.map(({ status, body }) => `${status} ${body.code}`))], ['410 link_ended'])
  const hours = (Date.parse(made!.body.expires_at) - Date.now()) / 3_600_000
  t.ok(hours > 11.9 && hours <= 12, `${hours} hours`)

  const { key } = made!.body
  const who = await corral.json('/api/whoami', undefined, bearer(key))
  t.match(who.body, { role: 'admin', how: 'session', keyless: false, session: { expires_at: made!.body.expires_at } })
  t.notOk('key' in who.body)
  const listed = await corral.json('/api/sessions', undefined, bearer(key, { 'user-agent': 'a page' }))
  t.match(listed.body.sessions, [{ id: who.body.session.id, address: '127.0.0.1' }])
  t.notOk(JSON.stringify(listed.body).includes(key.slice(-43)), 'no credential')

  t.comment('an admin, but not through the private socket')
  const path = '/etc/hostname'
  t.match(await corral.json('/api/import', { model: 'a/b', path }, bearer(key)), {
    status: 403,
    body: { code: 'path_not_allowed' }
  })

  t.comment('the audit log has the request with its session')
  await corral.json('/api/stop', { model: DEMO }, bearer(key))
  const { id } = who.body.session
  const isAudited = async (has: (entry: any) => boolean) =>
    await until('the audit log has it', async () =>
      (await corral.json('/api/audit?limit=100', undefined, local)).body.entries.find(has)
    )
  t.match(await isAudited(({ operation }) => operation === 'stopModel'), { session: id, role: 'admin' })
  t.match(await isAudited(({ event }) => event === 'session_created'), { target: id, by: 'corral open' })

  t.match(await corral.json('/api/sessions/current', undefined, { method: 'DELETE' }), {
    status: 404,
    body: { code: 'session_not_found' }
  })
  t.match(await corral.json('/api/sessions/current', undefined, { method: 'DELETE', ...bearer(key) }), {
    status: 200,
    body: { status: 'ended', session: { id } }
  })
  for (const path of ['/api/whoami', '/api/tags', '/v1/models']) {
    const after = await corral.json(path, undefined, bearer(key))
    t.equal(after.status, 401, `${path}: a stale session is not treated as another caller`)
  }
  t.match((await corral.json('/api/whoami', undefined, bearer(key))).body, { code: 'unauthorized', session: 'ended' })
  t.equal((await corral.json('/api/tags', undefined, bearer('what SDKs send'))).status, 200)
  t.same((await corral.json('/api/sessions', undefined, local)).body.sessions, [])
})

t.test("sessions are limited to the server's own page, even if other origins are allowed", async t => {
  const corral = await startCorral(t, {
    config: 'security:\n  origins: ["*", "null"]\napi-ollama:\n  listen: 127.0.0.1:0\n'
  })
  const { port } = new URL(corral.url)
  const foreign = [
    'https://evil.example',
    'null',
    'http://localhost:3000',
    `http://localhost:${port}`,
    `https://127.0.0.1:${port}`.replace(port, '443'),
    'tauri://localhost',
    'vscode-webview://x'
  ]
  const token = await newToken(corral)
  const session = await newSession(corral)
  for (const origin of foreign) {
    t.equal((await corral.json('/api/tags', undefined, { headers: { origin } })).status, 200, `${origin} may call`)
    const actual = await begin(corral, token, { origin })
    t.match(actual, { status: 403, body: { code: 'origin_not_allowed' } }, `${origin} gets no session`)
    for (const path of ['/api/whoami', '/api/keys', '/api/tags', '/v1/models']) {
      const refused = await corral.json(path, undefined, bearer(session, { origin }))
      t.equal(refused.status, 403, `${origin} cannot use one: ${path}`)
      t.match(JSON.stringify(refused.body), /origin_not_allowed/)
    }
  }
  const proxied = { local: true, headers: { origin: corral.url } }
  t.match(await corral.json('/api/sessions/links', {}, proxied), {
    status: 403,
    body: { code: 'origin_not_allowed' }
  })
  t.equal((await corral.json('/api/sessions', { token }, proxied)).status, 403, 'also through the private socket')
  t.equal((await begin(corral, token, { origin: corral.url })).status, 200, 'those attempts did not use up the link')
  t.equal((await corral.json('/api/keys', undefined, bearer(session, { origin: corral.url }))).status, 200)

  const other = await until('the other listener', () => /served at (http:\/\/[\d.]+:\d+)/.exec(corral.log())?.[1])
  for (const [origin, status] of [
    [other, 200],
    [corral.url, 403]
  ] as const) {
    const reply = await fetch(`${other}/api/tags`, bearer(session, { origin }))
    t.equal(reply.status, status, `at ${other}, of ${origin}`)
    await reply.body?.cancel()
  }
})

t.test('sessions of a key have its rights and end with it', async t => {
  const expires = new Date(Date.now() + 3_600_000).toISOString()
  const root = await newKey(corral, 'root', { role: 'admin', expires })
  const alice = await newKey(corral, 'alice')
  t.match(await corral.json('/api/sessions/links', {}, bearer(alice)), { status: 403 })
  t.equal((await corral.json('/api/sessions/links', {})).status, 401)
  const link = await corral.json('/api/sessions/links', {}, bearer(root, { 'x-forwarded-proto': 'https' }))
  t.ok(link.body.address.startsWith(`${corral.url}/#open=`), 'as it was called')
  const session = await newSession(corral, bearer(root))
  const child = await newSession(corral, bearer(session))
  const byName = await newSession(corral)
  const who = (await corral.json('/api/whoami', undefined, bearer(session))).body
  t.match(who, { how: 'session', role: 'admin', key: { name: 'root' }, session: { expires_at: expires } })
  t.match((await corral.json('/api/whoami', undefined, bearer(child))).body, { session: { expires_at: expires } })
  const [, , made] = (await corral.json('/api/sessions', undefined, local)).body.sessions
  t.match(made, { key: 'root' })

  const waiting = await newToken(corral, bearer(root))
  const chat = await corral.send('/api/chat', endless(DEMO), bearer(child))
  t.equal(chat.status, 200)
  t.equal((await corral.json('/api/keys/root', undefined, { method: 'DELETE', ...local })).status, 200)
  t.match(await chat.text(), /session has ended/, 'its answer ends')
  for (const key of [session, child]) {
    t.match(await corral.json('/api/whoami', undefined, bearer(key)), { status: 401, body: { session: 'ended' } })
  }
  t.match(await begin(corral, waiting), { status: 410, body: { code: 'link_ended' } }, 'so does its link')
  t.match(await corral.json('/api/whoami', undefined, bearer(byName)), { status: 200, body: { role: 'admin' } })

  const [{ id }] = (await corral.json('/api/sessions', undefined, local)).body.sessions
  t.match(await corral.json(`/api/sessions/${id}`, undefined, { method: 'DELETE', ...bearer(alice) }), { status: 403 })
  t.equal((await corral.json(`/api/sessions/${id}`, undefined, { method: 'DELETE', ...local })).status, 200)
  t.match(await corral.json(`/api/sessions/${id}`, undefined, { method: 'DELETE', ...local }), {
    status: 404,
    body: { code: 'session_not_found' }
  })
  t.equal((await corral.json('/api/whoami', undefined, bearer(byName))).status, 401)
})

t.test('a browser stays signed in with its cookie, also after a restart', async t => {
  const corral = await startCorral(t)
  const root = await newKey(corral, 'root', { role: 'admin' })
  const alice = await newKey(corral, 'alice')
  const stay = async (key: string, headers: Record<string, string> = {}) => {
    const reply = await corral.send('/api/sessions/stay', {}, bearer(key, headers))
    const [cookie = ''] = reply.headers.getSetCookie()
    return { status: reply.status, body: (await reply.json()) as any, cookie }
  }
  const refused = await stay(alice, { origin: 'http://localhost:3000' })
  t.match(refused, { status: 403, body: { code: 'origin_not_allowed' }, cookie: '' })
  t.match(await corral.json('/api/sessions/stay', {}, local), { status: 400, body: { error: /no API key/ } })

  const { status, body, cookie } = await stay(alice, { origin: corral.url, 'user-agent': 'a phone' })
  t.match({ status, role: body.role }, { status: 200, role: 'user' })
  t.match(cookie, /^corral_[0-9a-f]{16}=[\w-]{43}; Path=\/; Expires=.* GMT; HttpOnly; SameSite=Strict$/)
  const encrypted = await stay(await newKey(corral, 'carol'), { origin: corral.url.replace('http', 'https') })
  t.match(encrypted.cookie, /; SameSite=Strict; Secure$/)
  const [sent] = cookie.split(';')
  const signedIn = (headers: Record<string, string> = {}) =>
    bearer(body.key, { cookie: `theme=dark; ${sent}`, ...headers })
  const days = (Date.parse(body.expires_at) - Date.now()) / 86_400_000
  t.ok(days > 29.9 && days <= 30, `${days} days`)
  t.match((await corral.json('/api/whoami', undefined, signedIn())).body, { how: 'session', key: { name: 'alice' } })
  t.match(await stay(body.key, { cookie: sent! }), { status: 400, body: { error: /a session already/ } })

  t.comment('half of it is worthless')
  for (const headers of [{ cookie: '' }, { cookie: sent!.replace(/=.*/, `=${'x'.repeat(43)}`) }]) {
    t.match(await corral.json('/api/whoami', undefined, bearer(body.key, headers)), {
      status: 401,
      body: { session: 'ended' }
    })
  }
  t.equal((await corral.json('/api/whoami', undefined, { headers: { cookie: sent! } })).status, 401)
  const foreign = await corral.json('/api/whoami', undefined, signedIn({ origin: 'http://localhost:3000' }))
  t.match(foreign, { status: 403, body: { code: 'origin_not_allowed' } })
  const file = join(corral.home, 'sessions.json')
  t.equal(statSync(file).mode & 0o777, 0o600)
  const text = readFileSync(file, 'utf8')
  for (const secret of [body.key.slice(-43), sent!.split('=')[1]!]) t.notOk(text.includes(secret), 'no secrets')

  t.comment('listed and ended by its owner or an admin')
  const bob = await newKey(corral, 'bob')
  const list = async (key: string) => (await corral.json('/api/sessions', undefined, bearer(key))).body.sessions
  t.match(await list(alice), [{ key: 'alice', user_agent: 'a phone', stays: true }])
  t.same([(await list(bob)).length, (await list(root)).length], [0, 2])
  const [{ id }] = await list(alice)
  t.match(await corral.json(`/api/sessions/${id}`, undefined, { method: 'DELETE', ...bearer(bob) }), { status: 403 })
  const others = [await stay(alice), await stay(bob), await stay(bob), await stay(root)]
  const current = (at: number) => bearer(others[at]!.body.key, { cookie: others[at]!.cookie.split(';')[0]! })
  t.equal((await corral.json('/api/sessions/current', undefined, { method: 'DELETE', ...current(0) })).status, 200)
  const [{ id: last }] = await list(bob)
  t.equal((await corral.json(`/api/sessions/${last}`, undefined, { method: 'DELETE', ...bearer(bob) })).status, 200)
  await corral.json('/api/keys/bob/rotate', {}, local)
  const carol = { cookie: encrypted.cookie.split(';')[0]! }
  t.equal((await corral.json('/api/whoami', undefined, bearer(encrypted.body.key, carol))).status, 200)

  t.equal(await corral.end(), 0)
  await rotateKey(join(corral.home, 'keys.json'), 'carol')
  const next = await startCorral(t, { home: corral.home })
  const whoAt = async (init: SendOptions) => (await next.json('/api/whoami', undefined, init)).status
  t.equal(await whoAt(signedIn()), 200, 'the next day')
  t.same([await whoAt(current(0)), await whoAt(current(1)), await whoAt(current(2))], [401, 401, 401], 'ended ones')
  t.equal(await whoAt(current(3)), 200)
  t.equal(await whoAt(bearer(encrypted.body.key, carol)), 401, 'its key was replaced while the server was down')
  await next.json('/api/keys/alice', undefined, { method: 'DELETE', ...local })
  t.equal(await whoAt(signedIn()), 401, 'its key was revoked')
})

t.test('an admin limits how long browsers stay signed in, and a damaged file only signs out', thorough, async t => {
  const home = newFolder(t)
  writeFileSync(join(home, 'sessions.json'), '{"version":1,"sessions":[{}]}')
  const corral = await startCorral(t, { home, config: 'security:\n  session_days: 0\n' })
  t.match(corral.log(), /sessions\.json cannot be used/)
  const key = await newKey(corral, 'anna')
  t.match(await corral.json('/api/sessions/stay', {}, bearer(key)), {
    status: 400,
    body: { error: /session_days is 0/ }
  })
})

t.test('links cannot be guessed or used by other users', async t => {
  t.comment('for one local user')
  const mine = process.getuid!()
  const foreign = await newToken(corral, local, { uid: mine + 1 })
  t.match(await begin(corral, foreign), { status: 403, body: { code: 'link_refused', error: /--print/ } })
  t.match(corral.log(), /program of another user/)
  const own = await newToken(corral, local, { uid: mine })
  const got = await corral.json('/api/sessions', { token: own }, local)
  t.match(got, { status: 403 }, 'the user of the socket is unknown')
  t.equal((await begin(corral, own)).status, 200, 'a failed attempt does not use it up')

  t.comment('by guessing')
  const token = await newToken(corral)
  for (const [wrong, status] of [
    [{}, 400],
    [{ token: 7 }, 400],
    [{ token: '' }, 410],
    [{ token: 'x'.repeat(5000) }, 413]
  ] as const) {
    t.equal((await corral.json('/api/sessions', wrong)).status, status, JSON.stringify(wrong).slice(0, 30))
  }
  const found: Record<string, number> = {}
  for (let at = 0; at < 100; at++) {
    const { status, body } = await begin(corral, `guess-${at}`)
    found[`${status} ${body.code}`] = (found[`${status} ${body.code}`] ?? 0) + 1
  }
  t.same(Object.keys(found).sort(), ['410 link_ended', '429 rate_limited'])
  t.ok(found['429 rate_limited']! > 30, JSON.stringify(found))
  t.equal((await begin(corral, token)).status, 200, 'a valid one is always accepted')
})

t.test('userOfPeer finds the user at the other end of a connection', async t => {
  const header = '  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode'
  const row = (own: string, other: string, uid: number) =>
    `   0: ${own} ${other} 01 00000000:00000000 00:00000000 00000000  ${uid}        0 12345 1 0 100 0 0 10 0`
  const at = (hex: string, port: number) => ({ hex: [hex], port })
  const table = [
    header,
    row('0100007F:2CAB', '0100007F:C001', 7),
    row('0100007F:C001', '0100007F:2CAB', 1000),
    ''
  ].join('\n')
  t.equal(userIn(table, at('0100007F', 0xc001), at('0100007F', 0x2cab)), 1000)
  t.equal(userIn(table, at('0100007F', 0x2cab), at('0100007F', 0xc001)), 7)
  t.equal(userIn(table, at('0200007F', 0xc001), at('0100007F', 0x2cab)), undefined)
  t.equal(userIn('', at('0100007F', 1), at('0100007F', 2)), undefined)

  const listen = `const s=require('net').createServer(()=>{}).listen(0,process.argv[1],()=>console.log(s.address().port))`
  for (const host of ['127.0.0.1', '::1', '::']) {
    const server = spawn(process.execPath, ['-e', listen, host], { stdio: ['ignore', 'pipe', 'ignore'] })
    t.teardown(() => server.kill('SIGKILL'))
    const [port] = await Promise.race([once(server.stdout, 'data'), once(server, 'exit').then(() => [undefined])])
    if (port === undefined || !/^\d+/.test(String(port))) {
      t.comment(`no ${host} on this machine`)
      continue
    }
    const { connect } = await import('node:net')
    const socket = connect(Number(String(port)), host === '::' ? '127.0.0.1' : host)
    await once(socket, 'connect')
    // Seen from the other end: our remote address is its local address.
    const { remoteAddress, remotePort, localAddress, localPort } = socket
    const mapped = (address: string | undefined) => (host === '::' ? `::ffff:${address}` : address)
    const seen = {
      remoteAddress: mapped(localAddress),
      remotePort: localPort,
      localAddress: mapped(remoteAddress),
      localPort: remotePort
    }
    t.equal(await userOfPeer(seen as never), process.getuid!(), host)
    t.equal(await userOfPeer({ ...seen, remotePort: 1 } as never), undefined)
    socket.destroy()
  }
})

const user: LinkUser = { address: '127.0.0.1', userAgent: 'a\nbrowser', uid: async () => undefined }
const log = { info: () => {}, warn: () => {} }
const noKeys = { callerOf: () => undefined, markOf: () => undefined }

t.test('links and sessions expire and are limited in number', thorough, async t => {
  const told: string[] = []
  const store = new SessionStore(join(newFolder(t), 'sessions.json'), noKeys, log, (change, _id, by) =>
    told.push(`${change} ${by}`)
  )
  t.teardown(() => store.close())
  const { now } = Date
  const moment = performance.now.bind(performance)
  t.teardown(() => {
    Date.now = now
    performance.now = moment
  })

  const late = store.makeLink(localCaller())
  const inTime = store.makeLink(localCaller())
  performance.now = () => moment() + 59_000
  const { key, record } = await store.begin(inTime.token, user)
  t.equal(record.user_agent, 'a\\u000abrowser')
  performance.now = () => moment() + 61_000
  await t.rejects(store.begin(late.token, user), { code: 'link_ended' })

  const { caller } = store.find(key)!
  t.same([caller.role, caller.owner, caller.isLocal, caller.name], ['admin', 'keyless', undefined, undefined])
  t.equal(store.find(`${key.slice(0, -1)}${key.endsWith('A') ? 'B' : 'A'}`), undefined)
  Date.now = () => now() + 12 * 3_600_000 + 60_000
  t.equal(store.find(key), undefined)
  t.equal(caller.revoked?.aborted, true)
  t.match(told, ['session_created corral open', 'session_ended its time'])
  Date.now = now
  performance.now = moment

  const tokens = Array.from({ length: 101 }, () => store.makeLink(localCaller()).token)
  await t.rejects(store.begin(tokens[0]!, user), { code: 'link_ended' }, 'the oldest of too many')
  const keys: string[] = []
  for (const token of tokens.slice(1)) keys.push((await store.begin(token, user)).key)
  keys.push((await store.begin(store.makeLink(localCaller()).token, user)).key)
  t.equal(store.list().length, 100)
  t.equal(store.find(keys[0]!), undefined)
  t.ok(store.find(keys[1]!) && store.find(keys[100]!))
})

t.test('session ends when it or its key expires', thorough, async t => {
  const ended: string[] = []
  const store = new SessionStore(
    join(newFolder(t), 'sessions.json'),
    noKeys,
    log,
    (change, id) => change === 'session_ended' && ended.push(id)
  )
  const key = { ...localCaller(), name: 'brief', expires: new Date(Date.now() + 200).toISOString() }
  const { record } = await store.begin(store.makeLink(key).token, user)
  t.equal(record.expires_at, key.expires)
  await until('its key ends', () => ended.includes(record.id))
  await sleep(0)
  t.same(store.list(), [])
})
