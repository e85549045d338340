import t from 'tap'
import { CorralError, type ErrorCode } from '../../../../core/errors.ts'
import { openaiErrorBody, openaiErrorEvent } from '../../../../core/http/openai-error.ts'
import { answerId, renameBytes } from '../../../../plugins/apis/openai/answer.ts'
import { EventBlocks } from '../../../../runtimes/llama-server/event-reader.ts'
import { requestError } from '../../../../runtimes/llama-server/request-error.ts'

t.test('maps engine errors to codes and messages', async t => {
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
      /6012 tokens.*holds 512\.$/
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
    // The inner code is used because an error within a stream has no status.
    [500, error(400, 'bad thing', 'invalid_request_error'), 'invalid_request', /bad thing/],
    [500, '{"error":"plain text"}', 'internal', /plain text/],
    [400, '', 'invalid_request', /no reason/]
  ]
  for (const [status, body, code, text] of table) {
    const failure = requestError(status, body)
    t.equal(failure.code, code, body.slice(0, 80))
    t.match(failure.message, text)
    t.notMatch(failure.message, /secret/)
  }
  t.match(requestError(400, table[0]![1]).details, { n_prompt_tokens: 6012, n_ctx: 512 })
  t.equal(requestError(503, table.find(([status]) => status === 503)![1]).retryAfter, 1)
  t.ok(requestError(400, error(400, 'x'.repeat(5000))).message.length < 500)
})

t.test("renders errors in OpenAI's format", async t => {
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

t.test('engine events are passed on whole, however their bytes are split', async t => {
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
  const read = (size: number, rename = (bytes: Buffer) => bytes) => {
    const blocks = new EventBlocks()
    const out: Buffer[] = []
    let done = false
    let late = 0
    for (let at = 0; at < bytes.length; at += size) {
      if (done) late++
      const block = blocks.push(bytes.subarray(at, at + size))
      if (!block) continue
      if (block.error !== undefined) t.fail('no error was sent')
      done = block.done
      out.push(rename(block.bytes))
    }
    t.equal(late, 0, 'nothing follows the end')
    t.ok(done, `in pieces of ${size}`)
    return Buffer.concat(out).toString('utf8')
  }
  for (const size of [1, 2, 3, 7, 64]) t.equal(read(size), wanted, `pieces of ${size}`)
  t.equal(read(bytes.length), wanted.replace(/^/, ':\n\n'), 'a comment between events is harmless')
  const names = renameBytes('a/b', 'A/b:latest', answerId('chatcmpl'))
  for (const size of [1, 5, 64]) {
    t.equal(read(size, names), wanted.replaceAll('"model":"a/b"}', '"model":"A/b:latest"}'), 'only the field changes')
  }

  const whole = Buffer.from(chunk('x'))
  const same = renameBytes('a/b', 'a/b', answerId('chatcmpl'))
  t.equal(same(new EventBlocks().push(whole)!.bytes), whole, 'whole events are passed on without a copy')

  const failing = new EventBlocks()
  const failed = failing.push(Buffer.from(`${chunk('x')}data: {"error":{"code":500,"message":"Compute error."}}\n\n`))!
  t.equal(failed.bytes.toString(), chunk('x'))
  t.equal(failed.done, false)
  t.equal(failed.error, '{"error":{"code":500,"message":"Compute error."}}')
  t.equal(new EventBlocks().push(Buffer.from('data: [DO')), undefined)

  const body = Buffer.from('{"model":"a/b","text":"\\"model\\":\\"a/b\\" ä","id":"chatcmpl-x"}')
  t.equal(names(body).toString(), '{"model":"A/b:latest","text":"\\"model\\":\\"a/b\\" ä","id":"chatcmpl-x"}')
  const ids = (['chatcmpl', 'cmpl'] as const).map(answerId)
  t.not(ids[0], ids[1])
  const own = `data: {"text":"\\"id\\":\\"chatcmpl-","id":"chatcmpl-${'x'.repeat(32)}","a":1}\n\n`.repeat(2)
  const short = 'data: {"id":"chatcmpl-7","a":"01234567890123456789012345678901"}\n\n'
  t.equal(renameBytes('a', 'a', ids[0]!)(Buffer.from(short)).toString(), short, 'an id of another length is unchanged')
  for (const id of ids) {
    const text = renameBytes('a', 'a', id)(Buffer.from(own)).toString()
    t.equal(text, own.replaceAll(`chatcmpl-${'x'.repeat(32)}`, id))
  }
})
