import t from 'tap'
import { CorralError, type ErrorCode } from '../../core/errors.ts'
import { engineError } from '../../core/http/engine-error.ts'
import { type EngineFunction, engineBody, readCall } from '../../plugins/api-openai/engine-call.ts'
import { EventBlocks, modelMember, renameModel } from '../../plugins/api-openai/event-blocks.ts'
import { openaiErrorBody, openaiErrorEvent } from '../../plugins/api-openai/openai-error.ts'
import { WholeAnswer } from '../../plugins/api-openai/whole-answer.ts'

t.test("what an engine's error means", async t => {
  const error = (code: number, message: string, type = 'server_error', more = {}) =>
    JSON.stringify({ error: { code, message, type, ...more } })
  const table: [number, string, ErrorCode, RegExp][] = [
    [
      400,
      error(
        400,
        'request (6012 tokens) exceeds the available context size (512 tokens), try increasing it',
        'exceed_context_size_error',
        { n_prompt_tokens: 6012, n_ctx: 512 }
      ),
      'context_exceeded',
      /6012 tokens.*holds 512.*num_ctx/
    ],
    [500, error(500, 'Context size has been exceeded.'), 'context_exceeded', /does? not fit|do not fit/],
    [
      500,
      error(
        500,
        'input (900 tokens) is too large to process. increase the physical batch size (current batch size: 512)'
      ),
      'context_exceeded',
      /900 tokens.*holds 512/
    ],
    [
      501,
      error(501, 'This server does not support embeddings. Start it with `--embeddings`', 'not_supported_error'),
      'unsupported_capability',
      /embeddings/
    ],
    [
      500,
      error(500, 'image input is not supported - hint: if this is unexpected, you may need to provide the mmproj'),
      'unsupported_capability',
      /image input/
    ],
    [
      500,
      error(500, 'Multimodal data provided, but model does not support multimodal requests.'),
      'unsupported_capability',
      /multimodal/
    ],
    [
      400,
      error(
        400,
        "Field 'temperature': [json.exception.type_error.302] type must be number, but is string",
        'invalid_request_error'
      ),
      'invalid_request',
      /Field 'temperature': type must be number, but is string\.$/
    ],
    [
      400,
      error(400, "Expected 'messages' to be an array", 'invalid_request_error'),
      'invalid_request',
      /Expected 'messages' to be an array\.$/
    ],
    [
      400,
      error(400, 'Failed to initialize samplers: failed to parse grammar', 'invalid_request_error'),
      'invalid_request',
      /failed to parse grammar/
    ],
    [
      500,
      error(
        500,
        "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error - invalid literal; last read: '{\"secret'"
      ),
      'invalid_request',
      /parse error at line 1, column 2/
    ],
    [
      500,
      error(500, 'Failed to parse tools: Missing tool type: {"bad":"secret"}; tools = [\n  {\n "bad": "secret"\n }\n]'),
      'invalid_request',
      /Missing tool type\.$/
    ],
    [
      500,
      error(500, 'Failed to parse messages: Missing \'role\' in message: {"content":"secret"}'),
      'invalid_request',
      /Missing 'role' in message\.$/
    ],
    [
      400,
      error(400, 'Expected \'message\' to be an object, got "secret"', 'invalid_request_error'),
      'invalid_request',
      /to be an object\.$/
    ],
    [500, error(500, '"prompt" is required'), 'invalid_request', /"prompt" is required/],
    [
      500,
      error(500, 'vector::_M_range_check: __n (which is 99) >= this->size() (which is 10)'),
      'invalid_request',
      /out of range\.$/
    ],
    [500, error(500, 'Unsupported param: best_of'), 'invalid_request', /best_of/],
    [500, error(500, 'Only no echo is supported'), 'invalid_request', /echo/],
    [
      400,
      error(
        400,
        'Unable to generate parser for this template. Automatic parser generation failed: \n------------\nWhile executing CallExpression at line 1, column 9 in source:\n{{ raise_exception("x") }} secret\nError: Jinja Exception: Conversation roles must alternate user/assistant/user/assistant/...',
        'invalid_request_error'
      ),
      'invalid_request',
      /valid: Jinja Exception: Conversation roles must alternate user\/assistant\/user\/assistant\/\.\.\.$/
    ],
    [500, error(500, 'Compute error.'), 'internal', /Compute error\. Send the request again/],
    [500, error(500, 'got exception: vector::_M_range_check'), 'internal', /could not answer/],
    [500, error(500, "cannot open '/home/secret/models/x.gguf'"), 'internal', /cannot open '<path>'/],
    [500, 'Internal Server Error', 'internal', /status 500/],
    [502, '', 'internal', /status 502/],
    [401, error(401, 'Invalid API Key', 'authentication_error'), 'internal', /Invalid API Key/],
    [404, error(404, 'File Not Found', 'not_found_error'), 'not_implemented', /does not offer/],
    [503, error(503, 'Loading model', 'unavailable_error'), 'queue_full', /busy/],
    // The code within counts: an error that comes in a stream has no status of its own.
    [500, error(400, 'bad thing', 'invalid_request_error'), 'invalid_request', /bad thing/],
    [500, '{"error":"plain text"}', 'internal', /plain text/],
    [400, '', 'invalid_request', /no reason/]
  ]
  for (const [status, body, code, text] of table) {
    const failure = engineError(status, body)
    t.equal(failure.code, code, body.slice(0, 80))
    t.match(failure.message, text)
    t.notMatch(failure.message, /secret/)
  }
  t.match(engineError(400, table[0]![1]).details, { n_prompt_tokens: 6012, n_ctx: 512 })
  t.equal(engineError(503, table.find(([status]) => status === 503)![1]).retryAfter, 1)
  t.ok(engineError(400, error(400, 'x'.repeat(5000))).message.length < 500)
})

t.test('errors in the shape of hosted chat', async t => {
  const table: [ErrorCode, string][] = [
    ['invalid_json', 'invalid_request_error'],
    ['context_exceeded', 'invalid_request_error'],
    ['unauthorized', 'authentication_error'],
    ['origin_not_allowed', 'permission_error'],
    ['model_not_found', 'not_found_error'],
    ['method_not_allowed', 'invalid_request_error'],
    ['body_too_large', 'invalid_request_error'],
    ['queue_full', 'rate_limit_error'],
    ['engine_crashed', 'server_error'],
    ['model_stopped', 'server_error'],
    ['internal', 'server_error']
  ]
  for (const [code, type] of table) {
    t.strictSame(openaiErrorBody(new CorralError(code, 'text')), {
      error: { message: 'text', type, param: null, code }
    })
  }
  const detailed = new CorralError('context_exceeded', 'text', { param: 'messages', details: { n_ctx: 5, code: 'no' } })
  t.strictSame(openaiErrorBody(detailed).error, {
    n_ctx: 5,
    code: 'context_exceeded',
    message: 'text',
    type: 'invalid_request_error',
    param: 'messages'
  })
  t.equal(
    openaiErrorEvent(new CorralError('internal', 'line\nbreak')),
    'data: {"error":{"message":"line\\nbreak","type":"server_error","param":null,"code":"internal"}}\n\n'
  )
})

const CHAT: EngineFunction = { path: '/x', required: 'messages', generates: true, mode: () => 'chat' }
const EMBED: EngineFunction = { path: '/x', required: 'input', generates: false, mode: () => 'embedding' }
const messages = [{ role: 'user', content: 'hi' }]

t.test('what is sent to the engine', async t => {
  const defaults = { temperature: 0.7, top_p: 0.9, top_k: 40, max_tokens: 2048, seed: -1 }
  const sent = (body: Record<string, unknown>, target = CHAT) => engineBody(readCall(body, target), target, defaults)
  const base = { model: 'a/b', messages }
  const plain = { ...defaults, ...base, stream: false }
  const table: [string, Record<string, unknown>, Record<string, unknown>][] = [
    ['defaults where nobody gives any', {}, plain],
    [
      'the top level over options',
      { temperature: 0, options: { temperature: 1, top_k: 3 } },
      { ...plain, temperature: 0, top_k: 3 }
    ],
    [
      'null is not given',
      { temperature: null, seed: null, stop: null, suffix: null, options: { temperature: 1 } },
      { ...plain, temperature: 1 }
    ],
    ['aliases', { max_completion_tokens: 5 }, { ...plain, max_tokens: 5 }],
    ['the canonical name over an alias', { max_completion_tokens: 5, max_tokens: 6 }, { ...plain, max_tokens: 6 }],
    [
      'aliases of the top level over options',
      { max_completion_tokens: 5, options: { num_predict: 7 } },
      { ...plain, max_tokens: 5 }
    ],
    ['aliases in options', { options: { num_predict: -2, n_predict: null } }, { ...plain, max_tokens: -1 }],
    [
      'load options and own fields are left out',
      { num_ctx: 256, num_gpu: 3, keep_alive: '5m', name: 'x/y', options: { num_parallel: 2, cache_type_k: 'Q8_0' } },
      plain
    ],
    [
      'what the engine knows passes through',
      { min_p: 0.1, logprobs: true, tools: [], options: { repeat_penalty: 1.2, min_p: 0.9 } },
      { ...plain, min_p: 0.1, logprobs: true, tools: [], repeat_penalty: 1.2 }
    ],
    ['options cannot make a stream or another model', { options: { stream: true, model: 'x/y' } }, plain],
    [
      'a stream',
      { stream: true, stream_options: { include_usage: true } },
      { ...plain, stream: true, stream_options: { include_usage: true } }
    ]
  ]
  for (const [what, given, wanted] of table) t.strictSame(sent({ ...base, ...given }), wanted, what)
  t.strictSame(sent({ name: 'a/b', messages }), plain, 'name is accepted for model')
  t.strictSame(
    sent({ model: 'a/b', input: 'x', encoding_format: 'base64', temperature: 1, options: { num_ctx: 5 } }, EMBED),
    { model: 'a/b', input: 'x', encoding_format: 'base64' }
  )

  const call = readCall(
    {
      model: 'A/B:Q8_0',
      messages,
      stream: true,
      keep_alive: '1m',
      num_ctx: 9,
      options: { num_ctx: 8, num_parallel: 2 }
    },
    CHAT
  )
  t.match(call, {
    model: { owner: 'A', name: 'B', variant: 'Q8_0' },
    asked: 'A/B:Q8_0',
    stream: true,
    load: { num_ctx: 9, num_parallel: 2 },
    keepAlive: 60_000
  })
  t.equal(readCall({ model: 'a/b', messages, keep_alive: -1 }, CHAT).keepAlive, -1000)
  t.equal(readCall({ model: 'a/b', messages, keep_alive: null }, CHAT).keepAlive, undefined)

  const roles = readCall(
    {
      model: 'a/b',
      messages: [
        { content: 'x' },
        { role: 'assistant', content: null, tool_calls: [{}] },
        { role: 'tool', content: [{ type: 'text', text: 'y' }] }
      ]
    },
    CHAT
  )
  t.strictSame(
    (roles.fields.messages as { role: string }[]).map(({ role }) => role),
    ['user', 'assistant', 'tool']
  )
})

/** Why a body is refused; it never quotes it. */
function refusal(body: Record<string, unknown>, target: EngineFunction): CorralError | undefined {
  try {
    readCall(body, target)
    return undefined
  } catch (error) {
    if (!(error instanceof CorralError) || error.message.includes('secret')) throw error
    return error
  }
}

t.test('bodies that are refused, with the field at fault', async t => {
  const table: [Record<string, unknown>, string, ErrorCode?][] = [
    [{ model: undefined }, 'model', 'invalid_model_name'],
    [{ model: 5 }, 'model', 'invalid_model_name'],
    [{ model: '../etc' }, 'model', 'invalid_model_name'],
    [{ messages: undefined }, 'messages'],
    [{ messages: null }, 'messages'],
    [{ messages: [] }, 'messages'],
    [{ messages: 'secret' }, 'messages'],
    [{ messages: ['secret'] }, 'messages'],
    [{ messages: undefined, options: { messages: [{ content: 'secret' }] } }, 'messages'],
    [{ messages: [{ role: 7, content: 'x' }] }, 'messages[0].role'],
    [{ messages: [{ content: 'x' }, { role: 'user' }] }, 'messages[1].content'],
    [{ messages: [{ role: 'user', content: null }] }, 'messages[0].content'],
    [{ messages: [{ role: 'assistant' }] }, 'messages[0].content'],
    [{ messages: [{ content: 5 }] }, 'messages[0].content'],
    [{ messages: [{ content: ['secret'] }] }, 'messages[0].content'],
    [{ messages: [{ content: [{ text: 'secret' }] }] }, 'messages[0].content'],
    [{ messages: [{ role: 'assistant', content: 'x', tool_calls: 'secret' }] }, 'messages[0].tool_calls'],
    [{ stream: 'yes' }, 'stream'],
    [{ n: 0 }, 'n'],
    [{ n: 1.5 }, 'n'],
    [{ stop: [1] }, 'stop'],
    [{ options: { stop: [1] } }, 'stop'],
    [{ tools: [1] }, 'tools'],
    [{ tools: {} }, 'tools'],
    [{ response_format: 'json' }, 'response_format'],
    [{ logit_bias: 5 }, 'logit_bias'],
    [{ temperature: 'hot' }, 'temperature', 'invalid_option'],
    [{ temperature: -1 }, 'temperature', 'invalid_option'],
    [{ top_p: 2 }, 'top_p', 'invalid_option'],
    [{ max_completion_tokens: 1.5 }, 'max_completion_tokens', 'invalid_option'],
    [{ options: { num_ctx: 0 } }, 'num_ctx', 'invalid_option'],
    [{ options: [] }, 'options', 'invalid_option'],
    [{ keep_alive: 'soon' }, 'keep_alive', 'invalid_option']
  ]
  for (const [given, param, code = 'invalid_request'] of table) {
    const body = { model: 'a/b', messages, ...given } as Record<string, unknown>
    for (const [name, value] of Object.entries(given)) if (value === undefined) delete body[name]
    t.match(refusal(body, CHAT), { code, param }, JSON.stringify(given))
  }
  for (const input of [5, {}, [], [{}], [1.5], [['x']], null]) {
    t.match(refusal({ model: 'a/b', input }, EMBED), { code: 'invalid_request', param: 'input' }, JSON.stringify(input))
  }
  for (const input of ['x', ['x', 'y'], [1, 2], [[1], [2]]]) t.ok(readCall({ model: 'a/b', input }, EMBED))
  t.match(refusal({ model: 'a/b', input: 'x', encoding_format: 'hex' }, EMBED), { param: 'encoding_format' })
})

t.test("the engine's events pass by whole, however they are cut", async t => {
  const chunk = (content: string) =>
    `data: {"choices":[{"delta":{"content":${JSON.stringify(content)}}}],"model":"a/b"}\n\n`
  const text = [
    ':\n\n',
    chunk('data: [DONE]\n\ndata: {"error": ä€😀'),
    'data: null\n\n',
    chunk('"model":"a/b"'),
    chunk('x'),
    'data: [DONE]\n\n'
  ].join('')
  const wanted = text.replace(':\n\n', '').replace('data: null\n\n', '')
  const bytes = Buffer.from(text)
  const read = (size: number, rename?: { from: string; to: string }) => {
    const blocks = new EventBlocks(rename)
    const out: Buffer[] = []
    let done = false
    let late = 0
    for (let at = 0; at < bytes.length; at += size) {
      if (done) late++
      const block = blocks.push(bytes.subarray(at, at + size))
      if (!block) continue
      if (block.error !== undefined) t.fail('no error was sent')
      done = block.done
      out.push(block.bytes)
    }
    t.equal(late, 0, 'nothing comes after the end')
    t.ok(done, `in pieces of ${size}`)
    return Buffer.concat(out).toString('utf8')
  }
  for (const size of [1, 2, 3, 7, 64]) t.equal(read(size), wanted, `pieces of ${size}`)
  t.equal(read(bytes.length), wanted.replace(/^/, ':\n\n'), 'a comment among events does no harm')
  const renamed = modelMember('a/b', 'A/b:latest')!
  for (const size of [1, 5, 64]) {
    t.equal(
      read(size, renamed),
      wanted.replaceAll('"model":"a/b"}', '"model":"A/b:latest"}'),
      'only the member changes'
    )
  }
  t.equal(modelMember('a/b', 'a/b'), undefined)

  const whole = Buffer.from(chunk('x'))
  t.equal(new EventBlocks().push(whole)!.bytes, whole, 'whole events are passed on without a copy')

  const failing = new EventBlocks()
  const failed = failing.push(Buffer.from(`${chunk('x')}data: {"error":{"code":500,"message":"Compute error."}}\n\n`))!
  t.equal(failed.bytes.toString(), chunk('x'))
  t.equal(failed.done, false)
  t.equal(failed.error, '{"error":{"code":500,"message":"Compute error."}}')
  t.equal(new EventBlocks().push(Buffer.from('data: [DO')), undefined)

  const body = Buffer.from('{"model":"a/b","text":"\\"model\\":\\"a/b\\" ä"}')
  t.equal(renameModel(body, renamed).toString(), '{"model":"A/b:latest","text":"\\"model\\":\\"a/b\\" ä"}')
  t.equal(renameModel(body, undefined), body)
})

t.test('a streamed answer is put together to the whole one', t => {
  const answer = new WholeAnswer()
  const chunk = (choices: any[], more: object = {}) =>
    answer.add({ id: 'x1', created: 5, model: 'a/b', object: 'chat.completion.chunk', choices, ...more })
  answer.add(null)
  chunk([{ index: 1, finish_reason: null, delta: { role: 'assistant', content: null } }])
  chunk([{ index: 1, finish_reason: null, delta: { content: 'Hi' }, logprobs: { content: [{ token: 'Hi' }] } }])
  chunk([{ index: 0, finish_reason: null, delta: { reasoning_content: 'hm' } }])
  chunk([
    {
      index: 0,
      finish_reason: null,
      delta: { tool_calls: [{ index: 0, id: 'c0', type: 'function', function: { name: 'f', arguments: '{' } }] }
    }
  ])
  chunk([{ index: 1, finish_reason: null, delta: { content: '!' }, logprobs: { content: [{ token: '!' }] } }])
  chunk([{ index: 0, finish_reason: null, delta: { tool_calls: [{ index: 0, function: { arguments: '}' } }] } }])
  chunk([{ index: 1, finish_reason: 'stop', delta: {} }])
  chunk([], { usage: { completion_tokens: 3 }, timings: { prompt_n: 1 } })
  chunk([{ index: 0, finish_reason: 'tool_calls', delta: {} }])
  chunk([], { usage: { completion_tokens: 9 } })
  t.same(answer.body(), {
    id: 'x1',
    created: 5,
    model: 'a/b',
    object: 'chat.completion',
    usage: { completion_tokens: 3 },
    timings: { prompt_n: 1 },
    choices: [
      {
        index: 0,
        finish_reason: 'tool_calls',
        message: {
          role: 'assistant',
          content: '',
          reasoning_content: 'hm',
          tool_calls: [{ id: 'c0', type: 'function', function: { name: 'f', arguments: '{}' } }]
        }
      },
      {
        index: 1,
        finish_reason: 'stop',
        message: { role: 'assistant', content: 'Hi!' },
        logprobs: { content: [{ token: 'Hi' }, { token: '!' }] }
      }
    ]
  })

  const text = new WholeAnswer()
  const piece = (index: number, part: string, finish: string | null) =>
    text.add({ object: 'text_completion', choices: [{ index, text: part, logprobs: null, finish_reason: finish }] })
  piece(0, 'a', null)
  piece(1, 'c', null)
  piece(0, 'b', null)
  piece(0, '', 'length')
  piece(1, '', 'stop')
  t.same(text.body(), {
    object: 'text_completion',
    choices: [
      { index: 0, text: 'ab', logprobs: null, finish_reason: 'length' },
      { index: 1, text: 'c', logprobs: null, finish_reason: 'stop' }
    ]
  })
  t.end()
})
