import t from 'tap'
import { parseCorralReference, readCorralListing } from '../../../../plugins/models/hubs/corral.ts'
import {
  completed,
  filesFromInfo,
  filesFromTree,
  isIncomplete,
  nextPage,
  sameButForCase
} from '../../../../plugins/models/hubs/hf-like.ts'
import { findToken, resolveEndpoint } from '../../../../plugins/models/hubs/hub-options.ts'
import { offlineVariable, tokenFile, tokenSources } from '../../../../plugins/models/hubs/huggingface.ts'
import { readFacts } from '../../../../plugins/models/hubs/listed-files.ts'
import { readListing } from '../../../../plugins/models/hubs/modelscope.ts'
import { fileNameFromDisposition, fileNameFromUrl, parseAddress } from '../../../../plugins/models/hubs/url.ts'
import { failing } from '../../../support/failure.ts'
import { SHA1, SHA256 } from './support.ts'

t.test("parses Hugging Face's listings", async t => {
  const files = await filesFromInfo({
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
    // Files of this kind are never in git itself, so the blob id says nothing about the file.
    { path: 'b.gguf', size: 7 },
    { path: 'c.json', size: undefined }
  ])
  t.equal(await filesFromInfo({}), undefined)
  t.strictSame(await filesFromInfo({ siblings: [] }), [])
  const tree = await filesFromTree(
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
  t.strictSame(await filesFromTree([{ type: 'file', path: 'c.json', size: 3, oid: SHA1 }], false), [
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

t.test('rejects impossible sizes and digests in listings', async t => {
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
    for (const read of sizes) await t.rejects(read(size), { message: /the size of "a\.gguf" is/ }, JSON.stringify(size))
  }
  for (const sha256 of ['', 'no', SHA1, SHA256.slice(1), `${SHA256}0`, `md5:${SHA256}`, 5, {}, [SHA256]]) {
    const message = /the SHA-256 of "a\.gguf" is/
    for (const read of digests) await t.rejects(read(sha256), { message }, JSON.stringify(sha256))
  }
  const error = await readFacts('Hub', () => info({ size: 'x\n'.repeat(1000) })).catch(error => error)
  t.match(error, { code: 'hub_unreachable', message: /^Hub says that the size of "a\.gguf" is "x\\nx.{60,80}…, which/ })
})

t.test('parses listings of ModelScope and other corrals', async t => {
  const entry = { Type: 'blob', Mode: '33188', Size: 5, Sha256: SHA256.toUpperCase() }
  const listing = await readListing(
    {
      Data: {
        Files: [
          { Path: 'Q8_0', Type: 'tree', Size: 0, Sha256: '' },
          { ...entry, Path: 'a.gguf' },
          { ...entry, Path: 'b.gguf', InCheck: true, Sha256: '' },
          { ...entry, Path: '../c' },
          { ...entry, Path: 'link', Mode: '40960' }
        ]
      }
    },
    'ModelScope',
    'a/b'
  )
  t.strictSame(listing, {
    files: [
      { path: 'a.gguf', size: 5, sha256: SHA256 },
      { path: 'b.gguf', size: 5 }
    ],
    inCheck: ['b.gguf']
  })
  for (const body of [{}, { Data: null }, { Data: { Files: 'x' } }]) {
    t.equal(await readListing(body, 'ModelScope', 'a/b'), undefined)
  }

  const file = { path: 'model.gguf', size: 5, sha256: SHA256, role: 'model' }
  t.strictSame(
    readCorralListing({
      name: 'acme/Tiny',
      variants: [
        { label: 'Q8_0', revision: 'r1', files: [file, { ...file, path: '../x' }] },
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

t.test('parses plain addresses', async t => {
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
  t.equal(fileNameFromUrl('https://x/a/b%20c.gguf?x=y/z'), 'b c.gguf')
  for (const id of ['https://x/', 'https://x/a/', 'https://x/%2e%2e', 'https://x/a%2Fb', 'https://x/%zz']) {
    t.equal(fileNameFromUrl(id), undefined, id)
  }
  t.equal(fileNameFromDisposition('attachment; filename="a b.gguf"'), 'a b.gguf')
  t.equal(fileNameFromDisposition("inline; filename=x; filename*=UTF-8''t%C3%A4.gguf"), 'tä.gguf')
  t.equal(fileNameFromDisposition('attachment; filename=a.gguf'), 'a.gguf')
  for (const header of [undefined, 'inline', 'attachment; filename="../a"', 'attachment; filename="a/b"']) {
    t.equal(fileNameFromDisposition(header), undefined, String(header))
  }
})

t.test("reads endpoints, tokens and Hugging Face's environment", async t => {
  const at = (setting: string, variable?: string) =>
    resolveEndpoint(setting, 'HUB', 'https://usual.org', variable === undefined ? {} : { HUB: variable })
  t.equal(at(''), 'https://usual.org')
  t.equal(at('', ''), 'https://usual.org')
  t.equal(at('', 'http://127.0.0.1:8000/'), 'http://127.0.0.1:8000')
  t.equal(at('https://mine.org/hf/', 'http://other'), 'https://mine.org/hf')
  t.equal(at('', 'hub.example.org'), 'https://hub.example.org')
  for (const text of ['ftp://x', 'https://user@x', 'https://x?y', 'https://x#y', ':::'])
    t.throws(() => at('', text), /HUB/, text)

  const folder = t.testdir({ token: 'hf_file\r\n', empty: '\n', odd: 'a b\n' })
  const find = (sources: object, env = {}, setting = '') => findToken(setting, { variables: [], ...sources }, env)
  const all = { variables: ['A', 'B'], file: `${folder}/token` }
  t.equal(await find(all, { A: 'a', B: 'b' }, 'set'), 'set')
  t.equal(await find(all, { A: ' a\n', B: 'b' }), 'a')
  t.equal(await find(all, { A: '', B: 'b' }), 'b')
  t.equal(await find(all), 'hf_file')
  t.equal(await find({ file: `${folder}/empty` }), undefined)
  t.equal(await find({ file: `${folder}/missing` }), undefined)
  t.equal(await find({}), undefined)
  await t.rejects(find({ file: `${folder}/odd` }), { code: 'hub_forbidden' })
  await t.rejects(
    find({ variables: ['A'] }, { A: 'secret\ntoken' }),
    failing('hub_forbidden', /The token in A contains/)
  )
  await t.rejects(find({ file: folder }), { code: 'hub_forbidden', message: /cannot be read/ })

  t.equal(tokenFile({ HF_TOKEN_PATH: '/a/b', HF_HOME: '/h' }), '/a/b')
  t.equal(tokenFile({ HF_HOME: '/h', XDG_CACHE_HOME: '/x' }), '/h/token')
  t.equal(tokenFile({ XDG_CACHE_HOME: '/x' }), '/x/huggingface/token')
  t.match(tokenFile({}), /\.cache\/huggingface\/token$/)
  const variables = ['HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN']
  t.strictSame(tokenSources({ HF_TOKEN_PATH: '/t' }), { variables, file: '/t' })
  t.strictSame(tokenSources({ HF_HUB_DISABLE_IMPLICIT_TOKEN: '1' }), { variables: [] })
  t.equal(offlineVariable({}), undefined)
  t.equal(offlineVariable({ HF_HUB_OFFLINE: '0' }), undefined)
  t.equal(offlineVariable({ HF_HUB_OFFLINE: 'true' }), 'HF_HUB_OFFLINE')
  t.equal(offlineVariable({ TRANSFORMERS_OFFLINE: 'YES' }), 'TRANSFORMERS_OFFLINE')

  t.equal(sameButForCase([{ id: 'acme/other' }, { modelId: 'Acme/Tiny' }], 'acme/tiny'), 'Acme/Tiny')
  for (const results of [[], [{ id: 'acme/tiny' }], {}, null, [null]])
    t.equal(sameButForCase(results, 'acme/tiny'), undefined)
})
