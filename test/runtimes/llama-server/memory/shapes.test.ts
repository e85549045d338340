import { truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { readGgufHeader } from '../../../../core/models/gguf-file.ts'
import { shardNames } from '../../../../core/models/gguf-file-name.ts'
import type { LoadOptions } from '../../../../core/models/load-options.ts'
import { engineFiles, engineFlags, projectorCompute } from '../../../../runtimes/llama-server/memory/engine-need.ts'
import {
  type CacheOptions,
  cacheByLayer,
  cells,
  checkpointSize,
  modelShape,
  totalWeights
} from '../../../../runtimes/llama-server/memory/model-shape.ts'
import { ggufBytes, writeSparseGguf } from '../../../support/gguf-writer.ts'
import { PLAIN_SETTINGS } from '../support.ts'
import { getParts, TYPES } from './model-shapes.ts'
import { GIB, MIB, specOf } from './support.ts'

const KIB = 1024
const options = (given: Partial<CacheOptions> = {}): CacheOptions => ({
  num_ctx: 4096,
  num_parallel: 1,
  cache_type_k: 'f16',
  cache_type_v: 'f16',
  batch: 512,
  ...given
})
const shapeOf = (keys: Record<string, unknown>, bytes = 4 * GIB) => modelShape(keys, undefined, bytes)!
const cacheOf = (keys: Record<string, unknown>, given: Partial<CacheOptions> = {}) =>
  cacheByLayer(shapeOf(keys), options(given)).reduce((sum, layer) => sum + layer, 0)

/** Metadata of a transformer as returned by `/api/show`: single values only. */
const makeKeys = (arch: string, own: Record<string, unknown>) => ({
  'general.architecture': arch,
  ...Object.fromEntries(Object.entries(own).map(([key, value]) => [`${arch}.${key}`, value]))
})
const dense = (arch: string, layers: number, embedding: number, heads: number, kvHeads: number, more = {}) =>
  makeKeys(arch, {
    block_count: layers,
    embedding_length: embedding,
    feed_forward_length: 4 * embedding,
    'attention.head_count': heads,
    'attention.head_count_kv': kvHeads,
    ...more
  })
const lengths = (length: number) => ({ 'attention.key_length': length, 'attention.value_length': length })

t.test('the memory estimator matches hand calculations for the cache of popular models', async t => {
  const llama = dense('llama', 32, 4096, 32, 8)
  t.equal(cacheOf(llama, { num_ctx: 8192 }), GIB, 'llama-3.1-8b: 128 KiB a token')
  t.equal(cacheOf(llama, { num_ctx: 8192, num_parallel: 4 }), 4 * GIB, 'for each slot')
  t.equal(cacheOf(dense('qwen3moe', 48, 2048, 32, 4, lengths(128))), 4096 * 96 * KIB, 'qwen3-30b-a3b')
  t.equal(cacheOf(dense('phi3', 40, 5120, 40, 10, { 'attention.sliding_window': 2047 })), 4096 * 200 * KIB, 'phi-4')
  t.equal(cacheOf(dense('llama', 40, 5120, 32, 8, lengths(128))), 4096 * 160 * KIB, 'mistral-small')
  t.equal(
    cacheOf(dense('gemma3', 62, 5376, 32, 16, { ...lengths(128), 'attention.sliding_window': 1024 }), {
      num_ctx: 32768
    }),
    10 * 32768 * 8 * KIB + 52 * 1536 * 8 * KIB,
    'gemma-3-27b: ten layers see everything'
  )
  t.equal(
    cacheOf(dense('gpt-oss', 24, 2880, 64, 8, { ...lengths(64), 'attention.sliding_window': 128 }), {
      num_ctx: 16384
    }),
    12 * 16384 * 2 * KIB + 12 * 768 * 2 * KIB,
    'gpt-oss-20b: every other layer'
  )
  const latent = { 'attention.key_length': 576, 'attention.value_length': 512 }
  const mla = { 'attention.key_length_mla': 192, 'attention.value_length_mla': 128 }
  t.equal(cacheOf(dense('deepseek2', 27, 2048, 16, 1, { ...latent, ...mla })), 4096 * 27 * 576 * 2, 'deepseek-v2-lite')
})

t.test('cache types include the scales of their blocks', async t => {
  const llama = dense('llama', 32, 4096, 32, 8)
  const table: [LoadOptions['cache_type_k'], number][] = [
    ['f32', 64],
    ['f16', 32],
    ['bf16', 32],
    ['q8_0', 17],
    ['q5_1', 12],
    ['q5_0', 11],
    ['q4_1', 10],
    ['q4_0', 9],
    ['iq4_nl', 9]
  ]
  for (const [type, sixteenths] of table) {
    const both = cacheOf(llama, { cache_type_k: type, cache_type_v: type })
    t.equal(both, (4096 * 64 * KIB * sixteenths) / 16, type)
    const keys = cacheOf(llama, { cache_type_k: type })
    t.equal(keys, (both + cacheOf(llama)) / 2, `${type} for the keys only`)
  }
})

t.test('the memory estimator computes the tokens that the cache holds', async t => {
  const table: [Partial<CacheOptions>, number, number, number][] = [
    [{ num_ctx: 777 }, 0, 1024, 1024],
    [{ num_ctx: 777, num_parallel: 3 }, 0, 1024, 1024],
    [{ num_ctx: 1024, num_parallel: 3 }, 0, 1024, 1024],
    [{ num_ctx: 1, num_parallel: 200 }, 0, 256, 256],
    [{ num_ctx: 8192 }, 1024, 8192, 1536],
    [{ num_ctx: 8192, batch: 2048 }, 1024, 8192, 3072],
    [{ num_ctx: 8192, fullWindow: true }, 1024, 8192, 8192],
    [{ num_ctx: 1024 }, 4096, 1024, 1024],
    [{ num_ctx: 8192, num_parallel: 4, unified: true }, 1024, 8192, 1152]
  ]
  for (const [given, window, full, windowed] of table) {
    t.same(cells({ window }, options(given)), { full, windowed }, JSON.stringify({ ...given, window }))
  }
})

t.test('the memory estimator handles layers with states and windows', async t => {
  const mamba = shapeOf(
    makeKeys('mamba', {
      block_count: 64,
      embedding_length: 2560,
      'ssm.conv_kernel': 4,
      'ssm.inner_size': 5120,
      'ssm.state_size': 16
    })
  )
  const state = 4 * (3 * 5120 + 16 * 5120)
  t.same(mamba.layers[0], { weights: mamba.layers[0]!.weights, keys: 0, values: 0, windowed: false, state })
  t.equal(checkpointSize(mamba, options()), 64 * state)

  const header = await headerOf('qwen3-next-80b')
  const hybrid = modelShape(header.keys, header.tensors, 0)!
  const kinds = hybrid.layers.map(layer => (layer.state > 0 ? 's' : layer.keys)).slice(0, 8)
  t.same(kinds, ['s', 's', 's', 512, 's', 's', 's', 512], 'one of four has a cache')
  const guessed = modelShape(header.keys, undefined, GIB)!
  const sizes = guessed.layers.map(({ keys, values, state }) => ({ keys, values, state }))
  t.same(
    sizes,
    hybrid.layers.map(({ keys, values, state }) => ({ keys, values, state })),
    'also by the keys alone'
  )
  const listed = await headerOf('lfm2-1.2b')
  const lfm2 = modelShape(listed.keys, listed.tensors, 0)!
  const attending = lfm2.layers.flatMap(({ keys }, at) => (keys > 0 ? [at] : []))
  t.same(attending, [2, 5, 8, 10, 12, 14], 'by a list of heads')
  t.equal(lfm2.layers[0]!.state, 4 * 2048 * 2)
  const { 'lfm2.attention.head_count_kv': _, ...unlisted } = listed.keys
  const careful = modelShape({ ...unlisted, 'lfm2.attention.head_count_kv': 8 }, undefined, GIB)!
  t.ok(
    careful.layers.every(({ keys, state }) => keys === 512 && state > 0),
    'without the list each layer has both'
  )

  const gemma = shapeOf(dense('gemma3', 12, 1024, 4, 1, { ...lengths(256), 'attention.sliding_window': 512 }))
  t.equal(checkpointSize(gemma, options()), 10 * 1024 * 512 * 2, 'the size of windows')
  t.equal(checkpointSize(gemma, options({ fullWindow: true })), 0)
  t.equal(checkpointSize(shapeOf(dense('llama', 2, 1024, 4, 1)), options()), 0)
  const pattern = (more: object) =>
    shapeOf(dense('gemma4', 4, 1024, 4, 1, { 'attention.sliding_window': 512, ...more })).layers.map(l => l.windowed)
  t.same(pattern({ 'attention.sliding_window_pattern': [true, false, true, true] }), [true, false, true, true])
  t.same(pattern({}), [false, false, false, false], 'without its list no layer is assumed to be small')
  const shared = shapeOf(dense('gemma4', 4, 1024, 4, 1, { 'attention.shared_kv_layers': 2 })).layers.map(l => l.keys)
  t.same(shared, [256, 256, 0, 0])
  t.equal(shapeOf(dense('bert', 4, 1024, 4, 4)).layers[0]!.keys, 0, 'encoders have no cache')
  const mtp = shapeOf(dense('glm4moe', 4, 1024, 4, 4, { nextn_predict_layers: 1 })).layers.map(({ keys }) => keys)
  t.same(mtp, [1024, 1024, 1024, 0], 'layers that guess ahead have no cache in the model itself')
})

t.test('the memory estimator divides weights by place', async t => {
  const { keys, tensors } = await headerOf('qwen3-4b')
  const shape = modelShape(keys, tensors, 0)!
  const all = tensors.reduce((sum, { bytes }) => sum + bytes, 0)
  t.equal(totalWeights(shape), all)
  t.ok(shape.weights.tied)
  t.equal(shape.weights.output, shape.weights.input, 'the token table is also the output')
  const apart = await headerOf('llama-3.1-8b')
  const llama = modelShape(apart.keys, apart.tensors, 0)!
  t.notOk(llama.weights.tied)
  const total = totalWeights(llama)
  t.equal(
    total,
    apart.tensors.reduce((sum, { bytes }) => sum + bytes, 0)
  )
  const guessed = shapeOf(dense('llama', 32, 4096, 32, 8), 4 * GIB)
  t.equal(totalWeights(guessed), 4 * GIB, 'the sizes of files if nothing else is known')
  t.equal(modelShape({}, undefined, GIB), undefined)
  t.equal(modelShape({ 'general.architecture': 'llama' }, undefined, GIB), undefined)
  t.equal(modelShape(dense('llama', 1e9, 4096, 32, 8), undefined, GIB), undefined)
})

t.test('the memory estimator reads tokens and merges of the tokenizer from the file', async t => {
  const keys = dense('llama', 2, 64, 4, 4)
  const tokens = { 'tokenizer.ggml.tokens': { length: 1000 } }
  const sizes = (more: object) => {
    const { vocabulary, merges } = shapeOf({ ...keys, ...more })
    return [vocabulary, merges]
  }
  t.same(sizes(tokens), [1000, 0])
  t.same(sizes({ ...tokens, 'tokenizer.ggml.merges': { length: 900 } }), [1000, 900])
  t.same(sizes({ 'llama.vocab_size': 500 }), [500, 500], 'as many as tokens if it lists none')
})

t.test('the memory estimator survives damaged file headers', async t => {
  const folder = t.testdir()
  const path = join(folder, 'm.gguf')
  const words = Array.from({ length: 150_000 }, (_, at) => `word ${at}`)
  const metadata = {
    'general.architecture': 'llama',
    'a.text': 'x'.repeat(5000),
    'a.long': 5_000_000_000n,
    'a.half': 0.5,
    'a.list': [1, -1, 3],
    'a.flags': [true, false],
    'tokenizer.ggml.tokens': words
  }
  const tensors = [
    { name: 'token_embd.weight', shape: [256, 1000], type: TYPES.Q4_K },
    { name: 'output_norm.weight', shape: [256], type: TYPES.F16 }
  ]
  writeFileSync(path, ggufBytes({ metadata, tensors }))
  const header = await readGgufHeader(path)
  t.match(header.keys, {
    'a.long': 5_000_000_000,
    'a.half': 0.5,
    'a.list': [1, -1, 3],
    'a.flags': [true, false],
    'tokenizer.ggml.tokens': { length: 150_000 }
  })
  t.equal(header.keys['a.text'], metadata['a.text'])
  t.same(header.tensors, [
    { name: 'token_embd.weight', shape: [256, 1000], bytes: 144_000 },
    { name: 'output_norm.weight', shape: [256], bytes: 512 }
  ])

  for (const [what, bytes] of [
    ['empty', Buffer.alloc(0)],
    ['something else', Buffer.from('<html>'.repeat(1000))],
    ['truncated in its keys', ggufBytes({ metadata }).subarray(0, 3000)],
    ['with more tensors than exist', changed(ggufBytes({}), 8, 255)],
    ['with an unknown type of values', changed(ggufBytes({ metadata: { a: 1 } }), 33, 77)]
  ] as const) {
    writeFileSync(path, bytes)
    await t.rejects(readGgufHeader(path), { code: 'invalid_request' }, what)
  }
  await t.rejects(readGgufHeader(join(folder, 'none.gguf')), { code: 'ENOENT' })
})

t.test('the memory estimator reads the files of engines', async t => {
  const folder = t.testdir()
  const at = (name: string) => join(folder, name)
  t.same(shardNames('/m/a-00001-of-00003.gguf'), [
    join('/m', 'a-00001-of-00003.gguf'),
    join('/m', 'a-00002-of-00003.gguf'),
    join('/m', 'a-00003-of-00003.gguf')
  ])
  t.same(shardNames('/m/a.gguf'), ['/m/a.gguf'])

  const { metadata, tensors = [] } = getParts('qwen2.5-0.5b')
  writeSparseGguf(at('m-00001-of-00002.gguf'), { metadata, tensors: tensors.slice(0, 100) })
  writeSparseGguf(at('m-00002-of-00002.gguf'), { tensors: tensors.slice(100) })
  writeSparseGguf(at('whole.gguf'), { metadata, tensors })
  const sharded = await engineFiles(specOf(at('m-00001-of-00002.gguf')))
  const whole = await engineFiles(specOf(at('whole.gguf')))
  t.same(sharded.shape, whole.shape, 'shards are one model')
  t.ok(Math.abs(sharded.size - whole.size) < 10_000)

  writeFileSync(at('lora.gguf'), 'x'.repeat(1000))
  writeSparseGguf(at('eye.gguf'), {
    metadata: {
      'clip.vision.image_size': 896,
      'clip.vision.patch_size': 14,
      'clip.vision.embedding_length': 1152,
      'clip.vision.feed_forward_length': 4304,
      'clip.vision.attention.head_count': 16
    },
    tensors: [{ name: 'v', shape: [1000, 1000] }]
  })
  const rich = await engineFiles(
    specOf(
      at('whole.gguf'),
      {},
      {
        projectorPath: at('eye.gguf'),
        settings: {
          ...PLAIN_SETTINGS,
          loras: [
            { path: at('lora.gguf'), scale: 1 },
            { path: at('none.gguf'), scale: 1 }
          ],
          speculation: { ngram: false, draft: { model: 'a/b', modelPath: at('whole.gguf') } }
        }
      }
    )
  )
  t.equal(rich.loras, 1000, 'a missing file has no size')
  t.same(rich.draft, { shape: whole.shape, size: whole.size })
  t.equal(Math.floor(rich.projector!.size / 1e6), 4)
  t.ok(rich.projector!.compute > GIB && rich.projector!.compute < 1.5 * GIB, 'the projector of gemma-3 needs a GiB')
  t.equal(projectorCompute(undefined, 500), 500)

  truncateSync(at('whole.gguf'), 1000)
  const info = metadata as Record<string, string | number | boolean>
  const spec = specOf(at('whole.gguf'))
  const damaged = await engineFiles({
    ...spec,
    variant: { ...spec.variant, metadata: { capabilities: [], info } }
  })
  t.equal(damaged.shape?.layers.length, 24, "the store's record is used")
  const gone = await engineFiles({ ...specOf(at('gone.gguf')), variant: { ...spec.variant, size: 7 * MIB } })
  t.same(gone, { shape: undefined, size: 7 * MIB, loras: 0 })
})

t.test('the memory estimator parses flags of llama-server', async t => {
  const plain = engineFlags([])
  t.match(engineFlags(['-c', '8192', '-np', '2', '--ubatch-size', '1024', '-ngl', 'all', '-ctk', 'q8_0']), {
    context: 8192,
    slots: 2,
    batch: 1024,
    gpuLayers: 1e6,
    cacheTypes: { cache_type_k: 'q8_0' }
  })
  t.match(engineFlags(['-fa', 'off', '-kvu', '--swa-full', '--device', 'none', '-nkvo', '-ctxcp', '4']), {
    flashAttention: false,
    unified: true,
    fullWindow: true,
    hostOnly: true,
    hostCache: true,
    checkpoints: 4
  })
  t.same(engineFlags(['--threads', '4', '-c', 'many', '-ub']), plain, 'invalid numbers are left to the engine')
})

async function headerOf(name: string) {
  const path = join(t.testdirName, `${name}.gguf`)
  writeSparseGguf(path, getParts(name))
  return await readGgufHeader(path)
}

function changed(bytes: Buffer, at: number, value: number): Buffer {
  bytes[at] = value
  return bytes
}

t.testdir()
