import { readdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { boundedCopy } from '../../../../plugins/people/audit/captures/bounded-copy.ts'
import { LineLog } from '../../../../plugins/people/audit/line-log.ts'
import {
  beginReading,
  CAPITAL_ANSWER,
  CAPITAL_QUESTION,
  type Corral,
  DEMO,
  endlessHosted,
  startCorral,
  until
} from '../../../support/corral.ts'
import { bearer, local, newKey } from '../support.ts'

const messages = [CAPITAL_QUESTION]
const begin = async (corral: Corral, wanted: object) =>
  (await corral.json('/api/captures', { for: '5m', ...wanted }, local)).body
const listed = async (corral: Corral, id: string) =>
  (await corral.json('/api/captures', undefined, local)).body.captures.find((each: any) => each.id === id)
const records = async (corral: Corral, id: string): Promise<any[]> =>
  (await (await corral.send(`/api/captures/${id}`, undefined, local)).text())
    .split('\n')
    .filter(line => line !== '')
    .map(line => JSON.parse(line))

const corral = await startCorral(t)

t.test('capture records requests and answers of one key only', async t => {
  const { headers: alice } = bearer(await newKey(corral, 'alice'))
  const { headers: bob } = bearer(await newKey(corral, 'bob'))
  const ask = async (headers: Record<string, string>, more = {}) => {
    const response = await corral.send('/v1/chat/completions', { model: DEMO, messages, ...more }, { headers })
    await response.text()
    return response.headers.get('x-corral-captured')
  }
  t.equal(await ask(alice), null, 'nothing is captured by default')
  for (const [wanted, code] of [
    [{ for: '1m' }, 'invalid_option'],
    [{ key: 'eve', for: '1m' }, 'key_not_found'],
    [{ key: 'bob', for: '25h' }, 'invalid_option'],
    [{ model: 'a/b', for: '1m' }, 'model_not_found']
  ] as const) {
    t.match(await corral.json('/api/captures', wanted, local), { body: { code } }, JSON.stringify(wanted))
  }
  t.equal((await corral.json('/api/captures', { key: 'bob', for: '1m' }, { headers: alice })).status, 403)
  const { id } = await begin(corral, { key: 'alice' })

  t.equal(await ask(alice), '1')
  t.equal(await ask(alice, { stream: true }), '1', 'also for answers that are passed through as bytes')
  t.equal(await ask(bob), null)
  await ask(alice, { messages: [{ role: 'user', content: 'A'.repeat(100_000) }] })
  await corral.json('/v1/embeddings', { model: DEMO, input: ['one', 'two'] }, { headers: alice })

  const all = await until('four records', async () => {
    const found = await records(corral, id)
    return found.length === 4 && found
  })
  const said = { key: 'alice', model: DEMO, body: { messages }, answer: [{ content: CAPITAL_ANSWER, finish: 'stop' }] }
  t.match(all, [
    { ...said, surface: 'api-openai', operation: 'chat', status: 200, tokens: { out: Number } },
    said,
    { status: 400, answer: [], cut: true, body: { messages: [{ content: '(100000 characters of a file)' }] } },
    { operation: 'embeddings', body: { input: ['one', 'two'] }, answer: [] }
  ])
  const folder = join(corral.home, 'logs', 'captures')
  t.equal(statSync(folder).mode & 0o777, 0o700)
  for (const file of readdirSync(folder)) t.equal(statSync(join(folder, file)).mode & 0o777, 0o600)
  t.match(corral.log(), /Capture c\w+ of key alice has started/)
  t.equal((await corral.json('/api/captures', undefined, { headers: alice })).status, 403)
  t.match(await corral.json('/api/captures/..%2fc', undefined, local), {
    status: 404,
    body: { code: 'capture_not_found' }
  })

  t.match(await corral.json(`/api/captures/${id}/stop`, {}, local), { body: { endReason: 'stopped', records: 4 } })
  t.equal(await ask(alice), null)
  const audit = (await corral.json('/api/audit', undefined, local)).body.entries
  const events = audit.map(({ event, operation }: any) => event ?? operation)
  for (const each of ['capture_started', 'getCapture', 'capture_ended'])
    t.ok(events.includes(each), `${each} is audited`)
  await corral.json(`/api/captures/${id}`, undefined, { ...local, method: 'DELETE' })
  t.same(readdirSync(folder), [])
})

t.test('capture of a model ends by size, key, time or server stop', async t => {
  const endOf = (id: string) =>
    until('the capture has ended', async () => {
      const capture = await listed(corral, id)
      return capture.endedAt && capture
    })
  const { id: small } = await begin(corral, { model: DEMO, max_bytes: 1000 })
  const long = [{ role: 'user', content: 'word '.repeat(100) }]
  for (let at = 0; at < 3; at++) await corral.json('/api/chat', { model: DEMO, messages: long }, local)
  const full = await endOf(small)
  t.equal(full.endReason, 'size')
  t.ok(full.bytes <= 1000)
  const { id: short } = await begin(corral, { model: DEMO, for: 0.2 })
  t.equal((await endOf(short)).endReason, 'time')

  const anna = bearer(await newKey(corral, 'anna'))
  const { id: ofAnna } = await begin(corral, { key: 'anna' })
  await corral.json('/api/keys/anna/rotate', {}, local)
  t.notOk((await listed(corral, ofAnna)).endedAt, 'it continues with the new key')
  const { headers } = bearer(await newKey(corral, 'carol'))
  const { id: ofCarol } = await begin(corral, { key: 'carol' })
  const answer = await corral.send('/v1/chat/completions', endlessHosted(DEMO), { headers })
  await beginReading(answer)
  await corral.json('/api/keys/carol', undefined, { ...local, method: 'DELETE' })
  const cut = await until('the record of the interrupted answer', async () => (await records(corral, ofCarol))[0])
  t.match(cut, { key: 'carol', status: 401, code: 'unauthorized', answer: [{ content: String }] })
  t.match(await listed(corral, ofCarol), { endReason: 'key_revoked' })
  t.equal((await corral.json('/api/tags', undefined, anna)).status, 401)

  await corral.end('SIGKILL')
  const again = await startCorral(t, { home: corral.home })
  t.match(await listed(again, ofAnna), { endReason: 'restart' })
  t.match(again.log(), new RegExp(`Capture ${ofAnna} of key anna has ended \\(restart\\)`))
  t.equal((await records(again, ofCarol)).length, 1, 'written records are kept')
})

t.test('copying a value costs as much as is kept of it', async t => {
  const budget = (left: number) => ({ left, cut: false })
  const whole = budget(1000)
  const value = { a: [1, 'two', null, { b: true }] }
  t.same(JSON.parse(JSON.stringify(boundedCopy(value, whole))), value)
  t.notOk(whole.cut)
  const some = budget(100)
  const many = { list: Array.from({ length: 1_000_000 }, (_, at) => `text ${at}`), rest: 'x' }
  t.ok(JSON.stringify(boundedCopy(many, some)).length < 400)
  t.ok(some.cut)
  const text = boundedCopy('z'.repeat(3000), budget(10)) as string
  t.equal(text, `${'z'.repeat(10)}…`)
  t.equal((boundedCopy(JSON.parse('{"__proto__": {"a": 1}}'), budget(100)) as any).a, undefined)
})

/** A log in a folder, and what it says. */
function open(folder: string) {
  const said: string[] = []
  const say = (line: string) => void said.push(line)
  const limits = { maxSize: 1e6, keep: 1, maxFiles: 1 }
  return { lines: new LineLog(folder, limits, { info: say, error: say } as never, lost => `lost ${lost}`), said }
}

t.test('close writes lines that arrive while it writes', async t => {
  const folder = t.testdir()
  const { lines, said } = open(folder)
  lines.push('first')
  const closed = lines.close()
  setImmediate(() => lines.push('second'))
  await closed
  lines.push('third')
  t.equal(readFileSync(join(folder, 'audit.jsonl'), 'utf8'), 'first\nsecond\nthird\n')
  t.same(said, [])
})

t.test('close reports how many lines were lost', async t => {
  for (const [count, text] of [
    [1, '1 line was lost: '],
    [2, '2 lines were lost: ']
  ] as const) {
    const { lines, said } = open(join(t.testdir({ file: '' }), 'file'))
    for (let index = 0; index < count; index++) lines.push('line')
    await lines.close()
    t.ok(said.at(-1)?.startsWith(text), String(said.at(-1)))
  }
})
