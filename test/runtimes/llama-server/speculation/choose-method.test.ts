import t from 'tap'
import type { Build } from '../../../../core/contracts/builds.ts'
import type { LaunchSpec } from '../../../../runtimes/llama-server/launch-spec.ts'
import {
  addSpeed,
  chooseMethod,
  getRate,
  getSpeedKey,
  listMethods,
  type Method,
  type Speeds
} from '../../../../runtimes/llama-server/speculation/choose-method.ts'
import { buildOf, engineSpec } from '../support.ts'

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
