import t from 'tap'
import { parseHead } from '../../../../../core/system/http-response.ts'
import { FileSource, followRedirect } from '../../../../../plugins/models/download/transfer/file-source.ts'
import { readResponse } from '../../../../../plugins/models/download/transfer/http-connection.ts'
import { proxyFor } from '../../../../../plugins/models/download/transfer/http-socket.ts'
import {
  Bandwidth,
  backOff,
  ConnectionLimit,
  LineSpeed,
  Retries
} from '../../../../../plugins/models/download/transfer/limits.ts'
import {
  ChunkMap,
  chunkSizeFor,
  continues,
  freeSpan,
  journalText,
  parseJournal,
  requestSize,
  spanBytes,
  stolenSpan
} from '../../../../../plugins/models/download/transfer/part-file.ts'
import { readCases } from '../../../../support/fixture.ts'

const KiB = 1024
const MiB = 1024 * KiB

t.test('the transfer engine parses response heads', async t => {
  const head = (lines: string[]) => parseHead(lines.join('\r\n'))
  const cases = readCases<[lines: string[], status: number, body: object, keepAlive: boolean][]>(
    'transfer-cases.yaml',
    'heads'
  )
  for (const [lines, status, body, keepAlive] of cases) {
    const { headers: _, ...rest } = head(lines)
    t.strictSame(rest, { status, body, keepAlive }, lines.join(' | '))
  }
  t.equal(head(['HTTP/1.1 200 OK', 'X-A: 1', 'x-a: 2']).headers['x-a'], '1, 2')
  const wrong = readCases<string[][]>('transfer-cases.yaml', 'wrongHeads')
  for (const lines of wrong) t.throws(() => head(lines), { name: 'InvalidResponse' }, lines.join(' | '))
})

t.test('interprets responses to range requests', async t => {
  const answer = (status: number, headers: Record<string, string>, start: number, end?: number, size?: number) => {
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}`)
    return readResponse(parseHead([`HTTP/1.1 ${status} x`, ...lines].join('\r\n')), start, end, size)
  }
  const cases = readCases<[what: string, request: Parameters<typeof answer>, wanted: object][]>(
    'transfer-cases.yaml',
    'rangeAnswers'
  )
  for (const [what, request, wanted] of cases) t.match(answer(...request), wanted, what)
  for (const range of ['bytes 5-4/10', 'bytes 5-10/10', 'items 0-1/2']) {
    t.match(answer(206, { 'content-range': range }, 0), { kind: 'unusable', why: 'sends a part without saying which' })
  }
})

t.test('back-off doubles up to a limit', async t => {
  const most = Array.from({ length: 9 }, (_, failures) => backOff(failures, 500, () => 1))
  t.strictSame(most, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000])
  const short = backOff(3, 500, () => 0.25)
  t.equal(short, 1000)
})

t.test('a file is given up after repeated failures without progress', async t => {
  const give = (step: (retries: Retries, i: number) => boolean) => {
    const retries = new Retries(0, 100 * MiB)
    for (let i = 0; i < 1000; i++) if (!step(retries, i)) return i
    return undefined
  }
  const failures: [what: string, tries: number | undefined, started: (i: number) => number, arrived: number][] = [
    ['failures without a byte', 6, i => i, 0],
    ['connections that fail together count once', undefined, () => 0, 0],
    ['failures with progress', undefined, i => i, MiB],
    ['failures with hardly any progress', 6, i => i, 1],
    ['failures with a little progress each', undefined, i => i, 300_000]
  ]
  for (const [what, tries, started, arrived] of failures) {
    const given = give((retries, i) => retries.failed(i, started(i), i * arrived, undefined))
    t.equal(given, tries, what)
  }
  t.equal(new Retries(0, 1).failed(0, 0, 0, 900), true)
  t.equal(new Retries(0, 1).failed(0, 0, 0, 901), false, 'a server that asks for too long a wait')
  const refusals = [0, MiB].map(arrived => give((retries, i) => retries.refused(i, i * arrived)))
  t.strictSame(refusals, [2, undefined], 'new locations are refused too, or help')
})

t.test('spans cover missing chunks and can be split', async t => {
  t.equal(chunkSizeFor(1), MiB)
  t.equal(chunkSizeFor(4096 * MiB), MiB)
  t.equal(chunkSizeFor(4096 * MiB + 1), 2 * MiB)
  t.equal(chunkSizeFor(1e12) * 4096 >= 1e12, true)

  const map = new ChunkMap(10 * MiB + 5)
  t.equal(map.count, 11)
  map.add(0, MiB, 1)
  map.add(1, 100, 1)
  map.add(4, 100, 1)
  t.strictSame(freeSpan(map, [], 100 * MiB), { at: 1, to: 4 }, 'up to a partial chunk')
  t.strictSame(freeSpan(map, [], 1), { at: 1, to: 2 }, 'at least a chunk')
  t.strictSame(freeSpan(map, [{ at: 1, to: 4 }], 100 * MiB), { at: 4, to: 11 })
  t.strictSame(freeSpan(map, [{ at: 4, to: 6 }], 100 * MiB), { at: 1, to: 4 })
  t.equal(freeSpan(map, [{ at: 1, to: 11 }], MiB), undefined)
  t.equal(spanBytes(map, { at: 4, to: 11 }), 6 * MiB + 5 - 100)
  t.equal(spanBytes(map, { at: 4, to: 4 }), 0)

  const taken = [
    { at: 1, to: 2 },
    { at: 2, to: 11 }
  ]
  t.strictSame(stolenSpan(map, taken), { at: 7, to: 11 })
  t.strictSame(taken[1], { at: 2, to: 7 })
  t.equal(stolenSpan(map, [{ at: 8, to: 11 }]), undefined, 'not a span that is almost done')
  t.equal(stolenSpan(map, [{ at: 10, to: 11 }]), undefined, 'not a single chunk')

  const large = new ChunkMap(1000 * MiB)
  t.equal(requestSize(large, [], 4, 256 * MiB), 250 * MiB, 'a fair share')
  t.equal(requestSize(large, [{ at: 0, to: 200 }], 4, 256 * MiB), 200 * MiB, 'of the bytes that are not requested')
  t.equal(requestSize(large, [], 4, 20 * MiB), 20 * MiB, 'no more than is worthwhile')
  t.equal(requestSize(map, [], 4, 20 * MiB), 8 * MiB)
})

t.test('a journal is written and parsed', async t => {
  const subject = {
    identity: 'hub owner/name@1',
    path: 'a/b.gguf',
    size: 5 * MiB + 7,
    sha256: 'ab',
    gitSha1: undefined,
    place: '"tag"'
  }
  const map = new ChunkMap(subject.size)
  map.add(0, MiB, 0xdeadbeef)
  map.add(2, 1000, 7)
  map.add(5, 7, 0)
  const text = journalText(subject, map)
  const read = parseJournal(text)!
  t.strictSame(read.subject, subject)
  t.strictSame([...read.map.have], [...map.have])
  t.strictSame([...read.map.crc], [...map.crc])
  t.equal(read.map.completed, MiB + 1007)

  const value = JSON.parse(text)
  const damages = readCases<[what: string, damage: object][]>('transfer-cases.yaml', 'damagedJournals')
  for (const [what, damage] of damages) t.equal(parseJournal(JSON.stringify({ ...value, ...damage })), undefined, what)
  for (const whole of [value.whole.replace('deadbeef', 'deadbeez'), value.whole.slice(8)]) {
    t.equal(parseJournal(JSON.stringify({ ...value, whole })), undefined, 'wrong or missing checksums')
  }
  for (const cut of [0, 1, 50, text.length - 1]) t.equal(parseJournal(text.slice(0, cut)), undefined)

  const { place: _, ...wanted } = subject
  t.ok(continues(subject, wanted))
  t.ok(continues(subject, { ...wanted, size: undefined }))
  for (const field of ['identity', 'path', 'size', 'sha256', 'gitSha1']) {
    t.notOk(continues(subject, { ...wanted, [field]: 1 }), field)
  }
  t.notOk(continues(subject, { ...wanted, sha256: undefined }))
})

t.test('refused connections lower the connection limit for a while', async t => {
  const limit = new ConnectionLimit(8)
  t.equal(limit.current(0), 8)
  limit.overloaded(10_000)
  limit.overloaded(10_010)
  t.equal(limit.current(10_010), 4, 'halved once for connections refused at the same time')
  t.equal(limit.current(19_900), 4, 'not raised during the cool-down')
  t.equal(limit.current(20_100), 5, 'then raised, one by one')
  t.equal(limit.current(100_000), 8)
  for (let now = 140_000; now < 150_000; now += 2000) limit.overloaded(now)
  t.equal(limit.current(150_000), 1, 'never zero')
})

t.test('request sizes follow the wait and speed of the line', async t => {
  const line = new LineSpeed()
  t.equal(line.worthwhile, 16 * MiB, 'while nothing is known')
  line.answered(3)
  line.answered(1)
  line.answered(30)
  line.received(0, 5)
  t.equal(line.worthwhile, 16 * MiB, 'a request without a byte does not count')
  line.received(2 * 250_000, 2)
  t.equal(line.worthwhile, 16 * MiB, 'a server nearby')
  line.received(1_000_000, 1)
  t.equal(line.worthwhile, 50_000_000, '50 of the shortest waits')
  line.received(10_000_000, 1)
  t.equal(line.worthwhile, 256 * MiB, 'limited')
})

t.test('the bandwidth limit paces reads', async t => {
  t.equal(new Bandwidth(0, 0).delay(1e9, 0), 0)
  const bandwidth = new Bandwidth(1000, 0)
  let now = 0
  let bytes = 0
  while (now < 60_000) {
    bytes += 200
    now += bandwidth.delay(200, now)
    now += 1
  }
  t.ok(Math.abs(bytes - 60_000) <= 60_000 * 0.02, `${bytes} bytes in a minute`)
})

t.test('file source: locations are shared, renewed and redirected', async t => {
  let located = 0
  const source = new FileSource(async () => ({
    url: `https://hub.example/file?${++located}`,
    headers: { Authorization: 'x' },
    // The first location expires in less than a minute.
    expiresAt: Date.now() + (located === 1 ? 50_000 : 600_000)
  }))
  const [one, other] = await Promise.all([source.current(), source.current()])
  t.equal(one, other, 'requested once for all connections')
  t.not(await source.current(), one, 'requested again a minute before it expires')
  t.equal(located, 2)
  t.notOk(source.drop(one), 'an older location is not dropped twice')
  const spot = await source.current()
  source.failed(spot)
  t.equal(await source.current(), spot)
  source.failed(spot)
  t.not(await source.current(), spot, 'a new location after two failures')

  const last = await source.current()
  t.equal(followRedirect(last, '/other'), undefined)
  t.strictSame(last.headers, { Authorization: 'x' })
  t.equal(followRedirect(last, 'https://cdn.example/x'), undefined)
  t.strictSame(last.headers, {})
  t.match(followRedirect(last, 'http://cdn.example/x'), /insecure/)
  t.match(followRedirect(last, 'file:///etc/passwd'), /of the kind "file:"/)
  t.match(followRedirect(last, undefined), /without an address/)
})

t.test('proxies come from settings, then from the environment', async t => {
  const env = {
    HTTPS_PROXY: 'http://user:pass@proxy:8080',
    http_proxy: 'plain:3128',
    NO_PROXY: 'localhost,.internal,10.0.0.1:8000 ::1'
  }
  const cases = readCases<[address: string, proxy: string | undefined][]>('transfer-cases.yaml', 'proxies')
  for (const [address, proxy] of cases) t.equal(proxyFor(new URL(address), undefined, env)?.href, proxy, address)
  t.equal(proxyFor(new URL('https://x/'), undefined, {}), undefined)
  t.equal(proxyFor(new URL('https://x/'), undefined, { ...env, NO_PROXY: '*' }), undefined)
  const configured = proxyFor(new URL('http://localhost/'), 'http://own:1', env)
  t.equal(configured?.href, 'http://own:1/', 'a configured proxy comes first')
  t.throws(() => proxyFor(new URL('https://x/'), 'socks5://secret@x', {}), /^(?!.*secret)/)
})
