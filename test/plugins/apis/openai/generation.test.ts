import t from 'tap'
import { engineMessages, type Fields } from '../../../../plugins/apis/openai/generation.ts'
import { able, base, chat, complete, defaults, messages, modelRequest } from './bodies.ts'

const tool = (name: string) => ({ type: 'function', function: { name, parameters: { type: 'object' } } })

t.test('converts chats for the engine', async t => {
  const sent = (body: Fields) => chat({ ...base, ...body }).body
  // The engine always streams. A complete answer is assembled from its stream.
  const plain = { ...defaults, ...base, stream: true, stream_options: { include_usage: true } }
  const table: [string, Fields, Fields][] = [
    ['defaults', {}, plain],
    [
      'fields take precedence over options',
      { temperature: 0, options: { temperature: 1, top_k: 3 } },
      { ...plain, temperature: 0, top_k: 3 }
    ],
    [
      'null is ignored',
      { temperature: null, seed: null, stop: null, tools: null, tool_choice: null, options: { temperature: 1 } },
      { ...plain, temperature: 1 }
    ],
    ['aliases', { max_completion_tokens: 5 }, { ...plain, max_tokens: 5 }],
    [
      'the canonical name takes precedence over an alias',
      { max_completion_tokens: 5, max_tokens: 6 },
      { ...plain, max_tokens: 6 }
    ],
    [
      'aliases take precedence over options',
      { max_completion_tokens: 5, options: { num_predict: 7 } },
      { ...plain, max_tokens: 5 }
    ],
    ['aliases in options', { options: { num_predict: -2, n_predict: null } }, { ...plain, max_tokens: -1 }],
    [
      "load options and corral's own fields are removed",
      {
        num_ctx: 256,
        num_gpu: 3,
        keep_alive: '5m',
        name: 'x/y',
        n_cmpl: 7,
        options: { num_parallel: 2, cache_type_k: 'Q8_0', n_cmpl: 3 }
      },
      plain
    ],
    [
      "the engine's own fields pass through",
      { min_p: 0.1, reasoning_effort: 'low', options: { repeat_penalty: 1.2, min_p: 0.9 } },
      { ...plain, min_p: 0.1, reasoning_effort: 'low', repeat_penalty: 1.2 }
    ],
    ['options cannot set stream or model', { options: { stream: true, model: 'x/y' } }, plain],
    ['empty stop texts are removed', { stop: ['', 'x'] }, { ...plain, stop: ['x'] }],
    ['probabilities', { logprobs: true }, { ...plain, logprobs: true, top_logprobs: 0 }],
    [
      'more probabilities, always before sampling',
      { logprobs: true, top_logprobs: 4, post_sampling_probs: true },
      { ...plain, post_sampling_probs: true, logprobs: true, top_logprobs: 4 }
    ],
    ['no probabilities', { logprobs: false, top_logprobs: 0 }, plain],
    [
      'tools',
      { tools: [{ ...tool('f'), function: { name: 'f', description: null } }], tool_choice: 'required' },
      { ...plain, tools: [{ type: 'function', function: { name: 'f' } }], tool_choice: 'required' }
    ],
    ['tool choice none', { tools: [tool('f')], tool_choice: 'none' }, plain],
    [
      'a required tool',
      { tools: [tool('f'), tool('g')], tool_choice: { type: 'function', function: { name: 'g' } } },
      { ...plain, tools: [tool('g')], tool_choice: 'required' }
    ],
    [
      'allowed tools',
      {
        tools: [tool('f'), tool('g'), tool('h')],
        tool_choice: {
          type: 'allowed_tools',
          allowed_tools: { mode: 'auto', tools: [tool('h'), { type: 'function', function: { name: 'f' } }] }
        }
      },
      { ...plain, tools: [tool('f'), tool('h')], tool_choice: 'auto' }
    ],
    [
      'the older functions',
      { functions: [{ name: 'f' }], function_call: { name: 'f' } },
      {
        ...plain,
        tools: [{ type: 'function', function: { name: 'f' } }],
        tool_choice: 'required',
        parallel_tool_calls: false
      }
    ]
  ]
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
  const call = { id: 'c1', type: 'function', function: { name: 'f', arguments: '{}' } }
  const table: [string, any, any][] = [
    ['the default role is user', { content: 'x' }, { role: 'user', content: 'x' }],
    [
      'null is removed',
      { role: 'user', content: 'x', name: null, tool_calls: null, audio: null },
      { role: 'user', content: 'x' }
    ],
    [
      'calls',
      { role: 'assistant', content: null, tool_calls: [call] },
      { role: 'assistant', content: null, tool_calls: [call] }
    ],
    [
      'calls with an object as arguments and without an id',
      { role: 'assistant', tool_calls: [{ function: { name: 'f', arguments: { a: 1 } } }] },
      {
        role: 'assistant',
        content: null,
        tool_calls: [{ id: 'call_1', type: 'function', function: { name: 'f', arguments: '{"a":1}' } }]
      }
    ],
    ['a refusal becomes text', { role: 'assistant', refusal: 'No.' }, { role: 'assistant', content: 'No.' }],
    [
      'parts',
      { role: 'tool', tool_call_id: 'c1', content: [{ type: 'text', text: 'y' }] },
      { role: 'tool', tool_call_id: 'c1', content: [{ type: 'text', text: 'y' }] }
    ],
    [
      'a refusal in parts becomes text',
      { role: 'assistant', content: [{ type: 'refusal', refusal: 'No.' }] },
      { role: 'assistant', content: [{ type: 'text', text: 'No.' }] }
    ],
    [
      'an image URL without an object',
      { content: [{ type: 'image_url', image_url: 'data:x' }] },
      { role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:x' } }] }
    ],
    ['thoughts', { role: 'assistant', content: 'x', reasoning_content: 'h' }, undefined],
    ['null as content', { role: 'assistant', content: null }, undefined]
  ]
  for (const [what, given, wanted] of table) t.strictSame(engineMessages([given]), [wanted ?? given], what)

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
  t.match(sent({ prompt: ['x', [1]], n: 3 }), {
    fields: { prompt: ['x', [1]], n: 3 },
    head: { choices: 3 }
  })
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
