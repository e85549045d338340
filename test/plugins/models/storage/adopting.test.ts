import { createHash } from 'node:crypto'
import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import type { AdoptedFile, AdoptRequest } from '../../../../core/contracts/adopted-files.ts'
import { parseModelName } from '../../../../core/models/model-name.ts'
import { ggufBytes, safetensorsBytes, writeGguf } from '../../../support/gguf-writer.ts'
import { openStore } from './support.ts'

const NAME = parseModelName('acme/tiny')
const HUB = { kind: 'hub' as const, from: 'huggingface:acme/tiny', revision: '1' }
const digest = (path: string) => createHash('sha256').update(readFileSync(path)).digest('hex')
const shard = (index: number, count = 2) => `m-0000${index}-of-0000${count}.gguf`

t.test('adopted files become a model in place', async t => {
  const folder = t.testdir({ blobs: {}, models: {} })
  const { store } = await openStore(join(folder, 'models'))
  const source = join(folder, 'blobs', 'sha256-of-it')
  writeGguf(source, { metadata: { 'general.file_type': 7 } })
  const file: AdoptedFile = { source, path: 'tiny.gguf', role: 'model' }

  const known = { ...file, sha256: digest(source) }
  const first = await store.adopt({ name: NAME, format: 'gguf', origin: HUB, files: [known] })
  t.match(first, { label: 'Q8_0', publicName: 'acme/tiny', origin: HUB, metadata: { architecture: 'llama' } })
  const stored = statSync(join(first.directory, 'tiny.gguf'))
  t.equal(stored.ino, statSync(source).ino, 'linked, not copied')
  t.equal(first.files[0]?.sha256, known.sha256)

  const again = await store.adopt({ name: NAME, format: 'gguf', origin: { ...HUB, revision: '2' }, files: [file] })
  t.same(again, first, 'adopting the same content again returns the existing variant')

  const wrong = { ...file, claimedSha256: '0'.repeat(64) }
  const other = { name: parseModelName('acme/other'), format: 'gguf' as const, origin: HUB }
  await t.rejects(store.adopt({ ...other, files: [wrong] }), { code: 'invalid_request', message: /damaged.*SHA-256/ })
  const right = await store.adopt({ ...other, label: 'Mine', files: [{ ...file, claimedSha256: known.sha256 }] })
  t.equal(right.label, 'Mine')
  t.same(readdirSync(join(folder, 'models', '.staging')), [])

  writeGguf(join(folder, 'new.gguf'), { seed: 2 })
  const fromElsewhere: AdoptRequest = {
    name: NAME,
    format: 'gguf',
    origin: { kind: 'hub', from: 'modelscope:acme/tiny' },
    label: 'F16',
    files: [{ ...file, source: join(folder, 'new.gguf') }]
  }
  await t.rejects(store.adopt(fromElsewhere), { code: 'model_exists', message: /downloaded from huggingface:acme/ })
  await t.rejects(store.import({ path: join(folder, 'new.gguf'), name: NAME }), { code: 'model_exists' })
  const next = await store.adopt({ ...fromElsewhere, label: 'q8_0', origin: { ...HUB, revision: '3' } })
  t.not(next.revision, first.revision, 'another revision of the same repository replaces it')
  t.equal(store.variants(NAME).length, 1)
  t.ok(statSync(source), 'adopted files stay in place')
  const { store: reopened } = await openStore(join(folder, 'models'))
  t.match(reopened.find(NAME), { origin: { revision: '3' } }, 'origins are recorded')
})

t.test('shards, projectors and descriptive files are stored together', async t => {
  const folder = t.testdir({ models: {} })
  const { store } = await openStore(join(folder, 'models'))
  const write = (name: string, bytes: Buffer) => {
    writeFileSync(join(folder, name), bytes)
    return join(folder, name)
  }
  const llama = { 'general.architecture': 'llama' }
  const one = write('one', ggufBytes({ metadata: { ...llama, 'split.count': 2, 'split.tensors.count': 2 } }))
  const two = write(
    'two',
    ggufBytes({ metadata: { ...llama, 'split.count': 2 }, tensors: [{ name: 'b', shape: [8] }] })
  )
  const eye = write('eye', ggufBytes({ metadata: { 'general.architecture': 'clip', 'clip.has_vision_encoder': true } }))
  const readme = write('readme', Buffer.from('# Seer'))
  const files: AdoptedFile[] = [
    { source: readme, path: 'README.md', role: 'other', sha256: digest(readme) },
    { source: eye, path: 'mmproj.gguf', role: 'projector' },
    { source: one, path: shard(1), role: 'model' },
    { source: two, path: shard(2), role: 'model' }
  ]
  const request: AdoptRequest = { name: NAME, format: 'gguf', label: 'Q4_K_M', origin: HUB, files }
  const stored = await store.adopt(request)
  const paths = stored.files.map(({ path }) => path)
  t.same(paths, [shard(1), shard(2), 'README.md', 'mmproj.gguf'], 'weights first')
  t.same(stored.metadata.capabilities, ['completion', 'base', 'vision'])
  t.equal(statSync(join(stored.directory, 'README.md')).ino, statSync(readme).ino)

  const refused = async (what: string, message: RegExp, changed: Partial<AdoptRequest>) =>
    t.rejects(
      store.adopt({ ...request, name: parseModelName('acme/no'), ...changed }),
      { code: /invalid_/, message },
      what
    )
  await refused('a shard is missing', /one of 2 shards/, { files: [files[2]!] })
  await refused('the wrong order', /shards of one model/, { files: [files[3]!, files[2]!] })
  await refused('names that llama.cpp does not find', /shards of one model/, {
    files: [files[2]!, { ...files[3]!, path: 'other.gguf' }]
  })
  await refused('no weights', /no model among/, { files: [files[0]!, files[1]!] })
  await refused('a projector that is not one', /is not one/, {
    files: [files[2]!, files[3]!, { ...files[1]!, source: one }]
  })
  await refused('a text file as weights', /not a GGUF file/, { files: [{ ...files[2]!, source: readme }] })
  await refused('one name twice', /Two of the files/, { files: [...files, { ...files[0]!, path: 'readme.md' }] })
  await refused('no such file', /There is no/, { files: [{ ...files[2]!, source: join(folder, 'gone') }] })
  await refused('a folder', /not a regular file/, { files: [{ ...files[2]!, source: folder }] })
  await refused('a relative source', /not an absolute path/, { files: [{ ...files[2]!, source: 'one' }] })
  await refused('an invalid label', /is not a model name/, { label: '../x' })
  for (const path of [
    '../x.gguf',
    '/x.gguf',
    'a//b.gguf',
    'a\\b.gguf',
    'converted/x.gguf',
    '.corral-revision',
    'a,b.gguf',
    'x:y.gguf',
    ''
  ]) {
    await refused(path, /cannot be a file's name/, { files: [{ ...files[2]!, path }] })
  }
  t.same(readdirSync(join(folder, 'models', '.staging')), [], 'refused files leave nothing')
  t.equal(store.list().length, 1)
})

t.test('SafeTensors files are adopted with their metadata', async t => {
  const folder = t.testdir({ models: {} })
  const { store } = await openStore(join(folder, 'models'))
  mkdirSync(join(folder, 'blobs'))
  const file = (path: string, bytes: string | Buffer, role: AdoptedFile['role'] = 'other'): AdoptedFile => {
    const source = join(folder, 'blobs', path.replace('/', '-'))
    writeFileSync(source, bytes)
    return { source, path, role }
  }
  const config = {
    architectures: ['LlamaForCausalLM'],
    model_type: 'llama',
    thinker_config: { audio_config: { a: 1 } }
  }
  const weights = file('model.safetensors', safetensorsBytes(), 'model')
  const described = file('config.json', JSON.stringify(config))
  const files = [
    weights,
    described,
    file('1_Pooling/config.json', '{}'),
    file('chat_template.jinja', '{% if tools %}{% endif %}')
  ]
  const request: AdoptRequest = { name: NAME, format: 'safetensors', origin: HUB, files }
  const stored = await store.adopt(request)
  t.match(stored, {
    label: 'BF16',
    format: 'safetensors',
    metadata: { capabilities: ['completion', 'tools', 'audio'] }
  })
  t.equal(readFileSync(join(stored.directory, '1_Pooling', 'config.json'), 'utf8'), '{}')
  await t.rejects(store.adopt({ ...request, files: [weights] }), { message: /no config.json/ })
  const cut = file('model.safetensors', safetensorsBytes().subarray(0, -1), 'model')
  await t.rejects(store.adopt({ ...request, files: [cut, described] }), { message: /truncated/ })
})

t.test('made models keep their settings and labels beside models from elsewhere', async t => {
  const folder = t.testdir({ models: {} })
  const models = join(folder, 'models')
  const { store } = await openStore(models)
  const template = '{% for message in messages %}{{ message.content }}{% if tools %}{{ tools }}{% endif %}{% endfor %}'
  writeGguf(join(folder, 'x.gguf'), { metadata: { 'general.file_type': 7, 'tokenizer.chat_template': template } })
  const source = join(folder, 'x.gguf')
  const files: AdoptedFile[] = [{ source, path: 'x.gguf', role: 'model', sha256: digest(source) }]
  const other: AdoptedFile[] = [{ source: join(folder, 'y.gguf'), path: 'y.gguf', role: 'model' }]
  writeGguf(join(folder, 'y.gguf'), { seed: 2 })
  const made = (to: string, more: Partial<AdoptRequest> = {}) =>
    store.adopt({
      name: parseModelName(to),
      format: 'gguf',
      origin: { kind: 'made', from: 'acme/tiny' },
      files,
      ...more
    })
  const bare = await store.adopt({ name: NAME, format: 'gguf', origin: HUB, files })
  t.strictSame(bare.metadata.capabilities, ['completion', 'tools'])

  const leo = await made('me/leo', { defaults: { system: 'You are Leo.', options: { num_ctx: 512 } } })
  t.match(leo, { label: 'Q8_0', origin: { kind: 'made' }, defaults: { system: 'You are Leo.' } })
  t.not(leo.digest, bare.digest, 'equal files with settings are another model')
  t.equal((await made('me/copy')).digest, bare.digest)
  const same = await made('me/leo', { defaults: { options: { num_ctx: 512 }, system: 'You are Leo.' } })
  t.same(same, leo, 'the same again')
  t.same((await openStore(models)).store.find(parseModelName('me/leo')), leo, 'it is kept')

  const again = await made('me/leo', { files: other, label: 'F16' })
  t.match(again, { label: 'Q8_0', isDefault: true, defaults: undefined }, 'the made model gives way, with its label')
  t.equal(store.variants(parseModelName('me/leo')).length, 1)
  t.strictSame(readdirSync(join(models, 'me', 'leo')).length, 2, 'its files are removed')
  t.match(await made('me/leo:v2'), { label: 'v2', isDefault: false, origin: { tag: 'v2' } })
  t.match(await made('me/leo:V2', { files: other }), { label: 'v2', isDefault: false })
  t.equal(store.variants(parseModelName('me/leo')).length, 2)

  t.match(await made('me/max:v1'), { label: 'v1', isDefault: true }, 'the bare name means the existing model')
  t.match(await made('me/max'), { label: 'Q8_0', isDefault: true }, 'until there is one without a tag')
  t.match(await made('me/max', { files: other }), { label: 'Q8_0', isDefault: true })
  t.match(await made('me/one:q8_0'), { label: 'q8_0', isDefault: true })
  t.match(await made('me/one', { files: other, label: 'Q8_0' }), { label: 'Q8_0-2', isDefault: true })
  const variants = store.variants(parseModelName('me/max')).map(({ label }) => label)
  t.strictSame(variants, ['Q8_0', 'v1'])

  await t.rejects(made('acme/tiny', { files: other }), { code: 'model_exists', message: /downloaded from huggingface/ })
  const laid = await made('acme/tiny', { defaults: { system: 'x', template: '{{ messages }}' } })
  t.match(laid, { origin: HUB, defaults: { system: 'x' }, isDefault: true }, 'only the settings differ')
  t.strictSame(laid.metadata.capabilities, ['completion'], 'the capabilities follow the template')
  t.equal(laid.metadata.chatTemplate, '{{ messages }}')
  const newer = await store.adopt({
    name: NAME,
    format: 'gguf',
    origin: { ...HUB, revision: '2' },
    label: 'Q8_0',
    files: other
  })
  t.match(newer, { files: [{ path: 'y.gguf' }], defaults: { system: 'x' } }, 'newer revisions keep it too')

  await made('acme/tiny:mine', { files: other })
  const more = { name: NAME, format: 'gguf' as const, origin: { ...HUB, revision: '3' }, files }
  t.ok(await store.adopt({ ...more, label: 'F16' }), 'a model made beside it does not block it')
  await t.rejects(store.adopt({ ...more, label: 'mine' }), { code: 'model_exists', message: /made from acme\/tiny/ })
  await t.rejects(store.adopt({ ...more, name: parseModelName('me/leo') }), { code: 'model_exists' })
  await t.rejects(store.import({ path: source, name: parseModelName('me/leo') }), { code: 'model_exists' })
  await store.remove(parseModelName('acme/tiny'))
  t.ok(statSync(join(store.get(parseModelName('me/copy')).directory, 'x.gguf')), 'a copy survives')
})

t.test('manifests without settings can be read', async t => {
  const folder = t.testdir({ models: {} })
  const { store } = await openStore(join(folder, 'models'))
  writeGguf(join(folder, 'x.gguf'))
  const stored = await store.import({ path: join(folder, 'x.gguf'), name: NAME })
  const text = readFileSync(join(folder, 'models', 'acme', 'tiny', 'manifest.json'), 'utf8')
  t.notMatch(text, 'defaults', 'they look as before')
  t.same((await openStore(join(folder, 'models'))).store.find(NAME), stored)
})
