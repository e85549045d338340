import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import { ConversationStore } from '../../../plugins/page/conversation-store.ts'
import { residentMemory } from '../../../scripts/bench/measuring.ts'
import { type Corral, startCorral } from '../../support/corral.ts'

const bearer = (key: string, more: Record<string, string> = {}) => ({
  headers: { authorization: `Bearer ${key}`, ...more }
})
const put = (corral: Corral, id: string, body: object, init: { headers?: Record<string, string> } = {}) =>
  corral.json(
    `/api/conversations/${id}`,
    { title: 'A title', document: { messages: [] }, ...body },
    { method: 'PUT', ...init }
  )
const NEVER = new AbortController().signal

t.test('where browsers keep them, the server keeps none', async t => {
  const corral = await startCorral(t)
  for (const [path, method] of [
    ['/api/conversations', 'GET'],
    ['/api/conversations/one', 'GET'],
    ['/api/conversations', 'DELETE']
  ] as const) {
    t.match(await corral.json(path, undefined, { method }), { status: 404, body: { code: 'conversations_off' } })
  }
  t.match(await put(corral, 'one', {}), { status: 404, body: { code: 'conversations_off' } })
  t.notOk(existsSync(join(corral.home, 'conversations')))
})

t.test('conversations of keys, on a server that is killed in between', async t => {
  const config = 'web:\n  conversations: server\n  conversation_count: 5\n  conversation_bytes: 100KiB\n'
  const home = t.testdir({})
  let corral = await startCorral(t, { config, home })
  const keyOf = async (name: string) =>
    bearer((await corral.json('/api/keys', { name }, { local: true })).body.key as string)
  const [alice, bob] = [await keyOf('alice'), await keyOf('bob')]

  t.equal((await put(corral, 'one', {})).status, 401)
  const document = { messages: [{ role: 'user', content: 'Grüße an alle' }], odd: [null, 1.5] }
  const made = await put(corral, 'one', { title: 'First', text: 'Grüße an alle', document }, alice)
  t.match(made, { status: 200, body: { id: 'one', title: 'First', version: 1, pinned: false } })
  t.same((await corral.json('/api/conversations/one', undefined, alice)).body.document, document)

  t.comment('others see nothing of it, and have ids of their own')
  t.match(await corral.json('/api/conversations/one', undefined, bob), {
    status: 404,
    body: { code: 'conversation_not_found' }
  })
  t.same((await corral.json('/api/conversations', undefined, bob)).body, { conversations: [], total: 0 })
  t.same((await corral.json('/api/conversations?q=Grüße', undefined, bob)).body.total, 0)
  t.match(await corral.json('/api/conversations/one', undefined, { method: 'DELETE', ...bob }), { status: 404 })
  t.match(await corral.json('/api/conversations/one', undefined, { local: true }), { status: 404 }, 'an admin neither')
  t.equal((await put(corral, 'one', { title: "Bob's" }, bob)).status, 200)
  t.match((await corral.json('/api/conversations/one', undefined, alice)).body, { title: 'First' })

  t.comment('nobody overwrites what they have not seen')
  t.match(await put(corral, 'one', {}, alice), { status: 409, body: { code: 'conversation_changed', version: 1 } })
  t.match(await put(corral, 'two', { version: 3 }, alice), { status: 404, body: { code: 'conversation_not_found' } })
  const races = await Promise.all(
    Array.from({ length: 20 }, (_, at) => put(corral, 'one', { version: 1, title: `Writer ${at}` }, alice))
  )
  t.same(races.map(({ status }) => status).sort(), [200, ...Array(19).fill(409)])
  const winner = races.find(({ status }) => status === 200)!.body
  t.match((await corral.json('/api/conversations/one', undefined, alice)).body, { title: winner.title, version: 2 })
  const matched = { headers: { ...alice.headers, 'if-match': '"2"' } }
  t.match(await put(corral, 'one', { title: 'Third' }, matched), { status: 200, body: { version: 3 } })
  t.equal((await put(corral, 'one', {}, { headers: { ...alice.headers, 'if-match': 'W/"x"' } })).status, 400)

  t.comment('ids')
  for (const id of ['..%2F..%2Fkeys', '.hidden', 'UPPER', 'a'.repeat(65), '%00', 'a%2Fb', '-x', 'ä']) {
    for (const method of ['GET', 'DELETE']) {
      const { status } = await corral.json(`/api/conversations/${id}`, undefined, { method, ...alice })
      t.ok([400, 404].includes(status), `${method} ${id}: ${status}`)
    }
    t.ok([400, 404].includes((await put(corral, id, {}, alice)).status), id)
  }
  t.ok(existsSync(join(home, 'keys.json')))

  t.comment('lists, pages and searches')
  for (const [id, at, pinned] of [
    ['two', 2, false],
    ['con', 3, false],
    ['nul', 1, true]
  ] as const) {
    const updated_at = `2026-01-0${at}T00:00:00Z`
    t.equal(
      (await put(corral, id, { title: `No. ${at}`, text: `Number ${at} of MANY`, updated_at, pinned }, alice)).status,
      200
    )
  }
  const ids = async (query: string) =>
    (await corral.json(`/api/conversations${query}`, undefined, alice)).body.conversations.map(({ id }: any) => id)
  t.same(await ids(''), ['nul', 'one', 'con', 'two'])
  t.same(await ids('?limit=2&offset=1'), ['one', 'con'])
  t.same(await ids('?q=many+NUMBER'), ['nul', 'con', 'two'])
  t.same(await ids('?q=no.%203'), ['con'])
  t.equal((await corral.json('/api/conversations?limit=0', undefined, alice)).status, 400)

  t.comment('a deleted conversation is not made again by a browser that has not heard of it')
  t.equal((await put(corral, 'old', {}, alice)).status, 200)
  t.equal((await corral.json('/api/conversations/old', undefined, { method: 'DELETE', ...alice })).status, 200)
  for (const version of [0, 1]) {
    t.match(await put(corral, 'old', { version }, alice), {
      status: 409,
      body: { code: 'conversation_changed', version: 2, deleted_at: String }
    })
  }

  t.comment('quotas')
  t.equal((await put(corral, 'five', { text: 'x'.repeat(50_000) }, alice)).status, 200)
  t.match(await put(corral, 'six', {}, alice), {
    status: 400,
    body: { code: 'over_limit', limit: 'web.conversation_count' }
  })
  t.match(await put(corral, 'two', { version: 1, document: 'x'.repeat(60_000) }, alice), {
    status: 400,
    body: { code: 'over_limit', limit: 'web.conversation_bytes' }
  })
  t.match(
    (await corral.json('/api/conversations/two', undefined, alice)).body,
    { title: 'No. 2', version: 1 },
    'as before'
  )
  t.equal((await put(corral, 'six', {}, bob)).status, 200, "another key's are not counted")
  t.equal((await put(corral, 'five', { version: 1 }, alice)).status, 200, 'smaller ones make room')

  t.comment('killed while it writes')
  let version = 1
  const sent: Promise<unknown>[] = []
  for (let at = 0; at < 30; at++) {
    sent.push(
      put(corral, 'two', { version: at + 1, text: 'y'.repeat(30_000) }, alice).then(
        ({ body }) => {
          version = Math.max(version, body.version ?? 0)
        },
        () => undefined
      )
    )
    if (at === 20) await sent[5]
  }
  await corral.end('SIGKILL')
  await Promise.all(sent)
  const [folder] = readdirSync(join(home, 'conversations')).filter(name =>
    existsSync(join(home, 'conversations', name, 'c-con.json'))
  )
  const place = join(home, 'conversations', folder!)
  t.equal(statSync(place).mode & 0o777, 0o700)
  t.equal(statSync(join(place, 'c-con.json')).mode & 0o777, 0o600)
  writeFileSync(join(place, 'c-con.json.123456'), 'torn')
  corral = await startCorral(t, { config, home })
  const { body } = await corral.json('/api/conversations/two', undefined, alice)
  t.ok(body.version >= version && body.document, `version ${body.version}, ${version} was acknowledged`)
  t.same((await ids('')).sort(), ['con', 'five', 'nul', 'one', 'two'])
  t.notOk(existsSync(join(place, 'c-con.json.123456')))
  t.match(
    await put(corral, 'old', {}, alice),
    { status: 409, body: { deleted_at: String } },
    'a restart forgets nothing'
  )
  t.equal((await corral.json('/api/conversations/con', undefined, { method: 'DELETE', ...alice })).status, 200)
  t.match(await put(corral, 'old', { version: 2 }, alice), { status: 200, body: { version: 3 } }, 'it is brought back')
  t.match((await corral.json('/api/conversations/old', undefined, alice)).body, { version: 3 })

  t.comment('the end of a key, and of all')
  t.match(await corral.json('/api/conversations', undefined, { method: 'DELETE', ...bob }), {
    body: { status: 'deleted', count: 2 }
  })
  t.equal((await corral.json('/api/conversations', undefined, alice)).body.total, 5)
  t.equal((await corral.json('/api/keys/alice', undefined, { method: 'DELETE', local: true })).status, 200)
  const again = await keyOf('alice')
  t.equal(
    (await corral.json('/api/conversations', undefined, again)).body.total,
    0,
    'a new key of that name is another'
  )
})

t.test('searches and replies of large conversations take little memory', async t => {
  const corral = await startCorral(t, { config: 'web:\n  conversations: server\n' })
  const MIB = 2 ** 20
  const long = 'lorem ipsum '.repeat((5 * MIB) / 12)
  for (let at = 0; at < 4; at++) {
    t.equal((await put(corral, `c${at}`, { text: `${long}needle${at}`, document: long })).status, 200)
  }
  /** Memory of the server at most while something is done, in MiB more than before it. */
  const memoryWhile = async (work: () => Promise<void>) => {
    const rss = residentMemory(corral.process.pid!)
    let most = rss
    const timer = setInterval(() => {
      most = Math.max(most, residentMemory(corral.process.pid!))
    }, 20)
    await work()
    clearInterval(timer)
    return most - rss
  }
  const search = (words: string) => corral.send(`/api/conversations?q=${words}`)
  const one = await memoryWhile(async () => {
    t.match(await (await search('ipsum+needle3')).json(), { conversations: [{ id: 'c3' }], total: 1 })
  })
  const many = await memoryWhile(async () => {
    const replies = await Promise.all(Array.from({ length: 60 }, () => search('zzzz')))
    const refused = replies.filter(({ status }) => status === 429)
    t.ok(refused.length >= 50 && refused.length < 60, `${refused.length} of 60 are refused`)
    t.ok(refused.every(({ headers }) => Number(headers.get('retry-after')) > 0))
    for (const reply of replies) await reply.text()
  })
  t.ok(many < one + 64, `${Math.round(many)} MiB for 60 searches, ${Math.round(one)} for one`)
  t.equal((await search('needle0')).status, 200, 'later ones are answered')

  const unread = await memoryWhile(async () => {
    const { port } = new URL(corral.url)
    const sockets = Array.from({ length: 40 }, (_, at) => {
      const socket = connect(Number(port), '127.0.0.1').on('error', () => undefined)
      socket.write(`GET /api/conversations/c${at % 4} HTTP/1.1\r\nHost: localhost\r\n\r\n`)
      return socket.once('readable', () => undefined).pause()
    })
    await Promise.all(sockets.map(socket => once(socket, 'readable')))
    await search('needle1')
    for (const socket of sockets) socket.destroy()
  })
  t.ok(unread < 100, `${Math.round(unread)} MiB for 40 replies of 5 MiB that nobody reads`)
  t.equal((await corral.json('/api/conversations/c2')).body.document, long)
  t.equal((await corral.send('/api/conversations/c2', undefined, { method: 'HEAD' })).status, 200)
})

t.test('a file that cannot be used is left alone', async t => {
  const home = t.testdir({ 'key-1': { 'c-bad.json': '{"format":2}\n{}\n', 'c-good.json': '' } })
  const errors: string[] = []
  const log = { error: (_: unknown, text: string) => errors.push(text) } as never
  const store = new ConversationStore(home, () => ({ count: 10, bytes: 1e9 }), log)
  t.same(await store.list('key:1', '', NEVER), [])
  t.equal(errors.length, 2)
  t.equal(readFileSync(join(home, 'key-1', 'c-bad.json'), 'utf8'), '{"format":2}\n{}\n')
  const next = {
    title: '',
    pinned: false,
    updated_at: '2026-01-01T00:00:00.000Z',
    text: '',
    document: 'z'.repeat(17 * 2 ** 20)
  }
  await t.rejects(store.put('key:1', 'large', 0, next), { code: 'over_limit' })
})
