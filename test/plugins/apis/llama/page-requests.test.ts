import { readFileSync } from 'node:fs'
import t from 'tap'
import { SseParser } from '../../../../core/answers/openai-events.ts'
import { DEMO, startCorral } from '../../../support/corral.ts'
import { RECORDED, type RecordedRequest } from '../../../support/llama-page.ts'

// Replays requests of llama.cpp's own page, which test/long/llama-page.test.ts recorded in a browser.
const corral = await startCorral(t)
const recorded = JSON.parse(readFileSync(RECORDED, 'utf8')) as RecordedRequest[]
const chats = recorded.filter(({ body }) => body?.stream === true)

/** Sends a request and returns the reply as text, except for the endless feed. */
async function replay({ method, url, conversation, body }: RecordedRequest) {
  const leaving = new AbortController()
  const reply = await corral.send(url, body, {
    method,
    signal: leaving.signal,
    headers: { ...(conversation && { 'x-conversation-id': conversation }) }
  })
  if (url === '/models/sse') {
    leaving.abort()
    return { status: reply.status, text: '' }
  }
  return { status: reply.status, text: await reply.text() }
}

t.ok(chats.length >= 2, 'the recording contains conversations')

for (const request of recorded) {
  t.test(request.kind, async t => {
    // A stream needs an earlier conversation, and a loaded model cannot be loaded again.
    if (request.url.startsWith('/v1/stream?')) await replay(chats[0]!)
    if (request.url === '/models/load') await corral.json('/models/unload', request.body)
    const { status, text } = await replay(request)
    // The page looks for folders with a tool, which corral does not have. It works without.
    t.equal(status, request.method === 'DELETE' ? 204 : request.kind.startsWith('POST /tools') ? 405 : 200, text)
    if (request.url === '/models/load') await corral.json(`/props?model=${DEMO}`)
    if (request.body?.n_predict === 0)
      t.ok(JSON.parse(text).usage.completion_tokens <= 1, 'only the prompt is processed')
    if (request.body?.stream !== true && request.method + request.url.slice(0, 12) !== 'GET/v1/stream?') return
    const payloads = new SseParser().push(Buffer.from(text))
    t.equal(payloads.pop(), '[DONE]', 'without it the page requests the rest')
    const events = payloads.map(payload => JSON.parse(payload))
    for (const { id, model, choices } of events) {
      t.match(id, /^chatcmpl-/, 'the page sends this id to end the thinking')
      t.equal(model, DEMO, 'the page only accepts names that it lists')
      t.ok(Array.isArray(choices))
    }
    t.ok(
      events.some(({ prompt_progress }) => prompt_progress),
      'prompt progress is reported'
    )
    t.ok(
      events.some(({ timings }) => timings?.predicted_n > 0),
      'timings are reported'
    )
  })
}
