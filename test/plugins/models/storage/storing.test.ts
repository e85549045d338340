import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import pino from 'pino'
import t from 'tap'
import type { Storage, StoredVariant } from '../../../../core/contracts/storage.ts'
import type { PluginContext } from '../../../../core/plugins/plugin.ts'
import { dataPaths } from '../../../../core/system/data-paths.ts'
import storagePlugin from '../../../../plugins/models/storage/index.ts'
import { failing } from '../../../support/failure.ts'
import { writeGguf } from '../../../support/gguf-writer.ts'
import { findFaults, gate, name, openStore, tree, until } from './support.ts'

/** A store, and a function that imports small models that differ by their seed. */
async function setUp(dir: string) {
  const models = join(dir, 'models')
  const { store, lines } = await openStore(models)
  const add = (model: string, seed = 1, fileName = 'm-F16.gguf') => {
    const path = join(dir, `source-${seed}-${fileName}`)
    writeGguf(path, { seed })
    return store.import({ path, name: name(model) })
  }
  return { models, store, lines, add }
}

const names = (variants: StoredVariant[]) => variants.map(variant => variant.publicName)

t.test('a model has several variants', async t => {
  const { store, models, add } = await setUp(t.testdir())
  await add('Own/Model', 1, 'm-F16.gguf')
  await add('own/model', 2, 'm-Q8_0.gguf')
  await add('OWN/MODEL:mine', 3)
  await add('a/first', 4)
  t.same(names(store.list()), ['a/first', 'Own/Model', 'Own/Model:Q8_0', 'Own/Model:mine'], 'the first name stays')
  const manifests = tree(models).filter(path => path.endsWith('manifest.json'))
  t.same(manifests, ['Own/Model/manifest.json', 'a/first/manifest.json'])
  t.equal(store.find(name('own/model'))?.label, 'F16')
  t.equal(store.find(name('own/model:latest'))?.label, 'F16')
  t.equal(store.find(name('own/model:q8_0'))?.label, 'Q8_0')
  t.equal(store.get(name('own/model:MINE')).label, 'mine')
  t.equal(store.find(name('own/model:Q2_K')), undefined)
  t.same(store.variants(name('x/y')), [])
  t.throws(() => store.get(name('x/y')), { code: 'model_not_found', status: 404, message: /no model "x\/y"/ })
  const others = failing('model_not_found', /no variant "Q2_K"\. It has F16 \(the default\), Q8_0, mine\./)
  t.throws(() => store.get(name('own/model:Q2_K')), others)

  t.match(await store.setDefault(name('own/model:q8_0')), { label: 'Q8_0', isDefault: true, publicName: 'Own/Model' })
  t.same(names(store.variants(name('own/model'))), ['Own/Model', 'Own/Model:F16', 'Own/Model:mine'])
  t.equal((await store.setDefault(name('own/model'))).label, 'Q8_0', 'a bare name changes nothing')
  await t.rejects(store.setDefault(name('own/model:Q2_K')), { code: 'model_not_found' })
  t.same((await openStore(models)).store.list(), store.list(), 'a later start agrees')

  t.same(names(await store.remove(name('own/model:q8_0'))), ['Own/Model'])
  t.equal(store.get(name('own/model')).label, 'F16', 'the oldest becomes the default')
  t.same((await openStore(models)).store.list(), store.list())
  t.equal((await store.remove(name('OWN/model'))).length, 2)
  t.same(names(store.list()), ['a/first'])
  t.notOk(existsSync(join(models, 'Own')), "an owner's folder is removed with its last model")
  await t.rejects(store.remove(name('own/model')), { code: 'model_not_found' })
  await t.rejects(store.remove(name('a/first:Q2_K')), { code: 'model_not_found' })
})

t.test('the same content is stored once, and other content replaces it', async t => {
  const dir = t.testdir()
  const { store, models, add } = await setUp(dir)
  const first = await add('a/b', 1)
  t.same(await add('A/B', 1), first, 'the same content is the existing variant')
  t.same(await add('a/b', 1, 'renamed-F16.gguf'), first, 'under another file name too')
  const other = await add('a/b:Other', 1)
  t.not(other.key, first.key)
  await store.remove(name('a/b:other'))

  const release = store.hold(first)
  const releaseAgain = store.hold(first)
  const second = await add('a/b', 2)
  t.not(second.revision, first.revision)
  t.equal(second.key, first.key)
  t.same(store.list(), [second])
  t.same([...findFaults(first), ...findFaults(second)], [], 'both folders exist while the old one is held')
  release()
  release()
  await new Promise(resolve => setTimeout(resolve, 50))
  t.ok(existsSync(first.directory), 'releasing twice counts once')
  const back = await add('a/b', 1)
  t.not(back.directory, first.directory, 'a folder is never reused while it is held')
  t.notOk(existsSync(second.directory), 'a folder that is not held is removed immediately')
  releaseAgain()
  await until(() => !existsSync(first.directory))
  t.same(findFaults(back), [])

  rmSync(back.directory, { recursive: true })
  const repaired = await add('a/b', 1)
  t.same(findFaults(repaired), [], 'files deleted by hand are restored')
  rmSync(join(models, 'a'), { recursive: true })
  t.equal((await store.remove(name('a/b'))).length, 1, 'a folder deleted by hand')
  await add('a/b', 1)
  rmSync(join(models, 'a'), { recursive: true })
  t.same(findFaults(await add('a/b', 1)), [])
})

t.test('a name keeps its origin', async t => {
  const dir = t.testdir()
  const { store, models, add } = await setUp(dir)
  const commit = async (from: string, seed = 9) => {
    const source = join(dir, `hub-${seed}.gguf`)
    writeGguf(source, { seed })
    const files = [{ source, path: 'hub.gguf', role: 'model' as const }]
    return store.adopt({ name: name('a/b'), format: 'gguf', label: 'F16', origin: { kind: 'hub', from }, files })
  }
  const pulled = await commit('hf:a/b')
  t.match(pulled.origin, { kind: 'hub', from: 'hf:a/b' })
  await t.rejects(add('A/b', 1), {
    code: 'model_exists',
    status: 409,
    message: /downloaded from hf:a\/b.*corral rm a\/b/s
  })
  await t.rejects(add('a/b:Q2_K', 1), { code: 'model_exists' }, 'nor another label of it')
  await t.rejects(commit('ms:a/b', 7), { code: 'model_exists' })
  const newer = await commit('hf:a/b', 8)
  t.same(store.list(), [newer])
  const staged = tree(models).filter(path => path.startsWith('.staging'))
  t.same(staged, [], 'refused imports leave nothing')
})

t.test('a removal hides the model, then calls listeners, then deletes manifest and files', async t => {
  const { store, models, lines, add } = await setUp(t.testdir())
  const variant = await add('a/b', 1)
  await add('a/c', 2)
  const { opened, open } = gate()
  const told: string[] = []
  store.onRemove(async variants => {
    told.push(...names(variants))
    await opened
  })
  store.onRemove(async () => {
    throw new Error('cannot let go')
  })
  const removal = store.remove(name('a/b'))
  t.equal(store.find(name('a/b')), undefined)
  t.same(names(store.list()), ['a/c'])
  await t.rejects(store.remove(name('a/b')), { code: 'model_not_found' }, 'only one removes it')
  const again = add('a/b', 1)
  await until(() => told.length > 0)
  await new Promise(resolve => setTimeout(resolve, 50))
  t.same(told, ['a/b'])
  const isThere = existsSync(join(dirname(variant.directory), 'manifest.json'))
  t.ok(isThere, 'nothing is deleted before the listeners have finished')
  t.same(findFaults(variant), [])
  open()
  t.same(await removal, [variant])
  const fresh = await again
  t.same(findFaults(fresh), [], 'a concurrent import runs after it')
  t.same(names(store.list()), ['a/b', 'a/c'])
  t.ok(lines.some(line => line.includes('cannot let go')))
  t.same((await openStore(models)).store.list(), store.list())

  t.test('a revision in use outlives its model', async t => {
    const release = store.hold(fresh)
    await store.remove(name('a/b'))
    t.same(findFaults(fresh), [])
    t.notOk(existsSync(join(dirname(fresh.directory), 'manifest.json')))
    release()
    await store.close()
    t.notOk(existsSync(dirname(fresh.directory)))
  })
})

t.test('a failed removal keeps the model', async t => {
  const { store, models, add } = await setUp(t.testdir())
  const variant = await add('a/b', 1)
  const manifest = join(models, 'a', 'b', 'manifest.json')
  rmSync(manifest)
  mkdirSync(join(manifest, 'in the way'), { recursive: true })
  await t.rejects(store.remove(name('a/b')))
  t.same(store.list(), [variant])
})

t.test('concurrent imports and removals leave a consistent store', async t => {
  const { store, models, add } = await setUp(t.testdir())
  const same = await Promise.all(Array.from({ length: 5 }, (_, index) => add(index % 2 ? 'a/b' : 'A/B', 1)))
  t.equal(new Set(same.map(variant => variant.directory)).size, 1, 'imports of the same content share one variant')
  await Promise.all([add('a/b:one', 2), add('a/b:two', 3), add('a/b', 4), add('c/d', 5), add('c/e', 6)])
  // Chance decides which spelling and which label came first.
  const keys = store.list().map(variant => variant.key)
  t.same(keys.sort(), ['a/b:f16', 'a/b:one', 'a/b:two', 'c/d:f16', 'c/e:f16'])

  for (let round = 0; round < 10; round++) {
    await Promise.allSettled([
      add('r/r', round),
      store.remove(name('r/r')),
      add('r/r:x', round + 1),
      store.remove(name('r/r')),
      add('r/s', round),
      store.remove(name('r/s')),
      add('r/r', round + 2)
    ])
    for (const variant of store.list()) t.same(findFaults(variant), [])
    t.same((await openStore(models)).store.list(), store.list(), 'memory and disk agree')
  }
  const { store: waiting } = await openStore(models)
  const leave = new AbortController()
  const large = join(t.testdirName, 'large.gguf')
  writeGguf(large, { tensors: [{ name: 'a', shape: [2_000_000] }] })
  const first = waiting.import({ path: large, name: name('w/w') })
  const second = waiting.import({ path: large, name: name('w/w') }, { signal: leave.signal })
  leave.abort()
  await t.rejects(second, { name: 'AbortError' }, 'a waiting import can be cancelled')
  t.same(findFaults(await first), [])
})

t.test('a start clears leftovers and skips unusable models', async t => {
  const dir = t.testdir()
  const { store, models, add } = await setUp(dir)
  const kept = await add('a/kept', 1)
  const lost = await add('a/lost', 2)
  const half = await add('a/half', 3)
  await add('a/half:Q8_0', 4)
  for (const broken of ['cut', 'newer', 'moved', 'folder']) await add(`b/${broken}`, 5)
  const manifest = (model: string) => join(models, model, 'manifest.json')
  const text = readFileSync(manifest('b/cut'), 'utf8')
  writeFileSync(manifest('b/cut'), text.slice(0, 100))
  writeFileSync(manifest('b/newer'), JSON.stringify({ ...JSON.parse(text), version: 99 }))
  renameSync(join(models, 'b', 'moved'), join(models, 'b', 'elsewhere'))
  rmSync(manifest('b/folder'))
  mkdirSync(manifest('b/folder'))
  rmSync(lost.directory, { recursive: true })
  rmSync(half.directory, { recursive: true })

  // Leftovers of a crash: a staging folder, a revision without a manifest, a half-written manifest, a lock.
  mkdirSync(join(models, '.staging', 'x', 'y'), { recursive: true })
  const orphan = join(models, 'a', 'kept', 'f16-00000000')
  mkdirSync(orphan)
  writeFileSync(join(orphan, '.corral-revision'), '')
  writeFileSync(join(models, 'a', 'kept', 'manifest.json.123456'), '{')
  mkdirSync(join(models, 'a', 'kept', 'manifest.json.lock'))
  mkdirSync(join(models, 'c', 'unfinished', 'f16-00000000'), { recursive: true })
  writeFileSync(join(models, 'c', 'unfinished', 'f16-00000000', '.corral-revision'), '')
  // Files that people put there.
  mkdirSync(join(models, 'a', 'kept', 'notes-12345678'))
  writeFileSync(join(models, 'a', 'kept', 'notes.txt'), 'mine')
  mkdirSync(join(models, 'd', 'own', 'weights-12345678'), { recursive: true })
  writeFileSync(join(models, 'd', 'own', 'weights-12345678', 'w.gguf'), 'mine')
  writeFileSync(join(models, 'README'), 'mine')

  const { store: later, lines } = await openStore(models)
  t.same(names(later.list()), ['a/half', 'a/kept'])
  t.equal(later.get(name('a/half')).label, 'Q8_0', 'a variant without files is left out')
  t.same(later.get(name('a/kept')), kept)
  for (const [model, why] of [
    ['b/cut', 'not JSON'],
    ['b/newer', 'newer corral'],
    ['b/elsewhere', 'manifest of b/moved'],
    ['b/folder', 'not a regular file'],
    ['a/lost', 'are gone']
  ] as const) {
    const isNamed = lines.some(line => line.includes(manifest(model)) && line.includes(why))
    t.ok(isNamed, `${model}: ${why}`)
  }
  const left = tree(models)
  for (const path of [
    '.staging/x',
    'a/kept/f16-00000000',
    'a/kept/manifest.json.123456',
    'a/kept/manifest.json.lock',
    'c'
  ]) {
    t.notOk(left.includes(path), `${path} is removed`)
  }
  for (const path of [
    'a/kept/notes-12345678',
    'a/kept/notes.txt',
    'd/own/weights-12345678/w.gguf',
    'README',
    'b/cut/manifest.json'
  ]) {
    t.ok(left.includes(path), `${path} is kept`)
  }
  const source = join(dir, 'source-1-m-F16.gguf')
  const unusable = failing('model_exists', /manifest\.json cannot be used.*delete the folder/s)
  await t.rejects(later.import({ path: source, name: name('B/Cut') }), unusable)
  t.same(findFaults(await later.import({ path: source, name: name('d/own') })), [])

  t.test('two spellings of one name are one model', async t => {
    const first = join(models, 'a', 'kept')
    mkdirSync(join(models, 'A', 'Kept'), { recursive: true })
    writeFileSync(join(models, 'A', 'Kept', 'manifest.json'), readFileSync(join(first, 'manifest.json')))
    mkdirSync(join(models, 'A', 'Kept', kept.revision))
    const { store, lines } = await openStore(models)
    t.equal(store.list().filter(variant => variant.key.startsWith('a/kept')).length, 1)
    t.ok(lines.some(line => line.includes('in another case')))
  })
  await store.close()
})

t.test('the demo model is stored once', async t => {
  const paths = dataPaths(join(t.testdir(), 'home'), join(t.testdirName, 'models'))
  const config = { models: {} }
  const lines: string[] = []
  const hooks = { stateChanged: () => undefined }
  const log = pino({}, { write: (line: string) => void lines.push(line) }) as unknown as PluginContext['log']
  const start = async (demo_model = true): Promise<Storage> => {
    const { signal } = new AbortController()
    const context = { log, paths, config, signal, hooks } as unknown as PluginContext
    const offer = await storagePlugin.setup(context, { demo_model })
    t.teardown(() => offer.stop?.())
    return offer.services!.storage!
  }
  t.same((await start(false)).list(), [], 'not if it is disabled')
  const first = await start()
  const demo = first.get(name('corral/tiny-chat'))
  t.match(demo, { isDefault: true, label: 'F16', origin: { kind: 'bundled' }, metadata: { parameters: 2033408 } })
  t.same(findFaults(demo), [])
  t.equal(statSync(join(demo.directory, 'tiny-chat-f16.gguf')).nlink, 1)
  t.same((await start()).list(), [demo])
  const other = join(t.testdirName, 'other.gguf')
  writeGguf(other)
  const bundled = failing('model_exists', /came with corral/)
  await t.rejects(first.import({ path: other, name: name('corral/tiny-chat') }), bundled)
  await first.remove(name('corral/tiny-chat'))
  t.same((await start()).list(), [], 'not again after it was deleted')
  t.same(tree(paths.models), [])
  t.same(lines, [])

  t.test('one failing model is reported, and the others work', async t => {
    const blocked = { ...paths, home: join(other, 'home') }
    const offer = await storagePlugin.setup({ log, paths: blocked, config, hooks } as unknown as PluginContext, {
      demo_model: true
    })
    t.ok(offer.services?.storage)
    t.ok(lines.some(line => line.includes('corral/tiny-chat could not be stored')))
  })
})
