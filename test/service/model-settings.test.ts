import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, startCorral } from '../support/corral.ts'
import { ggufBytes } from '../support/gguf-writer.ts'
import { thorough } from '../support/thorough.ts'

const QUESTION = { messages: [CAPITAL_QUESTION], stream: false, options: { temperature: 0 } }

/** Command line and environment of a process (Linux). */
const commandLine = (pid: number) => readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0')
const environment = (pid: number) => readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0')

const corral = await startCorral(t, {
  config: `models:
  ${DEMO}:
    aliases: [my/helper, other/name]
    arguments: [--no-warmup]
    environment: {GGML_MARK: "of this model"}
    draft: {model: ${DEMO}, max_tokens: 4}
    ngram: true
`
})

t.test('settings of a model in config.yaml reach its engine', async t => {
  const { status, body } = await corral.json('/api/chat', { ...QUESTION, model: 'My/Helper' })
  t.equal(status, 200)
  t.equal(body.message.content, CAPITAL_ANSWER)
  t.equal(body.model, 'My/Helper', 'the requested name')
  const hosted = await corral.json('/v1/chat/completions', { ...QUESTION, model: 'other/name' })
  t.equal(hosted.body.choices[0].message.content, CAPITAL_ANSWER)
  t.ok(hosted.body.timings.draft_n > 0, 'tokens were drafted')
  t.match((await corral.json(`/v1/models/other/name`)).body, { id: 'other/name', root: DEMO })

  const [pid, ...others] = corral.enginePids()
  t.same(others, [], 'one engine for all names')
  const words = commandLine(pid!)
  t.ok(words.includes('--no-warmup'))
  t.equal(words[words.indexOf('--spec-draft-n-max') + 1], '4')
  t.ok(environment(pid!).includes('GGML_MARK=of this model'))

  const asked = { ...QUESTION, model: DEMO, temperature: 0 }
  const story = corral.events('/v1/chat/completions', { ...asked, max_tokens: 200, ignore_eos: true, stream: true })
  const exact = { ...asked, logprobs: true, top_logprobs: 2 }
  const said = await Promise.all([1, 2].map(() => corral.json('/v1/chat/completions', exact)))
  for (const { status, body } of said) {
    t.equal(status, 200, 'log probabilities are answered after a load without guessing')
    t.equal(body.choices[0].message.content, CAPITAL_ANSWER)
    t.ok(body.choices[0].logprobs.content.length > 3)
    t.ok(body.choices[0].logprobs.content.every((token: any) => token.top_logprobs.length === 2))
    t.notOk(body.timings.draft_n)
  }
  t.match((await story).at(-2), { choices: [{ finish_reason: 'length' }] }, 'the answer in progress was finished')
  const [exactPid] = corral.enginePids()
  t.not(exactPid, pid)
  t.notOk(commandLine(exactPid!).some(word => /^(--spec-type|--model-draft)$/.test(word)))
  await corral.json('/v1/chat/completions', asked)
  t.same(corral.enginePids(), [exactPid], 'the engine stays for other requests')

  const remove = await corral.json('/api/delete', { model: 'my/helper' }, { method: 'DELETE' })
  t.match(remove, { status: 404, body: { code: 'model_not_found', error: /another name of "corral\/tiny-chat"/ } })
  t.equal((await corral.json('/api/show', { model: 'my/helper' })).status, 200)
})

t.test('a preview shows options with their origins, and the memory that they take', async t => {
  const settings = `models: {${DEMO}: {options: {num_ctx: 2048}, keep_alive: 90}}`
  await corral.reload(`defaults: {temperature: 0.2, context: fixed}\n${settings}\n`)
  const preview = async (options: object = {}, more: object = {}) =>
    (await corral.json('/api/models/preview', { model: DEMO, options, ...more })).body
  await corral.json('/api/stop', { model: DEMO })
  await corral.json('/api/chat', { ...QUESTION, model: DEMO })
  const pids = corral.enginePids()
  const now = await preview()
  t.match(now, {
    model: DEMO,
    grows: false,
    load: { num_ctx: 2048, num_parallel: 4 },
    fits: 'now',
    options: {
      num_ctx: [
        { value: 2048, from: 'settings' },
        { value: 4096, from: 'default' }
      ],
      temperature: [
        { value: 0.2, from: 'config' },
        { value: 0.7, from: 'default' }
      ],
      keep_alive: [
        { value: 90, from: 'settings' },
        { value: 300, from: 'default' }
      ],
      pin: [{ value: false, from: 'default' }]
    }
  })
  t.equal(now.size, now.memory.host)
  const sizes = []
  const steps = [
    { num_ctx: 512 },
    { cache_type_k: 'q8_0', cache_type_v: 'q8_0' },
    {},
    { num_ctx: 4096 },
    { num_ctx: 8192, num_parallel: 8 }
  ]
  for (const options of steps) sizes.push((await preview(options)).size)
  t.same(
    sizes,
    sizes.toSorted((a, b) => a - b),
    'more context and slots take more, a smaller cache less'
  )
  t.equal(new Set(sizes).size, 5)
  t.match(
    await preview({ num_ctx: 1e9 }),
    { load: { num_ctx: 32_768 }, limited: { num_ctx: 32_768 } },
    'no more than it was trained with'
  )
  for (const [options, more, error] of [
    [{ num_ctx: 0 }, {}, /^Option "num_ctx"/],
    [{ cache_type_k: 'q9' }, {}, /^Option "cache_type_k"/],
    [{}, { keep_alive: 'soon' }, /^"keep_alive"/]
  ] as const) {
    t.match(await preview(options, more), { code: 'invalid_option', error })
  }
  t.same(corral.enginePids(), pids, 'nothing was loaded')
})

t.test('a LoRA adapter is loaded with its scale', thorough, async t => {
  const folder = t.testdir()
  // Every weight is about 0.75, so that the model's answers change visibly when the adapter is active.
  const adapter = ggufBytes({
    metadata: {
      'general.architecture': 'llama',
      'general.type': 'adapter',
      'adapter.type': 'lora',
      'adapter.lora.alpha': 4.5
    },
    tensors: [
      { name: 'blk.0.attn_output.weight.lora_a', shape: [256, 4] },
      { name: 'blk.0.attn_output.weight.lora_b', shape: [4, 256] }
    ],
    seed: 0x3f
  })
  writeFileSync(join(folder, 'adapter.gguf'), adapter)
  const answerWith = async (lora: string) => {
    const corral = await startCorral(t, { config: `models: {${DEMO}: {lora: [${lora}]}}\n` })
    const { body } = await corral.json('/api/chat', { ...QUESTION, model: DEMO })
    await corral.end()
    return body.message?.content ?? body.error
  }
  const path = `path: ${JSON.stringify(join(folder, 'adapter.gguf'))}`
  t.equal(await answerWith(`{${path}, scale: 0.0000001}`), CAPITAL_ANSWER)
  const changed = await answerWith(`{${path}}`)
  t.not(changed, CAPITAL_ANSWER)
  t.notMatch(changed, /could not be loaded/)
})

t.test('settings that cannot work are reported', async t => {
  const cases: [settings: string, code: string, message: RegExp][] = [
    ['arguments: [--no-such-flag]', 'load_failed', /does not know the flag --no-such-flag/],
    ['draft: {model: not/here}', 'load_failed', /draft model "not\/here".* is not here\. Pull or import it/],
    ['lora: [{path: nowhere.gguf}]', 'load_failed', /adapter/]
  ]
  for (const [settings, code, message] of cases) {
    await corral.reload(`models:\n  ${DEMO}:\n    ${settings}\n`)
    const { body } = await corral.json('/api/chat', { ...QUESTION, model: DEMO })
    t.match(body, { code, error: message }, settings)
  }
})
