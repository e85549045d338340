import t from 'tap'
import { ContextGrowth, type ContextLimits, growthSteps, guessStep } from '../../core/answers/grow-context.ts'
import { CorralError } from '../../core/errors.ts'
import { DEFAULT_LOAD_OPTIONS } from '../../core/models/load-options.ts'
import { readCases } from '../support/fixture.ts'

const LIMITS: ContextLimits = { usual: DEFAULT_LOAD_OPTIONS, given: {}, most: 131_072, answer: undefined }
const sizesOf = (steps: ReturnType<typeof growthSteps>) => [...new Set(steps.map(({ num_ctx }) => num_ctx))]
const full = (n_prompt_tokens: number, n_ctx: number) =>
  new CorralError('context_exceeded', 'full. Ask for a larger num_ctx.', { details: { n_prompt_tokens, n_ctx } })
const noMemory = new CorralError('insufficient_memory', 'no room')

t.test('growthSteps holds prompt and answer, within the limits', async t => {
  const table: [number, number, Partial<ContextLimits>, number[]][] = readCases('core-cases.yaml', 'growthSteps')
  for (const [tokens, size, more, expected] of table)
    t.same(sizesOf(growthSteps(tokens, size, { ...LIMITS, ...more })), expected, `${tokens} in ${size}`)
  t.same(growthSteps(5000, 4096, LIMITS), [
    { num_ctx: 8192 },
    { num_ctx: 8192, num_parallel: 1 },
    { num_ctx: 8192, num_parallel: 1, cache_type_k: 'q8_0', cache_type_v: 'q8_0' }
  ])
  t.same(
    growthSteps(5000, 4096, { ...LIMITS, given: { num_parallel: 4 } }),
    [{ num_ctx: 8192 }, { num_ctx: 8192, cache_type_k: 'q8_0', cache_type_v: 'q8_0' }],
    'slots that the request sets stay'
  )
  t.same(growthSteps(5000, 4096, { ...LIMITS, given: { num_parallel: 4, cache_type_k: 'f16' } }), [{ num_ctx: 8192 }])
  const plain = { ...LIMITS, usual: { ...DEFAULT_LOAD_OPTIONS, num_parallel: 1, cache_type_k: 'q4_0' as const } }
  t.same(growthSteps(5000, 4096, plain), [{ num_ctx: 8192 }], 'nothing smaller is left')
})

t.test('guessStep grows at once only for what certainly does not fit', async t => {
  const said = (content: unknown) => ({ messages: [{ role: 'user', content }] })
  t.same(guessStep(undefined, LIMITS), {})
  t.same(guessStep(said('x'.repeat(24_000)), LIMITS), {})
  t.same(guessStep(said('x'.repeat(60_000)), LIMITS), { num_ctx: 16384 })
  t.same(guessStep({ prompt: 'x'.repeat(60_000) }, LIMITS), { num_ctx: 16384 })
  const image = { type: 'image_url', image_url: { url: `data:image/png;base64,${'A'.repeat(1e6)}` } }
  const sound = { type: 'input_audio', input_audio: { data: 'A'.repeat(1e6), format: 'wav' } }
  t.same(guessStep(said([image, sound]), LIMITS), {}, 'images and sounds are no text')
})

t.test('ContextGrowth tries each step, then the usual options', async t => {
  const growth = new ContextGrowth(LIMITS, undefined)
  t.same(growth.options, {})
  t.ok(growth.canGrow(full(5000, 4096)))
  growth.next(full(5000, 4096))
  t.equal(growth.options.num_ctx, 8192)
  for (const slots of [1, 1]) {
    growth.next(noMemory)
    t.equal(growth.options.num_parallel, slots)
  }
  growth.next(noMemory)
  t.same(growth.options, {}, 'so that messages can be dropped')
  t.notOk(growth.canGrow(full(5000, 4096)))
  t.throws(() => growth.next(full(5000, 4096)), {
    code: 'context_exceeded',
    message: 'full. A larger context is not possible: no room',
    details: { n_ctx: 4096 }
  })

  const guessed = new ContextGrowth(LIMITS, { prompt: 'x'.repeat(60_000) })
  t.equal(guessed.options.num_ctx, 16384)
  guessed.next(noMemory)
  t.same(guessed.options, {}, 'a wrong guess costs nothing')
  t.throws(() => new ContextGrowth(LIMITS, undefined).next(noMemory), { code: 'insufficient_memory' })
  const other = new CorralError('engine_crashed', 'crashed')
  t.throws(() => growth.next(other), { code: 'context_exceeded' })
  t.throws(() => new ContextGrowth(LIMITS, undefined).next(other), { code: 'engine_crashed' })
})
