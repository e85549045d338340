import { once } from 'node:events'
import { createServer, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import t, { type Test } from 'tap'
import { startTestCorral } from '../../../testing/index.ts'
import { activeRequests, DEMO, startCorral, until } from '../../support/corral.ts'
import { failure } from '../../support/failure.ts'

// A remote server answers when the test lets it, so that each API's client waits as during a long prefill.
const model = 'far/slow'
const messages = [{ role: 'user' as const, content: 'hello there' }]
const event = (body: unknown) => `data: ${JSON.stringify(body)}\n\n`
const choice = (delta: object, finish_reason: string | null = null) =>
  event({ choices: [{ index: 0, delta, text: 'Hello back.', finish_reason }] })
const ANSWER = `${choice({ content: 'Hello back.' })}${event({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] })}${event(
  { choices: [], usage: { prompt_tokens: 3, completion_tokens: 2 } }
)}data: [DONE]\n\n`

const answers = (response: ServerResponse) =>
  void response.writeHead(200, { 'content-type': 'text/event-stream' }).end(ANSWER)
const refuses = (response: ServerResponse) =>
  void response
    .writeHead(400, { 'content-type': 'application/json' })
    .end(JSON.stringify({ error: { message: 'no such tool' } }))

async function slowModel(t: Test, heartbeat: string) {
  const waiting: ServerResponse[] = []
  const server = createServer((request, response) => {
    if (request.method === 'POST') waiting.push(response)
    else response.end('{}')
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`
  const models = { [model]: { model: 'slow', servers: [{ url }] } }
  const apis = ['api-openai', 'api-anthropic', 'api-llama', 'api-lmstudio'].map(
    name => `${name}: { heartbeat: ${heartbeat} }\n`
  )
  const corral = await startTestCorral({ echo: false, config: `${apis.join('')}remote: ${JSON.stringify({ models })}` })
  t.teardown(async () => {
    await corral.close()
    server.closeAllConnections()
    server.close()
  })
  return { corral, waiting }
}

/** Streams an answer through an API. Calls `seen` with each event, and returns the text that the client put together. */
type Ask = (url: string, seen: (event: any) => void) => Promise<string | null>

const openai = (url: string) => new OpenAI({ baseURL: `${url}/v1`, apiKey: 'any', maxRetries: 0 })
/** Joins the `content` of the events of a stream. */
async function readText(url: string, fields: object, seen: (event: any) => void): Promise<string> {
  const { body } = await fetch(url, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model, stream: true, ...fields })
  })
  let text = ''
  for await (const chunk of body!.pipeThrough(new TextDecoderStream())) {
    for (const [, data] of chunk.matchAll(/^data: (.*)$/gm)) {
      const event = JSON.parse(data!)
      if (event.error) throw new Error(event.error.message)
      seen(event)
      text += event.content ?? ''
    }
  }
  return `assistant: ${text}`
}

const APIS: Record<string, { ask: Ask; first: object; idle: object }> = {
  chat: {
    async ask(url, seen) {
      const stream = openai(url).chat.completions.stream({ model, messages }).on('chunk', seen)
      const { role, content } = (await stream.finalChatCompletion()).choices[0]!.message
      return `${role}: ${content}`
    },
    first: { object: 'chat.completion.chunk', choices: [{ index: 0, delta: { role: 'assistant', content: null } }] },
    idle: { object: 'chat.completion.chunk', choices: [{ index: 0, delta: {}, finish_reason: null }] }
  },
  completion: {
    async ask(url, seen) {
      let text = ''
      for await (const chunk of await openai(url).completions.create({ model, prompt: 'hello there', stream: true })) {
        seen(chunk)
        text += chunk.choices[0]?.text ?? ''
      }
      return `assistant: ${text}`
    },
    first: { object: 'text_completion', choices: [{ index: 0, text: '' }] },
    idle: { object: 'text_completion', choices: [{ index: 0, text: '' }] }
  },
  responses: {
    async ask(url, seen) {
      const stream = openai(url).responses.stream({ model, input: 'hello there' }).on('event', seen)
      return `assistant: ${(await stream.finalResponse()).output_text}`
    },
    first: { type: 'response.created', sequence_number: 0 },
    idle: { type: 'response.in_progress', response: { status: 'in_progress', output: [] } }
  },
  messages: {
    async ask(url, seen) {
      const client = new Anthropic({ baseURL: url, apiKey: 'any', maxRetries: 0 })
      const stream = client.messages.stream({ model, messages, max_tokens: 9 }).on('streamEvent', seen)
      const { role, content, usage } = await stream.finalMessage()
      t.match(usage, { input_tokens: 3, output_tokens: 2 })
      return `${role}: ${(content[0] as Anthropic.TextBlock).text}`
    },
    first: { type: 'message_start', message: { role: 'assistant', content: [] } },
    idle: {}
  },
  'llama-server': {
    ask: (url, seen) => readText(`${url}/completion`, { prompt: 'hello there' }, seen),
    first: { content: '', stop: false },
    idle: { content: '', stop: false }
  },
  'LM Studio': {
    ask: (url, seen) => readText(`${url}/api/v1/chat`, { input: 'hello there' }, seen),
    first: { type: 'chat.start', model_instance_id: model },
    idle: { type: 'prompt_processing.progress', progress: 0 }
  }
}

t.test('each API begins its stream long before the answer', async t => {
  const { corral, waiting } = await slowModel(t, '1h')
  for (const [name, { ask, first }] of Object.entries(APIS)) {
    const events: any[] = []
    const text = await ask(corral.url, event => {
      if (events.push(structuredClone(event)) === 1) answers(waiting.pop()!)
    })
    t.match(events[0], first, name)
    t.equal(text, 'assistant: Hello back.', name)
  }
})

t.test('each API repeats an event while its client waits, and its client understands a later failure', async t => {
  const { corral, waiting } = await slowModel(t, '20ms')
  for (const [name, { ask, idle }] of Object.entries(APIS)) {
    // The client of the Messages API does not report pings.
    const enough = name === 'messages' ? 1 : 6
    for (const end of [answers, refuses]) {
      const events: any[] = []
      const asked = ask(corral.url, event => {
        if (events.push(structuredClone(event)) === enough) setTimeout(end, 100, waiting.pop()!)
      })
      if (end === refuses) t.match(await failure(asked), { message: /no such tool/ }, name)
      else t.equal(await asked, 'assistant: Hello back.', name)
      t.match(events.slice(2, enough), Array(Math.max(0, enough - 2)).fill(idle), name)
    }
  }
  t.equal(waiting.length, 0, 'the events are not requested twice')
})

t.test('a client that disconnects during a long prefill frees its slot, and its tokens stay cached', async t => {
  const config = 'api-openai: { heartbeat: 20ms }\ndefaults: { num_ctx: 8192, num_parallel: 1 }\n'
  const corral = await startCorral(t, { config })
  const input = Array.from({ length: 500 }, (_, index) => `${index} green bottles`).join('\n')
  const request = { model: DEMO, input, max_output_tokens: 1, store: false }
  const leaves = new AbortController()
  const stream = { ...request, stream: true }
  const { body } = await corral.send('/v1/responses', stream, { signal: leaves.signal })
  let text = ''
  for await (const chunk of body!) {
    text += Buffer.from(chunk)
    if (/\(processing the prompt\) [1-9]\d%/.test(text)) break
  }
  leaves.abort()
  t.ok(text.split('event: response.in_progress').length > 2, 'events are sent during the prefill')
  t.notMatch(text, 'response.output_item.added')
  await until('the slot is free', async () => (await activeRequests(corral)) === 0)
  const { usage } = await openai(corral.url).responses.create(request)
  t.ok(usage!.input_tokens_details.cached_tokens > 1000, 'the processed tokens are cached')
})
