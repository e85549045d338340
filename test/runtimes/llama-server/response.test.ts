import t from 'tap'
import { ResponseBody, readText } from '../../../runtimes/llama-server/response-body.ts'
import { MalformedResponse, ResponseReader } from '../../../runtimes/llama-server/response-reader.ts'

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
    pieces.push(reader.push(memory.subarray(0, size)))
    at = end
  }
  const complete = reader.complete
  return { status: reader.status, body: Buffer.concat(pieces).toString('latin1'), complete, ended: reader.end() }
}

const CHUNKED = 'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n'
const RESPONSES: [what: string, text: string, expected: object][] = [
  [
    'chunks',
    `${CHUNKED}5\r\nHello\r\n1;name=value\r\n,\r\nB\r\n you\r\nthere\r\n0\r\n\r\n`,
    { status: 200, body: 'Hello, you\r\nthere', complete: true }
  ],
  [
    'chunks with a trailer and more than a response after it',
    `${CHUNKED}00a \r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\nHTTP/1.1 500`,
    { status: 200, body: '0123456789', complete: true }
  ],
  [
    'a body with a length',
    'HTTP/1.1 404 \r\ncontent-LENGTH:\t5 \r\nX: a:b\r\n\r\nHellomore',
    { status: 404, body: 'Hello', complete: true }
  ],
  ['no body', 'HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n', { status: 200, body: '', complete: true }],
  ['a status without a body', 'HTTP/1.1 204\r\nConnection: close\r\n\r\n', { status: 204, body: '', complete: true }],
  [
    'a body until the connection ends',
    'HTTP/1.0 500 Internal\r\n\r\nHello',
    { status: 500, body: 'Hello', complete: false, ended: true }
  ],
  [
    'a provisional answer before the real one',
    'HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nOK',
    { status: 200, body: 'OK', complete: true }
  ],
  ['interrupted chunks', `${CHUNKED}5\r\nHel`, { status: 200, body: 'Hel', complete: false, ended: false }],
  ['chunks without their end', `${CHUNKED}1\r\nx\r\n`, { status: 200, body: 'x', complete: false, ended: false }],
  [
    'an interrupted body',
    'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nHel',
    { status: 200, body: 'Hel', complete: false, ended: false }
  ],
  ['an interrupted head', 'HTTP/1.1 200 OK\r\nX: y\r\n', { status: undefined, body: '', ended: false }],
  ['nothing', '', { status: undefined, body: '', complete: false, ended: false }]
]

t.test('reads responses in one piece, byte by byte, and split at every place', t => {
  for (const [what, text, expected] of RESPONSES) {
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

t.test('pieces that arrive together stay together', t => {
  const reader = new ResponseReader()
  const events = ['data: 1\n\n', 'data: 2\n\n', 'data: [DONE]\n\n']
  const chunks = events.map(event => `${event.length.toString(16)}\r\n${event}\r\n`).join('')
  t.equal(reader.push(Buffer.from(`${CHUNKED}${chunks}0\r\n\r\n`)).toString(), events.join(''))
  t.equal(reader.push(Buffer.from('9\r\n')).length, 0, 'bytes after the end are ignored')
  t.end()
})

const long = (length: number) => 'x'.repeat(length)
const MALFORMED: [what: string, text: string][] = [
  ['not HTTP', 'SSH-2.0-OpenSSH_9\r\n\r\n'],
  ['another version', 'HTTP/2 200 OK\r\n\r\n'],
  ['a status that is not a number', 'HTTP/1.1 2x0 OK\r\n\r\n'],
  ['another protocol', 'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n'],
  ['a header without a colon', 'HTTP/1.1 200 OK\r\nnonsense\r\n\r\n'],
  ['a header on two lines', 'HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n'],
  ['a space before the colon', 'HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nHello'],
  ['a length that is not a number', 'HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n'],
  ['a length beyond all numbers', `HTTP/1.1 200 OK\r\nContent-Length: ${'9'.repeat(40)}\r\n\r\n`],
  ['two lengths', 'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n'],
  ['an unknown coding', 'HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n'],
  ['two codings', 'HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n'],
  ['a chunk without a size', `${CHUNKED}\r\nHello`],
  ['a size that is not a number', `${CHUNKED}5x\r\nHello\r\n`],
  ['a size beyond all numbers', `${CHUNKED}${'f'.repeat(16)}\r\n`],
  ['a negative size', `${CHUNKED}-5\r\nHello\r\n`],
  ['a chunk that is longer than its size', `${CHUNKED}4\r\nHello\r\n`],
  ['a line that ends with only a line feed', `${CHUNKED}5\nHello\r\n`],
  ['an endless head', `HTTP/1.1 200 OK\r\nX: ${long(2 ** 17)}`],
  ['a head that is too long', `HTTP/1.1 200 OK\r\nX: ${long(2 ** 17)}\r\n\r\n`],
  ['an endless size', `${CHUNKED}5;${long(2 ** 13)}`],
  ['an endless trailer', `${CHUNKED}0\r\n${`X: ${long(1000)}\r\n`.repeat(100)}`]
]

t.test('rejects malformed responses, however they are split', t => {
  for (const [what, text] of MALFORMED) {
    t.throws(() => read(text), MalformedResponse, what)
    const step = Math.max(1, Math.ceil(text.length / 2000))
    const places = Array.from({ length: Math.ceil(text.length / step) }, (_, at) => at * step)
    t.throws(() => read(text, places), MalformedResponse, `${what}, bit by bit`)
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
      if (!(error instanceof MalformedResponse)) throw error
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

t.test('fetches at most one piece ahead of the reader', async t => {
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

t.test('reports failures of a body', async t => {
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
