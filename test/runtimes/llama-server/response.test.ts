import t from 'tap'
import { InvalidResponse, ResponseReader } from '../../../core/system/http-response.ts'
import { ResponseBody, readText } from '../../../core/system/response-body.ts'
import { readFixture } from '../../support/fixture.ts'

/** Reads a response in pieces that end at these offsets, from memory that is reused for each piece. */
function read(text: string, ends: readonly number[] = []) {
  const bytes = Buffer.from(text, 'latin1')
  const reader = new ResponseReader()
  const memory = Buffer.alloc(bytes.length)
  const pieces: Buffer[] = []
  let at = 0
  for (const end of [...ends, bytes.length]) {
    memory.fill('?')
    const size = bytes.copy(memory, 0, at, end)
    reader.push(memory.subarray(0, size), data => pieces.push(Buffer.from(data)) > 0)
    at = end
  }
  const complete = reader.complete
  return { status: reader.head?.status, body: Buffer.concat(pieces).toString('latin1'), complete, ended: reader.end() }
}

const CHUNKED = 'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n'
const cases = readFixture<{
  responses: { what: string; text: string; expected: object }[]
  malformed: [what: string, text: string][]
}>('engine-responses.yaml')

t.test('the response reader reads responses in one piece, byte by byte, and split at every place', t => {
  for (const { what, text: given, expected } of cases.responses) {
    const text = given.replace('CHUNKED', CHUNKED)
    t.match(read(text), expected, what)
    const places = Array.from(text, (_, at) => at)
    t.match(read(text, places), expected, `${what}, byte by byte`)
    const wrong = places.filter(at => {
      const { body, status } = read(text, [at])
      const whole = read(text)
      return body !== whole.body || status !== whole.status
    })
    t.same(wrong, [], `${what}, in two pieces`)
  }
  t.end()
})

t.test('the response reader uses no bytes after the end', t => {
  const reader = new ResponseReader()
  const events = ['data: 1\n\n', 'data: 2\n\n', 'data: [DONE]\n\n']
  const chunks = events.map(event => `${event.length.toString(16)}\r\n${event}\r\n`).join('')
  const whole = `${CHUNKED}${chunks}0\r\n\r\n`
  const pieces: string[] = []
  const take = (data: Buffer) => pieces.push(data.toString()) > 0
  t.equal(reader.push(Buffer.from(`${whole}9\r\n`), take), whole.length)
  t.same(pieces, events)
  t.equal(reader.push(Buffer.from('9\r\n'), take), 0)
  t.end()
})

const long = (length: number) => 'x'.repeat(length)
const LONG: [what: string, text: string][] = [
  ['an endless head', `HTTP/1.1 200 OK\r\nX: ${long(2 ** 17)}`],
  ['a head that is too long', `HTTP/1.1 200 OK\r\nX: ${long(2 ** 17)}\r\n\r\n`],
  ['an endless size', `CHUNKED5;${long(2 ** 17)}`]
]

t.test('the response reader rejects malformed responses, however they are split', t => {
  for (const [what, given] of [...cases.malformed, ...LONG]) {
    const text = given.replace('CHUNKED', CHUNKED)
    t.throws(() => read(text), InvalidResponse, what)
    const step = Math.max(1, Math.ceil(text.length / 2000))
    const places = Array.from({ length: Math.ceil(text.length / step) }, (_, at) => at * step)
    t.throws(() => read(text, places), InvalidResponse, `${what}, bit by bit`)
  }
  t.end()
})

t.test('no input makes the reader throw another error or run forever', t => {
  const parts = [
    'HTTP/1.1 200 OK\r\n',
    'Transfer-Encoding: chunked\r\n',
    'Content-Length: 3\r\n',
    '\r\n',
    '5\r\n',
    '\n',
    'Hello',
    '0',
    '\0',
    'ÿ'
  ]
  let seed = 1
  const next = (most: number) => {
    seed = (seed * 48271) % 2147483647
    return seed % most
  }
  let refused = 0
  for (let round = 0; round < 5000; round++) {
    const text = Array.from(
      { length: 1 + next(12) },
      (_, at) => parts[at === 0 && next(4) > 0 ? 0 : next(parts.length)]
    ).join('')
    try {
      read(text, [next(text.length + 1)])
    } catch (error) {
      if (!(error instanceof InvalidResponse)) throw error
      refused++
    }
  }
  t.ok(refused > 0 && refused < 5000, `${refused} refused`)
  t.end()
})

/** A connection that records all calls. */
function source() {
  const done: string[] = []
  return {
    done,
    pause: () => done.push('pause'),
    resume: () => done.push('resume'),
    destroy: () => done.push('destroy')
  }
}

t.test('the response reader fetches at most one piece ahead of the reader', async t => {
  const { done, ...connection } = source()
  const body = new ResponseBody(connection)
  body.push(Buffer.from('a'))
  t.same(done, [], 'most readers are ready at once')
  body.push(Buffer.from('b'))
  body.push(Buffer.from('c'))
  t.same(done, ['pause'])
  const taken: string[] = []
  let goOn = () => {}
  const end = body.consume(chunk => {
    taken.push(chunk.toString())
    return new Promise(resolve => {
      goOn = resolve
    })
  })
  t.same(taken, ['a'], 'the next piece waits for the reader')
  for (const expected of [
    ['a', 'b'],
    ['a', 'b', 'c']
  ]) {
    goOn()
    await new Promise(setImmediate)
    t.same(taken, expected)
  }
  t.same(done, ['pause'], 'the reader still has one')
  goOn()
  await new Promise(setImmediate)
  t.same(done, ['pause', 'resume'])
  body.push(Buffer.from('d'))
  body.end()
  goOn()
  await end
  t.same(taken, ['a', 'b', 'c', 'd'])
  t.same(done, ['pause', 'resume'])
})

t.test('the response reader reports failures of a body', async t => {
  const failed = new ResponseBody(source())
  failed.push(Buffer.from('a'))
  failed.fail(new Error('broken'))
  failed.push(Buffer.from('b'))
  await t.rejects(readText(failed), { message: 'broken' }, 'also before anyone reads it')

  for (const take of [
    () => Promise.reject(new Error('full')),
    () => {
      throw new Error('full')
    }
  ]) {
    const { done, ...connection } = source()
    const body = new ResponseBody(connection)
    body.push(Buffer.from('a'))
    await t.rejects(body.consume(take), { message: 'full' })
    t.same(done, ['destroy'], 'the connection is closed')

    const whole = new ResponseBody(source())
    whole.push(Buffer.from('a'))
    whole.end()
    await t.rejects(whole.consume(take), { message: 'full' }, 'also when all of it had arrived')
  }

  const ended = new ResponseBody(source())
  ended.push(Buffer.from('a'))
  ended.end()
  t.equal(await readText(ended), 'a')
  ended.fail(new Error('late'))

  const { done, ...connection } = source()
  const cancelled = new ResponseBody(connection)
  const reading = readText(cancelled)
  cancelled.cancel()
  await t.rejects(reading, { message: /interrupted/ })
  t.same(done, ['destroy'])
})
