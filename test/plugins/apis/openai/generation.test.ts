import t from 'tap'
import { engineMessages, type Fields } from '../../../../plugins/apis/openai/generation.ts'
import { readCases } from '../../../support/cases.ts'
import { trialCount } from '../../../support/trial-count.ts'
import { able, base, chat, complete, defaults, messages, modelRequest } from './bodies.ts'
import { randomMessages } from './random-items.ts'

const CASES = readCases('openai-generation')

t.test('converts chats for the engine', async t => {
  const sent = (body: Fields) => chat({ ...base, ...body }).body
  // The engine always streams. A complete answer is assembled from its stream.
  const plain = { ...defaults, ...base, stream: true, stream_options: { include_usage: true } }
  const table: [string, Fields, Fields][] = CASES.chats
  for (const [what, given, wanted] of table) t.strictSame(sent(given), wanted, what)
  t.strictSame(chat({ name: 'a/b', messages }).body, { ...plain, model: 'a/b' }, 'name is an alias of model')
  const made = { ...able('completion'), defaults: { system: 'Be brief.' } }
  t.match(chat(base, made).body.messages, [{ role: 'system', content: 'Be brief.' }, { role: 'user' }])

  const stream = chat({ ...base, stream: true })
  t.strictSame(stream.body, { ...defaults, ...base, stream: true })
  t.ok(stream.passesBytes)
  t.ok(chat({ ...base, stream: true, stream_options: { include_usage: true } }).passesBytes)
  t.notOk(chat({ ...base, stream: true, n: 2 }).passesBytes)
  t.notOk(chat({ ...base, stream: true, logprobs: true }).passesBytes)
})

t.test('offers freeform tools as functions and names the tools that are left out', async t => {
  const named = (name: string) => ({ type: 'function', function: { name } })
  const custom = {
    type: 'custom',
    custom: { name: 'patch', format: { type: 'grammar', grammar: { syntax: 'lark', definition: 'start: "x"' } } }
  }
  const tools = [named('look'), custom, { type: 'web_search' }]
  const asked = (fields: Fields) => {
    const { body, ignoredTools, passesBytes } = chat({ ...base, tools, stream: true, ...fields })
    const names = ((body.tools ?? []) as { function: { name: string } }[]).map(tool => tool.function.name)
    return { names, choice: body.tool_choice, ignoredTools, passesBytes }
  }
  const given = { ignoredTools: ['web_search'], passesBytes: false }
  const both = ['look', 'patch']
  t.strictSame(asked({}), { names: both, choice: undefined, ...given })
  const allowed = (mode: string, ...tools: object[]) => ({
    tool_choice: { type: 'allowed_tools', allowed_tools: { mode, tools } }
  })
  for (const [fields, names, choice] of [
    [{ tool_choice: { type: 'custom', custom: { name: 'patch' } } }, ['patch'], 'required'],
    [{ tool_choice: { type: 'web_search' } }, both, undefined],
    [{ tool_choice: 'required' }, both, 'required'],
    [allowed('required', custom, { type: 'web_search' }), ['patch'], 'required'],
    [allowed('auto', { type: 'web_search' }), [], undefined]
  ] as const) {
    t.strictSame(asked(fields), { names, choice, ...given }, JSON.stringify(fields))
  }
  t.strictSame(asked({ tools: [named('patch'), custom] }).names, ['patch', 'patch_'])
  t.strictSame(asked({ tools: undefined, web_search_options: {} }), {
    names: [],
    choice: undefined,
    ignoredTools: ['web_search'],
    passesBytes: true
  })
  t.match(chat({ ...base, tools: [custom] }).body.tools, [
    { function: { description: /lark.*\nstart: "x"/, parameters: { required: ['input'] } } }
  ])
})

t.test("converts every history that the SDK's types allow", async t => {
  for (let seed = 1; seed <= trialCount(2000); seed++) {
    const messages = randomMessages(t, seed)
    try {
      chat({ ...base, messages: [...messages, { role: 'user', content: 'Hi' }] })
    } catch (error) {
      t.fail(`seed ${seed}: ${(error as Error).message} in ${JSON.stringify(messages)}`)
    }
  }
  t.pass('no history was refused')
})

t.test('parses the fields that all APIs share', async t => {
  const request = modelRequest({
    model: 'A/B:Q8_0',
    messages,
    stream: true,
    keep_alive: '1m',
    num_ctx: 9,
    context_overflow: 'drop_oldest',
    options: { num_ctx: 8, num_parallel: 2 }
  })
  t.match(request, {
    requested: 'A/B:Q8_0',
    lease: {
      model: { owner: 'A', name: 'B', variant: 'Q8_0' },
      options: { num_ctx: 9, num_parallel: 2 },
      keepAlive: 60_000
    },
    overflow: 'drop_oldest'
  })
  t.equal(modelRequest({ model: 'a/b' }).overflow, 'error')
  t.equal(modelRequest({ model: 'a/b', keep_alive: -1 }).lease.keepAlive, -1000)
  t.equal(modelRequest({ model: 'a/b', keep_alive: null }).lease.keepAlive, undefined)
})

t.test('converts messages for the engine', async t => {
  const table: [string, any, any][] = CASES.messages
  for (const [what, given, wanted] of table) t.strictSame(engineMessages([given]), [wanted ?? given], what)

  const [thought] = engineMessages([{ role: 'assistant', content: 'a', reasoning: 'hm' }])
  t.strictSame(thought, { role: 'assistant', content: 'a', reasoning_content: 'hm' })

  const older = engineMessages([
    { role: 'user', content: 'x' },
    { role: 'assistant', content: null, function_call: { name: 'f', arguments: '{}' } },
    { role: 'function', name: 'f', content: '5' },
    { role: 'assistant', content: null, function_call: { name: 'g', arguments: '{}' } },
    { role: 'function', name: 'g', content: '6' }
  ])
  t.match(older.slice(1), [
    { tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'f' } }] },
    { role: 'tool', tool_call_id: 'call_1', name: 'f', content: '5' },
    { tool_calls: [{ id: 'call_2', function: { name: 'g' } }] },
    { role: 'tool', tool_call_id: 'call_2' }
  ])
})

t.test('converts completions for the engine', async t => {
  const sent = (body: Fields, variant = able('completion')) => {
    const { body: given, head, passesBytes } = complete(body, variant)
    const { temperature, top_p, top_k, seed, max_tokens, stream, stream_options, model, ...fields } = given
    return { fields, head, passesBytes, max_tokens }
  }
  t.match(sent({}), { fields: { prompt: 'x' } })
  t.strictSame(sent({ prompt: [1, 2] }).fields, { prompt: [1, 2] })
  t.strictSame(sent({ prompt: null }).fields, { prompt: '' })
  t.strictSame(sent({ prompt: ['x'] }).fields, { prompt: 'x' }, 'a list with one prompt becomes the prompt')
  t.match(sent({ prompt: ['x', [1]], n: 3 }), { fields: { prompt: ['x', [1]], n: 3 }, head: { choices: 3 } })
  t.match(sent({ logprobs: 0 }), { fields: { logprobs: true, top_logprobs: 0 }, head: { logprobs: 0 } })
  t.match(sent({ logprobs: 3, post_sampling_probs: true }), {
    fields: { logprobs: true, top_logprobs: 3 },
    head: { logprobs: 3 }
  })
  t.match(sent({ logprobs: true }), { fields: { top_logprobs: 1 }, head: { logprobs: 1 } })
  t.strictSame(sent({ logprobs: false }).fields, { prompt: 'x' })
  t.match(sent({ n: 2, best_of: 4 }), { fields: { n: 4, top_logprobs: 0 }, head: { choices: 4, bestOf: 2 } })
  t.match(sent({ best_of: 1 }), { fields: { prompt: 'x' }, head: { bestOf: undefined } })
  t.match(sent({ echo: true, prompt: ['x', 'y'] }), { head: { echo: ['x', 'y'] }, passesBytes: false })
  t.match(sent({ max_tokens: 0 }), { head: { nothing: true }, passesBytes: false })
  t.match(sent({ suffix: 'z', max_tokens: 4 }, able('completion', 'insert')), {
    fields: { prompt: 'x', suffix: 'z' },
    max_tokens: 4,
    passesBytes: false
  })
  t.notOk('suffix' in sent({ suffix: '' }).fields)
  t.ok(complete({ stream: true }).passesBytes)
  t.notOk(
    complete({ stream: true, stream_options: { include_usage: true } }).passesBytes,
    'the usage chunk must be added'
  )
})
