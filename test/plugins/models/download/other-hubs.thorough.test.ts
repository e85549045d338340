import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { CAPITAL_ANSWER, type Corral, until } from '../../../support/corral.ts'
import type { EmulatedFile } from '../../../support/hub-emulator/contents.ts'
import { type HubEmulator, startHubEmulator } from '../../../support/hub-emulator/hub-emulator.ts'
import { noSmallDisk, smallDisk } from '../../../support/small-disk.ts'
import {
  answer,
  contractFaults,
  corralWithHub,
  filesBelow,
  filesOf,
  largeGguf,
  listed,
  MIB,
  pulls,
  quantizedModels,
  refusal,
  sha256,
  storedDigests,
  TINY_SAFETENSORS
} from './support.ts'

const { Q8_0, Q4_K_M } = quantizedModels()
const TWO = { 'README.md': '# Tiny\n', 'tiny-Q8_0.gguf': Q8_0, 'tiny-Q4_K_M.gguf': Q4_K_M, 'Q2_K/tiny.txt': 'x' }
const TOKEN = 'token-of-another-hub-1234567890'

/** No hub but the one in the settings. */
const NOWHERE = { url: 'http://127.0.0.1:9' }

/** Pulls a model from a hub of each kind, and is refused a model that is unknown or private. */
async function pullsFrom(
  t: Test,
  hub: HubEmulator,
  prefix: 'csghub' | 'modelscope',
  manners: object,
  variants: Record<string, object>
): Promise<Corral> {
  const corral = await corralWithHub(t, NOWHERE, { config: `${prefix}:\n  endpoint: ${hub.url}\n` })
  const model = `${prefix}:test/tiny-GGUF:Q8_0`
  const usual = { ...manners }
  for (const [what, changes] of Object.entries(variants)) {
    Object.assign(manners, usual, changes)
    const events = await corral.events('/api/pull', { model })
    t.same(contractFaults(events, model), [], what)
    t.ok(filesOf(events).includes('Q8_0/tiny-Q8_0.gguf'), 'from a folder')
    t.same(await storedDigests(join(corral.home, 'models'), '.gguf'), [sha256(Q8_0)], what)
    t.equal(await answer(corral, 'test/tiny-GGUF'), CAPITAL_ANSWER)
    const { body: card } = await corral.json('/api/card', { model })
    t.match(card, { hub: prefix, readme: '#', readme_address: /\/test\/tiny-GGUF\/.*\/README\.md$/ }, what)
    const update = { model: 'test/tiny-GGUF', update: true, dry_run: true }
    t.match((await corral.json('/api/pull', update)).body, { present: true, repository: { hub: prefix } }, what)
    await corral.json('/api/delete', { model: 'test/tiny-GGUF' }, { method: 'DELETE' })
    t.match(await refusal(corral, { model: `${prefix}:test/unknown` }), { status: 404, code: 'repo_not_found' }, what)
  }
  Object.assign(manners, usual)
  const refused = await refusal(corral, { model: `${prefix}:test/private-GGUF` })
  t.match(refused, { code: /^(hub_forbidden|repo_not_found)$/, error: /token/i })
  return corral
}

const REPOSITORIES = {
  'test/tiny-GGUF': { files: { 'Q8_0/tiny-Q8_0.gguf': Q8_0, 'tiny-Q4_K_M.gguf': Q4_K_M, 'README.md': '#' } },
  'test/private-GGUF': { files: TWO, private: true, token: TOKEN }
}

t.test('a model is pulled from CSGHub', async t => {
  const hub = await startHubEmulator(t, { hub: 'csghub', repositories: REPOSITORIES })
  const variants = { usual: {}, 'no digests in the info': { blobs: false }, 'bare ETags': { bareEtags: true } }
  const corral = await pullsFrom(t, hub, 'csghub', hub.csgHub, variants)
  hub.fault({ kind: 'cut', after: 300_000, times: 2 })
  hub.signedUrls.lifeBytes = 700_000
  t.equal((await corral.events('/api/pull', { model: 'csghub:test/tiny-GGUF:Q8_0' })).at(-1).status, 'success')
  t.same(await storedDigests(join(corral.home, 'models'), '.gguf'), [sha256(Q8_0)])

  const settings = `csghub:\n  endpoint: ${hub.url}\n`
  const known = await corralWithHub(t, NOWHERE, { config: `${settings}  token: ${TOKEN}\n` })
  t.equal((await known.events('/api/pull', { model: 'csghub:test/private-GGUF:Q8_0' })).at(-1).status, 'success')
  t.same(hub.cdn.leaks, [])

  const other = await startHubEmulator(t, { repositories: { 'test/tiny-GGUF': { files: TWO } } })
  const both = await corralWithHub(t, other, { config: settings, home: corral.home }).catch((error: Error) => error)
  t.type(both, Error, 'the folder is in use')
  await corral.end()
  const second = await corralWithHub(t, other, { config: settings, home: corral.home })
  const elsewhere = await refusal(second, { model: 'hf:test/tiny-GGUF:Q4_K_M' })
  t.match(elsewhere, { status: 409, code: 'model_exists', error: /test\/tiny-GGUF/ }, 'a name from another origin')
})

t.test('a model is pulled from ModelScope', async t => {
  const hub = await startHubEmulator(t, { hub: 'modelscope', repositories: REPOSITORIES })
  const corral = await pullsFrom(t, hub, 'modelscope', hub.modelScope, {
    usual: {},
    redirects: { delivery: 'redirect' },
    'plain ranges, digests in lower case': { rangeWith200: false, upperCaseDigests: false },
    'refusals with 200': { refusal: 'success-false' }
  })
  t.match((await refusal(corral, { model: 'modelscope:test/tiny-GGUF@main' })).code, 'repo_not_found', 'only master')

  hub.fault({ kind: 'stall', after: 300_000, times: 1 })
  hub.fault({ kind: 'wrong-byte', at: 900_000, times: 1 })
  const settings = `modelscope:\n  endpoint: ${hub.url}\n  token: ${TOKEN}\n`
  const known = await corralWithHub(t, NOWHERE, { config: `downloads:\n  stall_timeout: 1s\n${settings}` })
  for (const login of ['either', 'cookie'] as const) {
    hub.modelScope.login = login
    hub.modelScope.delivery = login === 'cookie' ? 'redirect' : 'direct'
    t.equal((await known.events('/api/pull', { model: 'modelscope:test/private-GGUF:Q8_0' })).at(-1).status, 'success')
    await known.json('/api/delete', { model: 'test/private-GGUF' }, { method: 'DELETE' })
  }
  t.same(hub.cdn.leaks, [])
})

t.test('a model is pulled from a plain address', async t => {
  const hub = await startHubEmulator(t, {
    repositories: { 'test/tiny-GGUF': { files: { ...TWO, 'page-Q8_0.gguf': '<html></html>' } } },
    huggingFace: { delivery: 'direct' }
  })
  const config = 'downloads:\n  stall_timeout: 1s\n  private_addresses: [127.0.0.1]\n'
  const corral = await corralWithHub(t, NOWHERE, { config })
  const model = `${hub.url}/test/tiny-GGUF/resolve/main/tiny-Q8_0.gguf`
  hub.fault({ kind: 'cut', after: 700_000, times: 1 })
  const events = await corral.events('/api/pull', { model, as: 'me/from-address' })
  t.same(contractFaults(events, model, true), [])
  t.same(await listed(corral), ['me/from-address'])
  t.same(await storedDigests(join(corral.home, 'models'), '.gguf'), [sha256(Q8_0)])
  hub.huggingFace.delivery = 'cdn'
  t.equal((await corral.events('/api/pull', { model, as: 'me/redirected' })).at(-1).status, 'success')
  const page = await refusal(corral, { model: model.replace('tiny-Q8', 'page-Q8'), as: 'me/page' })
  t.ok(page.status >= 400 && page.code !== 'internal', `${page.status} ${page.code}: ${page.error}`)
  const missing = await refusal(corral, { model: `${model}-not`, as: 'me/missing' })
  t.match(missing, { status: 404, code: 'repo_not_found', early: true })
  t.same(await listed(corral), ['me/from-address', 'me/redirected'])
})

t.test('a SafeTensors repository is pulled with only the files it needs', async t => {
  const files: Record<string, EmulatedFile> = {}
  for (const name of readdirSync(TINY_SAFETENSORS)) files[name] = { from: join(TINY_SAFETENSORS, name) }
  const fetched = Object.keys(files).sort()
  files['pytorch_model.bin'] = Buffer.alloc(100_000, 1)
  files['original/consolidated.00.pth'] = Buffer.alloc(100_000, 2)
  files['onnx/model.onnx'] = Buffer.alloc(100_000, 3)
  files['model.fp32-00001-of-00001.gguf_file'] = 'x'
  const hub = await startHubEmulator(t, { repositories: { 'test/tiny-st': { files } } })
  const corral = await corralWithHub(t, hub)
  const events = await corral.events('/api/pull', { model: 'test/tiny-st' })
  t.same(contractFaults(events, 'test/tiny-st'), [])
  const needed = filesOf(events).filter(path => path !== 'README.md')
  t.same(needed, fetched, 'weights, tokenizer and settings, nothing else')
  const size = readFileSync(join(TINY_SAFETENSORS, 'model.safetensors')).length
  const { body } = await corral.json('/api/tags')
  t.match(body.models, [{ name: 'test/tiny-st', format: 'safetensors' }])
  t.ok(body.models[0].size >= size)
  t.same(await storedDigests(join(corral.home, 'models'), 'model.safetensors'), [
    sha256(readFileSync(join(TINY_SAFETENSORS, 'model.safetensors')))
  ])

  // The repository lacks a shard that the index names.
  const index = {
    metadata: {},
    weight_map: { a: 'model-00001-of-00002.safetensors', b: 'model-00002-of-00002.safetensors' }
  }
  const partOf: Record<string, EmulatedFile> = {
    'config.json': '{"model_type":"llama"}',
    'tokenizer.json': '{}',
    'model.safetensors.index.json': JSON.stringify(index),
    'model-00001-of-00002.safetensors': { from: join(TINY_SAFETENSORS, 'model.safetensors') }
  }
  hub.add('test/half-st', { files: partOf })
  const half = await refusal(corral, { model: 'test/half-st' })
  t.ok(half.status >= 400 && half.code !== 'internal', half.code)
  t.match(half.error, /model-00002-of-00002\.safetensors/)
  t.same(await listed(corral), ['test/tiny-st'])
})

t.test('a pull fails on a full disk and continues when there is space', { skip: noSmallDisk() }, async t => {
  const { folder } = smallDisk(t, '96m')
  const hub = await startHubEmulator(t, {
    repositories: {
      'test/large-GGUF': { files: { 'large-Q8_0.gguf': largeGguf(128 * MIB) } },
      'test/fits-GGUF': { files: { 'fits-Q8_0.gguf': largeGguf(32 * MIB) } },
      'test/tiny-GGUF': { files: TWO }
    },
    bandwidth: { total: 8 * MIB }
  })
  const corral = await corralWithHub(t, hub, { env: { CORRAL_MODELS: folder } })
  const full = await refusal(corral, { model: 'test/large-GGUF' })
  t.match(full, { status: 507, code: 'insufficient_storage', early: true, error: /space|free|disk/i })
  t.equal(hub.traffic.bytes(), 0, 'nothing was downloaded in vain')
  const plan = await corral.json('/api/pull', { model: 'test/large-GGUF', dry_run: true })
  t.match(plan, { status: 200, body: { disk: { fits: false } } }, 'a dry run warns')
  t.same(await pulls(corral), [])

  const running = refusal(corral, { model: 'test/fits-GGUF' })
  await until('bytes flow', () => hub.traffic.bytes() > 2 * MIB)
  const ballast = join(folder, 'ballast')
  writeFileSync(ballast, '')
  for (let written = 0; written < 128; written++) {
    try {
      writeFileSync(ballast, Buffer.alloc(MIB), { flag: 'a' })
    } catch {
      break
    }
  }
  const failed = await running
  t.match(failed, { status: 507, code: 'insufficient_storage' }, 'the disk fills up during the pull')
  t.same(await listed(corral), [])
  t.match((await pulls(corral))[0], { state: /failed|paused/ }, 'the pull waits')
  writeFileSync(ballast, '')
  hub.bandwidth = {}
  const finished = await corral.events('/api/pull', { model: 'test/fits-GGUF' })
  t.equal(finished.at(-1).status, 'success', 'with free space it finishes')
  t.ok(hub.traffic.bytes() < 48 * MIB, 'received data was used')
  t.equal((await corral.json('/api/health')).status, 200)
  t.equal(filesBelow(join(folder, '.downloads')).length, 0, 'nothing remains beside the model')
})
