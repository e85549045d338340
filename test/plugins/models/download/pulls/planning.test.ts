import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import type { FileProgress, PullPlan } from '../../../../../core/contracts/downloads.ts'
import type { Gpu, Hardware } from '../../../../../core/contracts/hardware.ts'
import { CorralError } from '../../../../../core/errors.ts'
import { parseModelName } from '../../../../../core/models/model-name.ts'
import { memoryBudget } from '../../../../../plugins/models/download/choice/choice.ts'
import { diskRoom, machineMemory, sameFiles } from '../../../../../plugins/models/download/pulls/pull-planner.ts'
import { PullProgress } from '../../../../../plugins/models/download/pulls/pull-progress.ts'
import { failing } from '../../../../support/failure.ts'
import { safetensorsBytes } from '../../../../support/gguf-writer.ts'
import { downloadsFolder, model, setting, watching } from './support.ts'

t.test('hubs are searched in order', async t => {
  const at = await setting(t)
  const { downloads, hub, other } = at
  other.contents = { 'acme/Else-GGUF': { 'else-F16.gguf': model(1) }, 'Acme/Tiny-GGUF': { 'tiny-Q2_K.gguf': model(2) } }
  t.match(
    await at.plan('acme/tiny-gguf'),
    {
      name: { owner: 'Acme', name: 'Tiny-GGUF' },
      repository: { hub: 'huggingface', address: 'https://huggingface.test/Acme/Tiny-GGUF' }
    },
    'the first hub that has it, in its spelling'
  )
  t.same(other.requested, [])
  t.match(await at.plan('acme/else-gguf'), { repository: { hub: 'modelscope' } }, 'otherwise the next')
  t.match(await at.plan('modelscope:Acme/Tiny-GGUF'), { label: 'Q2_K' }, 'the named hub')
  t.match(await at.plan('hf:Acme/Tiny-GGUF:Q2_K@v1', { as: 'me/mine' }), {
    name: { owner: 'me', name: 'mine' },
    label: 'Q2_K',
    repository: { revision: 'v1' }
  })
  t.match(await at.plan('Acme/Tiny-GGUF', { as: 'me/mine:Small' }), { label: 'Small' })
  await t.rejects(at.plan('acme/none'), { code: 'repo_not_found', message: /huggingface, nor at modelscope/ })
  await t.rejects(at.plan('hf:acme/none'), { code: 'repo_not_found', message: 'huggingface has no acme/none.' })

  hub.failure = new CorralError('hub_unreachable', 'It is down.')
  t.match(await at.plan('acme/else-gguf'), { repository: { hub: 'modelscope' } }, 'a hub that is down is skipped')
  await t.rejects(at.plan('acme/none'), { code: 'hub_unreachable', message: 'It is down.' })
  for (const bad of ['', 'hf:tiny', 'a/b/c/d', '../x', 'ftp:acme/x', 'acme/x:']) {
    await t.rejects(at.plan(bad), { code: /invalid_(model_name|request)/ }, bad)
  }
  await t.rejects(at.plan('Acme/Tiny-GGUF', { as: 'no name' }), { code: 'invalid_model_name' })
  t.throws(() => downloads.addHub(hub), /already/)

  const gone = new AbortController()
  gone.abort(new Error('left'))
  await t.rejects(at.plan('acme/tiny-gguf', { signal: gone.signal }), /left/)
  const none = await setting(t, { search: ['nowhere'] })
  t.match(none.log.join(''), /names hubs that are not enabled: nowhere/)
  await t.rejects(none.plan('Acme/Tiny-GGUF'), { code: 'repo_not_found', message: /hf:/ })
})

t.test('short names mean installed models or known publishers', async t => {
  const at = await setting(t, {
    contents: {
      'Acme/Tiny-GGUF': { 'tiny-Q4_K_M.gguf': model(4), 'tiny-Q2_K.gguf': model(8) },
      'Qwen/Qwen3-8B-GGUF': { 'Qwen3-8B-Q4_K_M.gguf': model(1), 'Qwen3-8B-Q8_0.gguf': model(2) }
    }
  })
  const { hub, store } = at
  const known = await at.plan('qwen3:8b')
  t.match(known, {
    name: { owner: 'Qwen', name: 'Qwen3-8B-GGUF' },
    label: 'Q8_0',
    repository: { hub: 'huggingface', id: 'Qwen/Qwen3-8B-GGUF' },
    reason:
      /^qwen3:8b is Qwen\/Qwen3-8B-GGUF at Hugging Face, published by Qwen \(source: https:\/\/huggingface\.co\/Qwen\/Qwen3-8B-GGUF\)\. \S/
  })
  t.match(await at.plan('qwen3:8b-q4_K_M'), { label: 'Q4_K_M' })
  t.match(await at.plan('qwen3:8b', { as: 'me/mine' }), { name: { owner: 'me', name: 'mine' } })
  const requested = hub.requested.length
  const unknown = /"llama3\.2" is not here, and no publisher's own .*"corral search llama3\.2".*<owner>\/<name>/
  await t.rejects(at.plan('llama3.2'), failing('repo_not_found', unknown))
  await t.rejects(at.plan('quen3:8b'), { code: 'repo_not_found', message: /Did you mean "qwen3"\?/ })
  await t.rejects(at.plan('tiny-gguf'), { code: 'repo_not_found' })
  t.equal(hub.requested.length, requested, 'no hub is asked for an impossible name')

  const { pull } = await at.pull('Acme/Tiny-GGUF')
  await watching(pull).result
  t.match(await at.plan('TINY-gguf'), { name: { owner: 'Acme' }, label: 'Q4_K_M', present: true })
  t.match(await at.plan('tiny-gguf:Q2_K'), { name: { owner: 'Acme' }, label: 'Q2_K', present: false }, 'not yet here')
  const file = join(at.home, 'x-F16.gguf')
  writeFileSync(file, model(3))
  await store.import({ path: file, name: parseModelName('me/own') })
  t.match(await at.plan('own'), { present: true, reason: /was imported from/ }, 'no hub has it')
  await store.import({ path: file, name: parseModelName('library/qwen3:30b') })
  t.match(
    await at.plan('qwen3:8b'),
    { name: { owner: 'Qwen' }, present: false },
    'a model from no hub is not another variant of its name'
  )
  await store.import({ path: file, name: parseModelName('other/tiny-gguf') })
  await t.rejects(at.plan('tiny-gguf'), { code: 'model_not_found', message: /Acme\/Tiny-GGUF or other\/tiny-gguf/ })
})

t.test('models that are already stored are not downloaded', async t => {
  const at = await setting(t)
  const { downloads, hub, store, transfers } = at
  const q4 = join(at.home, 'x-Q4_K_M.gguf')
  writeFileSync(q4, model(4))
  const readme = hub.contents['Acme/Tiny-GGUF']!['README.md']!
  delete hub.contents['Acme/Tiny-GGUF']!['README.md']

  await store.import(
    { path: q4, name: parseModelName('corral/tiny') },
    { origin: { kind: 'bundled', from: 'corral' }, allowHardLink: false }
  )
  hub.failure = new CorralError('hub_unreachable', 'It is down.')
  t.match(await at.plan('corral/tiny'), { present: true, label: 'Q4_K_M' }, 'no request for a bundled model')
  t.equal(await downloads.pull(await at.plan('corral/tiny'), { detached: false }), undefined)
  await t.rejects(at.plan('corral/tiny:Q2_K'), { code: 'hub_unreachable' })
  hub.failure = undefined
  await t.rejects(at.plan('Acme/Tiny-GGUF:Q2_K', { as: 'corral/tiny' }), failing('model_exists', /came with corral/))

  await store.import({ path: q4, name: parseModelName('Acme/Tiny-GGUF') })
  t.match(await at.plan('Acme/Tiny-GGUF'), { present: true }, 'the same files, whatever their origin')
  await t.rejects(at.plan('Acme/Tiny-GGUF:Q2_K'), { code: 'model_exists', message: /imported from/ })
  t.equal(transfers.fetched.length, 0)
  await store.import({ path: q4, name: parseModelName('me/own') })
  t.match(await at.plan('me/own'), { present: true, warnings: [/no "?me\/own/] }, 'no hub has it')
  hub.failure = new CorralError('hub_unreachable', 'It is down.')
  t.match(await at.plan('ME/own:q4_k_m'), { present: true, warnings: ['It is down.'] })
  hub.failure = undefined
  await t.rejects(at.plan('hf:me/own'), { code: 'repo_not_found' }, 'a named hub must have it')
  await store.remove(parseModelName('Acme/Tiny-GGUF'))

  hub.contents['Acme/Tiny-GGUF']!['README.md'] = readme
  const stored = await watching((await at.pull('Acme/Tiny-GGUF')).pull).result
  at.other.contents = { 'Acme/Tiny-GGUF': { 'tiny-Q2_K.gguf': model(22) } }
  await t.rejects(at.plan('modelscope:Acme/Tiny-GGUF'), failing('model_exists', /downloaded from huggingface:Acme/))
  t.match(await at.plan('Acme/Tiny-GGUF@another'), { present: true }, 'git digests are compared too')
  hub.contents['Acme/Tiny-GGUF']!['README.md'] = Buffer.from(readme.toString().toUpperCase())
  t.match(await at.plan('Acme/Tiny-GGUF'), { present: false })
  hub.contents['Acme/Tiny-GGUF']!['README.md'] = readme
  rmSync(join(stored.directory, 'tiny-Q4_K_M.gguf'))
  t.match(await at.plan('Acme/Tiny-GGUF'), { present: false }, 'files deleted by hand are restored')
  t.equal((await watching((await at.pull('Acme/Tiny-GGUF')).pull).result).publicName, 'Acme/Tiny-GGUF')

  at.transfers.holdAt = /gguf/
  const going = await at.pull('Acme/Tiny-GGUF:Q2_K')
  await store.remove(parseModelName('Acme/Tiny-GGUF'))
  const elsewhere = await at.plan('modelscope:Acme/Tiny-GGUF')
  await t.rejects(downloads.pull(elsewhere, { detached: false }), failing('model_exists', /being pulled from/))
  t.equal(going.pull.record().state, 'downloading')
})

t.test('SafeTensors models are planned from their config and index', async t => {
  const tokenizer = Buffer.from('{}')
  const index = Buffer.from(
    JSON.stringify({ weight_map: { a: 'model-00001-of-00002.safetensors', b: 'model-00002-of-00002.safetensors' } })
  )
  const config = {
    architectures: ['LlavaForConditionalGeneration'],
    model_type: 'llava',
    torch_dtype: 'float16',
    vision_config: { x: 1 },
    audio_config: { x: 1 }
  }
  const files = {
    'config.json': Buffer.from(JSON.stringify(config)),
    'tokenizer.json': tokenizer,
    'model.safetensors.index.json': index,
    'model-00001-of-00002.safetensors': safetensorsBytes(16, 1),
    'model-00002-of-00002.safetensors': safetensorsBytes(16, 2),
    'model-00003-of-00003.safetensors': safetensorsBytes(16, 3)
  }
  const at = await setting(t, {
    contents: { 'acme/st': files, 'acme/bad': { ...files, 'config.json': Buffer.from('<html>') } }
  })
  const { pull, plan: made } = await at.pull('acme/st')
  t.match(made, { format: 'safetensors', label: 'F16' })
  const weights = made.files.filter(({ role }) => role === 'model').map(({ path }) => path)
  t.same(weights, ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors'])
  t.same(at.folders().length, 1, 'files read for planning are removed')
  const stored = await watching(pull).result
  t.match(stored, { format: 'safetensors', label: 'F16' })
  t.same(stored.metadata.capabilities, ['completion', 'base', 'vision', 'audio'])
  await t.rejects(at.plan('acme/bad'), { code: 'unsupported_capability', message: /config.json.*not JSON/ })
  t.same(at.folders(), [])
})

t.test('sizes missing from the listing are requested', async t => {
  const at = await setting(t)
  at.hub.withoutSizes.add('tiny-Q4_K_M.gguf')
  const { pull, plan: made } = await at.pull('Acme/Tiny-GGUF:Q4_K_M')
  t.equal(made.files[0]?.size, model(4).length)
  const stored = await watching(pull).result
  t.equal(stored.files[0]?.size, model(4).length)
  t.match(await at.plan('Acme/Tiny-GGUF:Q4_K_M'), { present: true })
  at.hub.locate = async () => {
    throw new CorralError('hub_forbidden', 'Agree to its terms first.')
  }
  const gated = at.plan('Acme/Tiny-GGUF:Q2_K')
  await t.rejects(gated, { code: 'hub_forbidden' }, 'a refused file is reported before the pull starts')
})

t.test('a plan checks the disk space', async t => {
  const at = await setting(t)
  const repository = at.hub.repository.bind(at.hub)
  at.hub.repository = async (request, waiting) => {
    const found = await repository(request, waiting)
    return { ...found, files: found.files.map(file => (file.path.endsWith('.gguf') ? { ...file, size: 1e17 } : file)) }
  }
  const huge = await at.plan('Acme/Tiny-GGUF:Q2_K')
  t.match(huge, { disk: { fits: false }, memory: { fits: false } })
  t.match(huge.warnings.join(' '), /on the disk of/)
  await t.rejects(at.downloads.pull(huge, { detached: false }), {
    code: 'insufficient_storage',
    status: 507,
    details: { required: huge.disk.required }
  })
  t.same([at.downloads.list(), at.folders()], [[], []])
  rmSync(downloadsFolder(at.home), { recursive: true })
  t.match(await at.plan('Acme/Tiny-GGUF:Q2_K'), { present: false }, 'a folder that was deleted by hand')

  const room = await diskRoom(at.home, 1e9)
  t.ok(room.required > 1e9 && room.required <= 1e9 + 256 * 2 ** 20)
  t.equal((await diskRoom(at.home, 0)).required, 0)
})

t.test('machine memory includes usable graphics cards', async t => {
  const gpu = (more: Partial<Gpu>): Gpu => ({
    id: 'nvidia:0',
    vendor: 'nvidia',
    name: 'X',
    type: 'discrete',
    totalMemory: 8e9,
    unifiedMemory: false,
    apis: [],
    usable: true,
    ...more
  })
  const { totalMemory: _, ...unknown } = gpu({})
  const unbounded = { memory: undefined, gpuMemory: undefined }
  const machines: [string, Gpu[], number][] = [
    ['no GPU', [], 0],
    ['two cards', [gpu({}), gpu({ id: 'nvidia:1' })], 16e9],
    ['a card whose driver does not work', [gpu({ usable: false })], 0],
    ['a processor with shared memory', [gpu({ vendor: 'apple', type: 'integrated', unifiedMemory: true })], 0],
    ['a card beside such a processor', [gpu({}), gpu({ type: 'integrated', unifiedMemory: true })], 8e9],
    ['a card of unknown size', [unknown], 0]
  ]
  const memory = { total: 32e9, available: 5e9 }
  for (const [name, gpus, bytes] of machines) {
    t.match(machineMemory({ memory, gpus } as Hardware, unbounded), { ram: 32e9, gpu: bytes }, name)
  }
  const container = { memory: { ...memory, limit: 4e9 }, gpus: [] as Gpu[] } as Hardware
  t.equal(machineMemory(container, unbounded).ram, 4e9, 'a container')
  const bounded = machineMemory({ memory, gpus: [gpu({}), gpu({ id: 'nvidia:1' })] } as Hardware, {
    memory: 12e9,
    gpuMemory: 6e9
  })
  t.same(memoryBudget(bounded), { best: 0.9 * 12e9, all: 24e9, gpu: true }, 'the limit in the settings')
  t.equal(memoryBudget({ ram: 32e9, most: 12e9, gpu: 0 }).all, 12e9)
})

t.test('progress is passed on and ends with the last bytes', async t => {
  const files = [
    { path: 'a', storedPath: 'a', role: 'model', size: 1000 },
    { path: 'b', storedPath: 'b', role: 'other', size: undefined }
  ]
  const progress = new PullProgress({ files } as PullPlan, [10])
  const events: FileProgress[] = []
  const stop = progress.listen(changed => void events.push(...changed))
  t.same(events, [{ path: 'a', completed: 10, total: 1000 }], 'unknown sizes are not reported')
  for (let step = 0; step <= 20; step++) {
    progress.report(0, 10 + step * 5, 1000)
    await sleep(10)
  }
  t.ok(progress.speed() > 0 && progress.speed() < 1000, `${progress.speed()} bytes a second`)
  t.equal(events.length, 21, 'an event for each change')
  progress.finish([1000, 5])
  stop()
  t.same(events.slice(-2), [
    { path: 'a', completed: 1000, total: 1000 },
    { path: 'b', completed: 5, total: 5 }
  ])
  t.equal(progress.speed(), 0)
  const count = events.length
  progress.report(0, 1, 1000)
  t.equal(events.length, count, 'no events after the end')
})

t.test('plans are compared by content', async t => {
  const made = (files: object[], revision = '1') =>
    ({ files, repository: { hub: 'h', id: 'i', revision } }) as unknown as PullPlan
  const a = { storedPath: 'a', path: 'a', sha256: '1' }
  t.ok(sameFiles(made([a]), made([a], '2')))
  t.notOk(sameFiles(made([a]), made([{ ...a, sha256: '2' }])))
  t.notOk(sameFiles(made([a]), made([a, { ...a, storedPath: 'b' }])))
  const unknown = { storedPath: 'a', path: 'a' }
  t.ok(sameFiles(made([unknown]), made([unknown])))
  t.notOk(sameFiles(made([unknown]), made([unknown], '2')), 'without digests the revision counts')
})
