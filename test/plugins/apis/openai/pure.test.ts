import t from 'tap'
import { CorralError, type ErrorCode } from '../../../../core/errors.ts'
import { openaiErrorBody, openaiErrorEvent } from '../../../../core/http/openai-error.ts'
import { answerId, renameBytes } from '../../../../plugins/apis/openai/answer.ts'
import { EventBlocks } from '../../../../runtimes/llama-server/event-reader.ts'
import { requestError } from '../../../../runtimes/llama-server/request-error.ts'
import { readCases } from '../../../support/cases.ts'

const CASES = readCases('openai-errors')

t.test('maps engine errors to codes and messages', async t => {
  const error = (code: number, message: string, type = 'server_error', more = {}) =>
    JSON.stringify({ error: { code, message, type, ...more } })
  const table: [number, string, ErrorCode, string][] = CASES.engine
  for (const [status, body, code, text] of table) {
    const failure = requestError(status, body)
    t.equal(failure.code, code, body.slice(0, 80))
    t.match(failure.message, new RegExp(text))
    t.notMatch(failure.message, /secret/)
  }
  t.match(requestError(400, table[0]![1]).details, { n_prompt_tokens: 6012, n_ctx: 512 })
  t.equal(requestError(503, table.find(([status]) => status === 503)![1]).retryAfter, 1)
  t.ok(requestError(400, error(400, 'x'.repeat(5000))).message.length < 500)
})

t.test("renders errors in OpenAI's format", async t => {
  const table: [ErrorCode, string][] = [
    ['invalid_json', 'invalid_request_error'],
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
    code: 'context_length_exceeded',
    corral_code: 'context_exceeded',
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
