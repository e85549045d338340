import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import type { Build } from '../../../core/contracts/builds.ts'
import type { LaunchSpec } from '../../../runtimes/llama-server/launch-spec.ts'
import {
  addSpeed,
  type Chosen,
  chooseMethod,
  createSpeculation,
  getRate,
  getSpeedKey,
  listMethods,
  type Method,
  type Speeds,
  withMethod
} from '../../../runtimes/llama-server/speculation.ts'
import { architectureKeys, writeRandomArchitecture } from '../../../scripts/random-models.ts'
import { longText, promptCacheIn, say, startWith, takeTurns } from './prompt-cache/support.ts'
import { buildOf, engineSpec } from './support.ts'

/* Real engines, with Qwen 3.5's architecture and random weights. Their heads never guess right. */

const TWO = [1, 2].map(seed => longText(200, seed))
/** The last answer and question, and the end of the template. */
const MAX_NEW = 60

async function specWithHeads(directory: string, method: Method) {
  const modelPath = join(directory, 'model.gguf')
  await writeRandomArchitecture(modelPath, 'qwen35')
  const info = Object.fromEntries(
    Object.entries(architectureKeys('qwen35')).filter(([, value]) => typeof value === 'number')
  ) as Record<string, number>
  const metadata = { architecture: 'qwen35', capabilities: ['completion' as const], info }
  const { variant } = engineSpec()
  const companion = join(directory, 'mtp-model.gguf')
  if (method === 'draft') await writeRandomArchitecture(companion, 'qwen35', 'heads')
  const speculation = {
    ngram: method === 'ngram',
    ...(method === 'mtp' && { mtp: true }),
    ...(method === 'draft' && { companion })
  }
  return {
    modelPath,
    variant: { ...variant, key: 'random/qwen35', metadata },
    settings: { arguments: [], environment: {}, speculation, loras: [] }
  }
}

t.test('answers are the same with every method, also after their states were restored', async t => {
  const options = { num_parallel: 2, num_ctx: 2048 }
  const alone = await startWith(t, undefined, options, await specWithHeads(t.testdir(), 'none'))
  const expected = await takeTurns(alone, TWO, 2)
  for (const method of ['mtp', 'draft', 'ngram'] as const) {
    const { cache, said: log } = promptCacheIn(join(t.testdirName, `states ${method}`))
    const spec = await specWithHeads(t.testdirName, method)
    const engine = await startWith(t, cache, { ...options, num_parallel: 1 }, spec)
    for (const [at, turns] of (await takeTurns(engine, TWO, 2)).entries()) {
      const messages = turns.map(({ message }) => message)
      t.same(
        messages,
        expected[at]!.map(({ message }) => message),
        method
      )
      const { prompt, cached } = turns[1]!
      t.ok(prompt - cached < MAX_NEW, `${method}: ${prompt - cached} of ${prompt} tokens were processed`)
    }
    t.notMatch(log.join('\n'), /not saved|useless/)
    await engine.stop()
  }
})

t.test('an engine is measured while it answers, and replaced once it is idle', async t => {
  const directory = t.testdir()
  const log = { info() {}, warn() {} }
  const times = { measureEvery: 50, idleFor: 200 }
  const speculation = createSpeculation({ directory, isEnabled: () => true, log, times })
  const engine = await startWith(t, undefined, { num_parallel: 1 })
  const chosen: Chosen = { model: 'a', key: 'a', methods: ['none', 'ngram'], method: 'none' }
  let outdated = 0
  speculation.follow(engine, chosen, () => outdated++)
  let asked = 0
  while (!outdated) {
    const { tokensPerSecond } = speculation.describe(chosen)!
    // Twice as many tokens as it takes, because the last ones may not be measured.
    if (asked++ < 16) await say(engine, [{ role: 'user', content: `Count ${asked}.` }], 'keyless', COUNT)
    else await sleep(100)
    t.ok(outdated === 0 || (tokensPerSecond.none ?? 0) > 0)
  }
  const method = speculation.choose({ ...engine.spec, ...LARGE }, engine.build).method
  t.equal(method, 'none', 'another model is not measured')
  await speculation.close()
  const later = createSpeculation({ directory, isEnabled: () => true, log })
  await later.loaded
  t.ok(later.describe(chosen)!.tokensPerSecond.none, 'the speed is known after a restart')
  t.same(withMethod({ ...engine.spec, ...LARGE }, { ...chosen, settings: { ngram: true } }).settings!.speculation, {
    ngram: true
  })
})

/** An answer that does not end early. */
const COUNT = { max_tokens: 200, ignore_eos: true }
const LARGE = { settings: { arguments: [], environment: {}, speculation: {}, loras: [] } }

const MIB = 2 ** 20
const SETTINGS = { arguments: [] as string[], environment: {}, speculation: {}, loras: [] }

/** The spec of a model with this many megabytes and heads for the tokens after the next one. */
function specOf({ size = 500, heads = 0, ...given }: Partial<LaunchSpec> & { size?: number; heads?: number } = {}) {
  const { variant } = engineSpec()
  const info: Record<string, number> = heads > 0 ? { 'qwen35.nextn_predict_layers': heads } : {}
  const metadata = { architecture: 'qwen35', capabilities: ['completion' as const], info }
  return engineSpec({ settings: SETTINGS, variant: { ...variant, size: size * MIB, metadata }, ...given })
}

function withDraft(spec: LaunchSpec): LaunchSpec {
  const file = { path: 'mtp-x-Q8_0.gguf', size: MIB, sha256: '', role: 'draft' as const }
  return { ...spec, variant: { ...spec.variant, files: [...spec.variant.files, file] } }
}

t.test('methods that an engine offers', async t => {
  const cases: [string, ReturnType<typeof specOf>, Method[]][] = [
    ['any model', specOf(), ['none', 'ngram']],
    ['a model with MTP heads', specOf({ heads: 1 }), ['none', 'mtp', 'ngram']],
    ['a model that came with a draft model', withDraft(specOf()), ['none', 'draft', 'ngram']],
    ['a small model', specOf({ size: 5 }), ['none']],
    ['embeddings', specOf({ mode: 'embedding' }), ['none']],
    ['ngram is set', specOf({ settings: { ...SETTINGS, speculation: { ngram: false } } }), ['none']],
    ['a draft model is set', specOf({ settings: { ...SETTINGS, speculation: { draft: { model: 'a/b' } } } }), ['none']],
    ['flags decide', specOf({ settings: { ...SETTINGS, arguments: ['--spec-type', 'ngram-mod'] } }), ['none']],
    ['workers', specOf({ settings: { ...SETTINGS, rpc: { workers: ['a:1'], insecure: false } } }), ['none']]
  ]
  for (const [name, spec, expected] of cases) t.same(listMethods(spec), expected, name)
})

t.test('the method of the next engine', async t => {
  const all = ['none', 'mtp', 'ngram'] as const
  const at = (rate: number, tokens = 2000) => ({ tokens, milliseconds: (1000 * tokens) / rate })
  const cases: [string, readonly Method[], Speeds, Method][] = [
    ['nothing is measured', all, {}, 'none'],
    ['too little is measured', all, { none: at(10, 800) }, 'none'],
    ['the first method is not measured', all, { none: at(10) }, 'mtp'],
    ['the second method is not measured', all, { none: at(10), mtp: at(15) }, 'ngram'],
    ['one is faster', all, { none: at(10), mtp: at(15), ngram: at(9) }, 'mtp'],
    ['both are faster', all, { none: at(10), mtp: at(15), ngram: at(20) }, 'ngram'],
    ['none is much faster', all, { none: at(10), mtp: at(10.5), ngram: at(9) }, 'none'],
    ['the fastest failed', all, { none: at(10), mtp: { ...at(30), failed: true }, ngram: at(9) }, 'none'],
    ['one failed before it was measured', all, { none: at(10), mtp: { ...at(0, 0), failed: true } }, 'ngram'],
    ['there is no choice', ['none'], {}, 'none']
  ]
  for (const [name, methods, speeds, expected] of cases) t.equal(chooseMethod(methods, speeds), expected, name)
})

t.test('a speed follows later measurements', async t => {
  let speed = addSpeed(undefined, { tokens: 10_000, milliseconds: 1_000_000 })
  t.equal(getRate(speed), 10)
  for (let i = 0; i < 5; i++) speed = addSpeed(speed, { tokens: 20_000, milliseconds: 400_000 })
  t.ok(getRate(speed) > 45, `${getRate(speed)} tokens per second`)
  t.ok(speed.tokens <= 20_000)
  t.equal(getRate(undefined), 0)
})

t.test('speeds are compared for the same file, build and flags only', async t => {
  const build = buildOf('/x/llama-server')
  const key = getSpeedKey(specOf(), build)
  t.equal(getSpeedKey(specOf({ options: { ...specOf().options, num_ctx: 8192 } }), build), key)
  const others: [LaunchSpec, Build][] = [
    [specOf(), { ...build, version: 'newer' }],
    [specOf({ options: { ...specOf().options, n_gpu_layers: 5 } }), build],
    [specOf({ settings: { ...SETTINGS, arguments: ['--threads', '1'] } }), build],
    [specOf({ variant: { ...specOf().variant, revision: '2' } }), build]
  ]
  for (const [spec, other] of others) t.not(getSpeedKey(spec, other), key)
})
