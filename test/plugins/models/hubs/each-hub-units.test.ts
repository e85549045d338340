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
import { readCases } from '../../../support/fixture.ts'
import { SHA1, SHA256 } from './support.ts'

/** Cases with the digests in place of their names. */
function readHubCases<Cases>(key: string): Cases {
  const text = JSON.stringify(readCases('hub-cases.yaml', key))
  const cases = text.replaceAll('UPPER256', SHA256.toUpperCase()).replaceAll('SHA256', SHA256).replaceAll('SHA1', SHA1)
  return JSON.parse(cases)
}

t.test("parses Hugging Face's listings", async t => {
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
  type NameCase = [text: string | undefined, name: string | undefined]
  for (const [text, name] of readCases<NameCase[]>('hub-cases.yaml', 'fileAddresses')) {
    t.equal(fileNameFromUrl(text!), name, String(text))
  }
  for (const [header, name] of readCases<NameCase[]>('hub-cases.yaml', 'dispositions')) {
    t.equal(fileNameFromDisposition(header), name, String(header))
  }
})

t.test("reads endpoints, tokens and Hugging Face's environment", async t => {
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
