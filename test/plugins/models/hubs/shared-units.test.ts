import t from 'tap'
import { isLoopback, isPrivateHost } from '../../../../core/system/private-address.ts'
import { checkRedirect, mayHaveCredentials } from '../../../../core/system/redirects.ts'
import { retryAfterSeconds } from '../../../../core/system/retry-after.ts'
import { isUsablePath } from '../../../../core/system/usable-path.ts'
import { connectionErrorText, isTemporary, retryDelay } from '../../../../plugins/models/hubs/hub-fetch.ts'
import {
  parseEtag,
  readLocation,
  sha256FromHeaders,
  sha256Hex,
  strongEtag
} from '../../../../plugins/models/hubs/listed-files.ts'
import { readCases } from '../../../support/fixture.ts'
import { answer, NOW, SHA1, SHA256, WITH_TOKEN } from './support.ts'

t.test('unsafe paths in listings are rejected', async t => {
  for (const path of ['a.gguf', 'Q4_K_M/a.gguf', '.gitattributes', 'a b/c-d_e.1.json', 'ünï.txt', 'console.log']) {
    t.equal(isUsablePath(path), true, path)
  }
  const bad = readCases<string[]>('hub-cases.yaml', 'unusablePaths')
  const windows = ['CON', 'a/nul.txt', 'com1.gguf', 'a.', 'a ', 'a?b', 'a*', 'a|b', '<a>', '"a"']
  for (const path of [...bad, ...windows, 'x'.repeat(256), undefined, 1, null]) {
    t.equal(isUsablePath(path), false, JSON.stringify(path))
  }
})

t.test('parses ETags and digests', async t => {
  t.strictSame(parseEtag(`"${SHA1}"`), { value: SHA1, weak: false })
  t.strictSame(parseEtag(`W/"${SHA1}"`), { value: SHA1, weak: true })
  t.strictSame(parseEtag(SHA1), { value: SHA1, weak: false })
  for (const text of [undefined, '', '""', '"a']) t.equal(parseEtag(text), undefined, String(text))
  t.equal(strongEtag('W/"x"'), undefined)
  t.equal(strongEtag('x'), '"x"')
  for (const text of [SHA256, `"${SHA256}"`, `W/"${SHA256}"`, `sha256:${SHA256}`, SHA256.toUpperCase()]) {
    t.equal(sha256Hex(text), SHA256, text)
  }
  for (const text of [SHA1, '', 'x'.repeat(64), undefined, 5]) t.equal(sha256Hex(text), undefined, String(text))
  const base64 = Buffer.from(SHA256, 'hex').toString('base64')
  const given: Record<string, string>[] = [
    { 'x-linked-etag': `"${SHA256}"` },
    { 'repr-digest': `sha-512=:AAAA:, sha-256=:${base64}:` },
    { digest: `md5=xyz,sha-256=${base64}` },
    { 'x-amz-checksum-sha256': base64 }
  ]
  for (const headers of given) t.equal(sha256FromHeaders(headers), SHA256, Object.keys(headers).join())
  // Digests of packed bytes, of parts, or of something else.
  const others: Record<string, string>[] = [
    { etag: `"${SHA256}"` },
    { 'x-amz-checksum-sha256': `${base64}-3` },
    { digest: 'sha-256=AAAA' }
  ]
  for (const headers of others) t.equal(sha256FromHeaders(headers), undefined, Object.keys(headers).join())
})

t.test('private addresses are recognized', async t => {
  for (const host of ['localhost', 'a.localhost', '127.0.0.1', '127.9.9.9', '[::1]', '::1', 'LOCALHOST.']) {
    t.equal(isLoopback(host), true, host)
    t.equal(isPrivateHost(host), true, host)
  }
  for (const host of readCases<string[]>('hub-cases.yaml', 'privateHosts')) {
    t.equal(isLoopback(host), false, host)
    t.equal(isPrivateHost(host), true, host)
  }
  for (const host of ['huggingface.co', '8.8.8.8', '172.32.0.1', '[2606:4700::1]', 'localhost.evil.com']) {
    t.equal(isPrivateHost(host), false, host)
  }
})

t.test('checks redirects', async t => {
  const judge = (location: string | undefined, from = 'https://hub.example.org/a/b', start = from) =>
    checkRedirect(location, { start: new URL(start), from: new URL(from), trustedHosts: ['alias.example.org'] })
  const followed = (location: string, from?: string, start?: string) => {
    const redirect = judge(location, from, start)
    if ('refused' in redirect) throw new Error(redirect.refused)
    return [redirect.to.href, redirect.foreign]
  }
  t.strictSame(followed('/c'), ['https://hub.example.org/c', false])
  t.strictSame(followed('c'), ['https://hub.example.org/a/c', false])
  t.strictSame(followed('https://alias.example.org/c'), ['https://alias.example.org/c', false])
  t.strictSame(followed('https://cdn.example.org/c'), ['https://cdn.example.org/c', true])
  t.strictSame(followed('https://hub.example.org:444/c'), ['https://hub.example.org:444/c', true])
  t.strictSame(followed('https://hub.example.org/c', 'http://hub.example.org/'), ['https://hub.example.org/c', false])
  t.strictSame(followed('http://127.0.0.1:2/c', 'http://127.0.0.1:1/'), ['http://127.0.0.1:2/c', true])
  t.strictSame(followed('http://127.0.0.1:2/c', 'https://10.0.0.1/'), ['http://127.0.0.1:2/c', true])
  t.strictSame(followed('http://cdn.example.org/c', 'http://hub.example.org/'), ['http://cdn.example.org/c', true])
  const refused = readCases<[location?: string, from?: string][]>('hub-cases.yaml', 'refusedRedirects')
  for (const [location, from] of refused) {
    t.match(judge(location, from), { refused: String }, String(location))
  }
  t.equal(mayHaveCredentials(new URL('http://a.org/'), new URL('https://a.org/'), ['a.org']), false)
  t.equal(mayHaveCredentials(new URL('http://alias.org/'), new URL('http://a.org/'), ['alias.org']), false)
})

t.test('only temporary failures are retried', async t => {
  for (const status of [408, 429, 500, 502, 503, 504]) t.equal(isTemporary(status), true, String(status))
  for (const status of [200, 302, 400, 401, 403, 404, 416, 501]) t.equal(isTemporary(status), false, String(status))
  const after = (headers: Record<string, string>) => retryAfterSeconds(headers, NOW)
  t.equal(after({ 'retry-after': '7' }), 7)
  t.equal(after({ 'retry-after': '0.4' }), 1)
  t.equal(after({ 'retry-after': new Date(NOW + 5000).toUTCString() }), 5)
  t.equal(after({ 'retry-after': new Date(NOW - 5000).toUTCString() }), 0)
  t.equal(after({ ratelimit: '"api";r=0;t=55', 'retry-after': '7' }), 56)
  t.equal(after({ ratelimit: '"api";r=3;t=9, "resolvers";r=0;t=20' }), 21)
  t.equal(after({ ratelimit: '"api";r=10;t=55' }), undefined)
  t.equal(after({ 'x-ratelimit-reset': String(NOW / 1000 + 12) }), 12)
  for (const headers of [{}, { 'retry-after': 'soon' }, { 'retry-after': '' }])
    t.equal(after(headers as any), undefined)
  t.equal(retryDelay(0, { 'retry-after': '7' }, NOW, 0.5), 7000)
  const delays = [0, 1, 2, 3, 9].map(attempt => retryDelay(attempt, undefined, NOW, 1))
  t.strictSame(delays, [400, 800, 1600, 3200, 8000])
  t.equal(retryDelay(0, undefined, NOW, 0), 200)
})

t.test('explains connection errors', async t => {
  const error = (code: string, message = 'x') => Object.assign(new Error(message), { code })
  t.match(connectionErrorText(error('ENOTFOUND'), 'hub.example'), /"hub.example" is unknown/)
  t.match(connectionErrorText(error('ECONNREFUSED'), 'hub.example'), /nothing listens at hub.example/)
  t.match(connectionErrorText(new AggregateError([error('ECONNREFUSED')]), 'h'), /nothing listens/)
  const expired = new Error('x', { cause: error('CERT_HAS_EXPIRED') })
  t.match(connectionErrorText(expired, 'h'), /certificate of h has expired/)
  t.match(connectionErrorText(error('DEPTH_ZERO_SELF_SIGNED_CERT'), 'h'), /NODE_EXTRA_CA_CERTS/)
  const login = error('UND_ERR_ABORTED', 'Proxy response (407) !== 200 when HTTP Tunneling')
  const explained = /proxy refuses to connect to h: it requires a user name and a password \(407\)/
  t.match(connectionErrorText(login, 'h'), explained)
  t.equal(connectionErrorText(new Error('Strange.'), 'h'), 'h: Strange')
})

t.test('reads file locations from responses', async t => {
  const redirect = {
    'x-linked-size': '1048576',
    'x-linked-etag': `"${SHA256}"`,
    'content-length': '913',
    etag: '"hub"'
  }
  const foreign = answer(302, {
    headers: redirect,
    foreignLocation: `https://cdn.example.org/x?Expires=${NOW / 1000 + 60}`,
    ...WITH_TOKEN
  })
  t.match(readLocation(foreign, '', 'a.gguf'), { url: foreign.foreignLocation, size: 1048576, sha256: SHA256 })
  t.equal(readLocation(foreign, '', 'a.gguf').headers.authorization, undefined)
  t.equal(readLocation(foreign, '', 'a.gguf').identity, undefined)
  const bare = answer(302, { headers: { 'content-length': '913' }, foreignLocation: 'https://cdn.example.org/x' })
  t.equal(readLocation(bare, '', 'a.gguf').size, undefined, "a redirect's length is its own")
  const own = answer(206, {
    headers: { 'content-range': 'bytes 0-0/77', 'content-length': '1', etag: `"${SHA256}"` },
    ...WITH_TOKEN
  })
  const location = readLocation(own, 'http://proxy:1', 'a.gguf')
  t.match(location, { size: 77, identity: `"${SHA256}"`, proxy: 'http://proxy:1' })
  t.equal(location.headers.authorization, 'Bearer hf_secret')
  t.equal(location.headers['accept-encoding'], 'identity')
  t.equal(location.sha256, undefined, 'an ETag is not a digest')
  t.equal(readLocation(answer(200, { headers: { 'content-length': '5' } }), '', 'a.gguf').size, 5)
  const packed = answer(200, { headers: { 'content-length': '5', 'content-encoding': 'gzip' } })
  t.equal(readLocation(packed, '', 'a.gguf').size, undefined)
  for (const [headers, why] of [
    [{ 'x-linked-size': '-1' }, /size/],
    [{ 'x-linked-size': '1e9' }, /size/],
    [{ 'x-linked-size': '9007199254740993' }, /size/],
    [{ 'content-range': 'bytes 0-0/99999999999999999999' }, /size/],
    [{ 'x-linked-etag': '"abc"' }, /SHA-256/],
    [{ 'x-linked-etag': `"${SHA256}0"` }, /SHA-256/]
  ] as const) {
    t.throws(() => readLocation(answer(206, { headers }), '', 'a.gguf'), { message: why }, JSON.stringify(headers))
  }
  const ofGit = answer(206, { headers: { 'x-linked-etag': `"${SHA1}"` } })
  t.equal(readLocation(ofGit, '', 'a.json').sha256, undefined)
  t.equal(readLocation(answer(416, { headers: { 'content-range': 'bytes */0' } }), '', 'a.gguf').size, 0)
})
