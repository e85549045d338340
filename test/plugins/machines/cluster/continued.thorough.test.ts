import { join } from 'node:path'
import t from 'tap'
import { SseParser } from '../../../../core/answers/openai-events.ts'
import { type Corral, DEMO, until } from '../../../support/corral.ts'
import { writeThinkingModel } from '../../apis/openai/media/support.ts'
import { getNodes, startNodes, startReadyGateway } from './support.ts'

/*
 * Answers whose node or engine is killed halfway, with real processes. Engines are paused while the test finds out
 * which of them answers, because the small model would finish too soon.
 */

const THINKER = 'team/thinker'
const COUNT = { role: 'user', content: 'Count to 12.' }
const RESUMABLE = { 'x-corral-resumable': 'true' }

interface Taken {
  events: any[]
  /** The text of the answer, and of its reasoning. */
  text: string
  thinking: string
  error: string | undefined
}

/** Returns the text that an event of an API adds. */
function textOf(event: any): string {
  const { choices, message, response, delta, type } = event
  if (choices) return choices[0]?.delta?.content ?? choices[0]?.text ?? ''
  if (type === 'response.output_text.delta') return delta
  if (type?.startsWith('response.')) return ''
  return message?.content ?? response ?? delta?.text ?? ''
}

/**
 * Reads a streamed answer.
 * @param begun called once with the text so far; reading waits for its promise
 */
async function take(
  server: Corral,
  path: string,
  body: object,
  headers: Record<string, string> = {},
  begun?: () => Promise<void>
): Promise<Taken> {
  const reply = await server.send(path, { stream: true, ...body }, { headers })
  const taken: Taken = { events: [], text: '', thinking: '', error: undefined }
  const lines = new SseParser()
  const decoder = new TextDecoder()
  let rest = ''
  let hasBegun = false
  for await (const chunk of reply.body!) {
    const isEvents = reply.headers.get('content-type')!.includes('event-stream')
    let payloads = lines.push(chunk as Uint8Array)
    if (!isEvents) {
      const all = (rest + decoder.decode(chunk as Uint8Array, { stream: true })).split('\n')
      rest = all.pop()!
      payloads = all.filter(line => line !== '')
    }
    for (const payload of payloads) {
      if (payload === '[DONE]') continue
      const event = JSON.parse(payload)
      taken.events.push(event)
      taken.text += textOf(event)
      taken.thinking += event.choices?.[0]?.delta?.reasoning_content ?? event.message?.thinking ?? ''
      if (event.error) taken.error = event.error.code ?? event.code ?? event.error.type
    }
    if (!hasBegun && taken.text + taken.thinking !== '') {
      hasBegun = true
      await begun?.()
    }
  }
  return taken
}

/** Kills the node or engine halfway through its answer. @returns `cut` has the text so far */
function killing(gateway: Corral, nodes: readonly Corral[], what: 'engine' | 'member') {
  const cut = { count: 0 }
  return {
    cut,
    async begun() {
      const engines = nodes.map(node => node.enginePids())
      const all = engines.flat()
      for (const pid of all) process.kill(pid, 'SIGSTOP')
      const answering = (await getNodes(gateway)).find(({ sent }) => sent > 0)
      if (answering) {
        cut.count++
        const index = Number(answering.name.split('-')[1]) - 1
        if (what === 'member') await nodes[index]!.end('SIGKILL')
        else for (const pid of engines[index]!) process.kill(pid, 'SIGKILL')
      }
      for (const pid of all) {
        try {
          process.kill(pid, 'SIGCONT')
        } catch {
          // The engine was killed.
        }
      }
    }
  }
}

t.setTimeout(900_000)

const file = join(t.testdir(), 'thinker.gguf')
await writeThinkingModel(file)
const { nodes, members } = await startNodes(t, 2)
for (const node of nodes) {
  await node.json('/api/import', { model: THINKER, path: file, stream: false }, { local: true })
}
const gateway = await startReadyGateway(t, members)

const ready = async (model = DEMO) => {
  await Promise.all(nodes.map(node => node.json('/api/load', { model })))
  await until('all have it', async () =>
    (await getNodes(gateway)).every(({ loaded, sent }) => loaded.includes(model) && sent === 0)
  )
}

const chat = { model: DEMO, messages: [COUNT], temperature: 0 }
const surfaces: Record<string, object> = {
  '/v1/chat/completions': { ...chat, stream_options: { include_usage: true } },
  '/v1/completions': {
    model: DEMO,
    prompt: 'What is the capital of',
    temperature: 0,
    stream_options: { include_usage: true }
  },
  '/api/chat': { model: DEMO, messages: [COUNT], options: { temperature: 0 } },
  '/api/generate': { model: DEMO, prompt: COUNT.content, options: { temperature: 0 } },
  '/v1/messages': { model: DEMO, messages: [COUNT], temperature: 0, max_tokens: 100 },
  '/v1/responses': { model: DEMO, input: COUNT.content, temperature: 0 }
}

/** Token counts of the answer, as the API names them. */
function countsOf(events: any[]): object {
  const last = events.findLast(event => event.usage ?? event.eval_count ?? event.response?.usage)
  const { usage = last?.response?.usage, prompt_eval_count: prompt, eval_count: answer } = last ?? {}
  if (prompt !== undefined) return { prompt, answer }
  return { prompt: usage?.prompt_tokens, answer: usage?.completion_tokens ?? usage?.output_tokens }
}

/** Asks until an answer was cut off before its end. */
async function cutAnswer(
  path: string,
  body: object,
  headers: Record<string, string>,
  what: 'engine' | 'member' = 'engine'
): Promise<Taken> {
  return await until(
    'an answer is cut off',
    async () => {
      if (what === 'engine') await ready()
      const { cut, begun } = killing(gateway, nodes, what)
      const taken = await take(gateway, path, body, headers, begun)
      return cut.count > 0 ? taken : undefined
    },
    300_000
  )
}

for (const [path, body] of Object.entries(surfaces)) {
  t.test(`${path}: another member continues an answer whose engine is killed`, async t => {
    await ready()
    const whole = await take(nodes[1]!, path, body)
    t.not(whole.text, '')
    const joined = await cutAnswer(path, body, RESUMABLE)
    t.equal(joined.error, undefined, JSON.stringify(joined.events.at(-1)))
    t.equal(joined.text, whole.text)
    t.same(countsOf(joined.events), countsOf(whole.events), 'tokens are counted once')
    const [head] = joined.events
    if (path.startsWith('/v1/c')) {
      for (const event of joined.events) {
        t.same([event.id, event.created, event.model], [head.id, head.created, head.model], 'one answer')
      }
      t.equal(joined.events.filter(({ choices }) => choices[0]?.finish_reason).length, 1)
      t.ok(joined.events.filter(({ choices }) => choices[0]?.delta?.role).length <= 1)
    }
  })
}

t.test('the client gets an error event without the header when its answer is cut off', async t => {
  const { error, text } = await cutAnswer('/v1/chat/completions', chat, {})
  t.equal(error, 'engine_crashed')
  t.not(text, '')
})

t.test('a token limit applies to the whole answer', async t => {
  const body = { ...chat, max_tokens: 35, stream_options: { include_usage: true } }
  await ready()
  const whole = await take(nodes[1]!, '/v1/chat/completions', body)
  const joined = await cutAnswer('/v1/chat/completions', body, RESUMABLE)
  t.equal(joined.text, whole.text)
  t.same(countsOf(joined.events), { prompt: 17, answer: 35 })
  t.equal(joined.events.find(({ choices }) => choices[0]?.finish_reason).choices[0].finish_reason, 'length')
})

t.test('an answer that cannot be continued safely ends with an error', async t => {
  const schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
  for (const more of [
    { response_format: { type: 'json_schema', json_schema: { name: 'place', schema } } },
    { grammar: 'root ::= [a-z ]+' },
    { n: 2 }
  ]) {
    const { error } = await cutAnswer('/v1/chat/completions', { ...chat, max_tokens: 200, ...more }, RESUMABLE)
    t.equal(error, 'engine_crashed', JSON.stringify(more))
  }
})

t.test('reasoning is continued as reasoning', async t => {
  await ready(THINKER)
  const body = {
    model: THINKER,
    messages: [{ role: 'user', content: 'Hi' }],
    temperature: 0,
    max_tokens: 300,
    ignore_eos: true
  }
  const { cut, begun } = killing(gateway, nodes, 'engine')
  const joined = await take(gateway, '/v1/chat/completions', body, RESUMABLE, begun)
  t.equal(cut.count, 1)
  t.equal(joined.error, undefined)
  t.ok(joined.thinking.length > 100, `${joined.thinking.length}`)
  t.equal(joined.text, '')
})

t.test('another member continues an answer whose member is killed', async t => {
  await ready()
  const whole = await take(nodes[1]!, '/v1/chat/completions', chat)
  const joined = await cutAnswer('/v1/chat/completions', chat, { 'x-conversation-id': 'mine' }, 'member')
  t.equal(joined.error, undefined)
  t.equal(joined.text, whole.text)
  // Long enough that its last token cannot have arrived yet.
  const long = { ...chat, max_tokens: 400, ignore_eos: true }
  const lost = await cutAnswer('/v1/chat/completions', long, RESUMABLE, 'member')
  t.equal(lost.error, 'engine_crashed', 'the client gets an error when no member is left')
})
