import { join } from 'node:path'
import t from 'tap'
import { startCorral, until } from '../../../support/corral.ts'
import { readThoughts, writeThinkingModel } from '../openai/media/support.ts'

const MODEL = 'team/thinker'
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

t.test('rejects invalid control requests', async t => {
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
