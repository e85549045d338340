import { readFileSync } from 'node:fs'
import t from 'tap'
import { EventLines } from '../../../../core/answers/event-lines.ts'
import { DEMO, startCorral } from '../../../support/corral.ts'
import { RECORDED, type RecordedRequest } from '../../../support/llama-page.ts'

// Requests of llama.cpp's own page, which test/long/llama-page.test.ts recorded in a browser, replayed.
const corral = await startCorral(t)
const recorded = JSON.parse(readFileSync(RECORDED, 'utf8')) as RecordedRequest[]
const chats = recorded.filter(({ body }) => body?.stream === true)

/** Sends a request; gives its reply as text, or the beginning of it where it never ends. */
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

t.ok(chats.length >= 2, 'conversations are among them')

for (const request of recorded) {
  t.test(request.kind, async t => {
    // Streams are of a conversation that was held, and only what is not in memory can be loaded.
    if (request.url.startsWith('/v1/stream?')) await replay(chats[0]!)
    if (request.url === '/models/load') await corral.json('/models/unload', request.body)
    const { status, text } = await replay(request)
    // It looks for folders by a tool: there are none here, and it does without.
    t.equal(status, request.method === 'DELETE' ? 204 : request.kind.startsWith('POST /tools') ? 405 : 200, text)
    if (request.url === '/models/load') await corral.json(`/props?model=${DEMO}`)
    if (request.body?.n_predict === 0) t.ok(JSON.parse(text).usage.completion_tokens <= 1, 'the prompt is only read')
    if (request.body?.stream !== true && request.method + request.url.slice(0, 12) !== 'GET/v1/stream?') return
    const payloads = new EventLines().push(Buffer.from(text))
    t.equal(payloads.pop(), '[DONE]', 'without that it asks for the rest')
    const events = payloads.map(payload => JSON.parse(payload))
    for (const { id, model, choices } of events) {
      t.match(id, /^chatcmpl-/, 'what the end of a thought names')
      t.equal(model, DEMO, 'a row of its list, else nothing more can be sent')
      t.ok(Array.isArray(choices))
    }
    t.ok(
      events.some(({ prompt_progress }) => prompt_progress),
      'how much of the prompt is read'
    )
    t.ok(
      events.some(({ timings }) => timings?.predicted_n > 0),
      'what it took'
    )
  })
}
