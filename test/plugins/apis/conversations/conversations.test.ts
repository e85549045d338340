import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import { ConversationStore } from '../../../../plugins/apis/conversations/conversation-store.ts'
import { residentMemory } from '../../../../scripts/bench/measuring.ts'
import { type Corral, startCorral } from '../../../support/corral.ts'
import { thorough } from '../../../support/thorough.ts'

const NEVER = new AbortController().signal

/** Requests to the conversations of a key, or of callers without one. */
function client(corral: Corral, key?: string) {
  const authorization = key === undefined ? undefined : `Bearer ${key}`
  const send = (method: string, path: string, body?: object, headers: Record<string, string> = {}) =>
    corral.json(`/api/${path}`, body, {
      method,
      headers: { ...(authorization && { authorization }), ...headers }
    })
  return {
    list: (query = '') => send('GET', `conversations${query}`),
    get: (id: string) => send('GET', `conversations/${id}`),
    delete: (id = '') => send('DELETE', `conversations${id && `/${id}`}`),
    put: (id: string, body: object, headers?: Record<string, string>) =>
      send('PUT', `conversations/${id}`, { title: 'A title', document: { messages: [] }, ...body }, headers),
    share: (id: string, document: unknown) => send('POST', `conversations/${id}/share`, { title: 'A copy', document }),
    shared: (id: string) => send('GET', `shared/${id}`)
  }
}

t.test('a server whose pages store conversations in browsers stores none', thorough, async t => {
  const corral = await startCorral(t)
  const { list, get, put, delete: remove, share, shared } = client(corral)
  const replies = [await list(), await get('one'), await remove(), await put('one', {}), await share('one', {})]
  for (const reply of [...replies, await shared('0'.repeat(32))]) {
    t.match(reply, { status: 404, body: { code: 'conversations_off' } })
  }
  t.notOk(existsSync(join(corral.home, 'conversations')))
})

t.test('conversations are separate for each key and survive a kill', async t => {
  const config = 'web:\n  conversations: server\n  conversation_count: 6\n  conversation_bytes: 100KiB\n'
  const home = t.testdir({})
  let corral = await startCorral(t, { config, home })
  const newKey = async (name: string): Promise<string> =>
    (await corral.json('/api/keys', { name }, { local: true })).body.key
  const key = await newKey('alice')
  let alice = client(corral, key)
  const bobKey = await newKey('bob')
  const bob = client(corral, bobKey)
  const NOT_FOUND = { status: 404, body: { code: 'conversation_not_found' } }

  t.equal((await client(corral).put('one', {})).status, 401)
  const document = { messages: [{ role: 'user', content: 'Grüße an alle' }], odd: [null, 1.5] }
  const made = await alice.put('one', { title: 'First', text: 'Grüße an alle', document })
  t.match(made, { status: 200, body: { id: 'one', title: 'First', version: 1, pinned: false } })
  t.same((await alice.get('one')).body.document, document)

  t.comment('other keys neither see nor change it')
  t.match(await bob.get('one'), NOT_FOUND)
  t.same((await bob.list()).body, { conversations: [], total: 0 })
  t.same((await bob.list('?q=Grüße')).body.total, 0)
  t.match(await bob.delete('one'), NOT_FOUND)
  t.match(await corral.json('/api/conversations/one', undefined, { local: true }), NOT_FOUND, 'not even an admin')
  t.equal((await bob.put('one', { title: "Bob's" })).status, 200)
  t.match((await alice.get('one')).body, { title: 'First' })

  t.comment('a shared copy is for all users of the server, until its owner revokes it')
  t.match(await client(corral, bobKey).share('two', {}), NOT_FOUND)
  const { body: copy } = await alice.share('one', document)
  t.match(copy, { id: /^[0-9a-f]{32}$/, of: 'one', title: 'A copy' })
  t.equal((await client(corral).shared(copy.id)).status, 401)
  t.match(await bob.shared(copy.id), { status: 200, body: { ...copy, document } })
  t.equal((await bob.list('?shared=true')).body.total, 0, 'who can read it does not list it')
  t.match(await bob.delete(copy.id), NOT_FOUND)
  for (const id of ['..%2Fkeys', copy.id.toUpperCase()]) t.equal((await alice.shared(id)).status, 400)
  for (const id of ['one', '0'.repeat(32)]) t.match(await alice.shared(id), NOT_FOUND)
  t.equal((await alice.list()).body.total, 1, 'it is no conversation')
  const { body: second } = await alice.share('one', 2)
  t.match((await alice.list('?shared=true')).body, { conversations: [{ of: 'one' }, { of: 'one' }], total: 2 })
  t.equal((await alice.delete(copy.id)).status, 200)
  t.match(await bob.shared(copy.id), NOT_FOUND)
  t.equal((await bob.shared(second.id)).body.document, 2)
  t.equal((await bob.put(copy.id, {})).status, 200)
  t.match(await alice.shared(copy.id), NOT_FOUND, 'a conversation with such an id is not shared')
  t.equal((await bob.delete(copy.id)).status, 200)

  t.comment('a write must name the current version')
  t.match(await alice.put('one', {}), { status: 409, body: { code: 'conversation_changed', version: 1 } })
  t.match(await alice.put('two', { version: 3 }), NOT_FOUND)
  const races = await Promise.all(
    Array.from({ length: 20 }, (_, at) => alice.put('one', { version: 1, title: `Writer ${at}` }))
  )
  t.same(races.map(({ status }) => status).sort(), [200, ...Array(19).fill(409)])
  const winner = races.find(({ status }) => status === 200)!.body
  t.match((await alice.get('one')).body, { title: winner.title, version: 2 })
  t.match(await alice.put('one', { title: 'Third' }, { 'if-match': '"2"' }), { status: 200, body: { version: 3 } })
  t.equal((await alice.put('one', {}, { 'if-match': 'W/"x"' })).status, 400)

  t.comment('invalid ids')
  for (const id of ['..%2F..%2Fkeys', '.hidden', 'UPPER', 'a'.repeat(65), '%00', 'a%2Fb', '-x', 'ä']) {
    for (const { status } of [await alice.get(id), await alice.delete(id), await alice.put(id, {})]) {
      t.ok([400, 404].includes(status), `${id}: ${status}`)
    }
  }
  t.ok(existsSync(join(home, 'keys.json')))

  t.comment('lists, pages and searches')
  for (const [id, at, pinned] of [
    ['two', 2, false],
    ['con', 3, false],
    ['nul', 1, true]
  ] as const) {
    const updated_at = `2026-01-0${at}T00:00:00Z`
    const reply = await alice.put(id, { title: `No. ${at}`, text: `Number ${at} of MANY`, updated_at, pinned })
    t.equal(reply.status, 200)
  }
  const ids = async (query = '') => (await alice.list(query)).body.conversations.map(({ id }: { id: string }) => id)
  t.same(await ids(), ['nul', 'one', 'con', 'two'])
  t.same(await ids('?limit=2&offset=1'), ['one', 'con'])
  t.same(await ids('?q=many+NUMBER'), ['nul', 'con', 'two'])
  t.same(await ids('?q=no.%203'), ['con'])
  t.equal((await alice.list('?limit=0')).status, 400)

  t.comment('a browser with an old version cannot bring a deleted conversation back')
  t.equal((await alice.put('old', {})).status, 200)
  t.equal((await alice.delete('old')).status, 200)
  const deleted = { code: 'conversation_changed', version: 2, deleted_at: String }
  for (const version of [0, 1]) t.match(await alice.put('old', { version }), { status: 409, body: deleted })

  t.comment('quotas')
  const overLimit = (limit: string) => ({ status: 400, body: { code: 'over_limit', limit } })
  t.equal((await alice.put('five', { text: 'x'.repeat(50_000) })).status, 200)
  t.match(await alice.put('six', {}), overLimit('web.conversation_count'))
  const large = { version: 1, document: 'x'.repeat(60_000) }
  t.match(await alice.put('two', large), overLimit('web.conversation_bytes'))
  t.match((await alice.get('two')).body, { title: 'No. 2', version: 1 }, 'the stored version is unchanged')
  t.equal((await bob.put('six', {})).status, 200, 'each key has its own quota')
  t.match(await bob.share('six', 'x'.repeat(110_000)), overLimit('web.conversation_bytes'))
  for (let at = 0; at < 4; at++) t.equal((await bob.share('six', {})).status, 200)
  t.match(await bob.share('six', {}), overLimit('web.conversation_count'))
  t.equal((await alice.put('five', { version: 1 })).status, 200, 'a smaller version frees space')

  t.comment('a kill during writes')
  let version = 1
  const sent: Promise<unknown>[] = []
  for (let at = 0; at < 30; at++) {
    const reply = alice.put('two', { version: at + 1, text: 'y'.repeat(30_000) })
    const note = ({ body }: { body: { version?: number } }) => {
      version = Math.max(version, body.version ?? 0)
    }
    sent.push(reply.then(note, () => undefined))
    if (at === 20) await sent[5]
  }
  await corral.end('SIGKILL')
  await Promise.all(sent)
  const all = join(home, 'conversations')
  const place = join(all, readdirSync(all).find(name => existsSync(join(all, name, 'c-con.json')))!)
  t.equal(statSync(place).mode & 0o777, 0o700)
  t.equal(statSync(join(place, 'c-con.json')).mode & 0o777, 0o600)
  writeFileSync(join(place, 'c-con.json.123456'), 'torn')
  corral = await startCorral(t, { config, home })
  alice = client(corral, key)
  const { body } = await alice.get('two')
  t.ok(body.version >= version && body.document, `version ${body.version}, ${version} was acknowledged`)
  t.same((await ids()).sort(), ['con', 'five', 'nul', 'one', 'two'])
  t.notOk(existsSync(join(place, 'c-con.json.123456')))
  t.match(await alice.put('old', {}), { status: 409, body: deleted }, 'deletions survive a restart')
  t.equal((await alice.delete('con')).status, 200)
  t.equal((await alice.shared(second.id)).body.document, 2, 'copies survive a restart')
  t.match((await alice.list('?shared=true')).body.conversations, [{ id: second.id, of: 'one' }])
  t.match(await alice.put('old', { version: 2 }), { status: 200, body: { version: 3 } }, 'restored')
  t.match((await alice.get('old')).body, { version: 3 })

  t.comment('deleting all conversations, and revoking a key')
  const bobAgain = client(corral, bobKey)
  t.equal((await bobAgain.list('?shared=true')).body.total, 4)
  t.match(await bobAgain.delete(), { body: { status: 'deleted', count: 2 } })
  t.equal((await bobAgain.list('?shared=true')).body.total, 0)
  t.equal((await alice.delete('one')).status, 200)
  const { body: third } = await alice.share('two', 3)
  t.match(await bobAgain.shared(second.id), NOT_FOUND)
  t.equal((await bobAgain.shared(third.id)).body.document, 3)
  t.equal((await alice.list()).body.total, 4)
  t.equal((await corral.json('/api/keys/alice', undefined, { method: 'DELETE', local: true })).status, 200)
  t.match(await bobAgain.shared(third.id), NOT_FOUND)
  const again = client(corral, await newKey('alice'))
  t.equal((await again.list()).body.total, 0, 'a new key with the same name starts empty')
})

t.test('searches and replies of large conversations need little memory', thorough, async t => {
  const corral = await startCorral(t, { config: 'web:\n  conversations: server\n' })
  const { put } = client(corral)
  const MIB = 2 ** 20
  const long = 'lorem ipsum '.repeat((5 * MIB) / 12)
  for (let at = 0; at < 4; at++) {
    t.equal((await put(`c${at}`, { text: `${long}needle${at}`, document: long })).status, 200)
  }
  /** Measures by how many MiB the memory of the server grows at most during some work. */
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
  t.equal((await search('needle0')).status, 200, 'later searches are answered')

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
  t.ok(unread < 100, `${Math.round(unread)} MiB for 40 unread replies of 5 MiB`)
  t.equal((await corral.json('/api/conversations/c2')).body.document, long)
  t.equal((await corral.send('/api/conversations/c2', undefined, { method: 'HEAD' })).status, 200)
})

t.test('an unusable file is reported and left unchanged', async t => {
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
