import { createHash } from 'node:crypto'
import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { UploadSlots } from '../../plugins/apis/ollama/models/blobs.ts'
import { type Corral, startCorral, until } from '../support/corral.ts'
import { failure } from '../support/failure.ts'
import { openSocket, type RawSocket } from '../support/raw-requests.ts'
import { thorough } from '../support/thorough.ts'

const sha256 = (content: Buffer | string) => createHash('sha256').update(content).digest('hex')
const listBlobs = (corral: Corral) => {
  const folder = join(corral.home, 'models', '.blobs')
  return existsSync(folder) ? readdirSync(folder) : []
}

/** Starts an upload from an address of this machine. Each address is a client. */
function begin(
  t: Test,
  { url }: Corral,
  {
    digest = sha256(String(Math.random())),
    length = 1e6 as number | 'chunked',
    from = '127.0.0.1',
    prefix = '/api'
  } = {}
): RawSocket {
  const size = length === 'chunked' ? 'Transfer-Encoding: chunked' : `Content-Length: ${length}`
  const head = `POST ${prefix}/blobs/sha256:${digest} HTTP/1.1\r\nHost: ${new URL(url).host}\r\n${size}\r\n\r\n`
  return openSocket(t, url, head, from)
}

async function answered(upload: RawSocket): Promise<string> {
  const whole = () => (/^HTTP\/1\.1 (\d+).*\}$/s.test(upload.got) ? upload.got : undefined)
  return await until('the upload is answered', whole, 20_000)
}

async function sendWhole(t: Test, corral: Corral, content: string, options: { from?: string } = {}): Promise<string> {
  const upload = begin(t, corral, { digest: sha256(content), length: content.length, ...options })
  upload.write(content)
  return await until('it is answered', () => /^HTTP\/1\.1 (\d+)/.exec(upload.got)?.[1], 20_000)
}

t.test('two hundred stalled uploads leave turns for another client', async t => {
  const corral = await startCorral(t, { config: 'limits:\n  uploads: 4' })
  const hostile = Array.from({ length: 200 }, (_, n) =>
    begin(t, corral, { length: n % 2 ? 1e6 : 'chunked', prefix: n % 3 ? '/api' : '/ollama/api' })
  )
  const refused = () => hostile.filter(upload => upload.got.startsWith('HTTP/1.1 429'))
  await until('uploads that may not wait are refused', () => refused().length === 200 - 2 - 64, 20_000)
  t.match(refused()[0]!.got, /limits\.uploads.*"rate_limited"/s)
  t.match(refused()[0]!.got, /retry-after: \d+/i)
  t.equal(listBlobs(corral).length, 2, 'one client gets half of the turns')
  t.equal(await sendWhole(t, corral, 'honest', { from: '127.0.0.2' }), '201')

  // Two clients now have all turns, and a third needs a single one.
  const more = Array.from({ length: 10 }, () => begin(t, corral, { from: '127.0.0.3' }))
  await until('all turns are taken', () => listBlobs(corral).filter(name => name.endsWith('.part')).length === 4)
  t.equal(await sendWhole(t, corral, 'honest too', { from: '127.0.0.2' }), '201')
  t.equal([...hostile, ...more].filter(upload => /ended so that another client/.test(upload.got)).length, 1)
  const { body } = await corral.json('/api/tags')
  t.equal(body.models.length, 1, 'all other requests are answered')

  for (const socket of [...hostile, ...more]) socket.destroy()
  await until('nothing of them remains', () => listBlobs(corral).every(name => name.startsWith('sha256-')), 20_000)
  const descriptors = () => readdirSync(`/proc/${corral.process.pid}/fd`).length
  await until('no connection remains', () => descriptors() < 60, 20_000)
})

t.test('a trickling upload is given up, and a slow one is not', thorough, async t => {
  const corral = await startCorral(t, { config: 'limits:\n  upload_stall: 3s' })
  const slow = Buffer.alloc(60_000, 'slow')
  const honest = begin(t, corral, { digest: sha256(slow), length: slow.length })
  const attacks = {
    silent: begin(t, corral),
    trickle: begin(t, corral),
    chunked: begin(t, corral, { length: 'chunked' })
  }
  let ended = false
  const trickle = (async () => {
    for (let at = 0; !ended; at += 1000) {
      // Twenty kilobytes a second beside twenty bytes a second.
      if (at < slow.length) honest.write(slow.subarray(at, at + 1000))
      attacks.trickle.write('x')
      attacks.chunked.write('1\r\nx\r\n')
      await sleep(50)
    }
  })()
  for (const [name, upload] of Object.entries(attacks)) {
    const text = await answered(upload)
    t.match(text, /^HTTP\/1\.1 400.*limits\.upload_stall.*"over_limit"/s, name)
  }
  t.match(await until('the slow upload is complete', () => honest.got, 20_000), /^HTTP\/1\.1 201/)
  ended = true
  await trickle
  t.same(listBlobs(corral), [`sha256-${sha256(slow)}`], 'nothing of the others remains')
})

t.test('unused files take a limited part of the disk', thorough, async t => {
  const corral = await startCorral(t, { config: 'limits:\n  uploads_size: 1000' })
  const text = (letter: string, length: number) => letter.repeat(length)
  const declared = begin(t, corral, { length: 2000 })
  t.match(await answered(declared), /^HTTP\/1\.1 400.*limits\.uploads_size.*"over_limit"/s)
  t.equal(await sendWhole(t, corral, text('a', 400)), '201')
  const half = begin(t, corral, { length: 200 })
  t.match(await answered(half), /one client may use 500 B/, 'half of it')
  const growing = begin(t, corral, { length: 'chunked', from: '127.0.0.2' })
  for (let n = 0; n < 6; n++) growing.write(`64\r\n${text('b', 100)}\r\n`)
  t.match(await answered(growing), /^HTTP\/1\.1 400.*limits\.uploads_size.*"over_limit"/s, 'an upload without a size')
  t.equal(await sendWhole(t, corral, text('c', 450), { from: '127.0.0.2' }), '201', 'another client has its own half')
  const full = begin(t, corral, { length: 200, from: '127.0.0.3' })
  t.match(await answered(full), /other clients use the rest/)
  // Announced bytes count while their upload is open.
  const open = begin(t, corral, { length: 140, from: '127.0.0.3' })
  await until('it runs', () => listBlobs(corral).some(name => name.endsWith('.part')))
  t.match(await answered(begin(t, corral, { length: 140, from: '127.0.0.4' })), /over_limit/)
  open.destroy()
  await until('it is gone', () => !listBlobs(corral).some(name => name.endsWith('.part')))
  t.equal(await sendWhole(t, corral, text('d', 140), { from: '127.0.0.4' }), '201')

  await corral.end()
  const again = await startCorral(t, { home: corral.home, config: 'limits:\n  uploads_size: 1000' })
  t.match(await answered(begin(t, again, { length: 100 })), /over_limit/, 'existing files count after a restart')
})

t.test('the next turn goes to the client with the fewest uploads', async t => {
  let now = 0
  const turns = new UploadSlots(4, () => now)
  const signal = new AbortController().signal
  const take = (turn: string, given = signal) => turns.take({ turn }, given)
  const settled: string[] = []
  const note = async (turn: string) => {
    const upload = await take(turn)
    settled.push(turn)
    return upload
  }
  const [a1, a2] = [await take('a'), await take('a')]
  const a3 = note('a')
  const [b1] = [await take('b'), await take('b')]
  a1.received = 1e9
  b1.received = 1e9
  now = 10_000
  const leaving = new AbortController()
  const abandoned = take('a', leaving.signal)
  leaving.abort(new Error('abandoned'))
  t.equal((await failure(abandoned)).message, 'abandoned')

  const c1 = note('c')
  t.match(a2.ended.reason, { code: 'rate_limited' }, 'the slowest upload of a client with several')
  t.notOk(a1.ended.aborted)
  a2.release()
  a2.release()
  await c1
  t.same(settled, ['c'], 'before a client that asked earlier and has one')
  const d1 = note('d')
  await sleep(1)
  t.same(settled, ['c'])
  ;(await c1).release()
  await d1
  a1.release()
  await a3
  t.same(settled, ['c', 'd', 'a'])

  for (let n = 0; n < 64; n++) void take('e').catch(() => {})
  t.match(await failure(take('e')), { code: 'rate_limited', status: 429, message: /limits\.uploads/ })
})
