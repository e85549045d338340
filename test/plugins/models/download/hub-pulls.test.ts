import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { CAPITAL_ANSWER, until } from '../../../support/corral.ts'
import { ggufBytes } from '../../../support/gguf-writer.ts'
import { startHubEmulator } from '../../../support/hub-emulator/hub-emulator.ts'
import type { HuggingFaceManners } from '../../../support/hub-emulator/hugging-face.ts'
import { thorough } from '../../../support/thorough.ts'
import {
  answer,
  contractFaults,
  corralWithHub,
  filesOf,
  largeGguf,
  listed,
  MIB,
  partialBytes,
  pulls,
  quantizedModels,
  sha256,
  storedDigests,
  TINY_CHAT,
  timedPull
} from './support.ts'

const { Q8_0, Q4_K_M } = quantizedModels()
const TWO = { 'README.md': '# Tiny\n', 'tiny-Q8_0.gguf': Q8_0, 'tiny-Q4_K_M.gguf': Q4_K_M }
const TOKEN = 'hf_abcdefghijklmnopqrstuvwxyzABCDEFGH'

/** Everyday tests share this hub and this server. Each starts without models. */
const hub = await startHubEmulator(t, {
  repositories: {
    'test/tiny-GGUF': { files: TWO, revisions: { 'v1/old': { 'tiny-Q8_0.gguf': Q8_0, 'old-Q4_K_M.gguf': Q4_K_M } } }
  },
  tokens: [TOKEN],
  pageSize: 2
})
const corral = await corralWithHub(t, hub, {
  env: { HF_TOKEN: TOKEN },
  // A second connection would take part of the range of a slow first one, whose data in flight would be sent twice.
  config: 'downloads: { connections_per_file: 1 }\n'
})
t.afterEach(async () => {
  for (const model of new Set((await listed(corral)).map(name => name.split(':')[0]))) {
    await corral.json('/api/delete', { model }, { method: 'DELETE' })
  }
})

t.test('pull downloads one of two quantizations', async t => {
  const plan = await corral.json('/api/pull', { model: 'test/tiny-GGUF', dry_run: true })
  t.equal(plan.status, 200, 'the plan')
  const chosen: { path: string; size: number; role: string }[] = plan.body.files
  const models = chosen.filter(file => file.path.endsWith('.gguf'))
  t.equal(models.length, 1, 'one quantization')
  t.match(plan.body, { format: 'gguf', present: false, disk: { fits: true }, memory: { fits: true } })
  t.type(plan.body.reason, 'string')
  t.same([plan.body.label, ...plan.body.choices.map((choice: any) => choice.label)].sort(), ['Q4_K_M', 'Q8_0'])
  t.equal(
    plan.body.size,
    chosen.reduce((sum, file) => sum + file.size, 0)
  )
  t.equal(hub.traffic.bytes(models[0]!.path), 0, 'a dry run downloads nothing')
  t.same(await listed(corral), [])
  t.same(await pulls(corral), [])

  const events = await corral.events('/api/pull', { model: 'test/tiny-GGUF' })
  t.same(contractFaults(events, 'test/tiny-GGUF'), [])
  t.same(filesOf(events), chosen.map(file => file.path).sort(), 'the planned files')
  const path = models[0]!.path
  const other = path === 'tiny-Q8_0.gguf' ? 'tiny-Q4_K_M.gguf' : 'tiny-Q8_0.gguf'
  const whole = path === 'tiny-Q8_0.gguf' ? Q8_0 : Q4_K_M
  t.equal(hub.traffic.bytes(path), whole.length, 'each byte is downloaded once')
  t.equal(hub.traffic.bytes(other), 0, 'the other one is not touched')
  t.same(await storedDigests(join(corral.home, 'models'), '.gguf'), [sha256(whole)])
  t.same(hub.cdn.leaks, [])

  const { body } = await corral.json('/api/tags')
  t.match(body.models, [{ name: 'test/tiny-GGUF', model: 'test/tiny-GGUF', format: 'gguf' }])
  t.equal(body.models[0].size, plan.body.size)
  t.equal(await answer(corral, 'test/tiny-GGUF'), CAPITAL_ANSWER)
  t.same(await pulls(corral), [], 'a finished pull is no longer listed')
  t.equal(partialBytes(corral.home), 0, 'nothing remains beside the model')

  const before = hub.traffic.bytes()
  const again = await corral.events('/api/pull', { model: 'test/tiny-GGUF' })
  t.equal(again.at(-1).status, 'success', 'a present and current model succeeds immediately')
  t.same(contractFaults(again, 'test/tiny-GGUF'), [])
  t.equal(hub.traffic.bytes(), before)

  const label = path === 'tiny-Q8_0.gguf' ? 'q4_k_m' : 'q8_0'
  const tagged = await corral.events('/api/pull', { model: `test/tiny-GGUF:${label}` })
  t.same(contractFaults(tagged, `test/tiny-GGUF:${label}`), [], 'the other one by its label, in any case')
  t.same(await listed(corral), ['test/tiny-GGUF', `test/tiny-GGUF:${label.toUpperCase()}`])
  t.equal((await storedDigests(join(corral.home, 'models'), '.gguf')).length, 2)
  t.equal(await answer(corral, `test/tiny-GGUF:${label}`), CAPITAL_ANSWER)
  const deleted = await corral.json('/api/delete', { model: 'test/tiny-GGUF' }, { method: 'DELETE' })
  t.same(deleted.body.status, 'deleted')
  t.same(await listed(corral), [], 'the bare name deletes all variants')
})

t.test('pull requests can take several forms', async t => {
  const whole = await corral.json('/api/pull', { model: 'hf:test/tiny-GGUF:Q8_0', stream: false })
  t.equal(whole.status, 200)
  t.equal(whole.body.status, 'success', 'stream: false is one object')
  t.same(await listed(corral), ['test/tiny-GGUF'], 'the first variant is the default')
  t.same(await storedDigests(join(corral.home, 'models'), '.gguf'), [sha256(Q8_0)])

  const latest = await corral.events('/api/pull', { name: 'test/tiny-GGUF:latest' })
  t.equal(latest.at(-1).status, 'success', ':latest, and `name` for `model`')
  await corral.json('/api/delete', { model: 'test/tiny-GGUF' }, { method: 'DELETE' })

  const revised = await corral.events('/api/pull', { model: 'hf.co/test/tiny-GGUF:Q4_K_M@v1/old' })
  const revisedFiles = filesOf(revised).filter(path => path.endsWith('.gguf'))
  t.same(revisedFiles, ['old-Q4_K_M.gguf'], 'a revision')
  t.same(contractFaults(revised, 'hf.co/test/tiny-GGUF:Q4_K_M@v1/old'), [])
  const commit = (await hub.repository('test/tiny-GGUF').at('v1/old'))!.id
  const shown = await corral.json('/api/show', { model: 'test/tiny-GGUF' })
  t.equal(shown.status, 200)
  const same = await corral.json('/api/pull', { model: `test/tiny-GGUF:Q4_K_M@${commit}`, dry_run: true })
  t.match(same.body, { present: true, repository: { revision: commit } }, 'the same by its commit')
  await corral.json('/api/delete', { model: 'test/tiny-GGUF' }, { method: 'DELETE' })

  t.test('NDJSON for clients without events', async t => {
    const path = '/ollama/api/pull'
    const { events, type, text } = await timedPull(corral, { model: 'test/tiny-GGUF:Q8_0' }, { path })
    t.match(type, /^application\/x-ndjson/)
    const sent = events.map(({ event }) => event)
    t.same(contractFaults(sent, 'test/tiny-GGUF:Q8_0'), [])
    t.notMatch(text, /^data:/m)
    const json = await timedPull(corral, { model: 'test/tiny-GGUF:Q8_0' }, { headers: { accept: 'application/json' } })
    t.match(json.type, /^application\/x-ndjson/)
    const sse = await timedPull(corral, { model: 'test/tiny-GGUF:Q8_0' }, { headers: { accept: '*/*' } })
    t.match(sse.type, /^text\/event-stream/)
    t.match(sse.text, /^(: .*\n\n)*(data: \{.*\}\n\n)+$/, 'one data line and one blank line each')
  })
})

t.test('a card shows what a repository says about itself', async t => {
  const card = async (model: string) => await corral.json('/api/card', { model })
  const readme = `---\nlicense: mit\n---\n# Bird\n[more](./docs)\n`
  const files = { 'Bird-Q8_0.gguf': Q8_0, 'mmproj-Bird.gguf': Q8_0 }
  hub.add('test/bird-GGUF', { files: { ...files, 'ReadMe.md': readme }, chatTemplate: '{{ tools }}<think>' })
  hub.add('test/bare-GGUF', { files, revisions: { v2: { ...files, 'README.md': { size: 2 * MIB } } } })
  const { id: revision } = (await hub.repository('test/bird-GGUF').at('main'))!
  const address = `${hub.url}/test/bird-GGUF`
  t.strictSame(await card('test/bird-GGUF:Q8_0'), {
    status: 200,
    body: {
      ...{ hub: 'huggingface', id: 'test/bird-GGUF', revision, address, gated: false, license: 'mit' },
      capabilities: ['tools', 'thinking', 'vision'],
      readme: '# Bird\n[more](./docs)',
      readme_address: `${address}/blob/main/ReadMe.md`
    }
  })
  const before = hub.traffic.bytes('README.md')
  for (const model of ['test/bare-GGUF', 'test/bare-GGUF@v2']) {
    const { status, body } = await card(model)
    t.match({ status, ...body }, { status: 200, capabilities: ['vision'], readme_address: `${hub.url}/test/bare-GGUF` })
    t.notOk('readme' in body, 'without a README, or with one that is too large')
  }
  t.equal(hub.traffic.bytes('README.md'), before)
  t.match(await card('test/none'), { status: 404, body: { code: 'repo_not_found' } })
  t.match(await card('me/../x'), { status: 400, body: { code: 'invalid_model_name' } })
  t.same(readdirSync(join(corral.home, 'models', '.downloads')), [], 'no files remain')
  const fault = hub.fault({ on: 'info', kind: 'status', status: 503 })
  t.match(await card('test/bird-GGUF'), { body: { code: 'hub_unreachable' } })
  fault.remove()
})

t.test('an update gets the newest revision of a stored model, which works meanwhile', async t => {
  const model = 'me/moving'
  hub.add('test/moving-GGUF', { files: { 'moving-Q8_0.gguf': Q8_0 } })
  await corral.json('/api/pull', { model: 'hf:test/moving-GGUF', as: model, stream: false })
  t.equal(await answer(corral, model), CAPITAL_ANSWER)
  const check = async () => (await corral.json('/api/pull', { model, update: true, dry_run: true })).body
  t.match(await check(), { present: true, model, label: 'Q8_0' })

  hub.change('test/moving-GGUF', { 'moving-Q8_0.gguf': Q4_K_M })
  const { id: revision } = (await hub.repository('test/moving-GGUF').at('main'))!
  t.match(await check(), { present: false, model, label: 'Q8_0', repository: { revision } })
  hub.bandwidth = { total: MIB / 2 }
  t.equal((await corral.json('/api/pull', { model, update: true, detach: true })).status, 202)
  t.equal(await answer(corral, model), CAPITAL_ANSWER, 'the old revision answers')
  t.match(await pulls(corral), [{ model: `${model}:Q8_0` }], 'while the new one is downloaded')
  hub.bandwidth = {}
  await until('the update is finished', async () => (await pulls(corral)).length === 0)
  t.same(await listed(corral), [model])
  t.match((await corral.json('/api/show', { model })).body, {
    origin: { from: 'huggingface:test/moving-GGUF', revision }
  })
  await corral.json('/api/stop', { model })
  t.equal(await answer(corral, model), CAPITAL_ANSWER, 'the new one answers after the next load')
  const stored = async () => (await storedDigests(join(corral.home, 'models'), '.gguf')).join()
  await until('the old files are removed', async () => (await stored()) === sha256(Q4_K_M))
  t.match(await check(), { present: true })

  await corral.json('/api/import', { model: 'me/own', path: TINY_CHAT, stream: false })
  const own = { model: 'me/own', update: true }
  t.match((await corral.json('/api/pull', { ...own, dry_run: true })).body, {
    present: true,
    repository: { hub: 'import' }
  })
  t.match(await corral.json('/api/pull', { ...own, model: 'me/none' }), {
    status: 404,
    body: { code: 'model_not_found' }
  })
})

t.test('progress is reported at most ten times per second and file', thorough, async t => {
  const hub = await startHubEmulator(t, {
    repositories: { 'test/big-GGUF': { files: { 'big-Q8_0.gguf': largeGguf(24 * MIB) } } },
    bandwidth: { total: 8 * MIB }
  })
  const corral = await corralWithHub(t, hub)
  const { events } = await timedPull(corral, { model: 'test/big-GGUF' })
  const first = events.find(({ event }) => event.digest)!.at
  const seconds = (events.at(-1)!.at - first) / 1000
  const own = events.filter(({ event }) => event.digest === 'big-Q8_0.gguf')
  t.ok(own.length <= 10 * seconds + 3, `${own.length} events in ${seconds.toFixed(1)} s`)
  t.ok(own.length >= 5, 'it moves')
  t.equal(own.filter(({ event }) => event.completed === event.total).length, 1, 'the end is reported once')
})

t.test('projectors and licences are pulled with the model', async t => {
  const files = { ...TWO, 'mmproj-F16.gguf': Q4_K_M, 'imatrix.gguf': Q8_0, 'tiny.bin': 'x' }
  hub.add('test/vision-GGUF', { files })
  hub.add('test/folders-GGUF', { files: { 'Q8_0/tiny.gguf': Q8_0, 'UD-Q4_K_XL/tiny.gguf': Q4_K_M } })
  const plan = async (model: string) => (await corral.json('/api/pull', { model, dry_run: true })).body
  const vision = await plan('test/vision-GGUF:Q8_0')
  t.match(
    vision.files.filter((file: any) => file.path.endsWith('.gguf')),
    [
      { path: 'tiny-Q8_0.gguf', role: 'model' },
      { path: 'mmproj-F16.gguf', role: 'projector' }
    ],
    'the projector is included, the imatrix is not'
  )
  const folders = await plan('test/folders-GGUF:q8_0')
  const weights = folders.files.filter((file: any) => file.role === 'model')
  t.match(weights, [{ path: 'Q8_0/tiny.gguf' }])
  t.equal((await corral.events('/api/pull', { model: 'test/folders-GGUF:UD-Q4_K_XL' })).at(-1).status, 'success')
  t.equal(await answer(corral, 'test/folders-GGUF'), CAPITAL_ANSWER)
})

t.test("pull works with hubs that have only part of Hugging Face's API", thorough, async t => {
  const variants: Record<string, Partial<HuggingFaceManners>> = {
    'no digests in the info': { blobs: false },
    'no listing beside the info': { tree: false },
    neither: { blobs: false, tree: false },
    'bytes from the hub itself': { delivery: 'direct' },
    'only names and bytes': { blobs: false, tree: false, delivery: 'direct' },
    'no revisions': { revisions: false },
    'no HEAD': { heads: false },
    'redirects that stay at the hub': { relative: true },
    'a file server with an info': {
      blobs: false,
      tree: false,
      revisions: false,
      heads: false,
      search: false,
      delivery: 'direct'
    },
    'next pages that name the real hub': { blobs: false, linkBase: 'https://huggingface.co' }
  }
  const hub = await startHubEmulator(t, { repositories: {}, pageSize: 1 })
  const usual = { ...hub.huggingFace }
  const corral = await corralWithHub(t, hub)
  let number = 0
  for (const [what, manners] of Object.entries(variants)) {
    Object.assign(hub.huggingFace, usual, manners)
    const name = `test/plain-${++number}`
    hub.add(name, { files: { ...TWO, 'sub/config.json': '{}' } })
    const events = await corral.events('/api/pull', { model: `${name}:Q8_0` })
    t.same(contractFaults(events, `${name}:Q8_0`), [], what)
    const digests = await storedDigests(join(corral.home, 'models', 'test', `plain-${number}`), '.gguf')
    t.same(digests, [sha256(Q8_0)], what)
  }
})

t.test('tokens are sent only to the hub', async t => {
  hub.add('test/private-GGUF', { files: TWO, private: true, token: TOKEN })
  hub.add('test/gated-GGUF', { files: TWO, gated: 'manual', token: TOKEN })
  for (const model of ['test/private-GGUF:Q8_0', 'test/gated-GGUF:Q8_0']) {
    t.same(contractFaults(await corral.events('/api/pull', { model }), model), [])
  }
  t.ok(hub.traffic.requests.some(request => request.cdn))
  t.same(hub.cdn.leaks, [], 'the second listener never saw it')
  t.notMatch(corral.log(), /hf_abcdef/, 'nor did the log')
  t.notMatch(corral.log(), /Signature=/, 'signatures are not logged')
  for (const entry of readdirSync(corral.home, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile() || entry.name.endsWith('.gguf')) continue
    t.notMatch(readFileSync(join(entry.parentPath, entry.name), 'latin1'), /hf_abcdef|Signature=/, entry.name)
  }
})

t.test('headers distinguish several models in a repository, or the client is asked', async t => {
  const gguf = (metadata: Record<string, string | number>, seed = 1) =>
    ggufBytes({
      metadata: { 'llama.context_length': 64, ...metadata },
      tensors: [{ name: 'a', shape: [200_000] }],
      seed
    })
  const m = { 'general.architecture': 'llama', 'general.name': 'M', 'llama.block_count': 2 }
  const image = gguf({ 'general.architecture': 'flux' })
  const eight = gguf({ ...m, 'llama.block_count': 4 })
  hub.add('o/same', { files: { 'm-Q8_0.gguf': gguf(m), 'm-smol-Q4_K_M.gguf': gguf(m, 2) } })
  hub.add('o/two', { files: { 'm-0.5b-Q8_0.gguf': gguf(m), 'm-8b-Q4_K_M.gguf': eight } })
  hub.add('o/image', { files: { 'x-Q4_0.gguf': image, 'ae.safetensors': Buffer.alloc(100) } })
  hub.add('o/hidden', { files: { 'x-Q4_0.gguf': image } })
  const plan = (model: string) => corral.json('/api/pull', { model, dry_run: true })
  t.match((await plan('o/same')).body, { label: 'Q8_0' }, 'one model in two quantizations')
  const read = hub.traffic.bytes('m-Q8_0.gguf')
  t.ok(read > 0 && read <= 256 * 1024, `${read} bytes of its header are read`)
  const { status, body } = await plan('o/two')
  t.match([status, body.code], [400, 'invalid_request'])
  t.same(body.choices, [
    { label: 'm-0.5b-Q8_0', size: gguf(m).length, model: 'hf:o/two:m-0.5b-Q8_0' },
    { label: 'm-8b-Q4_K_M', size: eight.length, model: 'hf:o/two:m-8b-Q4_K_M' }
  ])
  const failed = await corral.json('/api/pull', { model: 'o/two@main' })
  t.match(failed.body, { code: 'invalid_request', choices: [{ model: 'hf:o/two:m-0.5b-Q8_0@main' }] }, 'in a stream')
  t.match((await plan(body.choices[1].model)).body, { label: 'm-8b-Q4_K_M' }, 'each choice can be pulled by its name')
  t.match((await plan('o/image')).body, { code: 'unsupported_capability', error: /makes images or videos/ })
  t.match((await corral.events('/api/pull', { model: 'o/hidden' })).at(-1), {
    code: 'unsupported_capability',
    error: /makes images or videos/
  })
  t.same(await listed(corral), [])
})
