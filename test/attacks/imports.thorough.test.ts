import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { keylessCaller } from '../../core/contracts/callers.ts'
import { layOutSnapshot, sha256 } from '../plugins/models/discovery/cache-layouts.ts'
import { name, openStore, until } from '../plugins/models/storage/support.ts'
import { startCorral } from '../support/corral.ts'
import { readCases } from '../support/fixture.ts'
import { ggufBytes } from '../support/gguf-writer.ts'

const CALLER = keylessCaller('192.0.2.7')
const model = (seed: number) => ggufBytes({ seed, metadata: { 'general.architecture': 'llama' } })
const INSIDE = model(1)
const SECRET = model(2)

/**
 * An import root full of traps, and a folder beside it that must stay secret. Every trap exists twice: one leads to an
 * existing file, the other to a missing one.
 */
function layOut(dir: string) {
  const root = join(dir, 'root')
  const outside = join(dir, 'outside')
  for (const folder of ['root/sub', 'root/st', 'root/st-none', 'root/wide', 'outside', 'root-other']) {
    mkdirSync(join(dir, folder), { recursive: true })
  }
  writeFileSync(join(root, 'ok.gguf'), INSIDE)
  writeFileSync(join(outside, 'secret.gguf'), SECRET)
  writeFileSync(join(dir, 'root-other', 'secret.gguf'), SECRET)
  symlinkSync('ok.gguf', join(root, 'inner.gguf'))
  symlinkSync(join(outside, 'secret.gguf'), join(root, 'link.gguf'))
  symlinkSync(join(outside, 'none.gguf'), join(root, 'link-none.gguf'))
  symlinkSync('../outside/secret.gguf', join(root, 'relative.gguf'))
  symlinkSync('../outside/none.gguf', join(root, 'relative-none.gguf'))
  symlinkSync(outside, join(root, 'folder'))
  symlinkSync(join(dir, 'nowhere'), join(root, 'folder-none'))
  symlinkSync('loop', join(root, 'loop'))
  // A model folder whose description is a link to another file.
  for (const [folder, target] of [
    ['st', '/etc/passwd'],
    ['st-none', '/etc/passwd-none']
  ] as const) {
    writeFileSync(join(root, folder, 'model.safetensors'), 'x')
    symlinkSync(target, join(root, folder, 'config.json'))
  }
  return { root, outside }
}

/** The answer, without the requested path in its message. */
async function answer(path: string) {
  const { status, body } = await corral.json('/api/import', { path, model: 'attack/x' })
  return { status, code: body.code, error: String(body.error).replace(path, '<path>') }
}

/** A cache of Hugging Face that the server knows. */
const hub = join(t.testdir(), 'hf', 'hub')
const corral = await startCorral(t, { importRoots: [], env: { HF_HUB_CACHE: hub, LLAMA_CACHE: '' } })

t.test('imports over the network neither read nor reveal anything outside of the roots', async t => {
  const dir = t.testdir()
  const { root, outside } = layOut(dir)
  symlinkSync(root, join(dir, 'alias'))
  execFileSync('mkfifo', [join(root, 'pipe.gguf')])
  t.match(await answer(join(root, 'ok.gguf')), { status: 403, code: 'path_not_allowed', error: /names none/ })
  await corral.reload('', [root, join(dir, 'alias'), join(dir, 'not-mounted')])
  const refusal = await answer('/nowhere')
  t.match(refusal, { status: 403, code: 'path_not_allowed', error: /storage\.import_roots/ })
  for (const forbidden of readCases<string[]>('attack-cases.yaml', 'forbiddenPaths')) {
    const path = forbidden.replace('DIR', dir)
    t.same(await answer(path), refusal, path)
  }
  for (const folder of ['st', 'st-none']) {
    const { status, error } = await answer(join(root, folder))
    t.match({ status, error: error.replaceAll(`/etc/passwd-none`, '').replaceAll('/etc/passwd', '') }, { status: 403 })
    t.notMatch(error, /root:/, 'the file is not quoted')
  }
  const streamed = await corral.send('/api/import', { path: join(outside, 'secret.gguf'), model: 'a/x', stream: true })
  t.match(await streamed.text(), /path_not_allowed/)
  t.match(await corral.json('/ollama/api/import', { path: '/etc/passwd', model: 'a/x' }), { status: 403 })

  t.match(await answer(join(root, 'pipe.gguf')), { status: 400, error: /neither a file nor a folder|regular/ })
  t.match(await answer(join(root, 'loop')), { status: 400, error: /symbolic links/ })
  const actual = await answer(join(root, 'none.gguf'))
  t.match(actual, { status: 400, error: /There is no/ }, 'inside the root, errors are specific')
  t.match(await answer(`${root}/x\0y`), { status: 400 })
  t.same((await corral.json('/api/tags')).body.models.length, 1, 'no model was created')

  for (const [index, path] of [
    join(root, 'ok.gguf'),
    join(root, 'inner.gguf'),
    join(dir, 'alias', 'ok.gguf')
  ].entries()) {
    t.match(await corral.json('/api/import', { path, model: `good/m${index}` }), { status: 200 }, path)
  }
})

t.test('caches of other tools are searched only below the roots', async t => {
  const dir = t.testdir()
  const commit = 'c'.repeat(40)
  layOutSnapshot(hub, 'o/tiny-GGUF', commit, { 'tiny-F16.gguf': INSIDE }, 'main')
  mkdirSync(join(dir, 'outside'))
  writeFileSync(join(dir, 'outside', 'secret.gguf'), SECRET)
  const snapshot = join(hub, 'models--o--tiny-GGUF', 'snapshots', commit)
  symlinkSync(join(dir, 'outside', 'secret.gguf'), join(snapshot, 'trap-Q4_0.gguf'))
  symlinkSync(join(dir, 'outside', 'none.gguf'), join(snapshot, 'trap-Q8_0.gguf'))
  const request = { from: 'huggingface', found: 'o/tiny-GGUF/tiny-F16.gguf' }

  await corral.reload('', [])
  const refused = { status: 403, body: { code: 'path_not_allowed' } }
  t.match(await corral.json('/api/import/found?from=huggingface'), refused)
  t.match(await corral.json('/api/import', request), refused)
  t.notMatch((await corral.json('/api/import/found?from=ollama')).body.error, /\//, 'folders are not named')

  await corral.reload('', [hub])
  const { body } = await corral.json('/api/import/found?from=huggingface')
  const findProblem = (label: string) =>
    String(body.models.find((found: any) => found.name.endsWith(label)).problem).replaceAll(
      /trap-Q\d_0|secret|none/g,
      ''
    )
  t.match(findProblem('Q4_0'), /not in a folder that models may be imported from/)
  t.equal(findProblem('Q4_0').replaceAll('Q4', ''), findProblem('Q8_0').replaceAll('Q8', ''))
  t.match(await corral.json('/api/import', { ...request, found: 'o/tiny-GGUF/trap-Q4_0.gguf' }), { status: 400 })
  t.match(await corral.json('/api/import', request), { status: 200, body: { model: { name: 'o/tiny-GGUF' } } })
})

/** Imports `path` repeatedly while `real` and the link `evil`, which leads outside, change places. */
async function importRace(t: Test, real: string, evil: string, path: string): Promise<void> {
  const dir = t.testdir({ root: { real: {} }, outside: {}, models: {} })
  const root = join(dir, 'root')
  writeFileSync(join(root, 'real', 'm.gguf'), INSIDE)
  writeFileSync(join(dir, 'outside', 'm.gguf'), SECRET)
  writeFileSync(join(root, 'm.gguf'), INSIDE)
  symlinkSync(join(dir, 'outside'), join(root, 'evil'))
  symlinkSync(join(dir, 'outside', 'm.gguf'), join(root, 'evil.gguf'))
  const { store } = await openStore(join(dir, 'models'), [root])
  // Swaps in a separate process, at any moment: real → a, evil → real, and back.
  const swap = `const { renameSync: r } = require('node:fs'); process.chdir(${JSON.stringify(root)}); process.stdout.write('.')
    const pause = () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, Math.random() * 8)
    const [real, evil] = ${JSON.stringify([real, evil])}
    for (;;) { r(real, 'a'); r(evil, real); pause(); r(real, evil); r('a', real); pause() }`
  const swapper = spawn(process.execPath, ['-e', swap], { stdio: ['ignore', 'pipe', 'inherit'] })
  const ended = once(swapper, 'exit')
  let runs = false
  swapper.stdout.once('data', () => {
    runs = true
  })
  await until(() => runs)
  const seen = { imported: 0, refused: 0, outside: 0 }
  const unexpected = new Set<string>()
  for (let trial = 0; trial < 150; trial++) {
    try {
      const stored = await store.import({ path: join(root, path), name: name(`race/m${trial}`), caller: CALLER })
      seen.imported++
      seen.outside += Number(stored.files[0]!.sha256 !== sha256(INSIDE))
      await store.remove(name(`race/m${trial}`))
    } catch (error: any) {
      seen.refused++
      if (!['path_not_allowed', 'invalid_request'].includes(error.code)) unexpected.add(error.message)
    }
  }
  swapper.kill('SIGKILL')
  await ended
  t.equal(seen.outside, 0, 'files outside never become a model')
  t.same([...unexpected], [])
  t.ok(seen.imported > 0 && seen.refused > 0, `both happened: ${JSON.stringify(seen)}`)
}

t.test('an import survives a folder that becomes a link during the import', async t => {
  await importRace(t, 'real', 'evil', join('real', 'm.gguf'))
})

t.test('an import survives a file that becomes a link during the import', async t => {
  await importRace(t, 'm.gguf', 'evil.gguf', 'm.gguf')
})

t.test('imports read a limited amount and never read special files', async t => {
  const dir = t.testdir({ root: { many: {}, st: {} }, models: {} })
  const root = join(dir, 'root')
  for (let n = 0; n <= 10_000; n++) writeFileSync(join(root, 'many', `${n}`), '')
  const { store } = await openStore(join(dir, 'models'), [root])
  const take = (path: string, caller = CALLER) => store.import({ path, name: name('a/x'), caller })
  await t.rejects(take(join(root, 'many')), { code: 'invalid_request', message: /more than 10000 files/ })
  for (let n = 0; n < 60; n++) symlinkSync(`chain-${n + 1}`, join(root, `chain-${n}`))
  writeFileSync(join(root, 'chain-60'), INSIDE)
  await t.rejects(take(join(root, 'chain-0')), { code: 'invalid_request', message: /symbolic links/ })

  // The private socket may import everything that the server's user can read. These files would hang or never end.
  const local = { ...CALLER, isLocal: true }
  for (const path of ['/dev/zero', '/dev/stdin', '/proc/kmsg', '/proc/self/mem', '/proc/self/environ']) {
    await t.rejects(take(path, local), { code: 'invalid_request' }, path)
  }
  execFileSync('mkfifo', [join(root, 'st', 'tokenizer.json'), join(root, 'st', 'README.md')])
  symlinkSync('/proc/kmsg', join(root, 'st', 'config.json'))
  writeFileSync(join(root, 'st', 'model.safetensors'), 'x')
  await t.rejects(take(join(root, 'st'), local), { code: 'invalid_request' })
  writeFileSync(join(dir, 'anywhere.gguf'), INSIDE)
  t.equal((await take(join(dir, 'anywhere.gguf'), local)).files[0]!.sha256, sha256(INSIDE))
  t.same(readFileSync(join(dir, 'anywhere.gguf')), INSIDE)
  t.same(readdirSync(join(dir, 'models', '.staging')), [])
})
