import { existsSync, mkdirSync, openSync, readdirSync, readFileSync, statSync, writeFileSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import type { FileLocation } from '../../../../../core/contracts/hubs.ts'
import { CorralError } from '../../../../../core/errors.ts'
import { partialBytes, removePartial } from '../../../../../plugins/models/download/transfer/part-file.ts'
import { TransferEngine } from '../../../../../plugins/models/download/transfer/transfer-engine.ts'
import type {
  TransferFile,
  TransferOptions,
  TransferredFile
} from '../../../../../plugins/models/download/transfer/transfers.ts'
import {
  type ByteFault,
  type ByteRequest,
  gitSha1,
  sampleBytes,
  sha256,
  startByteServer
} from '../../../../support/byte-server.ts'
import { failing, failure } from '../../../../support/failure.ts'

const MiB = 1024 * 1024
/** Most of these tests wait. */
const AT_ONCE = { jobs: 4 }
const content = sampleBytes(12 * MiB + 12_345)

interface Setup {
  fault?: (request: ByteRequest) => ByteFault
  bytes?: Buffer
  /** The hub's facts about the file. */
  file?: Partial<TransferFile>
  options?: Partial<TransferOptions>
  locate?: (url: string, times: number) => FileLocation
}

/** Starts a server with one file, and an engine to download it. */
async function setUp(t: Test, { fault, bytes = content, file, options, locate }: Setup = {}) {
  const server = await startByteServer({ '/file': bytes }, fault)
  const folder = t.testdir()
  const target = join(folder, 'deep', 'file')
  let located = 0
  const reports: [completed: number, total: number][] = []
  const log: string[] = []
  const engines: TransferEngine[] = []
  t.teardown(async () => {
    for (const engine of engines) await engine.close()
    await server.close()
  })
  async function run(
    more: { signal?: AbortSignal; identity?: string; onProgress?: (completed: number) => void } = {}
  ): Promise<TransferredFile> {
    // Each run has its own engine, as after a restart.
    const engine = new TransferEngine({
      connections: 8,
      connectionsPerFile: 4,
      bandwidthLimit: 0,
      stallTimeout: 2000,
      firstDelay: 20,
      log: message => log.push(message),
      ...options
    })
    engines.push(engine)
    const known = { size: bytes.length, sha256: sha256(bytes) }
    const [done] = await engine.run({
      identity: more.identity ?? 'test@1',
      files: [{ path: 'file', target, ...known, ...file }],
      signal: more.signal ?? new AbortController().signal,
      locate: async () => {
        located += 1
        return locate ? locate(server.url, located) : { url: `${server.url}/file`, headers: {} }
      },
      onProgress: (_, completed, total) => {
        reports.push([completed, total])
        more.onProgress?.(completed)
      }
    })
    return done!
  }
  /** Aborts the run when this many bytes are on disk. */
  async function runUntil(bytesThere: number): Promise<void> {
    const controller = new AbortController()
    const reason = new Error('enough')
    await t.rejects(
      run({ signal: controller.signal, onProgress: completed => completed >= bytesThere && controller.abort(reason) }),
      reason
    )
  }
  return { server, folder, target, run, runUntil, reports, log, located: () => located }
}

const WHOLE = { size: content.length, sha256: sha256(content) }
/** Without the hub's facts. */
const unknown = (...facts: (keyof TransferFile)[]) =>
  Object.fromEntries(facts.map(fact => [fact, undefined])) as Partial<TransferFile>

t.test('the transfer engine downloads a file over several connections and verifies it', async t => {
  const { server, target, run, reports } = await setUp(t, { fault: () => ({ rate: 8 * MiB }) })
  t.strictSame(await run(), WHOLE)
  t.ok(readFileSync(target).equals(content))
  t.strictSame(readdirSync(join(target, '..')), ['file'], 'nothing else remains')
  // The server may still see a connection that was replaced.
  t.ok(server.state.mostOpen > 1 && server.state.mostOpen <= 4 + 2, `${server.state.mostOpen} connections`)
  t.equal(reports.at(-1)![0], content.length)
  t.ok(reports.every(([, total]) => total === content.length))
  t.ok(reports.every(([completed], i) => i === 0 || completed >= reports[i - 1]![0]))
})

t.test('the transfer engine downloads from servers and files of every kind', AT_ONCE, async t => {
  const small = sampleBytes(300_000, 1)
  const cases: [what: string, given: Setup, most?: number][] = [
    ['a range with status 200', { fault: () => ({ rangeAs200: true }) }],
    ['no ranges', { fault: () => ({ ignoreRange: true }) }],
    ['no ranges and no length', { fault: () => ({ ignoreRange: true, chunked: true }) }],
    ['no ranges, and the body ends with the connection', { fault: () => ({ ignoreRange: true, untilClose: true }) }],
    ['a chunked range', { fault: () => ({ chunked: true }) }],
    ['a size that is not known before', { file: unknown('size') }],
    ['no digest', { file: unknown('sha256') }],
    ['a git digest', { bytes: small, file: { sha256: undefined, gitSha1: gitSha1(small) } as never }],
    ['an empty file', { bytes: Buffer.alloc(0) }],
    ['an empty file of unknown size', { bytes: Buffer.alloc(0), file: unknown('size') }],
    ['one byte', { bytes: Buffer.from('x') }],
    [
      'size and digest are reported with the location',
      {
        file: unknown('size', 'sha256'),
        locate: url => ({ url: `${url}/file`, headers: {}, size: content.length, sha256: sha256(content) })
      }
    ]
  ]
  for (const [what, given] of cases) {
    void t.test(what, async t => {
      const { target, run } = await setUp(t, given)
      const bytes = given.bytes ?? content
      t.strictSame(await run(), { size: bytes.length, sha256: sha256(bytes) })
      t.ok(readFileSync(target).equals(bytes))
      t.strictSame(readdirSync(join(target, '..')), ['file'])
    })
  }
})

t.test('a transfer survives temporary faults', AT_ONCE, async t => {
  /** Faults of the first requests. */
  const first = (count: number, fault: ByteFault) => (request: ByteRequest) => (request.number < count ? fault : {})
  const elsewhere = { headers: { 'content-range': 'bytes 0-9/10', 'content-length': '10' }, body: '0123456789' }
  const expired = { status: 403, body: 'Request has expired' }
  /** Each with the maximum bytes that are sent beyond the file's size. */
  const cases: [what: string, given: Setup, most?: number][] = [
    ['connections break', { fault: request => first(8, { cutAfter: 1_000_000 + request.number })(request) }],
    ['every connection breaks', { fault: () => ({ cutAfter: 3 * MiB }) }],
    ['connections break before the response', { fault: ({ number }) => (number % 2 === 0 ? { cutAfter: 0 } : {}) }],
    ['a connection stalls', { options: { stallTimeout: 300 }, fault: first(2, { stallAfter: 500_000 }) }],
    ['429 with Retry-After', { fault: first(2, { status: 429, headers: { 'retry-after': '1' } }) }],
    ['503', { fault: first(3, { status: 503 }) }],
    ['500', { fault: first(3, { status: 500, body: 'oops' }) }],
    [
      'other bytes than requested',
      { fault: ({ number }) => (number === 2 ? { status: 206, ...elsewhere } : {}) },
      3 * content.length
    ],
    // Up to a whole request of the first size is in the sockets when the first response is refused.
    ['a response compressed with gzip', { fault: first(1, { headers: { 'content-encoding': 'gzip' } }) }, 16 * MiB],
    [
      'a location expires during the transfer',
      {
        locate: (url, times) => ({ url: `${url}/file?ticket=${times}`, headers: {} }),
        fault: ({ query, number }) => (query.get('ticket') === '1' && number > 1 ? expired : { cutAfter: 2 * MiB })
      }
    ]
  ]
  for (const [what, given, most = 12 * MiB] of cases) {
    void t.test(what, async t => {
      const { server, target, run } = await setUp(t, given)
      t.strictSame(await run(), WHOLE)
      t.ok(readFileSync(target).equals(content))
      const more = server.state.sent - content.length
      t.ok(more <= most, `${more} bytes more than the file`)
    })
  }
})

t.test('corrupt content is found and repaired', AT_ONCE, async t => {
  void t.test('one wrong byte near the beginning: only the part before it is downloaded again', async t => {
    const { server, run } = await setUp(t, {
      options: { connectionsPerFile: 1 },
      fault: ({ number }) => (number === 0 ? { flip: 1000 } : {})
    })
    t.strictSame(await run(), WHOLE)
    const again = server.state.sent - content.length
    t.ok(again > 0 && again <= 8 * MiB, `${again} bytes were downloaded again`)
  })

  void t.test('one wrong byte anywhere is repaired', async t => {
    const wrong = new Set<number>()
    const { server, run } = await setUp(t, {
      fault: ({ start, end, number }) => {
        const flip = 10 * MiB + 5
        if (wrong.size > 0 || start > flip || end <= flip) return {}
        wrong.add(number)
        return { flip }
      }
    })
    t.strictSame(await run(), WHOLE)
    t.equal(wrong.size, 1)
    t.ok(server.state.sent <= 2 * content.length + 12 * MiB)
  })

  for (const [what, file] of [
    ['with a digest', {}],
    ['without one', unknown('sha256')]
  ] as const) {
    void t.test(`new data changes on the disk: ${what}`, async t => {
      const { server, target, run } = await setUp(t, { file, fault: () => ({ rate: 3 * MiB }) })
      let damaged = 0
      const onProgress = (completed: number) => {
        if (completed < 8 * MiB || damaged++ > 0) return
        // The second request's first chunk, while the digest is still in the first request's range.
        writeSync(openSync(`${target}.part`, 'r+'), 'damage', 8 * MiB + 1000)
      }
      t.strictSame(await run({ onProgress }), WHOLE)
      t.ok(damaged > 0)
      t.ok(readFileSync(target).equals(content))
      const again = server.state.sent - content.length
      t.ok(again >= MiB && again <= 2 * MiB, `${again} bytes were downloaded again`)
    })
  }

  void t.test('content that is always wrong fails', async t => {
    const { server, folder, target, run } = await setUp(t, { fault: () => ({ flip: 5 * MiB }) })
    const mismatch = /^file does not match what the hub announced: expected SHA-256 [0-9a-f]{64}, got [0-9a-f]{64}\./
    await t.rejects(run(), failing('checksum_mismatch', mismatch))
    t.notOk(existsSync(target))
    t.strictSame(readdirSync(join(folder, 'deep')), [], 'the next attempt starts clean')
    // Data in flight on abandoned connections counts as sent too.
    t.ok(server.state.sent <= 3 * content.length, 'each byte was downloaded about twice, not more')
  })

  void t.test('a file of another size is refused', async t => {
    const { run } = await setUp(t, { fault: () => ({ content: content.subarray(0, 1000) }) })
    const error = await failure(run())
    t.match(error, { code: 'checksum_mismatch', message: `expected ${content.length} bytes, got 1000 bytes` })
  })

  void t.test('HTML instead of the file is refused', async t => {
    const html = { ignoreRange: true, chunked: true, content: Buffer.from('<html>Please log in</html>') }
    const { folder, run } = await setUp(t, { fault: () => html })
    t.equal((await failure(run())).code, 'checksum_mismatch')
    t.strictSame(readdirSync(join(folder, 'deep')), [])
  })

  void t.test('the content changes during the transfer', async t => {
    const other = sampleBytes(content.length, 9)
    let sent = 0
    const { target, run } = await setUp(t, {
      file: unknown('sha256'),
      fault: () =>
        sent++ === 0 ? { headers: { etag: '"a"' }, cutAfter: MiB } : { headers: { etag: '"b"' }, content: other }
    })
    await run()
    t.ok(readFileSync(target).equals(other), 'it has no older content')
  })
})

t.test('partial data is continued', async t => {
  await t.test('bytes on disk are not downloaded again', async t => {
    const { server, target, run, runUntil } = await setUp(t, { fault: () => ({ rate: 6 * MiB }) })
    await runUntil(4 * MiB)
    const claimed = await partialBytes(target)
    t.ok(claimed >= 4 * MiB)
    t.notOk(existsSync(target))
    await runUntil(8 * MiB)
    server.state.fault = () => ({})
    const before = server.state.sent
    const there = await partialBytes(target)
    t.strictSame(await run(), WHOLE)
    // Data in flight on a replaced connection counts as sent.
    const sent = server.state.sent - before
    t.ok(sent >= content.length - there && sent <= content.length - there + 6 * MiB, `${sent} bytes`)
    t.ok(readFileSync(target).equals(content))
  })

  await t.test('only damaged chunks are downloaded again', async t => {
    const { server, target, run, runUntil } = await setUp(t, {
      options: { connectionsPerFile: 1 },
      fault: () => ({ rate: 6 * MiB })
    })
    await runUntil(8 * MiB)
    writeSync(openSync(`${target}.part`, 'r+'), 'damage', 1000)
    server.state.fault = () => ({})
    const before = server.state.sent
    const there = await partialBytes(target)
    t.strictSame(await run(), WHOLE)
    t.equal(server.state.sent - before, content.length - there + MiB, 'one chunk')
  })

  await t.test('partial data of other content, or with an invalid journal, is discarded', async t => {
    const { server, target, run, runUntil } = await setUp(t, { fault: () => ({ rate: 6 * MiB }) })
    await runUntil(4 * MiB)
    server.state.fault = () => ({})
    let before = server.state.sent
    t.strictSame(await run({ identity: 'test@2' }), WHOLE)
    t.ok(server.state.sent - before >= content.length, 'all of it is downloaded')
    for (const journal of ['', '{"version":1}', 'null', '[]']) {
      writeFileSync(target, 'not it')
      writeFileSync(`${target}.part`, content.subarray(0, 1000))
      writeFileSync(`${target}.part.json`, journal)
      t.equal(await partialBytes(target), 0)
      before = server.state.sent
      t.strictSame(await run(), WHOLE)
      t.ok(server.state.sent - before >= content.length, 'all of it is downloaded')
    }
    t.ok(readFileSync(target).equals(content))
  })

  await t.test('an existing target is verified and kept', async t => {
    const { server, target, run } = await setUp(t)
    mkdirSync(join(target, '..'))
    writeFileSync(target, content)
    const { ino } = statSync(target)
    t.strictSame(await run(), WHOLE)
    t.equal(server.requests.length, 0)
    t.equal(statSync(target).ino, ino)
    writeSync(openSync(target, 'r+'), 'damage', 1000)
    await run()
    t.ok(readFileSync(target).equals(content), 'a damaged target is replaced')
  })

  await t.test('partial data can be removed', async t => {
    const { folder, target, runUntil } = await setUp(t, { fault: () => ({ rate: 6 * MiB }) })
    await runUntil(2 * MiB)
    await removePartial(target)
    t.strictSame(readdirSync(join(folder, 'deep')), [])
    t.equal(await partialBytes(target), 0)
  })
})

t.test('failures are explained', AT_ONCE, async t => {
  const host = /127\.0\.0\.1:\d+/
  const cases: [given: Setup, code: string, message: RegExp][] = [
    [
      { fault: () => ({ status: 403, body: 'You are not on the list' }) },
      'hub_forbidden',
      /file may not be fetched: .* answers 403: You are not on the list\. Check/
    ],
    [
      { fault: () => ({ status: 404, body: 'see https://a.b/c?secret=x' }) },
      'hub_unreachable',
      /answers 404: see https:\/\/a\.b\/c\. Pull again/
    ],
    [{ fault: () => ({ status: 500 }) }, 'hub_unreachable', /answers 500/],
    [{ fault: () => ({ status: 429, headers: { 'retry-after': '0' } }) }, 'hub_rate_limited', /answers 429/],
    [{ fault: () => ({ cutAfter: 0 }) }, 'hub_unreachable', /failed: the connection was closed before the end/],
    [{ options: { stallTimeout: 100 }, fault: () => ({ stallAfter: 0 }) }, 'hub_unreachable', /no data for 0\.1 s/],
    [
      { file: unknown('size'), fault: () => ({ ignoreRange: true, chunked: true }) },
      'hub_unreachable',
      /does not say how large the file is/
    ],
    [
      { locate: () => ({ url: 'http://127.0.0.1:1/file', headers: {} }) },
      'hub_unreachable',
      /cannot be reached: .*ECONNREFUSED/
    ]
  ]
  for (const [given, code, message] of cases) {
    void t.test(String(message), async t => {
      const { folder, run } = await setUp(t, given)
      const error = await failure(run())
      t.equal(error.code, code)
      t.match(error.message, message)
      t.match(error.message, host)
      t.notOk(existsSync(join(folder, 'deep', 'file')))
    })
  }

  void t.test('an error of locate ends the transfer', async t => {
    const gated = new CorralError('hub_forbidden', 'agree to the terms')
    const { run } = await setUp(t, {
      locate: () => {
        throw gated
      }
    })
    t.equal(await failure(run()), gated)
  })
})

t.test('redirects are followed', async t => {
  const other = await startByteServer({ '/file': content })
  t.teardown(() => other.close())
  await t.test('a redirect to another host is followed once, without the token', async t => {
    const { server, run } = await setUp(t, {
      locate: url => ({ url: `${url}/file`, headers: { Authorization: 'Bearer secret', 'X-Other': 'yes' } }),
      fault: () => ({ status: 302, headers: { location: `${other.url}/file?signed=1` } })
    })
    t.strictSame(await run(), WHOLE)
    t.equal(server.requests.length, 1)
    t.equal(server.requests[0]!.headers.authorization, 'Bearer secret')
    t.ok(other.requests.every(({ headers }) => headers.authorization === undefined && headers['x-other'] === 'yes'))
  })
  await t.test('a redirect on the same host is followed with the token', async t => {
    const { server, run } = await setUp(t, {
      locate: url => ({ url: `${url}/old`, headers: { Authorization: 'Bearer secret' } }),
      fault: ({ path }) => (path === '/old' ? { status: 307, headers: { location: '/file' } } : {})
    })
    t.strictSame(await run(), WHOLE)
    t.ok(server.requests.every(({ headers }) => headers.authorization === 'Bearer secret'))
  })
  await t.test('a circular redirect fails', async t => {
    const { run } = await setUp(t, { fault: () => ({ status: 302, headers: { location: '/file' } }) })
    t.match((await failure(run())).message, /redirects more than 5 times/)
  })
})
