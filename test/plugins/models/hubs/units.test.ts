import t from 'tap'
import { offlineVariable } from '../../../../core/system/connections.ts'
import { isLoopback, isPrivateHost } from '../../../../core/system/private-address.ts'
import { checkRedirect, mayHaveCredentials } from '../../../../core/system/redirects.ts'
import { retryAfterSeconds } from '../../../../core/system/retry-after.ts'
import { isUsablePath } from '../../../../core/system/usable-path.ts'
import { parseCorralReference, readCorralListing } from '../../../../plugins/models/hubs/corral.ts'
import {
  completed,
  filesFromInfo,
  filesFromTree,
  isFinalRefusal,
  isIncomplete,
  nextPage,
  refusalKind,
  sameButForCase,
  tokenFile,
  tokenSources
} from '../../../../plugins/models/hubs/hf-like.ts'
import {
  connectionErrorText,
  findToken,
  type HubResponse,
  isTemporary,
  resolveEndpoint,
  retryDelay
} from '../../../../plugins/models/hubs/hub-fetch.ts'
import {
  hubRefusal,
  parseEtag,
  type RefusalKind,
  readFacts,
  readLocation,
  sha256FromHeaders,
  sha256Hex,
  strongEtag
} from '../../../../plugins/models/hubs/hub-replies.ts'
import { isSuccess, modelScopeRefusal, parseEnvelope, readListing } from '../../../../plugins/models/hubs/modelscope.ts'
import { fileNameFromDisposition, fileNameFromUrl, parseAddress } from '../../../../plugins/models/hubs/url.ts'
import { failing } from '../../../support/failure.ts'
import { readCases, readFixture } from '../../../support/fixture.ts'
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

t.test('a hub parses ETags and digests', async t => {
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

t.test('a hub checks redirects', async t => {
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

t.test('a hub explains connection errors', async t => {
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

t.test('a hub reads file locations from responses', async t => {
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

/** Cases with the digests in place of their names. */
function readHubCases<Cases>(key: string): Cases {
  const text = JSON.stringify(readCases('hub-cases.yaml', key))
  const cases = text.replaceAll('UPPER256', SHA256.toUpperCase()).replaceAll('SHA256', SHA256).replaceAll('SHA1', SHA1)
  return JSON.parse(cases)
}

t.test("a hub parses Hugging Face's listings", async t => {
  const { siblings, tree: entries, ...expected } = readHubCases<Record<string, any[]>>('huggingFaceListing')
  const files = (await filesFromInfo({ siblings }))!
  t.same(JSON.parse(JSON.stringify(files)), expected.fromSiblings)
  t.equal(await filesFromInfo({}), undefined)
  t.strictSame(await filesFromInfo({ siblings: [] }), [])
  const tree = await filesFromTree(entries!, true)
  t.strictSame(tree, expected.fromTree)
  t.strictSame(await filesFromTree(entries!.slice(2, 3), false), [{ path: 'c.json', size: 3 }])
  t.strictSame(completed(files, tree).slice(2), expected.fromTree)
  t.equal(isIncomplete(files, true), true)
  t.equal(isIncomplete(completed(files, tree), true), false)
  t.equal(isIncomplete([{ path: 'a', size: 1 }], false), false)
  t.equal(isIncomplete([{ path: 'a', size: undefined, sha256: SHA256 }], true), true)

  for (const [link, page, endpoint = 'http://127.0.0.1:9'] of readCases<PageCase[]>('hub-cases.yaml', 'nextPages')) {
    t.equal(nextPage(link, endpoint), page, String(link))
  }
})
type PageCase = [link: string | undefined, page: string | undefined, endpoint?: string]

t.test('a hub rejects impossible sizes and digests in listings', async t => {
  const info = (fields: object) => filesFromInfo({ siblings: [{ rfilename: 'a.gguf', ...fields }] })
  const tree = (fields: object) => filesFromTree([{ path: 'a.gguf', ...fields }], true)
  const listing = (fields: object) => readListing({ Data: { Files: [{ Path: 'a.gguf', ...fields }] } }, 'M', 'a/b')
  const corral = async ({ size, sha256 }: { size?: unknown; sha256?: unknown }) =>
    readCorralListing({
      name: 'a/b',
      variants: [{ label: 'Q8_0', revision: 'r', files: [{ path: 'a.gguf', size, sha256: sha256 ?? SHA256 }] }]
    })
  const sizes: ((size: unknown) => Promise<unknown>)[] = [
    size => info({ size }),
    size => info({ lfs: { size } }),
    size => tree({ size }),
    size => listing({ Size: size }),
    size => corral({ size })
  ]
  const digests: typeof sizes = [
    sha256 => info({ lfs: { sha256 } }),
    oid => info({ lfs: { oid } }),
    oid => tree({ lfs: { oid } }),
    sha256 => listing({ Sha256: sha256 }),
    sha256 => corral({ sha256 })
  ]
  for (const size of [-1, 0.5, '5', 2 ** 53, true, [5], {}, Number.POSITIVE_INFINITY]) {
    for (const read of sizes)
      await t.rejects(read(size), { message: /the size of "(Q8_0\/)?a\.gguf" is/ }, JSON.stringify(size))
  }
  for (const sha256 of ['', 'no', SHA1, SHA256.slice(1), `${SHA256}0`, `md5:${SHA256}`, 5, {}, [SHA256]]) {
    const message = /the SHA-256 of "(Q8_0\/)?a\.gguf" is/
    for (const read of digests) await t.rejects(read(sha256), { message }, JSON.stringify(sha256))
  }
  const error = await readFacts('Hub', () => info({ size: 'x\n'.repeat(1000) })).catch(error => error)
  t.match(error, {
    code: 'hub_unreachable',
    message: /^Hub says that the size of "(Q8_0\/)?a\.gguf" is "x\\nx.{60,80}…, which/
  })
})

t.test('a hub parses listings of ModelScope and other corrals', async t => {
  const Files = readHubCases<object[]>('modelScopeListing')
  t.strictSame(await readListing({ Data: { Files } }, 'ModelScope', 'a/b'), {
    files: [
      { path: 'a.gguf', size: 5, sha256: SHA256 },
      { path: 'b.gguf', size: 5 }
    ],
    inCheck: ['b.gguf']
  })
  for (const body of [{}, { Data: null }, { Data: { Files: 'x' } }]) {
    t.equal(await readListing(body, 'ModelScope', 'a/b'), undefined)
  }

  const files = [{ path: 'Q8_0/model.gguf', size: 5, sha256: SHA256 }]
  const listing = readCorralListing(readHubCases('corralListing'))
  t.strictSame(listing, { name: 'acme/Tiny', files, revisions: { Q8_0: 'r1' } })
  for (const body of [null, [], {}, { name: 'x' }]) t.equal(readCorralListing(body), undefined)

  for (const [text, endpoint] of readCases<[text: string, endpoint?: string][]>('hub-cases.yaml', 'corralReferences')) {
    t.strictSame(parseCorralReference(text), { id: 'acme/Tiny', ...(endpoint && { endpoint }) }, text)
  }
  for (const text of readCases<string[]>('hub-cases.yaml', 'wrongCorralReferences')) {
    t.throws(() => parseCorralReference(text), { code: 'invalid_model_name' }, text)
  }
})

t.test('a hub parses plain addresses', async t => {
  t.strictSame(parseAddress('https://user:p%40ss@example.org/a.gguf?v=1#x'), {
    id: 'https://example.org/a.gguf?v=1',
    credentials: { authorization: `Basic ${Buffer.from('user:p@ss').toString('base64')}` },
    secretQuery: ''
  })
  for (const query of ['?X-Amz-Signature=1&X-Amz-Date=2', '?token=x', '?sig=x&se=y', '?a=1&access_token=2']) {
    const { id, secretQuery } = parseAddress(`http://example.org/a.gguf${query}`)
    t.strictSame([id, secretQuery], ['http://example.org/a.gguf', query], query)
  }
  t.equal(parseAddress('example.org/a.gguf').id, 'https://example.org/a.gguf')
  for (const text of ['ftp://example.org/a', 'https://', 'file:///etc/passwd']) {
    t.throws(() => parseAddress(text), { code: 'repo_not_found' }, text)
  }
  type NameCase = [text: string | undefined, name: string | undefined]
  for (const [text, name] of readCases<NameCase[]>('hub-cases.yaml', 'fileAddresses')) {
    t.equal(fileNameFromUrl(text!), name, String(text))
  }
  for (const [header, name] of readCases<NameCase[]>('hub-cases.yaml', 'dispositions')) {
    t.equal(fileNameFromDisposition(header), name, String(header))
  }
})

t.test("a hub reads endpoints, tokens and Hugging Face's environment", async t => {
  const at = (setting: string, variable?: string) =>
    resolveEndpoint(setting, 'HUB', 'https://usual.org', variable === undefined ? {} : { HUB: variable })
  type EndpointCase = [setting: string, variable: string | undefined, endpoint: string]
  for (const [setting, variable, endpoint] of readCases<EndpointCase[]>('hub-cases.yaml', 'endpoints')) {
    t.equal(at(setting, variable), endpoint)
  }
  for (const text of ['ftp://x', 'https://user@x', 'https://x?y', 'https://x#y', ':::'])
    t.throws(() => at('', text), /HUB/, text)

  const folder = t.testdir({ token: 'hf_file\r\n', empty: '\n', odd: 'a b\n' })
  type Env = Record<string, string>
  type TokenCase = [sources: { variables: string[]; file?: string }, env: Env, setting: string, token?: string | RegExp]
  for (const [{ file, ...sources }, env, setting, token] of readCases<TokenCase[]>('hub-cases.yaml', 'tokens')) {
    const found = findToken(setting, { ...sources, file: file?.replace('FOLDER', folder) }, env)
    if (token instanceof RegExp) await t.rejects(found, failing('hub_forbidden', token))
    else t.equal(await found, token)
  }

  for (const [env, file] of readCases<[Env, string][]>('hub-cases.yaml', 'tokenFiles')) t.equal(tokenFile(env), file)
  t.match(tokenFile({}), /\.cache\/huggingface\/token$/)
  const variables = ['HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN']
  t.strictSame(tokenSources({ HF_TOKEN_PATH: '/t' }), { variables, file: '/t' })
  t.strictSame(tokenSources({ HF_HUB_DISABLE_IMPLICIT_TOKEN: '1' }), { variables: [] })
  for (const [env, variable] of readCases<[Env, string?][]>('hub-cases.yaml', 'offline')) {
    t.equal(offlineVariable(env), variable)
  }

  t.equal(sameButForCase([{ id: 'acme/other' }, { modelId: 'Acme/Tiny' }], 'acme/tiny'), 'Acme/Tiny')
  for (const results of [[], [{ id: 'acme/tiny' }], {}, null, [null]])
    t.equal(sameButForCase(results, 'acme/tiny'), undefined)
})

interface RefusalCase {
  name: string
  /** `token`: a token was sent with the request. `said`: the JSON of the reply. */
  response: Partial<HubResponse> & { status: number; said?: unknown; token?: boolean }
  isFile?: boolean
  kind: RefusalKind
  /** The error's code, and a pattern for its message. */
  code: string
  message: string
}

const CASES = readFixture<Record<'huggingFace' | 'modelScope', RefusalCase[]>>('hub-refusals.yaml')
const toResponse = ({ status, token, ...more }: RefusalCase['response']) =>
  answer(status, { ...more, ...(token && WITH_TOKEN) })

t.test('refusals of Hugging Face and CSGHub are classified', async t => {
  for (const { name, response, isFile = false, kind, code, message } of CASES.huggingFace) {
    const given = toResponse(response)
    t.equal(refusalKind(given, isFile), kind, name)
    const subject = {
      title: 'The Hub',
      id: 'acme/Tiny',
      page: 'https://hub.example.org/acme/Tiny',
      revision: 'v9',
      tokenAdvice: 'set HF_TOKEN',
      ...(isFile ? { file: 'a.gguf' } : {})
    }
    const error = hubRefusal(kind, given, subject, NOW)
    t.equal(error.code, code, name)
    t.match(error.message, new RegExp(message), name)
    t.notMatch(error.message, /hf_secret|undefined/, name)
    t.match(error.message, /[.?]$/, name)
  }
  const odd = answer(404, { headers: { 'x-error-code': 'constructor' } })
  t.equal(refusalKind(odd, false), 'unknown-repository', 'an unknown code with the name of a method')
  const busy = answer(429, { headers: { 'retry-after': '9' } })
  const limited = hubRefusal('rate-limited', busy, { title: 'The Hub', id: 'a/b' }, NOW)
  t.match(limited, { retryAfter: 9, details: { hub: 'The Hub', repository: 'a/b', hubStatus: 429 } })
  t.equal(isFinalRefusal(answer(500, { said: { code: 'AUTH-ERR-0' } })), true)
  t.equal(isFinalRefusal(answer(500, { said: { code: 'SYS-ERR-0' } })), false)
  t.equal(isFinalRefusal(answer(500)), false)
})

t.test('refusals of ModelScope are classified', async t => {
  for (const { name, response, code, message } of CASES.modelScope) {
    const given = toResponse(response)
    const body = await parseEnvelope(given)
    t.equal(isSuccess(given, body), false, name)
    const subject = { title: 'ModelScope', id: 'acme/Tiny', page: 'https://m/models/acme/Tiny', revision: 'main' }
    const error = modelScopeRefusal(given, body, subject, NOW)
    t.equal(error.code, code, name)
    t.match(error.message, new RegExp(message), name)
  }
  t.equal(isSuccess(answer(200), { Code: 200, Success: true, Data: {} }), true)
  const page = await parseEnvelope({ text: '<html>' })
  t.equal(isSuccess(answer(200), page), true, 'a reply without an envelope does not indicate failure')
})
