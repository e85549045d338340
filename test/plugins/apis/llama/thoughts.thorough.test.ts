import { join } from 'node:path'
import t from 'tap'
import { readCases } from '../../../support/cases.ts'
import { startCorral, until } from '../../../support/corral.ts'
import { sample } from '../../../support/thorough.ts'
import { readThoughts, writeThinkingModel } from '../openai/media/support.ts'

const MODEL = 'team/thinker'
const CASES = readCases('thinking')
const file = join(t.testdir(), 'thinker.gguf')
await writeThinkingModel(file)
const corral = await startCorral(t)
const local = { local: true }
await corral.json('/api/import', { model: MODEL, path: file, stream: false }, local)
const keyOf = async (name: string) => {
  const { body } = await corral.json('/api/keys', { name, role: 'user' }, local)
  return { headers: { authorization: `Bearer ${body.key}` } }
}
const [alice, bob] = [await keyOf('alice'), await keyOf('bob')]

/** Requests an answer that continues until the client disconnects. */
async function think(more: object = {}) {
  const leaving = new AbortController()
  t.teardown(() => leaving.abort())
  const body = {
    model: MODEL,
    messages: [{ role: 'user', content: 'Hi' }],
    stream: true,
    max_tokens: -1,
    ignore_eos: true,
    num_ctx: 4096,
    reasoning_control: true,
    ...more
  }
  const reply = await corral.send('/v1/chat/completions', body, { ...alice, signal: leaving.signal })
  return { ...(await readThoughts(reply)), leave: () => leaving.abort() }
}
async function control(id: string, by = alice, more: object = {}) {
  const { status, body } = await corral.json(
    '/v1/chat/completions/control',
    { model: MODEL, action: 'reasoning_end', id, ...more },
    by
  )
  t.equal(status, 200)
  return body
}

const NONE = { success: false, message: 'no active completion for this id' }

t.test('only the client of an answer can end its thinking', async t => {
  for (const more of [{}, { return_progress: true, logprobs: true }]) {
    const { said, leave, read } = await think(more)
    t.strictSame(await control(said.id, bob), NONE)
    t.strictSame(await control('chatcmpl-none'), NONE)
    t.strictSame(await control(said.id, alice, { model: 'corral/tiny-chat' }), NONE)
    t.strictSame(said.content, '', 'the model is still thinking')
    t.match(await control(said.id), { success: true })
    await until('the model answers', () => said.content.length > 0)
    leave()
    await read
    await until('the answer has ended', async () => (await control(said.id)).message === NONE.message)
  }
})

t.test('thinking cannot be ended unless the request enabled it', async t => {
  const { said, leave } = await think({ reasoning_control: undefined })
  t.match(await control(said.id), { success: false, message: /not enabled/ })
  leave()
})

t.test('the chat API rejects invalid control requests', async t => {
  const ask = (body: object) => corral.json('/v1/chat/completions/control', { model: MODEL, ...body }, alice)
  for (const [body, status, code] of [
    [{ action: 'explode', id: 'x' }, 400, 'invalid_request'],
    [{ action: 'reasoning_end' }, 400, 'invalid_request'],
    [{ action: 'reasoning_end', id: '' }, 400, 'invalid_request'],
    [{ action: 'reasoning_end', id: 'x', model: undefined }, 400, 'invalid_model_name'],
    [{ action: 'reasoning_end', id: 'x', model: 'no/such-model' }, 404, 'model_not_found']
  ] as const) {
    t.match(await ask(body), { status, body: { error: { code } } })
  }
})

const messages = [{ role: 'user', content: 'Hi' }]

/** Returns the thinking and the text of an answer of any API. */
function partsOf({ message, response, thinking, choices, output, content }: any): { thinking?: string; text: string } {
  const found = choices?.[0].message ?? message
  if (found) return { thinking: found.reasoning_content ?? found.thinking, text: found.content }
  if (response !== undefined) return { thinking, text: response }
  const of = (type: string) => (output ?? content).find((part: any) => part.type === type)
  if (output) return { thinking: of('reasoning')?.content[0].text, text: of('message')?.content[0].text }
  return { thinking: of('thinking')?.thinking, text: of('text')?.text }
}

t.test('a format applies to the answer after the thinking on every API', async t => {
  for (const [path, body] of sample<any>(CASES.formatted, 3)) {
    // Without the format, the model would think until its tokens are used up. Its white space is limited.
    const limits = path === '/v1/messages' ? { max_tokens: 480 } : { options: { max_tokens: 480 } }
    const reply = await corral.json(path, { model: MODEL, stream: false, ...body, ...limits }, alice)
    t.equal(reply.status, 200, `${path}: ${JSON.stringify(reply.body)}`)
    const { thinking, text } = partsOf(reply.body)
    t.ok(thinking && thinking.length > 20, `${path} has thinking`)
    t.type(JSON.parse(text), 'object', `${path} has ${text}`)
  }
})

t.test('thinking can be switched off on every API', async t => {
  // The template of the model always begins with thinking.
  for (const [path, body] of sample<any>(CASES.off, 2)) {
    const limits = path === '/v1/messages' ? { max_tokens: 12 } : { options: { max_tokens: 12, ignore_eos: true } }
    const { status, body: answer } = await corral.json(path, { model: MODEL, stream: false, ...body, ...limits }, alice)
    t.equal(status, 200, JSON.stringify(answer))
    const { thinking = '', text } = partsOf(answer)
    t.equal(thinking.trim(), '', path)
    t.ok(text, `${path} has text`)
  }
})

t.test('thinking of earlier turns is kept as the template expects, so that the prompt continues', async t => {
  const thought = { role: 'assistant', reasoning_content: 'hm', content: 'Yes' }
  const call = { id: 'a', type: 'function', function: { name: 'f', arguments: '{}' } }
  const chain = [
    ...messages,
    { ...thought, content: null, tool_calls: [call] },
    { role: 'tool', content: 'r', tool_call_id: 'a' }
  ]
  // `keeps` is for earlier turns, `inChain` for a chain of tool calls.
  for (const [name, template, keeps, inChain] of CASES.templates) {
    const model = `team/${name}`
    const made = await corral.json('/api/create', { model, from: 'corral/tiny-chat', template, stream: false }, local)
    t.equal(made.status, 200, JSON.stringify(made.body))
    const promptOf = async (messages: readonly object[]): Promise<string> =>
      (await corral.json('/apply-template', { model, messages }, local)).body.prompt
    const first = await promptOf(messages)
    for (const [next, isKept] of [
      [[...messages, thought, ...messages], keeps],
      [chain, inChain]
    ] as const) {
      const prompt = await promptOf(next)
      t.equal(prompt.startsWith(`${first}hm</think>`), isKept, `${name}: ${prompt}`)
    }
  }
})
