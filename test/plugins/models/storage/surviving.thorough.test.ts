import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { writeGguf } from '../../../support/gguf-writer.ts'
import { findFaults, name, openStore, tree } from './support.ts'

const CHURN = fileURLToPath(new URL('../../../support/storage-churn.js', import.meta.url))

t.test('kill -9 during imports and removals leaves a consistent store', async t => {
  const dir = t.testdir({ sources: {} })
  const models = join(dir, 'models')
  for (const seed of [0, 1, 2, 3]) {
    writeGguf(join(dir, 'sources', `s${seed}-F16.gguf`), { seed, tensors: [{ name: 'a', shape: [300_000] }] })
  }
  let leftOvers = 0
  let found = 0
  // At least seven rounds, and more until a kill hits something.
  for (let round = 0; round < 7 || found === 0 || leftOvers === 0; round++) {
    const child = spawn(process.execPath, [CHURN, models, join(dir, 'sources')], {
      stdio: ['ignore', 'pipe', 'inherit']
    })
    await once(createInterface({ input: child.stdout }), 'line')
    await new Promise(resolve => setTimeout(resolve, 3 + 47 * (round % 7)))
    t.equal(child.exitCode, null, 'it was still working')
    child.kill('SIGKILL')
    await once(child, 'exit')

    const before = tree(models)
    const { store, lines } = await openStore(models)
    t.same(lines, [], 'no manifest is broken')
    const variants = store.list()
    found += variants.length
    for (const variant of variants) t.same(findFaults(variant), [])
    // Every file belongs to a listed model.
    const known = new Set<string>()
    for (const { directory, files } of variants) {
      const folder = directory.slice(models.length + 1).replaceAll('\\', '/')
      const [owner, model] = folder.split('/')
      for (const path of [owner, `${owner}/${model}`, `${owner}/${model}/manifest.json`, folder]) known.add(path!)
      for (const file of files) known.add(`${folder}/${file.path}`)
    }
    const after = tree(models)
    const leftovers = after.filter(path => !known.has(path))
    t.same(leftovers, [], 'leftovers of a crash are removed')
    leftOvers += before.length - after.length
  }
  t.comment(`${found} complete variants found, ${leftOvers} leftover paths removed`)
})

t.test('ten thousand models are listed, imported and removed quickly', async t => {
  const dir = t.testdir()
  const models = join(dir, 'models')
  const path = join(dir, 'm-F16.gguf')
  writeGguf(path, { metadata: { 'tokenizer.chat_template': '{% if tools %}x{% endif %}'.repeat(60) } })
  const { store } = await openStore(models)
  const { revision } = await store.import({ path, name: name('o/template') })
  const manifest = JSON.parse(readFileSync(join(models, 'o', 'template', 'manifest.json'), 'utf8'))
  const count = 10_000
  for (let index = 1; index < count; index++) {
    const owner = `owner-${index % 100}`
    const folder = join(models, owner, `model-${index}`)
    mkdirSync(join(folder, revision), { recursive: true })
    writeFileSync(join(folder, 'manifest.json'), JSON.stringify({ ...manifest, owner, name: `model-${index}` }))
  }
  const time = async <T>(what: string, work: () => Promise<T> | T): Promise<T> => {
    const start = performance.now()
    const result = await work()
    t.comment(`${what}: ${(performance.now() - start).toFixed(1)} ms`)
    return result
  }
  const { store: later } = await time('start with 10,000 models', () => openStore(models))
  t.equal((await time('first list', () => later.list())).length, count)
  await time('list again', () => later.list())
  await time('1,000 look-ups', () => {
    for (let index = 1; index <= 1000; index++) later.get(name(`OWNER-${index % 100}/Model-${index}`))
  })
  await time('import of one more', () => later.import({ path, name: name('o/more') }))
  t.equal(later.list().length, count + 1)
  await time('its removal', () => later.remove(name('o/more')))
  t.equal(later.list().length, count)
})
