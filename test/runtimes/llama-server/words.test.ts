import { statSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import type { EngineSettings } from '../../../core/config/model-settings.ts'
import type { EngineMode } from '../../../core/contracts/engines.ts'
import type { LoadOptions } from '../../../core/models/load-options.ts'
import { LogTail } from '../../../core/system/log-tail.ts'
import { engineArguments } from '../../../runtimes/llama-server/arguments.ts'
import { engineEnvironment } from '../../../runtimes/llama-server/engine-process.ts'
import { allocateAddress, isUsableSocketPath, makePrivateFolder } from '../../../runtimes/llama-server/launch.ts'
import { factsFromProps, parseLine } from '../../../runtimes/llama-server/loading.ts'
import { flagsInHelp } from '../../../runtimes/llama-server/server-facts.ts'
import { engineSpec, PLAIN_SETTINGS } from './support.ts'

const LISTEN = { socketPath: '/tmp/corral-x/engine.sock' }
const settings = { listen: LISTEN }

/** `--flag value` pairs and lone flags of a command line, given as a list or a text. */
function flags(line: string[] | string): Record<string, string | true> {
  const list = typeof line === 'string' ? line.split(/\s+/) : line
  const found: Record<string, string | true> = {}
  list.forEach((word, at) => {
    if (!word.startsWith('-')) return
    const next = list[at + 1]
    found[word] = next === undefined || next.startsWith('-') ? true : next
  })
  return found
}

t.test('the provider builds the command line', t => {
  const chat = flags(engineArguments(engineSpec(), settings))
  const expected = `--model ${engineSpec().modelPath} --host ${LISTEN.socketPath} --alias corral/tiny-chat
--ctx-size 8192 --parallel 2 --cache-type-k f16 --cache-type-v f16 --jinja --metrics --cache-ram 0
--no-cache-idle-slots --no-ui --offline --sse-ping-interval 10 --log-jsonl --threads-http 12`
  t.strictSame(chat, flags(expected))

  const options: LoadOptions = {
    ...engineSpec().options,
    num_ctx: 1000,
    num_parallel: 3,
    cache_type_k: 'q8_0',
    cache_type_v: 'q4_0'
  }
  const projected = engineSpec({ projectorPath: '/m/mmproj.gguf', options: { ...options, n_gpu_layers: 0 } })
  const given = flags(engineArguments(projected, { ...settings, listen: { host: '127.0.0.1', port: 4711 } }))
  const wanted = `--mmproj /m/mmproj.gguf --host 127.0.0.1 --port 4711 --ctx-size 3000 --parallel 3
--cache-type-k q8_0 --cache-type-v q4_0 --n-gpu-layers 0`
  t.match(given, flags(wanted))

  const embedding = flags(engineArguments(engineSpec({ mode: 'embedding', options }), settings))
  // Batches are a multiple of the three slots.
  const pooled = `--embeddings --pooling mean --batch-size 1026 --ubatch-size 1026 --kv-unified
--kv-unified-per-slot 1000 --cache-ram 0`
  t.match(embedding, flags(pooled))
  t.notOk(embedding['--jinja'])
  const rerank = flags(engineArguments(engineSpec({ mode: 'rerank', options: { ...options, num_ctx: 100 } }), settings))
  t.match(rerank, { '--rerank': true, '--ubatch-size': '513' })
  t.notOk(rerank['--pooling'])

  for (const [type, name] of [
    [0, 'mean'],
    [1, 'mean'],
    [2, 'cls'],
    [3, 'last']
  ]) {
    const spec = engineSpec({ mode: 'embedding' })
    spec.variant.metadata = { capabilities: [], architecture: 'bert', info: { 'bert.pooling_type': type! } }
    t.equal(flags(engineArguments(spec, settings))['--pooling'], name, `pooling_type ${type}`)
  }

  const old = flags(
    engineArguments(engineSpec(), { ...settings, knownFlags: new Set(['--no-webui']), extra: ['-fa', 'off'] })
  )
  t.equal(old['--no-webui'], true)
  t.equal(old['-fa'], 'off')
  for (const flag of ['--no-ui', '--log-jsonl', '--sse-ping-interval', '--cache-ram', '--offline', '--jinja']) {
    t.notOk(flag in old, `${flag} is left out if the build does not know it`)
  }
  t.end()
})

t.test("appends flags from a model's settings", t => {
  const of = (given: Partial<EngineSettings>, mode: EngineMode = 'chat') => {
    const plain = engineArguments(engineSpec({ mode }), settings)
    const list = engineArguments(engineSpec({ mode, settings: { ...PLAIN_SETTINGS, ...given } }), settings)
    // The cache of other prompts stays off at the end.
    return list.slice(plain.length - 3, -3)
  }
  const draft = { model: 'a/b', modelPath: '/m/draft.gguf' }
  for (const [name, kind] of [
    ['mtp-x-Q8_0.gguf', 'draft-mtp'],
    ['x-EAGLE3-Q8_0.gguf', 'draft-eagle3'],
    ['x-dflash.gguf', 'draft-dflash']
  ] as const) {
    const expected = ['--model-draft', `/eagle3/${name}`, '--spec-type', kind]
    t.same(of({ speculation: { companion: `/eagle3/${name}` } }), expected)
  }
  const limited = { ...draft, max_tokens: 8, min_tokens: 2, min_probability: 0.5, n_gpu_layers: 0 }
  const loras = [
    { path: '/l/a,b.gguf', scale: 1 },
    { path: '/l/c.gguf', scale: 0.5 },
    { path: '/l/d"e.gguf', scale: 1 }
  ]
  const table: [given: Partial<EngineSettings>, flags: string][] = [
    [{}, ''],
    [{ arguments: ['--no-warmup', '-fa', 'off'] }, '--no-warmup -fa off'],
    [{ speculation: { ngram: true } }, '--spec-type ngram-map-k --spec-draft-n-max 64'],
    [{ speculation: { ngram: false, draft: { model: 'a/b' } } }, ''],
    [{ speculation: { ngram: false, draft } }, '--model-draft /m/draft.gguf'],
    [
      { speculation: { ngram: true, draft: limited } },
      '--model-draft /m/draft.gguf --spec-draft-n-min 2 --spec-draft-p-min 0.5 --n-gpu-layers-draft 0 --spec-type draft-simple,ngram-map-k --spec-draft-n-max 8'
    ],
    [{ speculation: { ngram: false, draft: { ...draft, n_gpu_layers: -1 } } }, '--model-draft /m/draft.gguf'],
    [{ loras: [{ path: '/l/a.gguf', scale: 1 }] }, '--lora /l/a.gguf'],
    [{ loras }, '--lora "/l/a,b.gguf","/l/d""e.gguf" --lora-scaled /l/c.gguf:0.5']
  ]
  for (const [given, flags] of table) t.equal(of(given).join(' '), flags, JSON.stringify(given))
  t.same(of({ speculation: { ngram: true } }, 'embedding'), [], 'nothing is generated there')
  const onC = { loras: [{ path: 'C:\\m\\a.gguf', scale: 2 }] }
  const started = (folder: string) =>
    flags(engineArguments(engineSpec({ settings: { ...PLAIN_SETTINGS, ...onC } }), { ...settings, folder }))
  t.equal(started('C:\\bin')['--lora-scaled'], '..\\m\\a.gguf:2')
  const zoe = (path: string) => `C:\\Users\\Zoë\\.corral\\${path}`
  const cached = engineArguments(engineSpec({ slotFolder: zoe('cache') }), { ...settings, folder: zoe('runtimes\\b1') })
  t.equal(flags(cached)['--slot-save-path'], '..\\..\\cache/')
  t.throws(() => started('D:\\bin'), { code: 'load_failed', message: /colon/ })
  t.equal(flags(engineArguments(engineSpec({ slotFolder: '/s' }), settings))['--slot-save-path'], '/s/')
  t.end()
})

t.test('the provider reads the flags from a help text', t => {
  const help = '-c,    --ctx-size N   size (see --n-predict)\n--ui, --webui, --no-ui   x\n  a--b ---c\n'
  t.same([...flagsInHelp(help.split('\n'))], ['--ctx-size', '--n-predict', '--ui', '--webui', '--no-ui', '-c'])
  t.end()
})

t.test('the provider cleans the environment', t => {
  const kept = {
    PATH: '/bin',
    Path: 'C:\\bin',
    HOME: '/home/x',
    CUDA_VISIBLE_DEVICES: '1',
    HIP_VISIBLE_DEVICES: '0',
    GGML_VK_VISIBLE_DEVICES: '0',
    LD_LIBRARY_PATH: '/opt/lib'
  }
  const dropped = ['LLAMA_ARG_CTX_SIZE', 'LLAMA_CACHE', 'LLAMA_SERVER_CHILD_MODE', 'HF_TOKEN', 'OPENAI_API_KEY']
  const stray = Object.fromEntries(
    [...dropped, 'NODE_OPTIONS', 'LLAMA_API_KEY', 'XDG_CONFIG_HOME'].map(name => [name, 'x'])
  )
  t.strictSame(engineEnvironment({ ...kept, ...stray }, { configHome: '/private', apiKey: 'k' }), {
    ...kept,
    XDG_CONFIG_HOME: '/private',
    APPDATA: '/private',
    PROGRAMDATA: '/private',
    LLAMA_API_KEY: 'k',
    LLAMA_SERVER_ROUTER_PORT: '1'
  })
  t.end()
})

t.test('the provider allocates addresses', async t => {
  t.ok(isUsableSocketPath('/tmp/corral-abc/engine.sock'))
  t.notOk(isUsableSocketPath('/tmp/a,b/engine.sock'))
  t.notOk(isUsableSocketPath(`/${'ü'.repeat(50)}`), 'bytes matter, not letters')
  t.ok(isUsableSocketPath(`/${'u'.repeat(99)}`))

  const unix = await allocateAddress()
  t.teardown(() => rm(unix.folder, { recursive: true }))
  t.same(unix.listen, { socketPath: join(unix.folder, 'engine.sock') })
  await makePrivateFolder(unix)
  t.equal(statSync(unix.folder).mode & 0o777, 0o700)
  t.match(unix.key, /^[\w-]{32}$/)

  const deep = t.testdir({ ['d'.repeat(100)]: {}, 'a,b': {} })
  const cases: [string, NodeJS.Platform][] = [
    [join(deep, 'd'.repeat(100)), 'linux'],
    [join(deep, 'a,b'), 'linux'],
    [deep, 'win32']
  ]
  for (const [root, platform] of cases) {
    const tcp = await allocateAddress(root, platform)
    t.match(tcp.listen, { host: '127.0.0.1', port: Number })
    t.not(tcp.key, unix.key)
  }
  await t.rejects(
    makePrivateFolder(unix),
    { code: 'load_failed', message: /EEXIST.*TMPDIR/s },
    'an existing folder may belong to another user'
  )
})

t.test('the provider parses output lines', t => {
  const state = (json: string) => parseLine(`cmd_child_to_router:state:${json}`)
  const loading = (stages: string[], current: string, value: number) =>
    state(JSON.stringify({ state: 'loading', payload: { stages, current, value } }))

  t.same(loading(['text_model'], 'text_model', 0.42), [{ type: 'loading', fraction: 0.42 }])
  t.same(loading(['text_model'], 'text_model', 7), [{ type: 'loading', fraction: 1 }])
  const both = ['text_model', 'spec_model', 'mmproj_model']
  t.same(loading(both, 'text_model', 0.5), [{ type: 'loading', fraction: 0.4 }])
  t.same(loading(both, 'spec_model', 0.5), [{ type: 'loading', fraction: 0.85 }])
  t.same(loading(both, 'mmproj_model', 1), [{ type: 'loading', fraction: 1 }])
  t.same(loading(both, 'other', 1), [{ type: 'loading', fraction: undefined }])
  t.same(state('{"state":"loading","payload":{"stage":"mmproj_model"}}'), [{ type: 'loading', fraction: undefined }])
  t.same(state('{"state":"ready","payload":{"meta":{}}}'), [{ type: 'ready' }])
  t.same(state('{"state":"sleeping","payload":null}'), [{ type: 'state' }])
  t.match(state('{"state":'), [{ type: 'text' }], 'a broken message is text')

  const rows = [
    { kind: 'device', name: 'CUDA0', total: 100, free: 50, self: 30, model: 20, context: 5, compute: 5 },
    { kind: 'buffer_type', name: 'CPU_REPACK', self: 2, model: 2, context: 0, compute: 0 },
    { kind: 'host', name: 'Host', self: 10, model: 5, context: 5, compute: 0 }
  ]
  const memory = (data: unknown) => parseLine(JSON.stringify({ type: 'fit_memory_breakdown', data }))
  t.same(memory({ unit: 'MiB', rows }), [{ type: 'memory', use: { CUDA0: 30 * 2 ** 20, host: 12 * 2 ** 20 } }])
  t.match(memory({ unit: 'GiB', rows }), [{ type: 'text' }], 'other units are not guessed')

  t.same(parseLine('{"type":"log","time":5,"level":"error","msg":"a\\nb\\n\\n"}'), [
    { type: 'text', text: 'a', level: 'error' },
    { type: 'text', text: 'b', level: 'error', continued: true }
  ])
  t.same(parseLine('{"not":"ours"}'), [{ type: 'text', text: '{"not":"ours"}', level: undefined }])
  t.same(parseLine('0.00.935.128 I srv  llama_server: x'), [
    { type: 'text', text: 'srv  llama_server: x', level: 'info' }
  ])
  t.match(parseLine('[44039] 0.00.910.211 E clip'), [{ text: 'clip', level: 'error' }])
  t.match(parseLine('Warm regards'), [{ level: undefined }])
  t.same(parseLine('  '), [])
  t.end()
})

t.test('the provider stores the last lines', t => {
  const tail = new LogTail()
  for (let n = 1; n <= 550; n++) tail.push(`line ${n}`)
  t.equal(tail.all().length, 500)
  t.equal(tail.dropped, 50)
  t.equal(tail.all()[0], 'line 51')
  tail.mark()
  t.same(tail.sinceMark(), [])
  tail.push('x'.repeat(5000))
  t.equal(tail.sinceMark()[0]?.length, 2001)
  for (let n = 0; n < 600; n++) tail.push('y')
  t.equal(tail.sinceMark().length, 500)
  t.end()
})

t.test('the provider reads the facts in /props', t => {
  t.same(factsFromProps({ total_slots: 2, default_generation_settings: { n_ctx: 512 } }), {
    contextSize: 512,
    slots: 2
  })
  for (const odd of [
    undefined,
    null,
    'x',
    {},
    { total_slots: 2 },
    { total_slots: '2', default_generation_settings: {} }
  ]) {
    t.equal(factsFromProps(odd), undefined)
  }
  t.end()
})
