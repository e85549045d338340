import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { keylessCaller } from '../../../../core/contracts/callers.ts'
import type { Progress } from '../../../../core/contracts/progress.ts'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { findHuggingFace, findLmStudio, findOllama } from '../../../../plugins/models/discovery/hub-caches.ts'
import { createToolImports, type Tool } from '../../../../plugins/models/discovery/index.ts'
import { corral as runCommand } from '../../../command-line/command.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, startCorral } from '../../../support/corral.ts'
import { failing } from '../../../support/failure.ts'
import { ggufBytes } from '../../../support/gguf-writer.ts'
import { findFaults, name, openStore, tree } from '../storage/support.ts'
import { layOutFiles, layOutOllama, layOutSnapshot, sha256 } from './cache-layouts.ts'

const DEMO = readFileSync(join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf'))
const COMMIT = 'c'.repeat(40)

/** A model of the Llama architecture. The content depends on the seed. */
const gguf = (seed: number) =>
  ggufBytes({ seed, metadata: { 'general.architecture': 'llama', 'llama.context_length': 64 } })

/** Imports from folders below `dir`, into a store there. */
async function openToolImports(dir: string, lmStudio = join(dir, 'lm-studio')) {
  const { store } = await openStore(join(dir, 'models'))
  const tool = (toolName: string, models: Tool['models']): Tool => ({
    name: toolName,
    setting: `${toolName}_folder`,
    folders: async () => [toolName === 'lm-studio' ? lmStudio : join(dir, toolName)],
    models
  })
  const tools = [tool('huggingface', findHuggingFace), tool('ollama', findOllama), tool('lm-studio', findLmStudio)]
  return { store, adoption: createToolImports(tools, store) }
}

t.test('imported files are shared with the tool, named and described', async t => {
  const dir = t.testdir()
  const { store, adoption } = await openToolImports(dir)
  const projector = ggufBytes({ metadata: { 'general.architecture': 'clip', 'clip.has_vision_encoder': true } })
  layOutOllama(join(dir, 'ollama'), 'registry.ollama.ai/library/see/4b', [
    { kind: 'model', bytes: gguf(1) },
    { kind: 'projector', bytes: projector },
    { kind: 'params', bytes: '{"temperature":0}' }
  ])
  const manifest = join(dir, 'ollama', 'manifests', 'registry.ollama.ai', 'library', 'see', '4b')
  t.same(await adoption.find('ollama'), {
    from: 'ollama',
    folder: join(dir, 'ollama'),
    models: [
      {
        found: 'see:4b',
        name: 'library/see:4b',
        format: 'gguf',
        size: gguf(1).length + projector.length,
        path: manifest,
        present: false
      }
    ]
  })
  const progress: Progress[] = []
  const { variant, linked } = await adoption.adopt('ollama', 'see:4b', undefined, {
    onProgress: step => progress.push(step)
  })
  t.ok(linked)
  t.match(variant, {
    publicName: 'library/see',
    label: '4b',
    format: 'gguf',
    origin: { kind: 'import', from: manifest, tag: '4b' },
    defaults: { options: { temperature: 0 } },
    files: [
      { path: 'see-4b.gguf', role: 'model', sha256: sha256(gguf(1)) },
      { path: 'mmproj-see-4b.gguf', role: 'projector', sha256: sha256(projector) }
    ]
  })
  t.ok(variant.metadata.capabilities.includes('vision'))
  t.same(findFaults(variant), [])
  t.match(progress.at(-1), { phase: 'copying', completed: variant.size, total: variant.size })
  const blob = join(dir, 'ollama', 'blobs', `sha256-${sha256(gguf(1))}`)
  t.equal(statSync(join(variant.directory, 'see-4b.gguf')).ino, statSync(blob).ino, 'one file with two names')
  t.match(await adoption.find('ollama'), { models: [{ present: true, storedAs: 'library/see' }] })
  t.same(await adoption.adopt('ollama', 'see:4b', undefined, {}), { variant, linked: true, notes: [] }, 'a second time')

  const renamed = await adoption.adopt('ollama', 'see:4b', name('me/eyes:Q9'), {})
  t.match(renamed.variant, { publicName: 'me/eyes', label: 'Q9' })
  t.equal(store.list().length, 2)
})

const otherDisk = '/dev/shm'
const hasOtherDisk = existsSync(otherDisk) && statSync(otherDisk).dev !== statSync('.').dev
t.test('files on another disk are copied', { skip: !hasOtherDisk && 'needs /dev/shm' }, async t => {
  const dir = t.testdir()
  const shared = mkdtempSync(join(otherDisk, 'corral-adoption-'))
  t.teardown(() => rmSync(shared, { recursive: true }))
  layOutFiles(shared, { 'me/far/m-Q8_0.gguf': gguf(1) })
  const { adoption } = await openToolImports(dir, shared)
  const { variant, linked } = await adoption.adopt('lm-studio', 'me/far/m-Q8_0.gguf', undefined, {})
  t.notOk(linked)
  t.same(findFaults(variant), [])
})

t.test('quantizations and SafeTensors of one repository are separate models', async t => {
  const dir = t.testdir()
  const { store, adoption } = await openToolImports(dir)
  layOutSnapshot(join(dir, 'huggingface'), 'o/m', COMMIT, {
    'm-Q4_K_M.gguf': gguf(4),
    'm-Q8_0.gguf': gguf(8),
    'x+y..z.gguf': gguf(9)
  })
  const { models } = await adoption.find('huggingface')
  t.same(
    models.map(model => model.name),
    ['o/m', 'o/m:Q4_K_M', 'o/m:Q8_0']
  )
  const taken = await Promise.all(models.map(({ found }) => adoption.adopt('huggingface', found, undefined, {})))
  t.ok(taken.every(({ linked }) => linked))
  t.same(
    store
      .list()
      .map(variant => variant.label)
      .sort(),
    ['GGUF', 'Q4_K_M', 'Q8_0']
  )
  t.ok((await adoption.find('huggingface')).models.every(({ present }) => present))

  const source = join(packageRoot, 'test', 'fixtures', 'tiny-chat-safetensors')
  const files = ['config.json', 'tokenizer.model', 'tokenizer_config.json', 'model.safetensors']
  const snapshot = Object.fromEntries(files.map(file => [file, readFileSync(join(source, file))]))
  layOutSnapshot(join(dir, 'huggingface'), 'o/st', COMMIT, snapshot, 'main')
  const { variant, linked } = await adoption.adopt('huggingface', 'o/st', undefined, {})
  t.match(variant, { publicName: 'o/st', format: 'safetensors' })
  t.same(variant.files.map(({ path }) => path).sort(), [...files].sort())
  t.ok(linked, 'linked weights; small files are copies, because people edit them in place')
  t.match(
    (await adoption.find('huggingface')).models.find(({ found }) => found === 'o/st'),
    { format: 'safetensors', present: true, path: join(dir, 'huggingface', 'models--o--st', 'snapshots', COMMIT) }
  )
})

t.test('models that are damaged, unknown or unsupported are refused', async t => {
  const dir = t.testdir()
  const { store, adoption } = await openToolImports(dir)
  const damaged = Buffer.from(gguf(1))
  damaged.writeUInt8(99, damaged.length - 1)
  layOutOllama(join(dir, 'ollama'), 'registry.ollama.ai/library/bad/latest', [
    { kind: 'model', bytes: gguf(1), stored: damaged }
  ])
  layOutOllama(join(dir, 'ollama'), 'registry.ollama.ai/library/lora/latest', [
    { kind: 'model', bytes: gguf(2) },
    { kind: 'adapter', bytes: 'x' }
  ])
  const refusal = failing('invalid_request', /is damaged: its SHA-256 is not the one/)
  await t.rejects(adoption.adopt('ollama', 'bad:latest', undefined, {}), refusal)
  const adapter = failing('invalid_request', /^lora:latest cannot be imported\. It is a LoRA adapter/)
  await t.rejects(adoption.adopt('ollama', 'lora:latest', undefined, {}), adapter)
  const missing = /There is no model "none:latest" in .*corral import --from ollama --list/
  await t.rejects(adoption.adopt('ollama', 'none:latest', undefined, {}), failing('model_not_found', missing))
  for (const call of [() => adoption.find('gpt4all'), () => adoption.adopt('gpt4all', 'x', undefined, {})]) {
    await t.rejects(
      async () => void (await call()),
      failing('invalid_request', /"gpt4all".* one of huggingface, ollama, lm-studio/)
    )
  }
  t.same(store.list(), [])
  t.same(tree(join(dir, 'models')), [], 'nothing remains')

  const controller = new AbortController()
  layOutFiles(join(dir, 'lm-studio'), { 'me/big/m-Q8_0.gguf': gguf(3) })
  controller.abort(new Error('gone'))
  await t.rejects(adoption.adopt('lm-studio', 'me/big/m-Q8_0.gguf', undefined, { signal: controller.signal }), {
    message: 'gone'
  })
  t.same(tree(join(dir, 'models')), [])
})

t.test('colliding names are made distinct', async t => {
  const dir = t.testdir()
  const { adoption } = await openToolImports(dir)
  layOutFiles(join(dir, 'lm-studio'), { 'me/a b/m.gguf': gguf(1), 'me/a-b/m.gguf': gguf(2), 'me/a_b/m.gguf': gguf(3) })
  const { models } = await adoption.find('lm-studio')
  t.same(
    models.map(({ name, found }) => [name, found]),
    [
      ['me/a-b', 'me/a b/m.gguf'],
      ['me/a-b-2', 'me/a-b/m.gguf'],
      ['me/a_b', 'me/a_b/m.gguf']
    ]
  )
})

t.test('files without read permission are explained', { skip: process.platform === 'win32' }, async t => {
  // A place that every user may enter.
  const dir = mkdtempSync(join(tmpdir(), 'corral-adoption-'))
  chmodSync(dir, 0o755)
  const { adoption } = await openToolImports(dir)
  layOutFiles(join(dir, 'lm-studio'), { 'me/open/m-Q8_0.gguf': gguf(1), 'me/shut/m-Q8_0.gguf': gguf(2) })
  layOutOllama(join(dir, 'ollama'), 'registry.ollama.ai/library/x/latest', [{ kind: 'model', bytes: gguf(1) }])
  const shut = [join(dir, 'lm-studio', 'me', 'shut'), join(dir, 'ollama', 'manifests')]
  for (const folder of shut) chmodSync(folder, 0)
  // The superuser may read everything.
  const isRoot = process.geteuid?.() === 0
  if (isRoot) process.seteuid?.(65534)
  t.teardown(() => {
    if (isRoot) process.seteuid?.(0)
    for (const folder of shut) chmodSync(folder, 0o755)
    rmSync(dir, { recursive: true })
  })
  const found = await adoption.find('lm-studio')
  t.match(found, { models: [{ name: 'me/open:Q8_0' }], unreadable: [/corral may not read .*shut\. Let its user/] })
  t.equal(found.models.length, 1)
  const unreadable = /may not read .*manifests\. .*adoption\.ollama_folder in config\.yaml/
  await t.rejects(adoption.find('ollama'), failing('invalid_request', unreadable))
})

const GO_TEMPLATE = { kind: 'template', bytes: '{{ .System }}{{ .Prompt }}' }

t.test("Ollama's models keep their names, files and settings through updates", async t => {
  const dir = t.testdir()
  const { store, adoption } = await openToolImports(dir)
  const ollama = join(dir, 'ollama')
  const lay = (name: string, tag: string, seed: number, ...more: { kind: string; bytes: string }[]) =>
    layOutOllama(ollama, `${name}/${tag}`, [{ kind: 'model', bytes: gguf(seed) }, ...more])
  const importAll = async () => {
    const { models } = await adoption.find('ollama')
    for (const { found, present } of models) if (!present) await adoption.adopt('ollama', found, undefined, {})
    return models.flatMap(({ name, present }) => (present ? [] : name))
  }
  const stored = () =>
    Object.fromEntries(store.list().map(({ publicName, label, files }) => [`${publicName} ${label}`, files[0]!.sha256]))
  const library = 'registry.ollama.ai/library'
  lay(`${library}/m`, '1b', 1)
  lay(`${library}/m`, '2b', 2)
  lay(`${library}/m`, 'GGUF', 3)
  // Its label would also be "GGUF", because its file name shows no quantization.
  lay(`${library}/m`, 'latest', 2)
  lay(`${library}/same`, '1b', 1)
  t.same(await importAll(), ['library/m:1b', 'library/m:2b', 'library/m:GGUF', 'library/m', 'library/same:1b'])
  const first = {
    'library/m GGUF-2': sha256(gguf(2)),
    'library/m:1b 1b': sha256(gguf(1)),
    'library/m:2b 2b': sha256(gguf(2)),
    'library/m:GGUF GGUF': sha256(gguf(3)),
    'library/same 1b': sha256(gguf(1))
  }
  t.same(stored(), first)
  t.same(await importAll(), [], 'everything is here')
  t.same(stored(), first)

  lay(`${library}/m`, 'latest', 4, { kind: 'system', bytes: 'You are m.' })
  lay(`${library}/m`, '1b', 1, { kind: 'params', bytes: '{"top_k":1}' })
  t.same(await importAll(), ['library/m:1b', 'library/m'], 'an update, and settings added later')
  t.same(stored(), { ...first, 'library/m GGUF-2': sha256(gguf(4)) })
  t.match(store.get(name('library/m')).defaults, { system: 'You are m.' })
  t.match(store.get(name('library/m:1b')).defaults, { options: { top_k: 1 } })
  t.same(await importAll(), [])

  lay('hf.co/o/x', 'Q8_0', 5)
  lay('registry.ollama.ai/o/x', 'Q8_0', 6, GO_TEMPLATE)
  const { models } = await adoption.find('ollama')
  t.match(models.slice(-2), [
    {
      found: 'hf.co/o/x:Q8_0',
      name: 'o/x-2:Q8_0',
      notes: [/called o\/x-2:Q8_0 here: the name o\/x:Q8_0 is taken by "o\/x:Q8_0"/]
    },
    { found: 'o/x:Q8_0', name: 'o/x:Q8_0', notes: undefined }
  ])
  const { notes } = await adoption.adopt('ollama', 'o/x:Q8_0', undefined, {})
  t.match(notes, [/Go's template language.*base model/])
})

t.test('files that another model has are shared with it, unless the caller may not read them', async t => {
  const dir = t.testdir()
  const { store, adoption } = await openToolImports(dir)
  layOutOllama(join(dir, 'ollama'), 'registry.ollama.ai/library/a/1', [{ kind: 'model', bytes: gguf(1) }])
  layOutOllama(join(dir, 'ollama'), 'registry.ollama.ai/library/b/1', [{ kind: 'model', bytes: gguf(1) }])
  const { variant: a } = await adoption.adopt('ollama', 'a:1', undefined, {})
  // As on another disk: the original is another file of the same size, which must not be read.
  const blob = join(dir, 'ollama', 'blobs', `sha256-${sha256(gguf(1))}`)
  rmSync(blob)
  layOutFiles(dir, { 'ollama/x': '', [`ollama/blobs/sha256-${sha256(gguf(1))}`]: gguf(2) })
  store.importRoots = [join(dir, 'ollama')]
  const caller = keylessCaller('127.0.0.1')
  await t.rejects(adoption.adopt('ollama', 'b:1', undefined, {}, caller), { message: /is damaged/ })
  const { variant: b, linked } = await adoption.adopt('ollama', 'b:1', undefined, {})
  t.ok(linked)
  t.equal(statSync(join(b.directory, 'b-1.gguf')).ino, statSync(join(a.directory, 'a-1.gguf')).ino)
})

t.test("Ollama's names work on every API after an import", async t => {
  const dir = t.testdir()
  const models = join(dir, 'ollama')
  const blob = { kind: 'model', bytes: DEMO }
  const made = [
    { kind: 'system', bytes: 'You are Leo.' },
    { kind: 'params', bytes: '{"stop":["###"],"num_ctx":2048,"temperature":0}' },
    { kind: 'messages', bytes: '[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]' }
  ]
  layOutOllama(models, 'registry.ollama.ai/library/qwen3/0.6b', [blob, GO_TEMPLATE])
  layOutOllama(models, 'registry.ollama.ai/library/qwen3/8b', [blob])
  layOutOllama(models, 'registry.ollama.ai/library/leo/latest', [blob, ...made])
  layOutOllama(models, 'hf.co/o/m-GGUF/F16', [blob])
  layOutOllama(models, 'registry.example.com/team/m/v1', [blob])
  const config = 'storage:\n  demo_model: false'
  const corral = await startCorral(t, { config, env: { OLLAMA_MODELS: models, HOME: dir } })
  const command = (args: readonly string[]) => runCommand([...args], { home: corral.home })
  t.match(await command(['import', '--from', 'ollama', '--all']), { code: 0, stderr: /Go's template language/ })
  const again = await command(['import', '--from', 'ollama', '--all'])
  t.match(again.stderr, /imported 0 of 5/)
  t.notMatch(again.stderr, /Go's/)
  const names = ['qwen3:0.6b', 'qwen3:8b', 'leo', 'leo:latest', 'hf.co/o/m-GGUF:F16', 'registry.example.com/team/m:v1']
  const listed = (await corral.json('/ollama/api/tags')).body.models.map(({ name }: { name: string }) => name)
  t.same(listed.sort(), ['leo:latest', 'o/m-GGUF:F16', 'qwen3:0.6b', 'qwen3:8b', 'team/m:v1'])
  const { data } = (await corral.json('/v1/models')).body
  t.ok(data.some(({ id }: { id: string }) => id === 'qwen3:0.6b'))
  for (const model of names) {
    const messages = [CAPITAL_QUESTION]
    const options = { temperature: 0 }
    for (const [path, field] of [
      ['/api/chat', 'message'],
      ['/ollama/api/chat', 'message'],
      ['/v1/chat/completions', 'choices'],
      ['/v1/messages', 'content']
    ] as const) {
      const { status, body } = await corral.json(path, { model, messages, options, stream: false, max_tokens: 40 })
      t.match({ status, body }, { status: 200 }, `${model} ${path}`)
      t.match(JSON.stringify(body[field]), model.startsWith('leo') ? /Leo|Paris/ : /Paris/, `${model} ${path}`)
    }
    t.match(await command(['run', model, CAPITAL_QUESTION.content, '--temperature', '0']), { code: 0 }, model)
  }
  t.match(await corral.json('/api/ps'), { body: { models: [{ name: String }] } })
  t.match((await corral.json('/ollama/api/show', { model: 'leo' })).body, {
    system: 'You are Leo.',
    parameters: /stop +"###"\nnum_ctx +2048\ntemperature +0/,
    messages: [{ content: 'hi' }, { content: 'yo' }]
  })
  for (const model of names.filter(name => name !== 'leo')) {
    t.match(await command(['rm', model]), { code: 0 }, `rm ${model}`)
  }
  t.same((await corral.json('/api/tags')).body.models, [])
})

t.test('an import reports that a tool has no models', async t => {
  const dir = t.testdir()
  const corral = await startCorral(t, { env: { OLLAMA_MODELS: join(dir, 'none'), HOME: dir } })
  const command = (args: readonly string[]) => runCommand([...args], { home: corral.home })
  const nothing = /^Ollama has no models in .*none.*, so nothing was imported\.\n$/
  for (const [more, code] of [
    [[], 0],
    [['--all'], 0],
    [['qwen3'], 4]
  ] as const) {
    const ended = await command(['import', '--from', 'ollama', ...more])
    t.match(ended, { code })
    t.match(ended.stderr.replace('error: ', ''), nothing)
  }
})

t.test('corral imports models from all three tools', async t => {
  const dir = t.testdir()
  const home = join(dir, 'home')
  const user = join(dir, 'user')
  mkdirSync(home)
  layOutSnapshot(join(dir, 'hf', 'hub'), 'o/tiny-GGUF', COMMIT, { 'tiny-F16.gguf': DEMO }, 'main')
  layOutOllama(join(dir, 'ollama'), 'hf.co/o/tiny/F16', [{ kind: 'model', bytes: DEMO }])
  layOutFiles(user, { '.lmstudio/settings.json': JSON.stringify({ downloadsFolder: join(dir, 'moved') }) })
  layOutFiles(join(dir, 'moved'), { 'pub/tiny/tiny-F16.gguf': DEMO })
  const corral = await startCorral(t, {
    home,
    config: 'storage:\n  demo_model: false',
    env: {
      HOME: user,
      USERPROFILE: user,
      HF_HOME: join(dir, 'hf'),
      HF_HUB_CACHE: '',
      HUGGINGFACE_HUB_CACHE: '',
      LLAMA_CACHE: '',
      OLLAMA_MODELS: join(dir, 'ollama')
    }
  })
  for (const [from, found, stored, original] of [
    ['huggingface', 'o/tiny-GGUF/tiny-F16.gguf', 'o/tiny-GGUF', join('hf', 'hub', 'models--o--tiny-GGUF')],
    ['ollama', 'hf.co/o/tiny:F16', 'o/tiny', 'ollama'],
    ['lm-studio', 'pub/tiny/tiny-F16.gguf', 'pub/tiny', 'moved']
  ] as const) {
    const { status, body } = await corral.json(`/api/import/found?from=${from}`)
    t.equal(status, 200)
    t.match(body, { from, models: [{ found, name: `${stored}:F16`, format: 'gguf', size: DEMO.length }] })
    const [streamed, plain] = await Promise.all([
      corral.events('/api/import', { from, found, stream: true }),
      corral.json('/ollama/api/import', { from, found })
    ])
    t.match(streamed.at(-1), { status: 'success', linked: true, model: { name: stored, format: 'gguf' } })
    t.match(plain, { status: 200, body: { status: 'success', linked: true, model: { name: stored } } }, 'two at once')
    t.match(
      streamed.find(event => event.completed),
      { status: /^copying .*\.gguf$/, total: DEMO.length }
    )
    t.match((await corral.json(`/ollama/api/import/found?from=${from}`)).body, { models: [{ present: true }] })
    rmSync(join(dir, original), { recursive: true })
    const { body: answer } = await corral.json('/api/chat', {
      model: stored,
      messages: [CAPITAL_QUESTION],
      stream: false,
      options: { temperature: 0 }
    })
    t.equal(answer.message?.content, CAPITAL_ANSWER, `${stored} answers without its original`)
  }
  t.equal((await corral.json('/api/tags')).body.models.length, 3)

  layOutOllama(join(dir, 'ollama'), 'registry.ollama.ai/library/mine/latest', [{ kind: 'model', bytes: gguf(1) }])
  t.match((await corral.json('/api/import', { from: 'ollama', found: 'mine:latest', model: 'me/mine' })).body, {
    model: { name: 'me/mine' }
  })
  for (const [body, code, message] of [
    [{ from: 'ollama' }, 'invalid_request', /either "path".* or "from" and "found"/],
    [{ found: 'x' }, 'invalid_request', /either "path"/],
    [{ from: 'ollama', found: 'x', path: '/x', model: 'a/b' }, 'invalid_request', /either "path"/],
    [{ from: 'x', found: 'x' }, 'invalid_request', /one of huggingface, ollama, lm-studio/],
    [{ from: 'ollama', found: 'mine:latest', model: 'nope' }, 'invalid_model_name', /nope/],
    [{ from: 'ollama', found: 'nope' }, 'model_not_found', /There is no model "nope"/]
  ] as const) {
    t.match((await corral.json('/api/import', body)).body, { code, error: message })
  }
  t.match(await corral.json('/api/import/found'), { status: 400, body: { code: 'invalid_request' } })
  t.match(await corral.json('/api/import/found?from=ollama&from=x'), { status: 400 })
})
