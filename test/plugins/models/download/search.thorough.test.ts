import t from 'tap'
import type { Corral } from '../../../support/corral.ts'
import { refusedWith } from '../../../support/failure.ts'
import { startHubEmulator } from '../../../support/hub-emulator/hub-emulator.ts'
import { corralWithHub } from './support.ts'

const GB = 1e9
const gguf = (size: number) => ({ size })
const REPOSITORIES = {
  'acme/Bird-8B-GGUF': {
    files: { 'Bird-8B-Q4_K_M.gguf': gguf(5 * GB), 'Bird-8B-Q8_0.gguf': gguf(9 * GB), 'README.md': '# Bird' },
    ...{ downloads: 900, likes: 7, license: 'apache-2.0', task: 'text-generation' }
  },
  'acme/Bird-Huge-GGUF': { files: { 'Bird-Huge-Q4_K_M.gguf': gguf(90_000 * GB) }, downloads: 500, gated: 'manual' },
  'acme/Bird-Split-GGUF': { files: { 'Bird-Split-Q4_K_M-00002-of-00002.gguf': gguf(GB) }, downloads: 400 },
  'acme/Stone': {
    files: { 'config.json': '{}', 'tokenizer.json': '{}', 'model.safetensors': gguf(2 * GB) },
    downloads: 1
  },
  'other/Whale-GGUF': { files: { 'Whale-Q8_0.gguf': gguf(GB) }, downloads: 2 }
} as const

// The emulator makes huge files as they are read. Only their digests would need a full read, so they are left out.
const small = Object.fromEntries(
  Object.entries(REPOSITORIES).map(([name, repository]) => [name, { ...repository, files: scaled(repository.files) }])
)

/** Scales file sizes down by a million. */
function scaled(files: object): Record<string, any> {
  return Object.fromEntries(
    Object.entries(files).map(([path, file]) => [path, file.size ? { size: Math.round(file.size / 1e6) } : file])
  )
}

const search = async (corral: Corral, query: Record<string, string>) =>
  await corral.json(`/api/search?${new URLSearchParams(query)}`)

const hub = await startHubEmulator(t, { repositories: small })
const corral = await corralWithHub(t, hub)

t.test('results show what a pull would choose, its size, and whether it fits', async t => {
  const { status, body } = await search(corral, { q: '  Bird ' })
  t.equal(status, 200)
  t.same(body.hubs, ['huggingface'])
  t.same(body.errors, [])
  const [first, gated, split] = body.models
  t.equal(body.models.length, 3)
  t.match(first, {
    ...{ model: 'acme/Bird-8B-GGUF', hub: 'huggingface', publisher: 'acme', downloads: 900, likes: 7 },
    ...{ updated_at: '2026-01-02T03:04:05.000Z', license: 'apache-2.0', tasks: ['text-generation'], gated: false },
    ...{ formats: ['gguf'], memory: { fits: true } }
  })
  const plan = await corral.json('/api/pull', { model: first.model, dry_run: true })
  t.equal(first.variant, plan.body.label, 'the variant of a dry run')
  t.equal(first.size, plan.body.size)
  t.same(first.memory, plan.body.memory)
  t.same(
    first.choices.map(({ label }: any) => label).sort(),
    plan.body.choices
      .filter(({ label }: any) => label !== first.variant)
      .map(({ label }: any) => label)
      .sort()
  )
  t.match(gated, { id: 'acme/Bird-Huge-GGUF', gated: true, variant: 'Q4_K_M' })
  t.match(split, { id: 'acme/Bird-Split-GGUF', problem: /lacks|part|missing|incomplete/i })
  t.notOk('size' in split, 'an unknown size is not made up')
  t.equal((await search(corral, { q: 'bird', limit: '1' })).body.models.length, 1)
  const { body: stones } = await search(corral, { q: 'stone' })
  const stone = { model: 'acme/Stone', formats: ['safetensors'], size: 2004 }
  t.match(stones.models, [stone], 'weights to convert, if there is nothing else')
  t.same((await search(corral, { q: 'nothing-like-it' })).body, { models: [], hubs: ['huggingface'], errors: [] })
})

t.test('invalid searches are refused', async t => {
  for (const query of [
    {},
    { q: ' ' },
    { q: 'x'.repeat(201) },
    { q: 'a\u0000b' },
    { q: 'a', limit: '0' },
    { q: 'a', limit: '51' },
    { q: 'a', limit: 'x' }
  ]) {
    t.match(await search(corral, query as never), refusedWith(400, 'invalid_request'), JSON.stringify(query))
  }
  const unknown = /No hub called "nowhere".*huggingface, csghub, modelscope; "all"/
  t.match(await search(corral, { q: 'a', hub: 'nowhere' }), refusedWith(400, 'invalid_request', unknown))
})

t.test('failing hubs are reported, alone and beside others', async t => {
  const hub = await startHubEmulator(t, { repositories: small })
  const other = await startHubEmulator(t, {
    hub: 'modelscope',
    repositories: { 'acme/Bird-GGUF': small['acme/Bird-8B-GGUF']! }
  })
  const csghub = await startHubEmulator(t, {
    hub: 'csghub',
    repositories: { 'acme/Bird-CSG-GGUF': small['acme/Bird-8B-GGUF']! }
  })
  const corral = await corralWithHub(t, hub, { env: { MODELSCOPE_ENDPOINT: other.url, CSGHUB_DOMAIN: csghub.url } })
  const all = await search(corral, { q: 'bird', hub: 'all' })
  t.match(
    all.body.models.map(({ model }: any) => model),
    [
      'acme/Bird-8B-GGUF',
      'acme/Bird-Huge-GGUF',
      'acme/Bird-Split-GGUF',
      'csghub:acme/Bird-CSG-GGUF',
      'modelscope:acme/Bird-GGUF'
    ]
  )
  t.match(all.body.models.at(-1), {
    size: all.body.models[0].size,
    license: 'apache-2.0',
    tasks: ['text-generation'],
    downloads: 900,
    updated_at: '2026-01-02T03:04:05.000Z'
  })
  t.match(all.body.models.at(-2), {
    size: all.body.models[0].size,
    license: 'apache-2.0',
    downloads: 900,
    formats: ['gguf']
  })
  const found = await corral.json('/api/pull', { model: all.body.models.at(-1).model, dry_run: true })
  t.equal(found.status, 200, 'the reference can be pulled')

  hub.fault({ kind: 'rate-limit', form: 'retry-after', seconds: 30, on: 'search' })
  t.match(await search(corral, { q: 'bird' }), refusedWith(503, 'hub_rate_limited', /Try again in 30 s/))
  const beside = await search(corral, { q: 'bird', hub: 'all' })
  t.equal(beside.status, 200)
  t.equal(beside.body.models.length, 2)
  t.match(beside.body.errors, [{ hub: 'huggingface', code: 'hub_rate_limited', error: /too many requests/ }])
  hub.clearFaults()
  hub.fault({ kind: 'html', on: 'search' })
  const page = /answers with HTML, .*login page answered instead of the hub \(title "/
  t.match(await search(corral, { q: 'bird' }), refusedWith(502, 'hub_unreachable', page))
  hub.clearFaults()
  hub.fault({ kind: 'status', status: 404, on: 'search' })
  t.match(
    await search(corral, { q: 'bird' }),
    refusedWith(502, 'hub_unreachable', /has no search at this address \(status 404\)\. Check HF_ENDPOINT/)
  )
  hub.clearFaults()
  hub.fault({ kind: 'rate-limit', form: 'retry-after', seconds: 30, on: 'info' })
  const unlisted = await search(corral, { q: 'bird', limit: '1' })
  t.match(
    unlisted,
    { status: 200, body: { models: [{ model: 'acme/Bird-8B-GGUF', problem: /too many requests/ }] } },
    'the row stays'
  )
  hub.clearFaults()
  await hub.goDown()
  t.match(await search(corral, { q: 'bird' }), { status: 502, body: { code: 'hub_unreachable' } })
})

t.test('search reports an offline Hugging Face, and finds models of another corral', async t => {
  const hub = await startHubEmulator(t, { repositories: small })
  const far = await corralWithHub(t, hub, { config: 'api-files: { enabled: true }\n' })
  await far.events('/api/pull', { model: 'other/Whale-GGUF' }).catch(() => undefined)
  const corral = await corralWithHub(t, hub, {
    env: { HF_HUB_OFFLINE: '1' },
    config: `corral-hub: { endpoint: "${far.url}" }\n`
  })
  t.match(await search(corral, { q: 'bird' }), refusedWith(502, 'hub_unreachable', /HF_HUB_OFFLINE is set to 1/))
  const { body } = await search(corral, { q: 'whale', hub: 'corral-hub' })
  t.match(body, { hubs: ['corral-hub'], errors: [] })
  t.equal(hub.traffic.requests.filter(({ kind }) => kind === 'search').length, 0)
})

t.test('malicious answers are ignored or cleaned', async t => {
  const record = {
    downloads: -5,
    likes: 1e300,
    lastModified: '\u001b[2J',
    tags: ['license:\u001b]0;x\u0007', 5, null, 'gguf'],
    pipeline_tag: ['x']
  }
  const answer = [
    { ...record, id: 'acme/\u001b[31mred' },
    { ...record, id: '../../etc/passwd' },
    { ...record, id: 'gpt2' },
    { ...record, id: `acme/${'x'.repeat(500)}` },
    { ...record, id: 'acme/Bird-8B-GGUF' },
    { id: 7 },
    null,
    'text'
  ]
  hub.fault({
    kind: 'status',
    status: 200,
    body: JSON.stringify(answer),
    headers: { 'content-type': 'application/json' },
    on: 'search'
  })
  const { status, body } = await search(corral, { q: 'x' })
  t.equal(status, 200)
  t.match(body.models, [{ model: 'acme/Bird-8B-GGUF', tasks: [], formats: ['gguf'] }])
  t.equal(body.models.length, 1, 'repositories that cannot be pulled are left out')
  for (const field of ['downloads', 'likes', 'updated_at', 'license']) t.notOk(field in body.models[0], field)
  hub.clearFaults()
  hub.fault({ kind: 'broken-json', on: 'search' })
  t.match(await search(corral, { q: 'x' }), { status: 502, body: { code: 'hub_unreachable' } })
  hub.clearFaults()
  hub.fault({ kind: 'status', status: 200, body: '{"error":1}', on: 'search' })
  t.match(await search(corral, { q: 'x' }), refusedWith(502, 'hub_unreachable', /invalid answer to a search/))
})
