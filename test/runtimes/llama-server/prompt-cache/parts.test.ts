import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { crc32 } from 'node:zlib'
import t from 'tap'
import type { ModelMetadata } from '../../../../core/contracts/models.ts'
import {
  leastUsed,
  newFileName,
  openCacheStore,
  type SavedSlot
} from '../../../../runtimes/llama-server/prompt-cache/cache-store.ts'
import { bytesPerToken, cacheKey, savesSlots } from '../../../../runtimes/llama-server/prompt-cache/prompt-cache.ts'
import {
  computeChecksum,
  continues,
  readLayout,
  rewriteForStreams
} from '../../../../runtimes/llama-server/prompt-cache/state-file.ts'
import { buildOf, engineSpec } from '../support.ts'

const NEVER = new AbortController().signal

function specOf(architecture: string, info: ModelMetadata['info'] = {}, mode: 'chat' | 'embedding' = 'chat') {
  const spec = engineSpec({ mode })
  spec.variant.metadata = {
    architecture,
    capabilities: ['completion'],
    info: Object.fromEntries(Object.entries(info).map(([key, value]) => [`${architecture}.${key}`, value]))
  }
  return spec
}

const DENSE = {
  block_count: 32,
  embedding_length: 4096,
  'attention.head_count': 32,
  'attention.head_count_kv': 8
}

t.test('selects suitable models', async t => {
  t.ok(savesSlots(specOf('llama', DENSE)))
  t.ok(savesSlots(specOf('qwen3', DENSE)))
  t.ok(savesSlots(specOf('qwen2vl', DENSE)), 'chats without images are saved')
  t.ok(savesSlots(specOf('phi3', { ...DENSE, 'attention.sliding_window': 2047 })), 'llama.cpp does not use its window')
  t.ok(savesSlots(specOf('olmo2', DENSE)), 'no window in this file')
  t.ok(savesSlots(specOf('something-new')), 'an unknown one is tried')
  t.notOk(savesSlots(specOf('llama', DENSE, 'embedding')), 'embeddings have no conversation')
  const speculation = { ngram: false, draft: { model: 'a/b', modelPath: '/b.gguf' } }
  const settings = { arguments: [], environment: {}, loras: [] }
  t.notOk(savesSlots({ ...specOf('llama', DENSE), settings: { ...settings, speculation } }), 'a draft model')
  t.ok(savesSlots({ ...specOf('llama', DENSE), settings: { ...settings, speculation: { ngram: true } } }))
  t.notOk(savesSlots(specOf('olmo2', { ...DENSE, 'attention.sliding_window': 4096 })), 'a window by its metadata')
  t.notOk(savesSlots(specOf('something-new', { ...DENSE, 'ssm.state_size': 128, 'ssm.inner_size': 8192 })), 'a state')
  for (const architecture of ['gemma3', 'gpt-oss', 'llama4', 'mamba', 'jamba', 'qwen3next', 'qwen35', 'lfm2', 't5']) {
    t.notOk(savesSlots(specOf(architecture, DENSE)), architecture)
  }
})

t.test('estimates the bytes of a token', async t => {
  // 32 layers of 8 heads with 128 numbers each, keys and values in two bytes.
  t.equal(bytesPerToken(specOf('llama', DENSE)), 32 * 8 * 128 * 2 * 2 + 16)
  const small = specOf('llama', DENSE)
  small.options = { ...small.options, cache_type_k: 'q8_0', cache_type_v: 'q8_0' }
  t.equal(bytesPerToken(small), 32 * 8 * 128 * 2 * (34 / 32) + 16)
  t.equal(bytesPerToken(specOf('llama')), undefined, 'without numbers there is no estimate')
})

t.test('the key covers everything that a cache depends on', async t => {
  const build = buildOf('/opt/llama-server')
  const key = (
    change: (spec: ReturnType<typeof specOf>) => void = () => {},
    on = build,
    stamps: string[] = [],
    sharedArguments: string[] = []
  ) => {
    const spec = specOf('llama', DENSE)
    change(spec)
    return cacheKey({ spec, build: on, sharedArguments }, stamps)
  }
  const settings = { arguments: [], environment: {}, speculation: { ngram: false }, loras: [] }
  const plain = key()
  t.equal(key(), plain)
  t.equal(
    key(spec => {
      spec.options = { ...spec.options, num_ctx: 65536, num_parallel: 8, n_gpu_layers: 4 }
    }),
    plain,
    'context, slots and layers on the GPU may change'
  )
  const others = {
    revision: key(spec => {
      spec.variant.revision = '2'
    }),
    type: key(spec => {
      spec.options = { ...spec.options, cache_type_v: 'q8_0' }
    }),
    version: key(undefined, { ...build, version: 'b2' }),
    digest: key(undefined, { ...build, digest: '1'.repeat(64) }),
    projector: key(spec => {
      spec.projectorPath = '/p.gguf'
    }),
    lora: key(spec => {
      spec.settings = { ...settings, loras: [{ path: '/a.gguf', scale: 1 }] }
    }),
    scale: key(spec => {
      spec.settings = { ...settings, loras: [{ path: '/a.gguf', scale: 0.5 }] }
    }),
    arguments: key(spec => {
      spec.settings = { ...settings, arguments: ['--rope-freq-base', '1000000'] }
    }),
    shared: key(undefined, build, [], ['--rope-freq-base', '5']),
    stamp: key(undefined, build, ['12 1'])
  }
  t.equal(new Set([plain, ...Object.values(others)]).size, 1 + Object.keys(others).length, 'each has its own key')
  t.equal(
    key(undefined, { ...build, commit: 'abc', digest: '1'.repeat(64) }),
    key(undefined, { ...build, commit: 'abc' }),
    'a commit matters more than linking'
  )
  const long = (context: number) =>
    key(spec => {
      spec.variant.metadata.info['llama.rope.scaling.original_context_length'] = 4096
      spec.options = { ...spec.options, num_ctx: context }
    })
  t.equal(long(2048), long(4096))
  t.not(long(4096), long(8192), 'above it other rope factors apply')
})

/** A file as llama-server writes it, with `cells` in one of several streams. */
function stateFile(given: { tokens: number[]; streams: number; stream: number; cells?: number[]; media?: number }) {
  const { tokens, streams, stream, cells = [7, 8, 9], media = 0 } = given
  const words = [-1, 1, tokens.length, ...tokens, media, ...(media ? [5] : [])]
  const counts = Array.from({ length: streams }, (_, i) => (i === stream ? [tokens.length, ...cells] : [0])).flat()
  return Buffer.from(Int32Array.from([0x67677371, 3, words.length, ...words, streams, ...counts]).buffer)
}

t.test('reads, checks and rewrites slot files', async t => {
  const dir = t.testdir()
  const write = (name: string, bytes: Buffer) => {
    writeFileSync(join(dir, name), bytes)
    return join(dir, name)
  }
  const tokens = Array.from({ length: 100 }, (_, i) => i + 3)
  const third = write('a', stateFile({ tokens, streams: 4, stream: 2 }))
  const layout = (await readLayout(third))!
  t.match(layout, { streams: 4, stream: 2, media: false })
  for (const streams of [1, 2, 8]) {
    const path = join(dir, `to-${streams}`)
    await rewriteForStreams(third, path, layout, streams, NEVER)
    const expected = stateFile({ tokens, streams, stream: 0 })
    t.same(readFileSync(path), expected, `for ${streams} slots it equals the file of such an engine`)
    t.equal(statSync(path).mode & 0o777, 0o600)
  }
  await t.rejects(rewriteForStreams(third, join(dir, 'b'), layout, 2, AbortSignal.abort(new Error('no time'))), {
    message: 'no time'
  })

  t.match(await readLayout(write('c', stateFile({ tokens, streams: 1, stream: 0, media: 1 }))), { media: true })
  const plain = Buffer.from(Int32Array.from([0x67677371, 2, 3, 5, 6, 7, 1, 3, 1, 2, 3]).buffer)
  t.match(await readLayout(write('d', plain)), { streams: 1, media: false }, 'earlier versions had a plain list')

  const whole = readFileSync(third)
  const strange: [string, Buffer][] = [
    ['empty', Buffer.alloc(0)],
    ['another version', Buffer.from(whole).fill(9, 4, 5)],
    ['another mark', Buffer.from(whole).fill(9, 0, 1)],
    ['truncated within the tokens', whole.subarray(0, 100)],
    ['truncated within the counts', whole.subarray(0, layout.streamsAt + 8)],
    ['cells after the last stream', Buffer.concat([whole, Buffer.from([1, 2, 3, 4])])],
    ['no cells', stateFile({ tokens, streams: 2, stream: 5 })],
    ['more tokens than any context', Buffer.from(whole).fill(255, 8, 12)]
  ]
  for (const [name, bytes] of strange) t.equal(await readLayout(write('e', bytes)), undefined, name)

  const sum = await computeChecksum(third, NEVER)
  t.same(sum, { size: whole.length, crc32: crc32(whole) })
  await t.rejects(computeChecksum(third, AbortSignal.abort(new Error('too slow'))), { message: 'too slow' })

  const of = async (tokens: number[]) => (await readLayout(write('f', stateFile({ tokens, streams: 1, stream: 0 }))))!
  t.ok(continues(await of([...tokens, 500, 501]), layout))
  t.ok(continues(await of([...tokens.slice(0, 95), 500, 501]), layout), 'its end may be rendered differently')
  t.notOk(continues(await of([...tokens.slice(0, 50), 500, 501]), layout), 'another one with the same beginning')
  t.notOk(continues(await of(tokens.slice(0, 50)), layout), 'an earlier state')
})

t.test('deletes the least recently used files first', async t => {
  const entries = [
    { slot: { file: 'a', bytes: 10, usedAt: 3 } as SavedSlot },
    { slot: { file: 'b', bytes: 10, usedAt: 1 } as SavedSlot },
    { slot: { file: 'c', bytes: 10, usedAt: 2 } as SavedSlot }
  ]
  const leaving = (bytes: number, expendable?: string) =>
    leastUsed(entries, bytes, expendable).map(entry => entry.slot.file)
  t.same(leaving(0), [])
  t.same(leaving(-5), [])
  t.same(leaving(1), ['b'])
  t.same(leaving(11), ['b', 'c'])
  t.same(leaving(11, 'a'), ['a', 'b'])
  t.same(leaving(1000), ['b', 'c', 'a'])
})

t.test('keeps files within the budget', async t => {
  const dir = join(t.testdir(), 'prompts')
  const warnings: string[] = []
  const log = { debug: () => {}, warn: (_: object, message: string) => warnings.push(message) }
  const open = (budget: number) => openCacheStore(dir, budget, log)
  let store = await open(1000)
  t.notOk(existsSync(dir), 'nothing is created before it is needed')

  let clock = 0
  const put = async (variant: string, bytes: number): Promise<SavedSlot> => {
    await store.open(variant)
    const file = newFileName()
    writeFileSync(store.path(variant, file), Buffer.alloc(bytes))
    const common = { key: 'k', revision: '1', owner: 'keyless', slots: 1, tokens: 100, crc32: 0 }
    const slot: SavedSlot = { ...common, file, bytes, usedAt: ++clock }
    await store.replace(variant, [slot], [])
    return slot
  }
  const a = await put('x/a:f16', 300)
  const b = await put('x/b:f16', 300)
  const c = await put('x/a:f16', 300)
  const folder = await store.open('x/a:f16')
  for (const path of [dir, folder]) t.equal(statSync(path).mode & 0o777, 0o700)
  t.equal(statSync(join(folder, 'manifest.json')).mode & 0o777, 0o600)
  t.same(store.slots('x/a:f16'), [c, a], 'the latest first')
  const there = (variant: string, slot: SavedSlot) => existsSync(store.path(variant, slot.file))

  t.equal(await store.reserve(1001), undefined, 'more than the budget')
  t.ok(there('x/a:f16', a), 'nothing was deleted for it')
  const release = (await store.reserve(150))!
  t.notOk(there('x/a:f16', a), 'the least recently used one made room')
  t.ok(there('x/b:f16', b))
  t.equal(await store.reserve(900), undefined, 'reservations are included')
  release()
  const second = (await store.reserve(500, c.file))!
  t.notOk(there('x/a:f16', c), 'the expendable one went first')
  t.ok(there('x/b:f16', b))
  second()
  t.equal(await store.reserve(2 ** 60), undefined)

  await put('x/c:f16', 900)
  t.notOk(there('x/b:f16', b), 'a file larger than expected evicts others')
  await put('x/d:f16', 2000)
  t.same(store.slots('x/d:f16'), [], 'one larger than the budget is removed itself')

  const d = await put('x/a:f16', 400)
  const e = await put('x/b:f16', 100)
  const path = await store.open('x/a:f16')
  const other = await store.open('x/b:f16')
  writeFileSync(join(path, newFileName()), 'an interrupted save')
  writeFileSync(join(path, 'manifest.json.123'), 'an interrupted list')
  mkdirSync(join(dir, 'f'.repeat(32)))
  writeFileSync(join(dir, 'f'.repeat(32), newFileName()), 'a folder without a list')
  store = await open(1000)
  t.same(store.slots('x/a:f16'), [d], 'everything is found again')
  t.same(readdirSync(path).sort(), [d.file, 'manifest.json'].sort(), 'unlisted files are removed')
  t.same(readdirSync(dir).sort(), [path, other].map(each => each.slice(-32)).sort())

  writeFileSync(store.path('x/a:f16', d.file), 'shorter')
  for (const text of ['{"version":1', '{"version":2,"variant":"x/b:f16","slots":[]}']) {
    writeFileSync(join(other, 'manifest.json'), text)
    store = await open(1000)
    t.same(readdirSync(dir), [], 'a shortened file and a damaged list are gone')
    t.equal(warnings.length, 1)
    warnings.length = 0
    await put('x/b:f16', 100)
  }
  t.notOk(there('x/b:f16', e))

  await put('x/a:f16', 100)
  await store.forget('x/a:f16')
  t.notOk(existsSync(path))
  t.same(store.slots('x/a:f16'), [])
  for (let i = 0; i < 40; i++) await put('x/a:f16', 1)
  t.equal(store.slots('x/a:f16').length, 32, 'limited number per variant')
  t.equal(readdirSync(await store.open('x/a:f16')).length, 33)
  store = await open(20)
  t.equal(store.slots('x/a:f16').length, 20, 'a smaller budget takes effect immediately')
  await open(0)
  t.notOk(existsSync(dir), 'without a budget nothing stays')
})
