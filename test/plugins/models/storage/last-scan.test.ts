import {
  cpSync,
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync
} from 'node:fs'
import { join } from 'node:path'
import pino from 'pino'
import t from 'tap'
import { type LastScan, openLastScan } from '../../../../plugins/models/storage/model-scan.ts'
import { ModelStore } from '../../../../plugins/models/storage/model-store.ts'
import { writeGguf } from '../../../support/gguf-writer.ts'
import { name } from './support.ts'

/** A store that can be restarted. Its cache file treats all changes as older than a clock tick. */
function starts(dir: string) {
  const models = join(dir, 'models')
  const file = join(dir, 'models.json')
  return {
    models,
    file,
    async start({ later = 10_000, at = models } = {}) {
      const lines: string[] = []
      const read: string[] = []
      const last = openLastScan(file, at, Date.now() + later)
      const counted: LastScan = {
        ...last,
        find(path, marks) {
          const found = last.find(path, marks)
          if (!found) read.push(path)
          return found
        }
      }
      const log = pino({ level: 'info' }, { write: (line: string) => void lines.push(JSON.parse(line).msg) })
      const store = await ModelStore.open(at, log, undefined, counted)
      return { store, lines, read, names: () => store.list().map(({ publicName }) => publicName) }
    }
  }
}

async function withModels(dir: string, ...names: string[]) {
  const { start, ...rest } = starts(dir)
  const { store } = await start()
  for (const each of names) {
    const source = join(dir, `${each.replace('/', '-')}.gguf`)
    writeGguf(source, { metadata: { 'general.architecture': 'llama', 'general.name': each } })
    await store.import({ path: source, name: name(each) }, {})
  }
  await store.close()
  return { start, ...rest }
}

t.test('a start reads only manifests changed since the previous start', async t => {
  const { start, models, file } = await withModels(t.testdir(), 'acme/a', 'acme/b')
  const first = await start()
  t.same(first.read, ['acme/a', 'acme/b'], 'models stored while corral ran are read once')
  await first.store.close()
  const second = await start()
  t.same(second.read, [])
  t.same(second.names(), ['acme/a', 'acme/b'])
  t.equal(second.store.get(name('acme/a')).metadata.info['general.name'], 'acme/a', 'details are read on demand')
  const written = statSync(file).ino
  await second.store.close()
  t.equal(statSync(file).ino, written, 'nothing is written')

  t.test('changes by hand are found', async t => {
    const path = join(models, 'acme', 'a', 'manifest.json')
    const { atime, mtime } = statSync(path)
    writeFileSync(path, readFileSync(path, 'utf8').replace('"architecture":"llama"', '"architecture":"gemma"'))
    utimesSync(path, atime, mtime)
    const edited = await start()
    t.same(edited.read, ['acme/a'])
    t.equal(edited.store.get(name('acme/a')).metadata.architecture, 'gemma', 'of the same size and time')
    await edited.store.close()

    cpSync(join(models, 'acme', 'a'), join(models, 'acme', 'c'), { recursive: true })
    const copy = join(models, 'acme', 'c', 'manifest.json')
    writeFileSync(copy, readFileSync(copy, 'utf8').replace('"name":"a"', '"name":"c"'))
    const added = await start()
    t.same(added.read, ['acme/c'])
    t.same(added.names(), ['acme/a', 'acme/b', 'acme/c'])
    await added.store.close()

    rmSync(join(models, 'acme', 'b'), { recursive: true })
    const { store, names, read } = await start()
    t.same([names(), read], [['acme/a', 'acme/c'], []])
    const [variant] = store.variants(name('acme/c'))
    await store.close()
    rmSync(variant!.directory, { recursive: true })
    const lost = await start()
    t.same(lost.names(), ['acme/a'], 'the folder of its files is missing')
    t.match(lost.lines.join(), /folders of its files are gone/)
    await lost.store.close()
    const again = await start()
    t.match(again.lines.join(), /folders of its files are gone/, 'each start warns')
    await again.store.close()
  })

  t.test('leftovers of a crash are removed', async t => {
    const leftover = join(models, 'acme', 'a', 'half')
    mkdirSync(leftover)
    writeFileSync(join(leftover, '.corral-revision'), '')
    const cleared = await start()
    t.same([existsSync(leftover), cleared.names()], [false, ['acme/a']])
    await cleared.store.close()
  })
})

t.test('manifests changed just before they were read are read again', async t => {
  const { start } = await withModels(t.testdir(), 'acme/a')
  for (const turn of ['first', 'second']) {
    const { store, read } = await start({ later: 0 })
    t.same(read, ['acme/a'], turn)
    await store.close()
  }
})

t.test('a damaged or foreign cache file is ignored', async t => {
  const { start, models, file } = await withModels(t.testdir(), 'acme/a')
  await (await start()).store.close()
  const good = readFileSync(file, 'utf8')
  for (const bad of [
    '',
    'x',
    good.slice(0, -5),
    good.replace('"a"', '"b"'),
    good.replace(/"version":"[^"]*"/, '"version":"0.0.0"')
  ]) {
    t.not(bad, good)
    writeFileSync(file, bad)
    const { store, names, read } = await start()
    t.same([names(), read], [['acme/a'], ['acme/a']])
    await store.close()
    t.equal(readFileSync(file, 'utf8').length, good.length, 'it is rewritten')
  }
  const elsewhere = `${models}-elsewhere`
  renameSync(models, elsewhere)
  const { store, names, read } = await start({ at: elsewhere })
  t.same([names(), read], [['acme/a'], ['acme/a']])
  await store.close()
})

t.test('a removed variant keeps its details for its users', async t => {
  const { start, models } = await withModels(t.testdir(), 'acme/a', 'acme/b')
  const { store, lines } = await start()
  const a = store.get(name('acme/a'))
  const b = store.get(name('acme/b'))
  t.same(JSON.parse(JSON.stringify(a.metadata)).info, a.metadata.info, 'its JSON includes the details')
  await store.setDefault(name('acme/a'))
  await store.remove(name('acme/a'))
  t.equal(a.metadata.info['general.name'], 'acme/a')
  rmSync(join(models, 'acme', 'b', 'manifest.json'))
  t.same([b.metadata.info, lines.length], [{}, 1], 'details of a deleted manifest are unknown, and the log says so')
  t.match(lines[0], /acme.b.manifest\.json, which was there when corral started, cannot be used/)
  await store.close()
})
