import t from 'tap'
import { isLoopback, isPrivateHost } from '../../core/private-address.ts'
import { readCorralListing } from '../../plugins/hubs/corral/listing.ts'
import { parseCorralReference } from '../../plugins/hubs/corral/reference.ts'
import { parseEtag, sha256Hex, sha256OfHeaders, strongEtag } from '../../plugins/hubs/files/etag.ts'
import { expiryOf } from '../../plugins/hubs/files/expiry.ts'
import { isUsablePath } from '../../plugins/hubs/files/listing-path.ts'
import { locationOf } from '../../plugins/hubs/files/location.ts'
import { completed, filesOfInfo, filesOfTree, isIncomplete, nextPage } from '../../plugins/hubs/hf-like/listing.ts'
import { isFinalWord, refusalOf, verdictOf } from '../../plugins/hubs/hf-like/refusal.ts'
import { sameButForCase } from '../../plugins/hubs/hf-like/similar-name.ts'
import { connectionWords } from '../../plugins/hubs/http/connection-words.ts'
import type { HubAnswer } from '../../plugins/hubs/http/hub-fetch.ts'
import { judgeRedirect, mayHaveCredentials } from '../../plugins/hubs/http/redirects.ts'
import { isPassing, retryAfterSeconds, retryDelay } from '../../plugins/hubs/http/retry-delay.ts'
import { requireRequest } from '../../plugins/hubs/hub-request.ts'
import { offlineVariable, tokenFile, tokenSources } from '../../plugins/hubs/huggingface/environment.ts'
import { readListing } from '../../plugins/hubs/modelscope/listing.ts'
import { isGood, modelScopeRefusal } from '../../plugins/hubs/modelscope/refusal.ts'
import { endpointOf } from '../../plugins/hubs/public-hub.ts'
import { findToken } from '../../plugins/hubs/token.ts'
import { nameOfAddress, nameOfDisposition, parseAddress, shardsOf } from '../../plugins/hubs/url/address.ts'

const SHA256 = 'ab'.repeat(32)
const SHA1 = 'cd'.repeat(20)
const NOW = Date.UTC(2026, 0, 2, 3, 4, 5)

t.test('what may be asked for', async t => {
  for (const revision of [undefined, 'main', 'v1.0', 'refs/pr/1', 'feature/x_y']) {
    t.doesNotThrow(
      () => requireRequest({ id: 'acme/Tiny-GGUF', ...(revision ? { revision } : {}) }),
      revision ?? 'none'
    )
  }
  for (const id of [
    '',
    'acme',
    'acme/',
    '/Tiny',
    '../x',
    'acme/..',
    'acme/./x',
    'acme/Tiny/blob',
    'acme/Ti ny',
    'a/b?c',
    'a/b#c',
    'a\\b/c'
  ]) {
    t.throws(() => requireRequest({ id }), { code: 'invalid_model_name' }, id)
  }
  for (const revision of ['', '..', '.', 'a/../b', 'a b', 'a?b', 'a\nb']) {
    t.throws(() => requireRequest({ id: 'acme/Tiny', revision }), { code: 'repo_not_found' }, JSON.stringify(revision))
  }
})

t.test('paths of listings', async t => {
  for (const path of ['a.gguf', 'Q4_K_M/a.gguf', '.gitattributes', 'a b/c-d_e.1.json', 'ünï.txt', 'console.log']) {
    t.equal(isUsablePath(path), true, path)
  }
  const bad = [
    '',
    '/a',
    'a/',
    'a//b',
    '.',
    '..',
    '../a',
    'a/../b',
    'a/./b',
    'a\\b',
    'C:/a',
    'c:a',
    'a\0b',
    'a\nb',
    'a\u007f'
  ]
  const windows = ['CON', 'a/nul.txt', 'com1.gguf', 'a.', 'a ', 'a?b', 'a*', 'a|b', '<a>', '"a"']
  for (const path of [...bad, ...windows, 'x'.repeat(256), undefined, 1, null]) {
    t.equal(isUsablePath(path), false, JSON.stringify(path))
  }
})

t.test('ETags and digests', async t => {
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
  for (const headers of given) t.equal(sha256OfHeaders(headers), SHA256, Object.keys(headers).join())
  // Those are of packed bytes, of parts, or of something else.
  const others: Record<string, string>[] = [
    { etag: `"${SHA256}"` },
    { 'x-amz-checksum-sha256': `${base64}-3` },
    { digest: 'sha-256=AAAA' }
  ]
  for (const headers of others) t.equal(sha256OfHeaders(headers), undefined, Object.keys(headers).join())
})

t.test('expiry of signed addresses', async t => {
  const at = (query: string) => expiryOf(`https://cdn.example.org/x?${query}`, NOW)
  t.equal(at('X-Amz-Date=20260102T030400Z&X-Amz-Expires=3600'), Date.UTC(2026, 0, 2, 4, 4, 0))
  t.equal(at('x-amz-date=20260102T030400Z&x-amz-expires=3600'), Date.UTC(2026, 0, 2, 4, 4, 0))
  t.equal(at('X-Goog-Date=20260102T030400Z&X-Goog-Expires=60'), Date.UTC(2026, 0, 2, 3, 5, 0))
  t.equal(at('x-oss-date=20260102T030400Z&x-oss-expires=60'), Date.UTC(2026, 0, 2, 3, 5, 0))
  t.equal(at(`Expires=${NOW / 1000 + 60}&Signature=x`), NOW + 60_000)
  t.equal(at(`expires=${NOW + 60_000}`), NOW + 60_000)
  t.equal(at('se=2026-01-02T04%3A04%3A05Z&sig=x'), NOW + 3_600_000)
  for (const query of ['', 'Expires=', 'Expires=soon', 'X-Amz-Expires=60', `Expires=${NOW / 1000 - 5}`, 'Expires=12']) {
    t.equal(at(query), undefined, query)
  }
})

t.test('private addresses', async t => {
  for (const host of ['localhost', 'a.localhost', '127.0.0.1', '127.9.9.9', '[::1]', '::1', 'LOCALHOST.']) {
    t.equal(isLoopback(host), true, host)
    t.equal(isPrivateHost(host), true, host)
  }
  for (const host of [
    '10.1.2.3',
    '192.168.0.1',
    '172.16.0.1',
    '169.254.169.254',
    '0.0.0.0',
    '[fd00::1]',
    '[fe80::1]',
    '[::ffff:10.0.0.1]',
    'nas',
    'hub.local',
    'hub.internal'
  ]) {
    t.equal(isLoopback(host), false, host)
    t.equal(isPrivateHost(host), true, host)
  }
  for (const host of ['huggingface.co', '8.8.8.8', '172.32.0.1', '[2606:4700::1]', 'localhost.evil.com']) {
    t.equal(isPrivateHost(host), false, host)
  }
})

t.test('redirects', async t => {
  const judge = (location: string | undefined, from = 'https://hub.example.org/a/b', start = from) =>
    judgeRedirect(location, { start: new URL(start), from: new URL(from), trustedHosts: ['alias.example.org'] })
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
  for (const [location, from] of [
    [undefined],
    ['http://'],
    ['file:///etc/passwd'],
    ['ftp://hub.example.org/x'],
    ['https://user:secret@cdn.example.org/x'],
    ['http://cdn.example.org/x'],
    ['http://alias.example.org/x'],
    ['https://127.0.0.1/x'],
    ['https://localhost/x'],
    ['https://169.254.169.254/latest/meta-data'],
    ['https://[::1]/x'],
    ['https://10.0.0.1/x'],
    ['http://192.168.1.1/x', 'http://hub.example.org/']
  ] as const) {
    t.match(judge(location, from), { refused: String }, String(location))
  }
  t.equal(mayHaveCredentials(new URL('http://a.org/'), new URL('https://a.org/'), ['a.org']), false)
  t.equal(mayHaveCredentials(new URL('http://alias.org/'), new URL('http://a.org/'), ['alias.org']), false)
})

t.test('when to ask again', async t => {
  for (const status of [408, 429, 500, 502, 503, 504]) t.equal(isPassing(status), true, String(status))
  for (const status of [200, 302, 400, 401, 403, 404, 416, 501]) t.equal(isPassing(status), false, String(status))
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

t.test('why there is no connection, in words', async t => {
  const error = (code: string, message = 'x') => Object.assign(new Error(message), { code })
  t.match(connectionWords(error('ENOTFOUND'), 'hub.example'), /"hub.example" is not known/)
  t.match(connectionWords(error('ECONNREFUSED'), 'hub.example'), /nothing listens at hub.example/)
  t.match(connectionWords(new AggregateError([error('ECONNREFUSED')]), 'h'), /nothing listens/)
  t.match(connectionWords(new Error('x', { cause: error('CERT_HAS_EXPIRED') }), 'h'), /certificate of h has expired/)
  t.match(connectionWords(error('DEPTH_ZERO_SELF_SIGNED_CERT'), 'h'), /NODE_EXTRA_CA_CERTS/)
  t.match(
    connectionWords(error('UND_ERR_ABORTED', 'Proxy response (407) !== 200 when HTTP Tunneling'), 'h'),
    /proxy refuses/
  )
  t.equal(connectionWords(new Error('Strange.'), 'h'), 'h: Strange')
})

t.test('listings like those of Hugging Face', async t => {
  const files = filesOfInfo({
    siblings: [
      { rfilename: 'README.md', size: 52, blobId: SHA1 },
      {
        rfilename: 'a.gguf',
        size: 9,
        blobId: SHA1,
        lfs: { sha256: SHA256.toUpperCase(), size: 1048576, pointerSize: 132 }
      },
      { rfilename: 'b.gguf', size: 7, blobId: SHA1 },
      { rfilename: 'c.json' },
      { rfilename: '../evil' },
      { rfilename: 'a.gguf', size: 9, lfs: { oid: `sha256:${SHA256}`, size: 5 } },
      { size: 5 },
      'nonsense'
    ]
  })
  t.strictSame(files, [
    { path: 'README.md', size: 52, gitSha1: SHA1 },
    { path: 'a.gguf', size: 5, sha256: SHA256 },
    // In git itself no such file lies: what the blob id names is not known.
    { path: 'b.gguf', size: 7 },
    { path: 'c.json', size: undefined }
  ])
  t.equal(filesOfInfo({}), undefined)
  t.strictSame(filesOfInfo({ siblings: [] }), [])
  const tree = filesOfTree(
    [
      { type: 'directory', path: 'Q4', oid: SHA1, size: 0 },
      { type: 'file', path: 'b.gguf', size: 7, oid: SHA1, lfs: { oid: SHA256, size: 700 } },
      { type: 'file', path: 'c.json', size: 3, oid: SHA1 },
      { type: 'symlink', path: 'link', size: 3, oid: SHA1 },
      { type: 'file', mode: '120000', path: 'link2', size: 3 },
      { type: 'file', path: '/etc/passwd', size: 3 }
    ],
    true
  )
  t.strictSame(tree, [
    { path: 'b.gguf', size: 700, sha256: SHA256 },
    { path: 'c.json', size: 3, gitSha1: SHA1 }
  ])
  t.strictSame(filesOfTree([{ type: 'file', path: 'c.json', size: 3, oid: SHA1 }], false), [
    { path: 'c.json', size: 3 }
  ])
  t.strictSame(completed(files!, tree).slice(2), [
    { path: 'b.gguf', size: 700, sha256: SHA256 },
    { path: 'c.json', size: 3, gitSha1: SHA1 }
  ])
  t.equal(isIncomplete(files!, true), true)
  t.equal(isIncomplete(completed(files!, tree), true), false)
  t.equal(isIncomplete([{ path: 'a', size: 1 }], false), false)
  t.equal(isIncomplete([{ path: 'a', size: undefined, sha256: SHA256 }], true), true)

  const next = (link: string | undefined, endpoint = 'http://127.0.0.1:9') => nextPage(link, endpoint)
  t.equal(
    next('<https://huggingface.co/api/x?recursive=true&cursor=Zg%3D%3D>; rel="next"'),
    '/api/x?recursive=true&cursor=Zg%3D%3D'
  )
  t.equal(next('<https://a/first>; rel="first", <https://a/x?c=2>; rel=next'), '/x?c=2')
  t.equal(next('</api/x?c=2>; rel="next"'), '/api/x?c=2')
  t.equal(next('<https://h/hf/api/x?c=2>; rel="next"', 'https://m/hf'), '/api/x?c=2')
  t.equal(next('<https://h/api/x?c=2>; rel="next"', 'https://m/hf'), '/api/x?c=2')
  for (const link of [undefined, '', '<https://a/x>; rel="prev"']) t.equal(next(link), undefined)
})

const answer = (status: number, more: Partial<HubAnswer> & { said?: unknown } = {}): HubAnswer => {
  const { said, ...rest } = more
  const headers = more.headers ?? {}
  return {
    status,
    url: 'https://hub.example.org/x',
    headers,
    hops: [headers],
    text: said === undefined ? '' : JSON.stringify(said),
    credentials: undefined,
    ...rest
  }
}
const WITH_TOKEN = { credentials: { authorization: 'Bearer hf_secret' } }

t.test('refusals of Hugging Face and CSGHub', async t => {
  const code = (name: string, words?: string) => ({
    headers: { 'x-error-code': name, ...(words ? { 'x-error-message': words } : {}) }
  })
  const words = (text: string) => ({ headers: { 'x-error-message': text } })
  const table: [string, HubAnswer, boolean, string, string, RegExp][] = [
    [
      'unknown, anonymous',
      answer(401, { said: { error: 'Invalid username or password.' } }),
      false,
      'unknown-repository',
      'repo_not_found',
      /does not exist, is private, or is spelled in another case.*HF_TOKEN/
    ],
    [
      'unknown, anonymous, with code',
      answer(401, code('RepoNotFound')),
      false,
      'unknown-repository',
      'repo_not_found',
      /without a token/
    ],
    [
      'unknown, token',
      answer(404, { ...code('RepoNotFound'), ...WITH_TOKEN }),
      false,
      'unknown-repository',
      'repo_not_found',
      /whether the token in use may see it/
    ],
    [
      'unknown, plain 404',
      answer(404, { said: { error: 'Not found' } }),
      false,
      'unknown-repository',
      'repo_not_found',
      /acme\/Tiny/
    ],
    [
      'unknown, page',
      answer(404, { text: '<html>', headers: { 'content-type': 'text/html' } }),
      false,
      'unknown-repository',
      'repo_not_found',
      /HTML page: is it the right endpoint/
    ],
    [
      'bad name',
      answer(400, { said: { error: 'Bad repo name' } }),
      false,
      'unknown-repository',
      'repo_not_found',
      /Bad repo name/
    ],
    [
      'bad token',
      answer(401, { ...words('Invalid credentials in Authorization header'), ...WITH_TOKEN }),
      false,
      'bad-token',
      'hub_forbidden',
      /does not accept the token/
    ],
    [
      'bad token without words',
      answer(401, WITH_TOKEN),
      false,
      'bad-token',
      'hub_forbidden',
      /wrong, expired or revoked/
    ],
    [
      'gated, anonymous',
      answer(401, code('GatedRepo')),
      true,
      'gated',
      'hub_forbidden',
      /Agree at https:\/\/hub.example.org\/acme\/Tiny, then set HF_TOKEN/
    ],
    [
      'gated by its words',
      answer(401, {
        said: { error: 'Access to model acme/Tiny is restricted. You must be authenticated to access it.' }
      }),
      false,
      'gated',
      'hub_forbidden',
      /agreed to its terms/
    ],
    [
      'gated, not on the list',
      answer(403, { ...code('GatedRepo', 'you are not in the authorized list'), ...WITH_TOKEN }),
      true,
      'gated',
      'hub_forbidden',
      /not on it. Ask for access at/
    ],
    [
      'gated without code',
      answer(403, {
        ...words('Access to model X is restricted and you are not in the authorized list'),
        ...WITH_TOKEN
      }),
      true,
      'gated',
      'hub_forbidden',
      /not on it/
    ],
    ['a file, anonymous 401', answer(401), true, 'private', 'hub_forbidden', /needs a login/],
    [
      'revision',
      answer(404, code('RevisionNotFound')),
      false,
      'unknown-revision',
      'repo_not_found',
      /no revision "v9"/
    ],
    [
      'revision by its words',
      answer(404, { said: { error: 'Invalid rev id: v9' } }),
      false,
      'unknown-revision',
      'repo_not_found',
      /no revision/
    ],
    [
      'file',
      answer(404, { ...code('EntryNotFound'), text: 'Entry not found' }),
      true,
      'unknown-file',
      'repo_not_found',
      /no longer has the file "a.gguf"/
    ],
    ['file, plain 404', answer(404), true, 'unknown-file', 'repo_not_found', /Pull the model again/],
    [
      'disabled',
      answer(403, words('Access to this resource is disabled.')),
      false,
      'disabled',
      'hub_forbidden',
      /has disabled/
    ],
    ['forbidden', answer(403, { text: 'no' }), false, 'forbidden', 'hub_forbidden', /status 403.*says: no/],
    ['legal', answer(451), false, 'forbidden', 'hub_forbidden', /451/],
    [
      'limited',
      answer(429, { headers: { ratelimit: '"api";r=0;t=55' } }),
      false,
      'limited',
      'hub_rate_limited',
      /in 56 s.*HF_TOKEN/
    ],
    ['trouble', answer(503, { text: 'oops' }), false, 'unwell', 'hub_unreachable', /status 503.*oops/],
    [
      'csghub unknown',
      answer(500, { said: { code: 'SYS-ERR-3', msg: 'SYS-ERR-3: no rows' } }),
      false,
      'unknown-repository',
      'repo_not_found',
      /./
    ],
    [
      'csghub unknown in git',
      answer(500, { said: { msg: 'GIT-ERR-9: not found' } }),
      false,
      'unknown-repository',
      'repo_not_found',
      /./
    ],
    [
      'csghub private',
      answer(500, { said: { code: 'AUTH-ERR-0', msg: 'unauthorized' } }),
      false,
      'private',
      'hub_forbidden',
      /private or needs a login/
    ],
    [
      'csghub forbidden',
      answer(403, { said: { code: 'AUTH-ERR-2', msg: 'no' }, ...WITH_TOKEN }),
      true,
      'private',
      'hub_forbidden',
      /token in use/
    ],
    [
      'csghub bad token',
      answer(401, { said: { code: 'AUTH-ERR-4' }, ...WITH_TOKEN }),
      false,
      'bad-token',
      'hub_forbidden',
      /./
    ],
    [
      'csghub revision',
      answer(500, { said: { code: 'GIT-ERR-11' } }),
      false,
      'unknown-revision',
      'repo_not_found',
      /./
    ],
    ['csghub file', answer(404, { said: { code: 'GIT-ERR-15' } }), true, 'unknown-file', 'repo_not_found', /./],
    [
      'csghub trouble',
      answer(500, { said: { code: 'SYS-ERR-0', msg: 'broken' } }),
      false,
      'unwell',
      'hub_unreachable',
      /broken/
    ]
  ]
  for (const [name, given, ofFile, verdict, expected, message] of table) {
    t.equal(verdictOf(given, ofFile), verdict, name)
    const subject = {
      title: 'The Hub',
      id: 'acme/Tiny',
      page: 'https://hub.example.org/acme/Tiny',
      revision: 'v9',
      tokenAdvice: 'set HF_TOKEN',
      ...(ofFile ? { file: 'a.gguf' } : {})
    }
    const error = refusalOf(given, subject, NOW)
    t.equal(error.code, expected, name)
    t.match(error.message, message, name)
    t.notMatch(error.message, /hf_secret|undefined/, name)
    t.match(error.message, /[.?]$/, name)
  }
  const limited = refusalOf(
    answer(429, { headers: { 'retry-after': '9' } }),
    { title: 'The Hub', id: 'a/b' } as any,
    NOW
  )
  t.match(limited, { retryAfter: 9, details: { hub: 'The Hub', repository: 'a/b', hubStatus: 429 } })
  t.equal(isFinalWord(answer(500, { said: { code: 'AUTH-ERR-0' } })), true)
  t.equal(isFinalWord(answer(500, { said: { code: 'SYS-ERR-0' } })), false)
  t.equal(isFinalWord(answer(500)), false)
})

t.test('refusals of ModelScope', async t => {
  const table: [string, HubAnswer, string, RegExp][] = [
    [
      '404',
      answer(404, { said: { Code: 404, Success: false, Message: 'Model not found.' } }),
      'repo_not_found',
      /MODELSCOPE_API_TOKEN/
    ],
    [
      'success false',
      answer(200, { said: { Code: 10010205001, Success: false, Message: 'Model not found.' } }),
      'repo_not_found',
      /does not exist/
    ],
    [
      'openapi',
      answer(200, { said: { success: false, code: 'E3020', message: 'x' } }),
      'repo_not_found',
      /does not exist/
    ],
    [
      'revision',
      answer(404, { said: { Code: 404, Success: false, Message: 'Revision main not found' } }),
      'repo_not_found',
      /no revision "main".*"master"/
    ],
    ['forbidden', answer(403, { said: { Success: false, Message: 'no' } }), 'hub_forbidden', /private/],
    ['login', answer(200, { said: { Success: false, Message: 'please login' } }), 'hub_forbidden', /private/],
    ['bad token', answer(401, WITH_TOKEN), 'hub_forbidden', /token is wrong or expired/],
    ['limited', answer(429, { headers: { 'retry-after': '1.5' } }), 'hub_rate_limited', /in 2 s/],
    ['trouble', answer(502), 'hub_unreachable', /status 502/],
    ['strange', answer(200, { said: { Success: false, Code: 77, Message: 'odd' } }), 'hub_unreachable', /code 77.*odd/]
  ]
  for (const [name, given, code, message] of table) {
    t.equal(isGood(given), false, name)
    const subject = { title: 'ModelScope', id: 'acme/Tiny', page: 'https://m/models/acme/Tiny', revision: 'main' }
    const error = modelScopeRefusal(given, subject, NOW)
    t.equal(error.code, code, name)
    t.match(error.message, message, name)
  }
  t.equal(isGood(answer(200, { said: { Code: 200, Success: true, Data: {} } })), true)
  t.equal(isGood(answer(200, { text: '<html>' })), true, 'what is no envelope says nothing of failure')
})

t.test('listings of ModelScope and of other corrals', async t => {
  const entry = { Type: 'blob', Mode: '33188', Size: 5, Sha256: SHA256.toUpperCase() }
  const listing = readListing({
    Data: {
      Files: [
        { Path: 'Q8_0', Type: 'tree', Size: 0, Sha256: '' },
        { ...entry, Path: 'a.gguf' },
        { ...entry, Path: 'b.gguf', InCheck: true, Sha256: '' },
        { ...entry, Path: '../c' },
        { ...entry, Path: 'link', Mode: '40960' }
      ]
    }
  })
  t.strictSame(listing, {
    files: [
      { path: 'a.gguf', size: 5, sha256: SHA256 },
      { path: 'b.gguf', size: 5 }
    ],
    inCheck: ['b.gguf']
  })
  for (const body of [null, {}, { Data: null }, { Data: { Files: 'x' } }]) t.equal(readListing(body), undefined)

  const file = { path: 'model.gguf', size: 5, sha256: SHA256, role: 'model' }
  t.strictSame(
    readCorralListing({
      name: 'acme/Tiny',
      variants: [
        { label: 'Q8_0', revision: 'r1', files: [file, { ...file, path: '../x' }, { ...file, sha256: 'no' }] },
        { label: '../..', revision: 'r2', files: [file] },
        { label: 'F16', revision: '..', files: [file] }
      ]
    }),
    { name: 'acme/Tiny', files: [{ path: 'Q8_0/model.gguf', size: 5, sha256: SHA256 }], revisions: { Q8_0: 'r1' } }
  )
  for (const body of [null, [], {}, { name: 'x' }]) t.equal(readCorralListing(body), undefined)

  t.strictSame(parseCorralReference('acme/Tiny'), { id: 'acme/Tiny' })
  t.strictSame(parseCorralReference('//big:1234/acme/Tiny'), { id: 'acme/Tiny', endpoint: 'http://big:1234' })
  t.strictSame(parseCorralReference('corral://big/acme/Tiny'), { id: 'acme/Tiny', endpoint: 'http://big:11435' })
  t.strictSame(parseCorralReference('big:1234/acme/Tiny'), { id: 'acme/Tiny', endpoint: 'http://big:1234' })
  t.strictSame(parseCorralReference('[::1]/acme/Tiny'), { id: 'acme/Tiny', endpoint: 'http://[::1]:11435' })
  for (const text of [
    '',
    'acme',
    '//acme/Tiny',
    'corral://acme/Tiny',
    'a/b/c/d',
    'user@host/acme/Tiny',
    'acme/Ti ny'
  ]) {
    t.throws(() => parseCorralReference(text), { code: 'invalid_model_name' }, text)
  }
})

t.test('plain addresses', async t => {
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
  t.equal(nameOfAddress('https://x/a/b%20c.gguf?x=y/z'), 'b c.gguf')
  for (const id of ['https://x/', 'https://x/a/', 'https://x/%2e%2e', 'https://x/a%2Fb', 'https://x/%zz']) {
    t.equal(nameOfAddress(id), undefined, id)
  }
  t.equal(nameOfDisposition('attachment; filename="a b.gguf"'), 'a b.gguf')
  t.equal(nameOfDisposition("inline; filename=x; filename*=UTF-8''t%C3%A4.gguf"), 'tä.gguf')
  t.equal(nameOfDisposition('attachment; filename=a.gguf'), 'a.gguf')
  for (const header of [undefined, 'inline', 'attachment; filename="../a"', 'attachment; filename="a/b"']) {
    t.equal(nameOfDisposition(header), undefined, String(header))
  }
  t.strictSame(shardsOf('m-00002-of-00003.gguf'), [
    'm-00001-of-00003.gguf',
    'm-00002-of-00003.gguf',
    'm-00003-of-00003.gguf'
  ])
  for (const name of ['m.gguf', 'm-00001-of-00001.gguf', 'm-00001-of-99999.gguf', 'm-00001-of-00003.bin']) {
    t.strictSame(shardsOf(name), [name], name)
  }
})

t.test('endpoints, tokens and the environment of Hugging Face', async t => {
  const at = (setting: string, variable?: string) =>
    endpointOf(setting, 'HUB', 'https://usual.org', variable === undefined ? {} : { HUB: variable })
  t.equal(at(''), 'https://usual.org')
  t.equal(at('', ''), 'https://usual.org')
  t.equal(at('', 'http://127.0.0.1:8000/'), 'http://127.0.0.1:8000')
  t.equal(at('https://mine.org/hf/', 'http://other'), 'https://mine.org/hf')
  t.equal(at('', 'hub.example.org'), 'https://hub.example.org')
  for (const text of ['ftp://x', 'https://user@x', 'https://x?y', 'https://x#y', ':::'])
    t.throws(() => at('', text), /HUB/, text)

  const folder = t.testdir({ token: 'hf_file\r\n', empty: '\n', odd: 'a b\n' })
  const find = (sources: object, env = {}) =>
    findToken({ setting: '', variables: [], file: undefined, ...sources }, env)
  const all = { setting: 'set', variables: ['A', 'B'], file: `${folder}/token` }
  t.equal(await find(all, { A: 'a', B: 'b' }), 'set')
  t.equal(await find({ ...all, setting: '' }, { A: ' a\n', B: 'b' }), 'a')
  t.equal(await find({ ...all, setting: '' }, { A: '', B: 'b' }), 'b')
  t.equal(await find({ ...all, setting: '' }), 'hf_file')
  t.equal(await find({ file: `${folder}/empty` }), undefined)
  t.equal(await find({ file: `${folder}/missing` }), undefined)
  t.equal(await find({}), undefined)
  await t.rejects(find({ file: `${folder}/odd` }), { code: 'hub_forbidden' })
  await t.rejects(find({ variables: ['A'] }, { A: 'secret\ntoken' }), {
    code: 'hub_forbidden',
    message: /The token in A holds/
  })
  await t.rejects(find({ file: folder }), { code: 'hub_forbidden', message: /cannot be read/ })

  t.equal(tokenFile({ HF_TOKEN_PATH: '/a/b', HF_HOME: '/h' }), '/a/b')
  t.equal(tokenFile({ HF_HOME: '/h', XDG_CACHE_HOME: '/x' }), '/h/token')
  t.equal(tokenFile({ XDG_CACHE_HOME: '/x' }), '/x/huggingface/token')
  t.match(tokenFile({}), /\.cache\/huggingface\/token$/)
  t.strictSame(tokenSources('', { HF_TOKEN_PATH: '/t' }), {
    setting: '',
    variables: ['HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN'],
    file: '/t'
  })
  t.strictSame(tokenSources('s', { HF_HUB_DISABLE_IMPLICIT_TOKEN: '1' }), {
    setting: 's',
    variables: [],
    file: undefined
  })
  t.equal(offlineVariable({}), undefined)
  t.equal(offlineVariable({ HF_HUB_OFFLINE: '0' }), undefined)
  t.equal(offlineVariable({ HF_HUB_OFFLINE: 'true' }), 'HF_HUB_OFFLINE')
  t.equal(offlineVariable({ TRANSFORMERS_OFFLINE: 'YES' }), 'TRANSFORMERS_OFFLINE')

  t.equal(sameButForCase([{ id: 'acme/other' }, { modelId: 'Acme/Tiny' }], 'acme/tiny'), 'Acme/Tiny')
  for (const results of [[], [{ id: 'acme/tiny' }], {}, null, [null]])
    t.equal(sameButForCase(results, 'acme/tiny'), undefined)
})

t.test('what an answer says of a place', async t => {
  const redirect = {
    'x-linked-size': '1048576',
    'x-linked-etag': `"${SHA256}"`,
    'content-length': '913',
    etag: '"hub"'
  }
  const foreign = answer(302, {
    headers: redirect,
    foreignPlace: `https://cdn.example.org/x?Expires=${NOW / 1000 + 60}`,
    ...WITH_TOKEN
  })
  t.match(locationOf(foreign, '', NOW), {
    url: foreign.foreignPlace,
    size: 1048576,
    sha256: SHA256,
    expiresAt: NOW + 60_000
  })
  t.equal(locationOf(foreign, '', NOW).headers.authorization, undefined)
  t.equal(locationOf(foreign, '', NOW).identity, undefined)
  const bare = answer(302, { headers: { 'content-length': '913' }, foreignPlace: 'https://cdn.example.org/x' })
  t.equal(locationOf(bare, '', NOW).size, undefined, 'a redirect has a length of its own')
  const own = answer(206, {
    headers: { 'content-range': 'bytes 0-0/77', 'content-length': '1', etag: `"${SHA256}"` },
    ...WITH_TOKEN
  })
  const location = locationOf(own, 'http://proxy:1', NOW)
  t.match(location, { size: 77, identity: `"${SHA256}"`, proxy: 'http://proxy:1' })
  t.equal(location.headers.authorization, 'Bearer hf_secret')
  t.equal(location.headers['accept-encoding'], 'identity')
  t.equal(location.sha256, undefined, 'an ETag is no digest')
  t.equal(locationOf(answer(200, { headers: { 'content-length': '5' } }), '', NOW).size, 5)
  t.equal(
    locationOf(answer(200, { headers: { 'content-length': '5', 'content-encoding': 'gzip' } }), '', NOW).size,
    undefined
  )
  t.equal(locationOf(answer(416, { headers: { 'content-range': 'bytes */0' } }), '', NOW).size, 0)
})
