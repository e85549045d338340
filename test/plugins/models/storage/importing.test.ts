import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  constants,
  copyFileSync,
  mkdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync
} from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import type { Progress } from '../../../../core/contracts/progress.ts'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { transferFile } from '../../../../plugins/models/storage/staging.ts'
import { failing } from '../../../support/failure.ts'
import { readCases } from '../../../support/fixture.ts'
import { ggufBytes, safetensorsBytes, u64, writeGguf } from '../../../support/gguf-writer.ts'
import { thorough } from '../../../support/thorough.ts'
import { findFaults, name, openStore, tree } from './support.ts'

const DEMO = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')

/** Opens a store in a folder, and imports from paths in this folder. */
async function openBeside(dir: string) {
  const { store } = await openStore(join(dir, 'models'))
  const add = (path: string, as = 'a/b') => store.import({ path: join(dir, path), name: name(as) })
  return { store, add }
}

t.test('a GGUF file is imported', async t => {
  const dir = t.testdir()
  const { store } = await openStore(join(dir, 'models'))
  const progress: Progress[] = []
  const variant = await store.import({ path: DEMO, name: name('Me/Tiny') }, { onProgress: step => progress.push(step) })
  t.match(variant, {
    model: { owner: 'Me', name: 'Tiny', variant: 'F16' },
    label: 'F16',
    isDefault: true,
    publicName: 'Me/Tiny',
    key: 'me/tiny:f16',
    format: 'gguf',
    size: statSync(DEMO).size,
    modifiedAt: /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/,
    digest: /^[0-9a-f]{64}$/,
    origin: { kind: 'import', from: DEMO },
    metadata: {
      architecture: 'llama',
      contextLength: 32768,
      embeddingLength: 256,
      parameters: 2033408,
      quantization: 'F16',
      chatTemplate: /tool_call/,
      capabilities: ['completion', 'tools'],
      info: { 'general.architecture': 'llama', 'llama.block_count': 3, 'general.parameter_count': 2033408 }
    }
  })
  t.equal(variant.files[0]?.sha256, createHash('sha256').update(readFileSync(DEMO)).digest('hex'))
  t.same(findFaults(variant), [])
  t.match(progress.at(-1), { phase: 'copying', fraction: 1, completed: variant.size, total: variant.size })
  t.same(tree(join(dir, 'models')), [
    'Me',
    'Me/Tiny',
    `Me/Tiny/${variant.revision}`,
    `Me/Tiny/${variant.revision}/tiny-chat-f16.gguf`,
    'Me/Tiny/manifest.json'
  ])
  const { store: later } = await openStore(join(dir, 'models'))
  t.same(later.list(), [variant], 'a later start finds the same')
})

t.test('shards, projectors and links are imported', async t => {
  const dir = t.testdir({ shards: {}, vision: {}, cache: { blobs: {}, snapshot: {} } })
  const { add } = await openBeside(dir)
  const shard = (number: number) => `shards/m-Q8_0-0000${number}-of-00003.gguf`
  for (const number of [1, 3]) {
    writeGguf(join(dir, shard(number)), {
      metadata: { 'split.count': 3, 'split.tensors.count': 3 },
      tensors: [{ name: `t${number}`, shape: [4, 4] }],
      seed: number
    })
  }
  const missing = failing('invalid_request', /m-Q8_0-00002-of-00003\.gguf is missing/)
  await t.rejects(add(shard(1), 'a/sharded'), missing)
  writeGguf(join(dir, shard(2)), { tensors: [{ name: 't2', shape: [4, 4] }], seed: 2 })
  const sharded = await add(shard(2), 'a/sharded')
  t.same(
    sharded.files.map(({ path, role }) => [path, role]),
    [1, 2, 3].map(number => [`m-Q8_0-0000${number}-of-00003.gguf`, 'model'])
  )
  t.equal(sharded.label, 'Q8_0')
  t.equal(sharded.metadata.parameters, 48)
  writeGguf(join(dir, shard(3)), {
    tensors: [
      { name: 'x', shape: [1] },
      { name: 'y', shape: [1] }
    ]
  })
  await t.rejects(add(shard(1), 'a/mixed'), { message: /do not belong together/ })
  writeGguf(join(dir, 'shards', 'renamed.gguf'), { metadata: { 'split.count': 3 } })
  await t.rejects(add('shards/renamed.gguf', 'a/renamed'), { message: /one of 3 shards/ })

  writeGguf(join(dir, 'vision', 'see-Q4_K_M.gguf'))
  writeGguf(join(dir, 'vision', 'mmproj-see-F16.gguf'), {
    metadata: { 'general.architecture': 'clip', 'clip.has_vision_encoder': true }
  })
  const vision = await add('vision', 'a/see')
  t.match(vision.files, [
    { path: 'see-Q4_K_M.gguf', role: 'model' },
    { path: 'mmproj-see-F16.gguf', role: 'projector' }
  ])
  t.ok(vision.metadata.capabilities.includes('vision'))
  await t.rejects(add('vision/mmproj-see-F16.gguf', 'a/p'), { message: /is a projector/ })

  // Hub caches store content under its digest, with named links beside it.
  writeGguf(join(dir, 'cache', 'blobs', 'abcdef'))
  symlinkSync('../blobs/abcdef', join(dir, 'cache', 'snapshot', 'linked-Q5_0.gguf'))
  const linked = await add('cache/snapshot/linked-Q5_0.gguf', 'a/linked')
  t.match(linked, { label: 'Q5_0', files: [{ path: 'linked-Q5_0.gguf' }] })
  t.same(findFaults(linked), [])
  t.notOk(statSync(join(linked.directory, 'linked-Q5_0.gguf')).isSymbolicLink())
})

t.test('a SafeTensors folder is imported', async t => {
  const dir = t.testdir({
    model: {
      'config.json': JSON.stringify({
        model_type: 'qwen3',
        architectures: ['Qwen3ForCausalLM'],
        torch_dtype: 'bfloat16',
        max_position_embeddings: 512
      }),
      'tokenizer.json': '{}',
      'chat_template.jinja': '{% if enable_thinking %}<think>{% endif %}',
      'pytorch_model.bin': 'x',
      'README.md': 'x',
      '.git': { HEAD: 'x' },
      'model-00001-of-00002.safetensors': safetensorsBytes(16),
      'model.safetensors.index.json': JSON.stringify({
        weight_map: { a: 'model-00001-of-00002.safetensors', b: 'model-00002-of-00002.safetensors' }
      })
    }
  })
  const { store } = await openStore(join(dir, 'models'))
  const request = { path: join(dir, 'model'), name: name('a/st') }
  await t.rejects(store.import(request), { message: /model-00002-of-00002\.safetensors is missing/ })
  const second = join(dir, 'model', 'model-00002-of-00002.safetensors')
  writeFileSync(second, safetensorsBytes(16, 2).subarray(0, -1))
  await t.rejects(store.import(request), { code: 'invalid_request', message: /model-00002.* is truncated/ })
  writeFileSync(second, 'not at all')
  await t.rejects(store.import(request), { message: /not a SafeTensors file/ })
  writeFileSync(second, safetensorsBytes(16, 2))
  const variant = await store.import(request)
  t.match(variant, {
    format: 'safetensors',
    label: 'BF16',
    metadata: {
      architecture: 'qwen3',
      contextLength: 512,
      parameters: 32,
      quantization: 'BF16',
      capabilities: ['completion', 'thinking']
    }
  })
  t.same(
    variant.files.map(file => file.path),
    [
      'model-00001-of-00002.safetensors',
      'model-00002-of-00002.safetensors',
      'chat_template.jinja',
      'config.json',
      'model.safetensors.index.json',
      'tokenizer.json'
    ]
  )
  t.same(findFaults(variant), [])
  t.equal(statSync(join(variant.directory, 'config.json')).nlink, 1, 'files that people edit are not links')
  await t.rejects(store.import({ path: second, name: name('a/part') }), { message: /Name its folder/ })
  writeFileSync(join(dir, 'model', 'config.json'), '{')
  const damaged = failing('invalid_request', /config\.json is damaged/)
  await t.rejects(store.import({ ...request, name: name('a/bad') }), damaged)
  t.same(store.list().length, 1)
})

t.test('a malformed SafeTensors header is refused without blocking other work', thorough, async t => {
  const dir = t.testdir({ 'config.json': '{}', 'tokenizer.json': '{}' })
  const { add } = await openBeside(dir)
  const header = (text: string, length: number | bigint = Buffer.byteLength(text)) =>
    Buffer.concat([u64(length), Buffer.from(text), Buffer.alloc(64)])
  const tensor = (fields: object) =>
    header(JSON.stringify({ w: { dtype: 'BF16', shape: [2], data_offsets: [0, 4], ...fields } }))
  const wrong = /describes the tensor "w" wrongly/
  const cases: [what: string, bytes: Buffer, why: RegExp][] = [
    ['8 MB of lists', header(`{"__metadata__":{"a":[${'[],'.repeat(2_700_000)}0]}}`), /more than 1,000,000 lists/],
    ['a million keys', header(`{${Array.from({ length: 1_000_001 }, (_, i) => `"${i}":0`)}}`), /more than 1,000,000/],
    ['deep lists', header(`{"w":${'['.repeat(100_000)}`), /more than 64 levels/],
    ['a length of 2^63', header('{}', 2n ** 63n), /length of its header is impossible/],
    ['a length beyond the file', header('{}', 1000), /is truncated/],
    ['NaN', header('{"w":NaN}'), /it is not JSON/],
    ['a list', header('[]'), /not a JSON object/],
    ['not a tensor', header('{"w":null}'), wrong],
    ['a negative length', tensor({ shape: [-2] }), wrong],
    ['a fraction', tensor({ shape: [0.5] }), wrong],
    ['a shape that overflows', tensor({ shape: [2 ** 40, 2 ** 40] }), wrong],
    ['a string as length', tensor({ shape: ['2'] }), wrong],
    ['offsets in the wrong order', tensor({ data_offsets: [4, 0] }), wrong],
    ['an offset beyond the file', tensor({ data_offsets: [0, 2 ** 50] }), /is truncated/],
    ['a pointer', Buffer.from('version https://git-lfs.github.com/spec/v1\noid sha256:ab'), /Git LFS pointer/],
    ['a page', Buffer.from('<!doctype html><title>Sign in</title>'), /web page \(its title: "Sign in"\)/]
  ]
  let turns = 0
  const timer = setInterval(() => turns++)
  t.teardown(() => clearInterval(timer))
  for (const [what, bytes, message] of cases) {
    writeFileSync(join(dir, 'model.safetensors'), bytes)
    await t.rejects(add(''), { code: 'invalid_request', message }, what)
  }
  t.ok(turns >= 10, `${turns} turns`)
  writeFileSync(join(dir, 'model.safetensors'), safetensorsBytes())
  writeFileSync(join(dir, 'config.json'), '<html><title>Sign in</title>')
  await t.rejects(add(''), { message: /config\.json/ })
  writeFileSync(
    join(dir, 'config.json'),
    '{"max_position_embeddings": 512, "time_step_limit": [0.0, Infinity], "x": NaN}'
  )
  writeFileSync(join(dir, 'tokenizer_config.json'), '{"model_max_length": Infinity, "chat_template": "Infinity"}')
  const { metadata } = await add('')
  t.match(metadata, { contextLength: 512, chatTemplate: 'Infinity' }, 'as Python writes it')
})

t.test('an image model is imported from one SafeTensors file, and a part of a model is refused', async t => {
  const dir = t.testdir()
  const { add } = await openBeside(dir)
  const write = (file: string, ...names: string[]) => {
    const tensors = names.map((name, at) => [name, { dtype: 'F16', shape: [1], data_offsets: [at * 2, at * 2 + 2] }])
    const header = Buffer.from(JSON.stringify(Object.fromEntries(tensors)))
    writeFileSync(join(dir, file), Buffer.concat([u64(header.length), header, Buffer.alloc(names.length * 2)]))
  }
  const drawing = 'model.diffusion_model.input_blocks.0.0.weight'
  const encoder = 'cond_stage_model.transformer.text_model.final_layer_norm.bias'
  write('whole.safetensors', drawing, encoder, 'first_stage_model.decoder.conv_in.bias')
  write('unet.safetensors', drawing, encoder)
  write('language.safetensors', 'model.layers.0.mlp.up_proj.weight')
  t.match(await add('whole.safetensors'), {
    format: 'checkpoint',
    label: 'F16',
    metadata: { capabilities: ['draw', 'edit_image'], parameters: 3 }
  })
  await t.rejects(add('unet.safetensors'), { message: /without its decoder\. Import a file with the whole model/ })
  await t.rejects(add('language.safetensors'), { message: /is a part of a SafeTensors model\. Name its folder/ })
})

t.test('a complete GGUF file named like a shard is imported', async t => {
  const dir = t.testdir({ folder: {}, part: {} })
  const { add } = await openBeside(dir)
  const at = (path: string) => join(dir, path)
  writeGguf(at('folder/merged-00001-of-00013.gguf'))
  writeGguf(at('folder/merged-00002-of-00013.gguf'), { metadata: { 'split.count': 1 }, seed: 2 })
  writeGguf(at('part/merged-00001-of-00013.gguf'), { metadata: { 'split.count': 13 } })
  for (const [path, model] of [
    ['folder/merged-00001-of-00013.gguf', 'a/one'],
    ['folder/merged-00002-of-00013.gguf', 'a/two']
  ] as const) {
    const { files } = await add(path, model)
    t.match(files, [{ path: 'merged.gguf', role: 'model' }], path)
  }
  await t.rejects(add('folder'), { message: /has 2 models/ })
  rmSync(at('folder/merged-00002-of-00013.gguf'))
  t.match((await add('folder')).files, [{ path: 'merged.gguf' }])
  for (const path of ['part', 'part/merged-00001-of-00013.gguf']) {
    await t.rejects(add(path, 'a/c'), { message: /not complete: merged-00002-of-/ })
  }
})

t.test('invalid files are refused with the reason', async t => {
  const dir = t.testdir({ 'text.gguf': 'hello there', 'empty.gguf': '', 'short.gguf': 'GGUF', folder: {}, file: '' })
  const { store, add } = await openBeside(dir)
  const whole = ggufBytes({ metadata: { 'general.architecture': 'llama' }, tensors: [{ name: 'a', shape: [1000] }] })
  const write = (fileName: string, bytes: Buffer) => writeFileSync(join(dir, fileName), bytes)
  write('cut-data.gguf', whole.subarray(0, -32))
  write('cut-header.gguf', whole.subarray(0, 60))
  const many = Buffer.from(whole)
  many.writeBigUInt64LE(1_000_000n, 8)
  write('many-tensors.gguf', many)
  const wrongVersion = Buffer.from(whole)
  wrongVersion.writeUInt32LE(77, 4)
  write('version.gguf', wrongVersion)
  const bigEndian = Buffer.from(whole)
  bigEndian.writeUInt32BE(3, 4)
  write('big-endian.gguf', bigEndian)
  write('huge-dimension.gguf', ggufBytes({ tensors: [{ name: 'a', shape: [4] }] }))
  const huge = readFileSync(join(dir, 'huge-dimension.gguf'))
  huge.writeBigUInt64LE(2n ** 40n, huge.indexOf('a', 24) + 1 + 4)
  write('huge-dimension.gguf', huge)
  write('vocabulary.gguf', ggufBytes({ metadata: { 'general.architecture': 'llama' }, tensors: [] }))
  write('lora.gguf', ggufBytes({ metadata: { 'general.type': 'adapter' } }))
  symlinkSync('nowhere', join(dir, 'dangling.gguf'))
  symlinkSync('loop.gguf', join(dir, 'loop.gguf'))
  execFileSync('mkfifo', [join(dir, 'pipe.gguf')])

  const table = readCases<[path: string, why: RegExp][]>('storage-cases.yaml', 'invalidFiles')
  for (const [path, why] of table) {
    const error = await add(path).catch(error => error)
    t.match(error, { code: 'invalid_request', param: 'path' }, path)
    t.match(error.message, why)
    t.match(error.message, dir, 'the path is named')
  }
  for (const path of ['relative.gguf', '', '/a\0b']) {
    await t.rejects(store.import({ path, name: name('a/b') }), { code: 'invalid_request', message: /absolute path/ })
  }
  t.same(tree(join(dir, 'models')), [], 'nothing remains')
})

t.test('no prefix of a GGUF file is accepted as a model or crashes the parser', async t => {
  const dir = t.testdir()
  const { store } = await openStore(join(dir, 'models'))
  const whole = ggufBytes({ metadata: { 'general.architecture': 'llama', 'tokenizer.ggml.tokens': ['a', 'b'] } })
  const path = join(dir, 'prefix.gguf')
  for (let length = 0; length < whole.length; length += 3) {
    writeFileSync(path, whole.subarray(0, length))
    await t.rejects(store.import({ path, name: name('a/b') }), { code: 'invalid_request' })
  }
  writeFileSync(path, whole)
  t.equal((await store.import({ path, name: name('a/b') })).metadata.architecture, 'llama')
})

/** Whether this disk supports reflinks. */
function clones(dir: string): boolean {
  try {
    copyFileSync(join(dir, 'source'), join(dir, 'clone'), constants.COPYFILE_FICLONE_FORCE)
    return true
  } catch {
    return false
  }
}

t.test('a file is linked, cloned or copied into the store', async t => {
  const dir = t.testdir({ source: 'some bytes', other: {} })
  const options = { allowHardLink: true, space: { folder: dir, bytes: 10 } }
  const digest = createHash('sha256').update('some bytes').digest('hex')
  t.equal(await transferFile(join(dir, 'source'), join(dir, 'one'), options), digest)
  t.equal(statSync(join(dir, 'one')).nlink, clones(dir) ? 1 : 2, 'no second copy of the bytes')
  t.equal(readFileSync(join(dir, 'one'), 'utf8'), 'some bytes')
  const counted: number[] = []
  const copying = { ...options, allowHardLink: false, onBytes: (bytes: number) => void counted.push(bytes) }
  t.equal(await transferFile(join(dir, 'source'), join(dir, 'two'), copying), digest)
  t.same(counted, [10])
  writeFileSync(join(dir, 'source'), 'SOME BYTES')
  t.equal(readFileSync(join(dir, 'two'), 'utf8'), 'some bytes', 'a copy has one owner')
  await t.rejects(transferFile(join(dir, 'source'), join(dir, 'two'), options), { code: 'EEXIST' })
  await t.rejects(
    transferFile(join(dir, 'source'), join(dir, 'three'), { ...copying, space: { folder: dir, bytes: 2 ** 60 } }),
    { code: 'insufficient_storage', status: 507, message: /needs .* TB .* has .* free/, details: { required: 2 ** 60 } }
  )
  await t.rejects(transferFile(join(dir, 'source'), join(dir, 'four'), { ...copying, signal: AbortSignal.abort() }), {
    name: 'AbortError'
  })
})

t.test('a cancelled import, or one whose source changes, leaves nothing', async t => {
  const dir = t.testdir()
  const models = join(dir, 'models')
  const { store } = await openStore(models)
  const path = join(dir, 'large.gguf')
  writeGguf(path, { tensors: [{ name: 'a', shape: [4_000_000] }] })
  const leave = new AbortController()
  const aborted = store.import({ path, name: name('a/b') }, { signal: leave.signal, onProgress: () => leave.abort() })
  await t.rejects(aborted, { name: 'AbortError' })
  t.same(tree(models), [])
  t.same(store.list(), [])

  const { store: closing } = await openStore(models)
  const cut = closing.import({ path, name: name('a/b') }, { onProgress: () => void closing.close() })
  await t.rejects(cut, { code: 'shutting_down', status: 503 })
  await closing.close()
  t.same(tree(models), [])

  const shrunk = store.import({ path, name: name('a/b') }, { onProgress: () => truncateSync(path, 600_000) })
  await t.rejects(shrunk, { code: 'invalid_request', message: /changed while it was imported/ })
  t.same(tree(models), [])
})

t.test('an import is refused if the models folder has a link or file in the way', async t => {
  const dir = t.testdir({ outside: {}, models: { taken: 'a file' } })
  const models = join(dir, 'models')
  mkdirSync(join(models, 'real'))
  symlinkSync(join(dir, 'outside'), join(models, 'linked'))
  symlinkSync(join(dir, 'outside'), join(models, 'real', 'linked'))
  const { store, lines } = await openStore(models)
  t.equal(lines.filter(line => line.includes('symbolic link')).length, 2)
  for (const target of ['linked/x', 'LINKED/x', 'real/linked', 'taken/x']) {
    await t.rejects(store.import({ path: DEMO, name: name(target) }), failing('invalid_request', /symbolic link/))
  }
  t.same(tree(join(dir, 'outside')), [])
})

t.test('models for speech are imported and recognized by their headers', async t => {
  const header = (vocabulary: number, layers = 4) => {
    const bytes = Buffer.alloc(8192)
    const sizes = [0x67676d6c, vocabulary, 1500, 384, 6, layers, 448, 384, 6, layers, 80, 1]
    for (const [at, size] of sizes.entries()) bytes.writeInt32LE(size, 4 * at)
    return bytes
  }
  const onnx = Buffer.alloc(8192, 8)
  const voice = { audio: { sample_rate: 22050 }, phoneme_id_map: { a: [1] }, espeak: { voice: 'de' } }
  const dir = t.testdir({
    'ggml-base.bin': header(51_865),
    'ggml-tiny.en-q5_1.bin': header(51_864),
    'ggml-none.bin': header(9),
    'ggml-cut.bin': header(51_865).subarray(0, 40),
    'ggml-page.bin': `<!doctype html><html>${' '.repeat(5000)}`,
    one: { 'x.onnx': onnx, 'x.onnx.json': JSON.stringify(voice), 'other.txt': '' },
    two: { 'y.onnx': onnx, 'y.onnx.json': JSON.stringify({ ...voice, speaker_id_map: { anna: 0, ben: 1 } }) },
    three: { 'z.onnx': onnx, 'z.onnx.json': '{"audio": {}}' }
  })
  const { store, add } = await openBeside(dir)
  t.match(await add('ggml-base.bin', 'a/base'), {
    format: 'ggml',
    label: 'F16',
    metadata: { architecture: 'whisper', contextLength: 448, capabilities: ['audio', 'transcribe', 'translate'] }
  })
  const english = await add('ggml-tiny.en-q5_1.bin', 'a/tiny')
  t.match(english, { label: 'Q5_1', metadata: { capabilities: ['audio', 'transcribe'] } })
  const only = {
    capabilities: ['speak'],
    voices: ['x'],
    info: { 'audio.sample_rate': 22050, 'general.language': 'de' }
  }
  t.match(await add('one', 'a/one'), { format: 'onnx', label: 'ONNX', metadata: only, files: { length: 2 } })
  t.match((await add('two/y.onnx', 'a/two')).metadata.voices, ['anna', 'ben'])
  for (const [path, message] of [
    ['ggml-none.bin', /impossible vocabulary 9/],
    ['ggml-cut.bin', /is not a ggml file/],
    ['ggml-page.bin', /web page/],
    ['three', /is not a voice/]
  ] as const) {
    await t.rejects(add(path, 'a/bad'), { code: 'invalid_request', message }, path)
  }
  const again = await openStore(join(dir, 'models'))
  t.match(again.store.list().find(({ publicName }) => publicName === 'a/two')?.metadata.voices, ['anna', 'ben'])
  t.equal((await store.remove(name('a/one'))).length, 1)
})
