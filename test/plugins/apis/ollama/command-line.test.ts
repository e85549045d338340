import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, until } from '../../../support/corral.ts'
import { type Answer, ask, corralWithListener } from './support.ts'

/*
 * Replays the requests of Ollama's own command line (0.17.4, cmd/cmd.go and api/client.go) and checks what it reads
 * from the replies. test/long/ollama-command-line.test.ts runs the command line itself.
 */
const { corral, address } = await corralWithListener(t)
const AGENT = 'ollama/0.17.4 (amd64 linux) Go/go1.26.8'
const headers = (accept: string) => ({ 'content-type': 'application/json', accept, 'user-agent': AGENT })

/** Like `do` of the client: returns one JSON value. */
const once = (base: string, method: string, path: string, body?: unknown) =>
  ask(method, base + path, headers('application/json'), body === undefined ? undefined : JSON.stringify(body))
/** Like `stream` of the client: returns one JSON value per line. */
const stream = (base: string, path: string, body: unknown) =>
  ask('POST', base + path, headers('application/x-ndjson'), JSON.stringify(body))

/** The Go structs always send fields without `omitempty`. */
const show = (name: string, more = {}) => ({
  model: '',
  system: '',
  template: '',
  verbose: false,
  options: null,
  name,
  ...more
})
const showByModel = (model: string) => ({ ...show(''), model })
const generate = (model: string, prompt: string, more = {}) => ({
  model,
  prompt,
  suffix: '',
  system: '',
  template: '',
  options: null,
  ...more
})
const pull = (name: string) => ({ model: '', username: '', password: '', name })
/** The fields of `details` in Ollama. */
const DETAILS = ['parent_model', 'format', 'family', 'families', 'parameter_size', 'quantization_level']

const text = ({ lines }: Answer) => lines.map(line => line.response ?? line.message?.content ?? '').join('')

for (const [name, base] of [
  ['OLLAMA_HOST with a path', `${corral.url}/ollama`],
  ['OLLAMA_HOST with a port', address]
] as const) {
  t.test(name, async t => {
    t.equal(
      (await ask('HEAD', `${base}/`, headers('application/json'))).status,
      200,
      'the command line checks this before each command'
    )

    const list = await once(base, 'GET', '/api/tags')
    t.match(list.lines[0].models, [{ name: `${DEMO}:latest`, size: 4096608, modified_at: /^2\d{3}-.*Z$/ }])
    t.ok(list.lines[0].models[0].digest.length >= 12, 'the command line prints the first 12 characters')

    const shown = await once(base, 'POST', '/api/show', show('tiny-chat'))
    t.match(shown.lines[0], {
      details: { parent_model: '', parameter_size: '2.03M', quantization_level: 'F16', families: ['llama'] },
      model_info: { 'general.architecture': 'llama', 'llama.context_length': 32768, 'llama.embedding_length': 256 },
      capabilities: ['completion', 'tools'],
      template: String,
      license: String
    })
    t.ok(!('remote_host' in shown.lines[0]), 'not a cloud model')
    t.match(await once(base, 'POST', '/api/show', show('tiny-chat', { verbose: true, options: {} })), { status: 200 })

    const loaded = await stream(base, '/api/generate', generate('tiny-chat', '', { keep_alive: '10m0s' }))
    t.match(loaded, { type: /x-ndjson/, lines: [{ done: true, done_reason: 'load' }] }, 'run without a prompt')
    const ps = await once(base, 'GET', '/api/ps')
    t.match(ps.lines[0].models, [{ name: `${DEMO}:latest`, size: Number, size_vram: 0, context_length: 4096 }])
    for (const { details } of [list.lines[0].models[0], shown.lines[0], ps.lines[0].models[0]])
      t.strictSame(Object.keys(details), DETAILS, 'clients such as ollama4j refuse additional fields')
    const remaining = Date.parse(ps.lines[0].models[0].expires_at) - Date.now()
    t.ok(remaining > 0 && remaining <= 600_000)

    const run = await stream(base, '/api/generate', generate('tiny-chat', CAPITAL_QUESTION.content, { options: {} }))
    t.equal(text(run), CAPITAL_ANSWER, 'run with a prompt')
    t.match(run.lines.at(-1), { done: true, done_reason: 'stop', eval_count: Number, total_duration: Number })
    t.ok(run.lines.every(line => line.error === undefined))
    const asJson = generate('tiny-chat', 'hi', { options: { num_predict: 5 }, format: 'json', think: false })
    t.match(text(await stream(base, '/api/generate', asJson)), /^\s*\{/, '--format json')

    // In interactive mode it sends the whole conversation each time, with the settings made by `/set`.
    const chat = {
      model: 'tiny-chat',
      messages: [
        CAPITAL_QUESTION,
        { role: 'assistant', content: CAPITAL_ANSWER },
        { role: 'system', content: 'You are Leo.' },
        { role: 'user', content: 'Hello!' }
      ],
      keep_alive: '10m0s',
      options: { temperature: 0 },
      think: false
    }
    const said = await stream(base, '/api/chat', chat)
    t.ok(text(said).length > 0)
    t.ok(said.lines.every(line => line.message.role === 'assistant'))

    t.match(await stream(base, '/api/pull', pull('tiny-chat')), {
      status: 200,
      lines: [{ status: 'pulling tiny-chat' }, { status: 'success' }]
    })
    t.match(
      await once(base, 'POST', '/api/show', show('llama3.2')),
      { status: 404 },
      'run pulls the model in this case'
    )
    t.match(await stream(base, '/api/pull', pull('llama3.2')), { status: 404, lines: [{ error: /<owner>\/<name>/ }] })

    t.match(await once(base, 'POST', '/api/copy', { source: 'tiny-chat', destination: 'mine' }), { status: 200 })
    t.match(await once(base, 'POST', '/api/show', showByModel('mine')), { status: 200 })
    t.match(await stream(base, '/api/generate', generate('mine', '', { keep_alive: '0s' })), {
      lines: [{ done_reason: 'unload' }]
    })
    t.match(await once(base, 'DELETE', '/api/delete', { model: '', name: 'mine' }), { status: 200 })
    t.match(await once(base, 'DELETE', '/api/delete', { model: '', name: 'mine' }), {
      status: 404,
      lines: [{ error: /not found/ }]
    })

    t.match(
      await once(base, 'POST', '/api/show', showByModel('tiny-chat')),
      { status: 200 },
      'stop checks the model first'
    )
    t.match(await stream(base, '/api/generate', generate('tiny-chat', '', { keep_alive: '0s' })), {
      lines: [{ done: true, done_reason: 'unload' }]
    })
    await until('the model is unloaded', async () => (await once(base, 'GET', '/api/ps')).lines[0].models.length === 0)

    const file = readFileSync(join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf'))
    const digest = `sha256:${createHash('sha256').update(file).digest('hex')}`
    const chunked = new ReadableStream({
      start(controller) {
        for (let at = 0; at < file.length; at += 1 << 20) controller.enqueue(file.subarray(at, at + (1 << 20)))
        controller.close()
      }
    })
    const blob = await ask('POST', `${base}/api/blobs/${digest}`, headers('application/json'), chunked)
    t.ok(blob.status === 200 || blob.status === 201, 'create sends the file without its length, as JSON')
    const created = await stream(base, '/api/create', {
      model: 'made',
      files: { 'tiny-chat-f16.gguf': digest },
      system: 'You are Leo.',
      parameters: { temperature: 0 },
      name: ''
    })
    t.equal(created.lines.at(-1)?.status, 'success', created.text)
    t.ok(
      created.lines.every(({ digest }) => digest === undefined || digest.length >= 19),
      'the command line shortens digests'
    )
    t.equal(text(await stream(base, '/api/generate', generate('made:latest', 'Who are you?'))), 'I am Leo.')
    t.match(await once(base, 'DELETE', '/api/delete', { model: '', name: 'made' }), { status: 200 })
    // Releases up to 0.6 send the new name in the other field.
    const older = await stream(base, '/api/create', { model: '', name: 'older', from: 'tiny-chat' })
    t.equal(older.lines.at(-1)?.status, 'success', older.text)
    t.match(await once(base, 'DELETE', '/api/delete', { model: '', name: 'older' }), { status: 200 })

    t.match(await once(base, 'POST', '/api/me'), { status: 501, lines: [{ error: /ollama\.com/ }] }, 'push')
    t.match(await once(base, 'GET', '/api/version'), { lines: [{ version: '0.17.4' }] })
    t.match(await once(base, 'POST', '/api/embed', { model: 'tiny-chat', input: 'hi', options: null }), {
      status: 200,
      lines: [{ embeddings: [Array] }]
    })
    await stream(base, '/api/generate', generate('tiny-chat', '', { keep_alive: '0s' }))
  })
}
