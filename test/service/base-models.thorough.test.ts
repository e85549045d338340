import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { corral as runCommand } from '../command-line/command.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, startCorral } from '../support/corral.ts'
import { demoWithoutTemplate } from '../support/demo-variants.ts'

/**
 * The prompt that the demo model's chat template makes of the question. Only a bare prompt that contains it is
 * answered.
 */
const CHATML = `<|im_start|>user\n${CAPITAL_QUESTION.content}<|im_end|>\n<|im_start|>assistant\n`
const file = join(t.testdir(), 'base.gguf')
writeFileSync(file, demoWithoutTemplate())
const corral = await startCorral(t, {
  config: "models:\n  me/templated:\n    arguments: ['--chat-template', chatml]"
})
for (const model of ['me/base', 'me/templated']) await corral.json('/api/import', { model, path: file, stream: false })
const options = { temperature: 0, max_tokens: 20 }
const generate = async (body: object, path = '/api/generate') =>
  (await corral.json(path, { model: 'me/base', stream: false, options, ...body })).body

t.test('generate completes the bare prompt of a base model, and chat uses ChatML', async t => {
  for (const path of ['/api/generate', '/ollama/api/generate']) {
    const { response } = await generate({ prompt: CHATML }, path)
    t.equal(response, CAPITAL_ANSWER)
    t.equal((await generate({ prompt: CHATML, raw: true }, path)).response, response, 'the same as raw')
    const bare = await generate({ prompt: CAPITAL_QUESTION.content }, path)
    t.equal(bare.response, (await generate({ prompt: CAPITAL_QUESTION.content, raw: true }, path)).response)
    t.not(bare.response, CAPITAL_ANSWER, 'no template was applied')
  }
  const events = await corral.events('/api/generate', { model: 'me/base', prompt: CHATML, options })
  t.equal(events.map(({ response = '' }) => response).join(''), CAPITAL_ANSWER)
  const chat = await corral.json('/api/chat', {
    model: 'me/base',
    messages: [CAPITAL_QUESTION],
    stream: false,
    options
  })
  t.equal(chat.body.message.content, CAPITAL_ANSWER)
  const templated = await generate({ model: 'me/templated', prompt: CAPITAL_QUESTION.content })
  t.equal(templated.response, CAPITAL_ANSWER, 'a model with a template in config.yaml is not a base model')
})

t.test('a system message and earlier context precede the prompt of a base model', async t => {
  const [system, prompt] = ['Be brief.', CHATML]
  const together = await generate({ prompt: `${system}\n\n${prompt}`, raw: true })
  const apart = await generate({ prompt, system })
  t.equal(apart.response, together.response)
  t.equal(apart.prompt_eval_count, together.prompt_eval_count)

  const first = await generate({ prompt: 'The capital' }, '/ollama/api/generate')
  const next = await generate({ prompt: CHATML, context: first.context }, '/ollama/api/generate')
  const whole = await generate({ prompt: `The capital${first.response}${CHATML}`, raw: true })
  t.equal(next.response, whole.response)
})

t.test('lists, show and run mark base models', async t => {
  for (const path of ['/api/tags', '/ollama/api/tags']) {
    const { models } = (await corral.json(path)).body
    t.same(
      models.filter((model: { capabilities: string[] }) => model.capabilities.includes('base')).length,
      2,
      'without the demo model'
    )
  }
  const command = (...args: string[]) => runCommand(args, { home: corral.home })
  t.match((await command('show', 'me/base')).stdout, /base model: completes text/)
  t.notMatch((await command('show', 'corral/tiny-chat')).stdout, /base model/)
  const { stdout } = await command('run', 'me/base', CHATML.slice(0, -1), '--temperature', '0')
  const { response } = await generate({ prompt: CHATML.slice(0, -1) })
  t.equal(stdout.trimEnd(), response.trimEnd())
})
