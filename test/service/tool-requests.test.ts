import t from 'tap'
import { callArguments } from '../../core/answers/call-arguments.ts'
import { DEMO, startCorral } from '../support/corral.ts'

const corral = await startCorral(t)
const user = { role: 'user', content: 'hi' }
const parameters = { type: 'object', properties: { a: { type: 'string' } } }
const tool = { type: 'function', function: { name: 'save', parameters } }

/** A chat of each API: a question with tools, and a history with one call that has these arguments. */
const APIS: { path: string; short: object; tools: object; off?: object; history: (given: unknown) => object }[] = [
  ...['/v1/chat/completions', '/chat/completions'].map(path => ({
    path,
    short: { max_tokens: 2 },
    tools: { messages: [user], tools: [tool] },
    off: { tool_choice: 'none' },
    history: (given: unknown) => ({ messages: hosted({ name: 'now', arguments: given }) })
  })),
  {
    path: '/v1/chat/completions',
    short: { max_tokens: 2 },
    tools: { messages: [user], functions: [tool.function] },
    off: { function_call: 'none' },
    history: given => ({
      messages: [
        user,
        { role: 'assistant', content: null, function_call: { name: 'now', arguments: given } },
        { role: 'function', name: 'now', content: 'noon' }
      ]
    })
  },
  ...['/v1/responses', '/responses'].map(path => ({
    path,
    short: { max_output_tokens: 2, store: false },
    tools: { input: 'hi', tools: [{ type: 'function', name: 'save', parameters }] },
    off: { tool_choice: 'none' },
    history: (given: unknown) => ({
      input: [
        user,
        { type: 'function_call', name: 'now', call_id: 'call_1', arguments: given },
        { type: 'function_call_output', call_id: 'call_1', output: 'noon' }
      ]
    })
  })),
  {
    path: '/v1/messages',
    short: { max_tokens: 2 },
    tools: { messages: [user], tools: [{ name: 'save', input_schema: parameters }] },
    off: { tool_choice: { type: 'none' } },
    history: given => ({
      messages: [
        user,
        { role: 'assistant', content: [{ type: 'tool_use', id: 'toolu_1', name: 'now', input: given }] },
        { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'toolu_1', content: 'noon' }] }
      ]
    })
  },
  ...['/api/chat', '/ollama/api/chat'].map(path => ({
    path,
    short: { stream: false, options: { num_predict: 2 } },
    tools: { messages: [user], tools: [tool] },
    history: (given: unknown) => ({ messages: hosted({ name: 'now', arguments: given }) })
  }))
]

function hosted(called: object): object[] {
  return [
    user,
    { role: 'assistant', content: '', tool_calls: [{ id: 'call_1', type: 'function', function: called }] },
    { role: 'tool', tool_call_id: 'call_1', content: 'noon' }
  ]
}

const DEEP = `{"a":${'['.repeat(100_000)}${']'.repeat(100_000)}}`

t.test('arguments of earlier calls become the JSON text of an object', async t => {
  const cases: [given: unknown, text: string][] = [
    [undefined, '{}'],
    [null, '{}'],
    ['', '{}'],
    [' \n', '{}'],
    ['null', '{}'],
    ['{ "a" : 1 }', '{ "a" : 1 }'],
    [{ a: 1 }, '{"a":1}'],
    ['{"city": "Os', String.raw`{"arguments":"{\"city\": \"Os"}`],
    ['[1]', '{"arguments":[1]}'],
    [[1], '{"arguments":[1]}'],
    [7, '{"arguments":7}'],
    ['"{}"', '{"arguments":"{}"}'],
    [String.raw`{"a":"\ud83d\ude00 \ud83d\\ud83d"}`, String.raw`{"a":"😀 \ufffd\\ud83d"}`],
    ['{"a":-1e999}', '{"a":null}'],
    ['{"a":1e308}', '{"a":1e+308}'],
    [DEEP, JSON.stringify({ arguments: DEEP })]
  ]
  for (const [given, text] of cases) t.equal(callArguments(given), text, String(given).slice(0, 40))
})

t.test('every API answers a history with malformed tool arguments', async t => {
  await corral.json('/api/chat', { model: DEMO, messages: [user], stream: false })
  const before = corral.enginePids()
  for (const { path, short, history } of APIS) {
    for (const given of [
      '',
      '{"city": "Os',
      '[1]',
      [1],
      7,
      null,
      undefined,
      String.raw`{"a":"\ud800"}`,
      '{"a":1e999}'
    ]) {
      const { status, body } = await corral.json(path, { model: DEMO, ...short, ...history(given) })
      t.equal(status, 200, `${path} ${JSON.stringify(given)}: ${JSON.stringify(body).slice(0, 200)}`)
    }
    const { status } = await corral.json(path, { model: DEMO, ...short, ...history(DEEP) })
    t.equal(status, 400, `${path}: deeply nested arguments are only too long`)
  }
  t.same(corral.enginePids(), before, 'no engine crashed')
})

t.test('every API answers a history that ends with a call', async t => {
  for (const { path, short, history } of APIS) {
    const entries = Object.entries(history({})).map(([name, list]) => [name, (list as object[]).slice(0, -1)])
    const { status, body } = await corral.json(path, { model: DEMO, ...short, ...Object.fromEntries(entries) })
    t.equal(status, 200, `${path}: ${JSON.stringify(body).slice(0, 200)}`)
  }
})

t.test('a truncated call that the client answered stays in the history', async t => {
  const call = { type: 'function_call', status: 'incomplete', name: 'now', call_id: 'c', arguments: '{"a' }
  const output = { type: 'function_call_output', call_id: 'c', output: 'unreadable' }
  const renderPrompt = async (...items: object[]) => {
    const { body } = await corral.json('/v1/responses/input_tokens', { model: DEMO, input: [user, ...items, user] })
    return body.input_tokens as number
  }
  t.equal(await renderPrompt(call), await renderPrompt(), 'a call without output was never made')
  t.equal(await renderPrompt(call, output), await renderPrompt({ ...call, status: 'completed' }, output))
})

t.test('every API refuses tools for a model whose template does not support them', async t => {
  const model = 'plain'
  const template = "{% for message in messages %}{{ message.role + ': ' + message.content + '\\n' }}{% endfor %}bot:"
  const made = await corral.json('/ollama/api/create', { model, from: DEMO, template, stream: false })
  t.equal(made.status, 200, JSON.stringify(made.body))
  for (const { path, short, tools, off } of APIS) {
    for (const stream of [false, true]) {
      const { status, body } = await corral.json(path, { model, ...short, ...tools, stream })
      t.equal(status, 400, path)
      t.match(JSON.stringify(body), /does not support tools/, path)
    }
    if (off) t.equal((await corral.json(path, { model, ...short, ...tools, ...off })).status, 200, `${path}: no choice`)
    t.equal((await corral.json(path, { model: DEMO, ...short, ...tools })).status, 200, `${path}: a model with tools`)
  }
  const { body } = await corral.json('/v1/chat/completions', { model, messages: [user], tools: [tool] })
  t.match(body, { error: { code: 'unsupported_capability', param: 'tools' } })
  const count = { model, messages: [user], tools: [{ name: 'save', input_schema: parameters }] }
  t.equal((await corral.json('/v1/messages/count_tokens', count)).status, 400)
})
