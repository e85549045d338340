import t from 'tap'
import type { EngineSpec } from '../../../core/contracts/engines.ts'
import type { Model } from '../../../core/contracts/models.ts'
import { DEFAULT_LOAD_OPTIONS } from '../../../core/models/load-options.ts'
import { listTunables, replaced, type TuningFacts } from '../../../runtimes/llama-server/tunables.ts'

const model = (name: string, size: number, vocabulary = 100) =>
  ({
    key: `${name}:f16`,
    publicName: name,
    size,
    format: 'gguf',
    metadata: {
      architecture: 'llama',
      capabilities: ['completion'],
      info: { 'tokenizer.ggml.model': 'gpt2', 'llama.vocab_size': vocabulary }
    }
  }) as unknown as Model

const MODEL = model('me/large', 1000)
const engine = { arguments: [], environment: {}, speculation: { ngram: false }, loras: [] }
const spec = (more: Partial<EngineSpec> = {}): EngineSpec => ({
  alias: 'me/large',
  mode: 'chat',
  variant: MODEL,
  options: DEFAULT_LOAD_OPTIONS,
  settings: engine,
  ...more
})
const FACTS: TuningFacts = { cores: 8, threads: 16, hasGpu: false, shared: [], flags: undefined, models: [MODEL] }
const offered = (given: EngineSpec, facts: Partial<TuningFacts> = {}) =>
  listTunables(given, {}, { ...FACTS, ...facts }).map(
    ({ name, values }) => `${name}: ${values.map(({ label }) => label)}`
  )

t.test('bench does not try current values', async t => {
  t.same(offered(spec()), [
    'threads: 4,7,16',
    'threads for prompts: 16',
    'flash attention: on,off',
    'batch: 1024,256,2048,128',
    'guessing ahead from the text: on',
    'KV cache: q8_0'
  ])
  const own = { ...engine, arguments: ['-t', '4', '-fa', 'on'], speculation: { ngram: true } }
  t.same(offered(spec({ settings: own }), { shared: ['--threads', '9', '-ub', '1024'], hasGpu: true }), [
    'layers on the GPU: all,none',
    'threads: 8,7,16',
    'threads for prompts: 16,8',
    'flash attention: off',
    'batch: 256,2048,128',
    'guessing ahead from the text: off',
    'KV cache: q8_0'
  ])
  t.same(offered(spec({ mode: 'embedding' })), [
    'threads: 4,7,16',
    'threads for prompts: 16',
    'flash attention: on,off'
  ])
  t.same(
    offered(spec(), { flags: new Set(['--threads']), cores: 2, threads: 2 }),
    ['threads: 1', 'guessing ahead from the text: on', 'KV cache: q8_0'],
    'does not try flags that a build does not know'
  )
})

t.test('settings of a value are complete: flags are replaced, not repeated', async t => {
  const given = { options: { num_ctx: 1024 } }
  const settings = { ...engine, arguments: ['--no-warmup', '-t', '4', '--mlock'] }
  const [threads] = listTunables(spec({ settings }), given, FACTS)
  t.same(threads!.values[0]!.settings, { ...given, arguments: ['--no-warmup', '--threads', '8', '--mlock'] })
  t.same(replaced(['-t', '1', '--threads', '2'], ['--threads', '-t'], '3'), ['--threads', '3'])
  const batch = listTunables(spec(), {}, FACTS).find(({ name }) => name === 'batch')!
  t.same(batch.values[0]!.settings.arguments, ['--ubatch-size', '1024', '--batch-size', '2048'])
  t.match(
    listTunables(spec(), {}, FACTS).filter(({ changes_answers }) => changes_answers !== undefined),
    [{ name: 'KV cache', values: [{ settings: { options: { cache_type_k: 'q8_0', cache_type_v: 'q8_0' } } }] }],
    'only settings that change answers say so'
  )
})

t.test('draft models are much smaller and have the same vocabulary', async t => {
  const models = [
    MODEL,
    model('me/half', 500),
    model('me/tiny', 10),
    model('me/small', 100),
    model('me/alien', 100, 99)
  ]
  const draft = listTunables(spec(), {}, { ...FACTS, models }).find(({ name }) => name.includes('draft'))
  t.same(draft?.values, [
    { label: 'me/small', settings: { draft: { model: 'me/small' } } },
    { label: 'me/tiny', settings: { draft: { model: 'me/tiny' } } }
  ])
  const settings = { ...engine, speculation: { ngram: false, draft: { model: 'me/tiny' } } }
  t.notMatch(offered(spec({ settings }), { models }).join(), /guessing/)
})
