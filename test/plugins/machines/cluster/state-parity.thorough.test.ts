import { once } from 'node:events'
import { join } from 'node:path'
import t from 'tap'
import { WebSocket } from 'ws'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { CAPITAL_QUESTION, type Corral, DEMO, startCorral, until } from '../../../support/corral.ts'
import { wavBytes } from '../../apis/openai/media/support.ts'
import { ADDER, results, MODEL as SCRIPTED, scriptedModel, toolProgram } from '../../tools/support.ts'
import { parsed } from './compared.ts'
import { startReadyGateway } from './support.ts'

/* What a client does in several requests, at a gateway of two nodes and at one of these nodes alone. Each step's answer
   is compared without ids, times and cache counts. */

t.setTimeout(600_000)

const scripted = `"${process.execPath}" '${join(packageRoot, 'test', 'fixtures', 'scripted-program.mjs')}' {port}`
const { section } = await scriptedModel(t, body => {
  const result = results(body).at(-1)
  return result === undefined
    ? { calls: [{ name: 'math_add', arguments: { a: 2, b: 40 } }] }
    : { text: `It is ${result}.` }
})
const program = toolProgram(t, ADDER)
const own = `web: { conversations: server }\nmcp: { servers: { math: { command: node, arguments: [${program}] } } }\n`
const config = `${own}${section}engines: ${JSON.stringify({
  draws: { command: scripted, kind: 'draw' },
  hears: { command: scripted, kind: 'transcribe' }
})}\nmodels: { other/draws: { engine: draws }, other/hears: { engine: hears } }\n`
const nodes = await Promise.all([startCorral(t, { config }), startCorral(t, { config })])
const members = nodes.map(({ url }, index) => ({ name: `node-${index + 1}`, url }))
const gateway = await startReadyGateway(t, members, { config: own })
await until('the models are known', async () => (await gateway.json('/api/tags')).body.models.length === 4)

const greedy = { model: DEMO, temperature: 0 }
const question = CAPITAL_QUESTION.content

/** Leaves out times, and what answers do not have that another node could continue. */
const withoutOwn = (name: string, value: unknown) =>
  ['updated_at', 'system_fingerprint', 'total_bytes'].includes(name) ? undefined : value

/** A client of a server, and the answers that it has noted. */
function client(corral: Corral) {
  const notes: unknown[] = []
  const quiet = async (path: string, body?: object) => (await corral.json(path, body)).body
  async function send(path: string, body?: unknown, init?: Parameters<Corral['send']>[2]): Promise<any> {
    const reply =
      body instanceof FormData
        ? await fetch(corral.url + path, { method: 'POST', body })
        : await corral.send(path, body, init)
    const text = await reply.text()
    const type = path.endsWith('/content') ? 'application/x-ndjson' : (reply.headers.get('content-type') ?? '')
    const same = text
      .replace(/\b((?:[a-z]+[_-])+)[A-Za-z0-9-]{12,}\b/g, '$1id')
      .replace(/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|call_\d+_\d+/g, 'id')

    notes.push({ status: reply.status, type, body: JSON.parse(JSON.stringify(parsed(same, type)), withoutOwn) })
    return type.includes('/json') ? JSON.parse(text) : text
  }
  return { notes, quiet, send }
}

/** What clients do in several requests. */
const CLIENTS: Record<string, (made: ReturnType<typeof client>, corral: Corral) => Promise<void>> = {
  async 'stored responses'({ send }) {
    const { id } = await send('/v1/responses', { ...greedy, input: question })
    await send(`/v1/responses/${id}`)
    await send(`/v1/responses/${id}/cancel`, {})
    await send(`/v1/responses/${id}/input_items`)
    const next = await send('/v1/responses', { ...greedy, input: 'And of Spain?', previous_response_id: id })
    await send(`/v1/responses/${next.id}/input_items?order=asc`)
    await send(`/v1/responses/${id}`, undefined, { method: 'DELETE' })
    await send(`/v1/responses/${id}`)
    await send('/v1/responses', { ...greedy, input: 'And?', previous_response_id: id })
  },
  async 'chats of LM Studio'({ send }) {
    const { response_id } = await send('/api/v1/chat', { ...greedy, input: question })
    await send('/api/v1/chat', { ...greedy, input: 'And of Spain?', previous_response_id: response_id })
  },
  async 'files and batches'({ send, quiet }) {
    const line = (custom_id: string, url: string, body: object) =>
      JSON.stringify({ custom_id, method: 'POST', url, body: { ...greedy, ...body } })
    const url = '/v1/chat/completions'
    const text = [line('one', url, { messages: [CAPITAL_QUESTION] }), line('two', url, { messages: 'none' })].join('\n')
    const form = new FormData()
    form.append('purpose', 'batch')
    form.append('file', new Blob([text]), 'lines.jsonl')
    const file = await send('/v1/files', form)
    await send(`/v1/files/${file.id}`)
    await send(`/v1/files/${file.id}/content`)
    const asked = { input_file_id: file.id, endpoint: url, completion_window: '24h' }
    const { id } = await send('/v1/batches', asked)
    await until('it is completed', async () => (await quiet(`/v1/batches/${id}`)).status === 'completed')
    const batch = await send(`/v1/batches/${id}`)
    await send(`/v1/files/${batch.output_file_id}/content`)
    await send(`/v1/files/${batch.error_file_id}/content`)
    await send(`/v1/batches/${id}/cancel`, {})
    await send('/v1/batches?limit=1')
    await send(`/v1/files/${file.id}`, undefined, { method: 'DELETE' })
    await send(`/v1/files/${file.id}`)
    await send(url, {
      ...greedy,
      messages: [{ role: 'user', content: [{ type: 'file', file: { file_id: file.id } }] }]
    })
  },
  async 'resumable streams'({ send }, corral) {
    const headers = { 'x-corral-resumable': 'true' }
    const body = { ...greedy, messages: [CAPITAL_QUESTION], stream: true }
    for (const [path, place] of [
      ['/v1/chat/completions', '/v1/streams'],
      ['/api/chat', '/api/streams']
    ]) {
      const reply = await corral.send(path!, body, { headers })
      await reply.text()
      const id = reply.headers.get('x-corral-stream-id')
      await send(`${place}/${id}?after=2`)
      await send(`${place}/${id}`, undefined, { method: 'DELETE' })
      await send(`${place}/${id}`)
    }
    await send('/v1/chat/completions', body, { headers: { 'x-conversation-id': 'talk' } })
    await send('/v1/streams/lookup', { conversation_ids: ['talk', 'other'] })
    await send('/v1/stream?conv_id=talk')
    await send('/v1/stream?conv_id=talk', undefined, { method: 'DELETE' })
  },
  async 'conversations of the page'({ send }) {
    await send('/api/conversations/one', { title: 'A title', document: { messages: [] } }, { method: 'PUT' })
    await send('/api/conversations')
    await send('/api/conversations/one')
    await send('/api/conversations/one', undefined, { method: 'DELETE' })
  },
  async 'tools that the server calls'({ send }) {
    const tool = { type: 'mcp', server_label: 'math', require_approval: 'never', allowed_tools: ['add'] }
    for (const stream of [false, true]) {
      await send('/v1/responses', { model: SCRIPTED, input: 'What is 2 + 40?', tools: [tool], stream })
    }
    const headers = { 'x-corral-tools': 'math' }
    const messages = [{ role: 'user', content: 'What is 2 + 40?' }]
    await send('/v1/chat/completions', { model: SCRIPTED, messages }, { headers })
    await send('/api/chat', { model: SCRIPTED, messages }, { headers })
    await send('/v1/messages', { model: SCRIPTED, messages, max_tokens: 99 }, { headers })
    await send('/api/mcp/math')
    await send('/api/mcp/math/call', { name: 'add', arguments: { a: 1, b: 2 } })
    const call = (name: string, given: object) => ({
      jsonrpc: '2.0',
      id: 1,
      method: 'tools/call',
      params: { name, arguments: given }
    })
    await send('/mcp', call('chat', { model: DEMO, prompt: question, temperature: 0 }))
  },
  async 'images and recordings'({ notes, quiet, send }) {
    const png = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=='
    await send('/v1/images/generations', { model: 'other/draws', prompt: 'a horse', size: '64x32', seed: 7 })
    await send('/v1/images/generations', { model: 'other/draws', prompt: 'a horse', stream: true })
    const edited = await quiet('/v1/images/edits', { model: 'other/draws', prompt: 'a horse', image: png, mask: png })
    notes.push(
      Buffer.from(edited.data[0].b64_json, 'base64')
        .toString()
        .replace(/undici-\d+/g, '')
    )
    await send('/v1/images/variations', { model: 'other/draws', image: png })
    await send('/v1/images/generations', { model: 'other/draws', prompt: 'a', size: 'big' })
    const file = wavBytes(0.2).toString('base64')
    for (const path of ['transcriptions', 'translations'])
      await send(`/v1/audio/${path}`, { model: 'other/hears', file, language: 'de' })
    await send('/v1/audio/speech', { model: 'other/hears', input: 'Hello' })
  },
  async 'live sessions'({ notes }, corral) {
    const socket = new WebSocket(`${corral.url.replace('http', 'ws')}/v1/realtime?model=${DEMO}`)
    const events: any[] = []
    socket.on('message', data => events.push(JSON.parse(data.toString())))
    await once(socket, 'open')
    const say = (type: string, more = {}) => socket.send(JSON.stringify({ type, ...more }))
    say('session.update', { session: { type: 'realtime', output_modalities: ['text'], temperature: 0 } })
    const content = [{ type: 'input_text', text: question }]
    say('conversation.item.create', { item: { type: 'message', role: 'user', content } })
    say('response.create')
    await until('it has answered', () => events.some(({ type }) => type === 'response.done'))
    socket.terminate()
    const spoken = events.flatMap(({ response }) => response?.output ?? []).map(({ content }) => content)
    notes.push(
      events.map(({ type }) => type).filter(type => !type.endsWith('.delta')),
      spoken
    )
  }
}

for (const [what, act] of Object.entries(CLIENTS)) {
  t.test(what, async t => {
    const [there, here] = [client(nodes[0]!), client(gateway)]
    await act(there, nodes[0]!)
    await act(here, gateway)
    t.strictSame(here.notes, there.notes)
    t.comment(JSON.stringify(there.notes).slice(0, 20_000))
  })
}
