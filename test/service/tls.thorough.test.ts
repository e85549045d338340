import { once } from 'node:events'
import { mkdirSync, readFileSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { connect as connectPlain, type Socket } from 'node:net'
import { join } from 'node:path'
import { connect, type TLSSocket } from 'node:tls'
import t, { type Test } from 'tap'
import { corral as command } from '../command-line/command.ts'
import {
  activeRequests,
  CAPITAL_ANSWER,
  CAPITAL_QUESTION,
  type Corral,
  DEMO,
  endless,
  endlessHosted,
  joined,
  startCorral,
  until
} from '../support/corral.ts'
import { newFolder } from '../support/folder.ts'
import { localhostCertificate } from '../support/localhost-certificate.ts'
import { makeCertificate, whyNoCertificates } from '../support/make-certificate.ts'
import { thorough } from '../support/thorough.ts'

const { cert: ca } = localhostCertificate

interface Pair {
  cert: string
  key: string
}

function place(folder: string, { cert, key }: Pair): string {
  writeFileSync(join(folder, 'cert.pem'), cert)
  writeFileSync(join(folder, 'key.pem'), key)
  return folder
}

const settings = (folder: string, more = '') =>
  `tls: { certificate: ${folder}/cert.pem, key: ${folder}/key.pem, check_interval: 50ms }\n${more}`

const getPort = ({ url }: Corral) => Number(new URL(url).port)

async function secure(t: Test, corral: Corral, options: object = {}): Promise<TLSSocket & { got: string }> {
  const socket = Object.assign(connect({ port: getPort(corral), host: '127.0.0.1', ca, ...options }), { got: '' })
  t.teardown(() => socket.destroy())
  socket.on('data', chunk => {
    socket.got += chunk
  })
  await once(socket, 'secureConnect')
  socket.on('error', () => {
    // Connections that the server ends may fail in several ways.
  })
  return socket
}

async function plain(t: Test, corral: Corral, text = ''): Promise<Socket & { got: string }> {
  const socket = Object.assign(connectPlain(getPort(corral), '127.0.0.1'), { got: '' })
  t.teardown(() => socket.destroy())
  socket.on('error', () => {})
  socket.on('data', chunk => {
    socket.got += chunk
  })
  await once(socket, 'connect')
  if (text !== '') socket.write(text)
  return socket
}

t.test('with a certificate all network addresses speak only TLS, and the private socket stays plain', async t => {
  const folder = place(newFolder(t), localhostCertificate)
  const config = settings(folder, 'api-ollama: { listen: "127.0.0.1:0" }')
  const corral = await startCorral(t, { config, ca })
  t.match(corral.url, /^https:\/\/127\.0\.0\.1:/)
  const answer = { model: DEMO, messages: [CAPITAL_QUESTION], options: { temperature: 0 } }
  t.equal(joined(await corral.events('/api/chat', answer)), CAPITAL_ANSWER)
  const large = { ...answer, stream: false, padding: 'x'.repeat(20_000_000) }
  t.equal((await corral.json('/api/chat', large)).body.message.content, CAPITAL_ANSWER)

  const ollama = /served at (https:\/\/127\.0\.0\.1:\d+)/.exec(corral.log())?.[1]
  const second = { ...corral, url: ollama! }
  const socket = await secure(t, second)
  socket.write('GET /api/version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n')
  await once(socket, 'close')
  t.match(socket.got, /^HTTP\/1\.1 200 .*"version"/s)

  for (const server of [corral, second]) {
    const lost = await plain(t, server, 'GET /api/health HTTP/1.1\r\nhost: localhost\r\n\r\n')
    await once(lost, 'close')
    t.match(lost.got, /^HTTP\/1\.1 400 .*https:\/\//s, 'a request without TLS is told about it')
  }
  const old = { minVersion: 'TLSv1', maxVersion: 'TLSv1.1', ciphers: 'DEFAULT:@SECLEVEL=0' }
  await t.rejects(secure(t, corral, old), 'versions before 1.2 are refused')
  const older = await secure(t, corral, { maxVersion: 'TLSv1.2' })
  t.equal(older.getProtocol(), 'TLSv1.2')
  older.renegotiate({}, () => {})
  await t.rejects(once(older, 'close'), { code: 'ERR_SSL_NO_RENEGOTIATION' }, 'each connection has one handshake')
  const several = await secure(t, corral, { ALPNProtocols: ['h2', 'http/1.1'] })
  t.equal(several.alpnProtocol, 'http/1.1')

  const { home } = corral
  const { address, socket: path } = JSON.parse(readFileSync(join(home, 'owner.json'), 'utf8'))
  t.equal(address, corral.url)
  t.match(await command(['list'], { home }), { code: 0, stdout: /tiny-chat/ })
  t.equal((await corral.json('/api/keys', undefined, { local: true })).status, 200, path)

  const other = newFolder(t)
  const byName = ['list', '--host', `https://localhost:${getPort(corral)}`]
  const untrusted = await command(byName, { home: other })
  t.match(untrusted, { code: 1, stdout: '', stderr: /certificate that is not trusted .*NODE_EXTRA_CA_CERTS=/s })
  const env = { NODE_EXTRA_CA_CERTS: join(folder, 'cert.pem') }
  t.match(await command(byName, { home: other, env }), { code: 0, stdout: /tiny-chat/ })
  const misnamed = ['list', '--host', `https://127.0.0.2:${getPort(corral)}`]
  const listening = await command(misnamed, { home: other, env })
  t.equal(listening.code, 3, 'nothing listens there')

  const waiting = await plain(t, corral)
  t.equal(await corral.end('SIGTERM'), 0, 'a client that never starts its handshake does not delay the shutdown')
  waiting.destroy()
})

t.test('connection limits apply to encrypted connections', thorough, async t => {
  const folder = place(newFolder(t), localhostCertificate)
  const limits = 'limits: { connections: 12, reader_stall: 500ms }\ndefaults: { num_parallel: 1 }'
  const corral = await startCorral(t, { config: settings(folder, limits), ca })

  const controller = new AbortController()
  const stream = await corral.send('/api/chat', endless(DEMO), { signal: controller.signal })
  await until('it runs', async () => (await activeRequests(corral)) === 1)
  controller.abort()
  await stream.text().catch(() => {})
  await until('the slot of a disconnected client is free', async () => (await activeRequests(corral)) === 0)

  const cut = await secure(t, corral)
  const body = JSON.stringify(endlessHosted(DEMO))
  const ask = `POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: ${body.length}\r\n\r\n${body}`
  cut.write(ask)
  await until('its answer has begun', () => cut.got.includes('data:'))
  cut.destroy()
  await until('the slot of an interrupted answer is free', async () => (await activeRequests(corral)) === 0)

  const deaf = await secure(t, corral)
  const wordy = JSON.stringify({ ...endlessHosted(DEMO), logprobs: true, top_logprobs: 20 })
  deaf.write(ask.replace(/content-length.*/s, `content-length: ${wordy.length}\r\n\r\n${wordy}`))
  await until('its answer has begun', () => deaf.got.includes('data:'))
  deaf.pause()
  await until('a connection that reads nothing loses it', () => /did not read its answer/.test(corral.log()))
  await until('and its slot is free', async () => (await activeRequests(corral)) === 0)

  for (let count = 0; count < 40; count++) await plain(t, corral, count % 2 === 0 ? '' : '\x16\x03\x01')
  t.equal((await corral.send('/api/health')).status, 200, 'unfinished handshakes make room')
  for (let count = 0; count < 40; count++) {
    await secure(t, corral).catch(() => {})
  }
  t.equal((await corral.send('/api/health')).status, 200, 'idle connections make room')
  for (const text of ['\x16\x03\x01\x02\x00garbage', 'SSH-2.0-x\r\n', '\x00'.repeat(5000)]) {
    const wrong = await plain(t, corral, text)
    wrong.end()
    if (!wrong.closed) await once(wrong, 'close')
  }
  t.equal(joined(await corral.events('/api/chat', { ...endless(DEMO, { max_tokens: 3 }) })).length > 0, true)
})

t.test('a renewed certificate takes effect immediately, and an unusable one changes nothing', async t => {
  const missing = whyNoCertificates()
  if (missing) return t.comment(`skipped: ${missing}`)
  const root = newFolder(t)
  const add = (name: string, pair: Pair) => {
    mkdirSync(join(root, name))
    return place(join(root, name), pair)
  }
  const point = (name: string) => {
    symlinkSync(name, join(root, 'next'))
    renameSync(join(root, 'next'), join(root, 'current'))
  }
  const [first, second, soon] = [makeCertificate(300), makeCertificate(400), makeCertificate(3)]
  add('first', first)
  point('first')
  const corral = await startCorral(t, { config: settings(join(root, 'current')), ca: first.cert })
  const holds = async ({ cert }: Pair) => {
    const socket = connect({ port: getPort(corral), host: '127.0.0.1', ca: cert, rejectUnauthorized: false })
    await once(socket, 'secureConnect')
    const { authorized } = socket
    socket.destroy()
    return authorized
  }
  t.ok(await holds(first))
  const kept = await secure(t, corral, { ca: first.cert })

  add('second', second)
  point('second')
  await until('the new certificate is used', async () => await holds(second))
  t.match(corral.log(), /was replaced; new connections get it/)
  kept.write('GET /api/health HTTP/1.1\r\nhost: localhost\r\n\r\n')
  await until('open connections continue', () => kept.got.startsWith('HTTP/1.1 200'))

  const refusals = () => corral.log().split('the previous one stays').length - 1
  add('mixed', { cert: first.cert, key: second.key })
  point('mixed')
  await until('a key of another certificate is refused', () => refusals() === 1)
  t.ok(await holds(second))
  add('broken', { cert: 'no certificate', key: second.key })
  point('broken')
  await until('a file without a certificate is refused', () => refusals() === 2)
  rmSync(join(root, 'current'))
  await until('and so is none', () => refusals() === 3)
  t.ok(await holds(second))

  add('soon', soon)
  point('soon')
  await until('it is used', async () => await holds(soon))
  await until('a warning announces its expiry', () => /expires in 3 days\. Renew it/.test(corral.log()))
  writeFileSync(join(root, 'soon', 'cert.pem'), first.cert)
  writeFileSync(join(root, 'soon', 'key.pem'), first.key)
  await until('files that are written in place are noticed too', async () => await holds(first))
  t.equal(corral.log().split('expires in 3 days').length - 1, 1, 'the warning came once')
})

t.test('a start with an unusable certificate reports the cause', thorough, async t => {
  const folder = newFolder(t)
  const start = async (tls: string) => {
    writeFileSync(join(folder, 'config.yaml'), tls)
    return await command(['serve', '--port', '0'], { home: folder })
  }
  t.match(await start(settings(folder)), {
    code: 2,
    stderr: /tls\.certificate .*There is no file .*leave both empty for plain HTTP/s
  })
  t.match(await start(`tls: { certificate: ${folder}/cert.pem }`), { code: 2, stderr: /tls\.key .*go together/s })
  t.match(await start(`tls: { key: ${folder}/key.pem }`), { code: 2, stderr: /tls\.certificate .*go together/s })
  place(folder, { ...localhostCertificate, key: 'no key' })
  t.match(await start(settings(folder)), { code: 2, stderr: /cannot be used/ })
  const { stderr } = await command(['serve', '--host', 'https://example.org'], { home: newFolder(t) })
  t.match(stderr, /--host .*a host name or an address/s)
})

t.test('an unencrypted public address is reported once', thorough, async t => {
  const hint = /are sent to 0\.0\.0\.0:0 without encryption/g
  const flags = ['--host', '0.0.0.0']
  const key = 'api_keys: [a-key-that-is-long-enough-for-this]'
  const corral = await startCorral(t, { flags, config: `security: { ${key} }` })
  t.equal([...corral.log().matchAll(hint)].length, 1)
  const folder = place(newFolder(t), localhostCertificate)
  for (const config of [
    settings(folder, `security: { ${key} }`),
    `security: { ${key}, trusted_proxies: [127.0.0.1] }`
  ]) {
    t.notMatch((await startCorral(t, { flags, config, ca })).log(), hint)
  }
})
