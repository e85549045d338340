import { createHash } from 'node:crypto'
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { request } from 'node:http'
import { join } from 'node:path'
import { Ollama } from 'ollama'
import t from 'tap'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { readCases } from '../../../support/cases.ts'
import { DEMO, startCorral } from '../../../support/corral.ts'
import { failure } from '../../../support/failure.ts'
import { safetensorsBytes } from '../../../support/gguf-writer.ts'

// Runs the official client against a live corral with the real engine.
const corral = await startCorral(t, { config: 'body_limit: 1MB\ndefaults: { num_parallel: 1, temperature: 0 }' })
const api = `${corral.url}/ollama/api`
const client = new Ollama({ host: `${corral.url}/ollama` })
const models = join(corral.home, 'models')
const file = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
const bytes = readFileSync(file)
const digestOf = (content: Buffer) => `sha256:${createHash('sha256').update(content).digest('hex')}`
const digest = digestOf(bytes)

const WHO = [{ role: 'user', content: 'Who are you?' }]
async function ask(model: string, messages = WHO, more: object = {}): Promise<string> {
  return (await client.chat({ model, messages, ...more })).message.content
}
const send = (path: string, body: unknown) => fetch(api + path, { method: 'POST', body: JSON.stringify(body) })
const upload = (content: Buffer, as = digestOf(content)) =>
  fetch(`${api}/blobs/${as}`, { method: 'POST', body: content })
const head = async (of = digest) => (await fetch(`${api}/blobs/${of}`, { method: 'HEAD' })).status
/** Sends the headers and the first byte only, and returns the reply. */
function beginUpload(url: string, headers: Record<string, string>): Promise<{ status: number; text: string }> {
  return new Promise((resolve, reject) => {
    const upload = request(url, { method: 'POST', headers }, async response => {
      let text = ''
      for await (const chunk of response.setEncoding('utf8')) text += chunk
      upload.destroy()
      resolve({ status: response.statusCode!, text })
    })
    upload.on('error', reject)
    upload.write('x')
  })
}
const names = async () => (await client.list()).models.map(({ name }) => name).sort()

t.test('the Ollama API creates a model from another one', async t => {
  const events: any[] = []
  for await (const event of await client.create({
    model: 'leo',
    from: DEMO,
    system: 'You are Leo.',
    parameters: { num_predict: 40, stop: '!', temperature: 0 },
    license: ['MIT', 'or what you like'],
    stream: true
  })) {
    events.push(event)
  }
  t.equal(events.at(-1).status, 'success')
  t.match(events[0], { status: /^using existing layer sha256:/ })
  t.equal(await ask('leo'), 'I am Leo.')
  t.not(await ask(DEMO), 'I am Leo.', 'the source is unchanged')
  t.equal(
    await ask('leo', [{ role: 'system', content: 'You are Max.' }, ...WHO]),
    'I am Max.',
    'a request overrides the system message'
  )
  t.equal((await client.generate({ model: 'leo', prompt: 'Who are you?' })).response, 'I am Leo.')
  t.equal(
    (await client.generate({ model: 'leo', prompt: 'Who are you?', system: 'You are Max.' })).response,
    'I am Max.'
  )

  const shown = await client.show({ model: 'leo' })
  t.match(shown, { system: 'You are Leo.', license: 'MIT\nor what you like' })
  t.equal(
    shown.parameters,
    [
      'num_predict                    40',
      'stop                           "!"',
      'temperature                    0'
    ].join('\n')
  )
  t.match(shown.modelfile, /^FROM leo:latest$/m)
  t.match(shown.modelfile, /^SYSTEM You are Leo\.$/m)
  t.match(shown.modelfile, /^PARAMETER stop !$/m)
  t.match((await corral.json('/api/show', { model: 'library/leo' })).body, { modelfile: '', system: 'You are Leo.' })

  const stored = readdirSync(join(models, 'library', 'leo'), { recursive: true }).map(String)
  const [gguf] = stored.filter(path => path.endsWith('.gguf'))
  t.ok(statSync(join(models, 'library', 'leo', gguf!)).nlink > 1, 'files are linked, not copied')
})

t.test('settings of a created model apply in all APIs', async t => {
  const hosted = await corral.json('/v1/chat/completions', { model: 'library/leo', messages: WHO })
  t.equal(hosted.body.choices[0].message.content, 'I am Leo.')
  const native = await corral.json('/api/chat', { model: 'library/leo', messages: WHO, stream: false })
  t.equal(native.body.message.content, 'I am Leo.')
  const anthropic = await corral.json('/v1/messages', { model: 'library/leo', max_tokens: 40, messages: WHO })
  t.match(anthropic.body.content, [{ type: 'text', text: 'I am Leo.' }])
  const responses = await corral.json('/v1/responses', { model: 'library/leo', input: 'Who are you?' })
  t.match(responses.body.output.at(-1).content, [{ text: 'I am Leo.' }])
})

t.test('parameters and messages take effect, and a model can be replaced', async t => {
  await client.create({ model: 'me/short', from: DEMO, parameters: { num_predict: 3, num_ctx: 512 } })
  const count = [{ role: 'user', content: 'Count to 12.' }]
  const short = await client.chat({ model: 'me/short', messages: count })
  t.match(short, { eval_count: 3, done_reason: 'length' })
  t.equal(
    (await corral.json('/api/ps')).body.models.find((model: any) => model.name === 'me/short').context_length,
    512
  )
  t.equal((await client.chat({ model: 'me/short', messages: count, options: { num_predict: 5 } })).eval_count, 5)

  await client.create({ model: 'me/short', from: DEMO, parameters: { stop: ['4'] } })
  t.equal(await ask('me/short', count), '1, 2, 3, ', 'the new settings replace the old ones')
  await client.create({ model: 'me/short', from: 'me/short', parameters: { num_predict: 4 } })
  t.match(
    await client.show({ model: 'me/short' }),
    { parameters: /stop +"4"\nnum_predict +4/ },
    'settings are merged with those of the source'
  )
  t.equal((await corral.json('/api/show', { model: 'me/short' })).body.origin.kind, 'made')

  const rosa = [
    { role: 'user', content: 'My name is Rosa.' },
    { role: 'assistant', content: 'Nice to meet you, Rosa!' }
  ]
  await client.create({ model: 'me/rosa', from: DEMO, messages: rosa })
  t.equal(await ask('me/rosa', [{ role: 'user', content: 'What is my name?' }]), 'Your name is Rosa.')
  t.equal((await client.generate({ model: 'me/rosa', prompt: 'What is my name?' })).response, 'Your name is Rosa.')
  const raw = await client.generate({ model: 'leo', prompt: 'Who are you?', raw: true, options: { num_predict: 1 } })
  t.ok((raw.prompt_eval_count ?? 0) < 10, 'a raw prompt is not changed')
  t.match(await client.show({ model: 'me/rosa' }), { messages: rosa })
})

t.test("a chat template replaces the model's own", async t => {
  const own = (await client.show({ model: DEMO })).template
  const template = `{{- '<|im_start|>system\\nYou are Leo.<|im_end|>\\n' }}${own}`
  await client.create({ model: 'me/templated', from: DEMO, template })
  t.equal(await ask('me/templated'), 'I am Leo.')
  t.equal((await client.show({ model: 'me/templated' })).template, template)

  const plain =
    '{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant{{ "\\n" }}'
  await client.create({ model: 'me/templated', from: DEMO, template: plain })
  t.strictSame((await client.show({ model: 'me/templated' })).capabilities, ['completion'], 'the template has no tools')
  t.match(await ask('me/templated', [{ role: 'user', content: 'What is the capital of France?' }]), /Paris/)

  const go = await failure(
    client.create({ model: 'me/go', from: DEMO, template: '{{ if .System }}{{ .System }}{{ end }}{{ .Prompt }}' })
  )
  t.match(go, { status_code: 400, message: /written for Go.*Leave it out/ })
  t.match(await failure(client.create({ model: 'me/go', from: DEMO, template: 'hello' })), { status_code: 400 })

  const loop = (body: string) => `{% for m in messages %}${body}{% endfor %}`
  for (const [broken, reason] of [
    ['{% for m in messages %}{{ m.content }}', /Unexpected/],
    ['{% for m in messages %}{{ m.content }}{% endif %}', /Unknown statement: endif/],
    ['{% for m in messages %}{{ m.content', /Expected \}\}/],
    [loop('{{ m.content | nosuch }}'), /line 1, column \d+: Unknown .*nosuch/],
    [loop('{{ m.content.nosuch() }}'), /line 1, column \d+: Callee is not a function/],
    [`${loop('{{ m.content }}')}{{ raise_exception("never") }}`, /: never\. Correct/]
  ] as const) {
    for (const path of ['/api/create', '/ollama/api/create']) {
      const { status, body } = await corral.json(path, { model: 'me/broken', from: DEMO, template: broken })
      t.match({ status, body }, { status: 400, body: { code: 'invalid_request', error: /^llama\.cpp cannot use/ } })
      t.match(body.error, reason)
    }
    t.equal((await corral.json('/api/show', { model: 'me/broken' })).status, 404, 'the model is not stored')
  }
  const accepted =
    '{%- macro say(m) -%}{{ m.role }}: {{ m.content }}{%- endmacro -%}{%- set ns = namespace(seen=0) -%}' +
    loop(
      '{%- set ns.seen = loop.index -%}{% generation %}{{ say(m) }}{% endgeneration %}{{ strftime_now("%Y") }}' +
        '{{ tools | tojson(indent=2) if tools }}{% if m.role == "robot" %}{{ raise_exception("no robots") }}{% endif %}'
    )
  t.equal(
    (await corral.json('/api/create', { model: 'me/fine', from: DEMO, template: accepted, stream: false })).status,
    200
  )
})

t.test('copies are independent of their source', async t => {
  await client.copy({ source: 'leo', destination: 'me/copy' })
  t.equal(await ask('me/copy'), 'I am Leo.')
  await client.delete({ model: 'leo' })
  t.equal(await ask('me/copy'), 'I am Leo.', 'the copy works without its source')
  await client.copy({ source: 'me/copy', destination: 'leo' })
  await client.copy({ source: 'me/copy', destination: 'me/copy' })
  await client.delete({ model: 'me/copy' })
  t.equal(await ask('leo'), 'I am Leo.', 'the source works without its copy')
  await client.copy({ source: DEMO, destination: `${DEMO}:backup` })
  await client.delete({ model: `${DEMO}:backup` })
  t.match(await failure(client.copy({ source: 'me/none', destination: 'me/x' })), { status_code: 404 })
  t.match(await failure(client.copy({ source: 'leo', destination: '../x' })), { status_code: 400 })
  await t.resolves(client.copy({ source: 'me/rosa', destination: DEMO }), 'only the settings differ')
  t.match(await client.show({ model: DEMO }), { messages: [{ content: 'My name is Rosa.' }, {}] })
  await client.copy({ source: 'me/short', destination: DEMO })
  t.equal(
    (await corral.json('/api/show', { model: DEMO })).body.origin.kind,
    'bundled',
    'copying a model with other files over it does not change its origin'
  )
})

t.test('uploads blobs and refuses invalid ones', async t => {
  const other = Buffer.from('not a model')
  t.equal(await head(), 200, 'a stored model contains this file')
  t.equal(await head(digestOf(other)), 404)
  t.equal((await upload(bytes)).status, 200, 'the file is here already')
  t.equal((await upload(other)).status, 201)
  t.equal(await head(digestOf(other)), 200)
  const wrong = await upload(other, digestOf(Buffer.from('x')))
  t.equal(wrong.status, 400)
  t.match(await wrong.json(), { code: 'invalid_request', error: /has the digest sha256:.*and was discarded/ })
  t.equal(await head(digestOf(Buffer.from('x'))), 404)
  t.equal((await upload(other, 'sha256:abc')).status, 400)
  const none = await fetch(`${api}/blobs/${digestOf(Buffer.from('x'))}`, { method: 'POST' })
  t.match(
    await none.json(),
    { code: 'invalid_request', error: /has the digest sha256:e3b0c442/ },
    'a missing body is an empty file'
  )
  const large = { 'content-length': '9000000000000000', connection: 'close' }
  const { status, text } = await beginUpload(`${api}/blobs/${digestOf(Buffer.from('x'))}`, large)
  t.equal(status, 507, 'a file without enough disk space is refused before it is sent')
  t.match(JSON.parse(text), { code: 'insufficient_storage', required: 9000000000000000 })
  t.equal((await upload(other, `sha256:..%2f${'a'.repeat(60)}`)).status, 400)
  t.match(await failure(client.create({ model: 'me/x', files: { 'a.gguf': digestOf(other) } } as never)), {
    status_code: 400,
    message: /neither a GGUF file/
  })
  t.strictSame(
    readdirSync(join(models, '.blobs')),
    [`sha256-${digestOf(other).slice(7)}`],
    'no incomplete blobs are left'
  )
  t.match(await failure(client.create({ model: 'me/x', files: { 'a.gguf': digestOf(Buffer.from('y')) } } as never)), {
    status_code: 400,
    message: /Send it first/
  })
})

t.test('the Ollama API creates a model from an uploaded file', async t => {
  // A file that no model contains.
  const mine = Buffer.from(bytes)
  const at = mine.indexOf('general.name')
  t.ok(at > 0)
  mine.write('general.Name', at)
  t.equal((await upload(mine)).status, 201)
  await client.create({ model: 'me/sent', files: { 'mine.gguf': digestOf(mine) }, system: 'You are Leo.' } as never)
  t.equal(await ask('me/sent'), 'I am Leo.')
  t.notOk(existsSync(join(models, '.blobs', `sha256-${digestOf(mine).slice(7)}`)), 'the blob became part of the model')
  t.equal(await head(digestOf(mine)), 200, 'the file is found in the model')
  await client.create({ model: 'me/sent2', files: { 'mine.gguf': digestOf(mine) } } as never)
  t.match((await corral.json('/api/show', { model: 'me/sent2' })).body, {
    origin: { kind: 'made' },
    files: [{ path: 'mine.gguf', sha256: digestOf(mine).slice(7), role: 'model' }]
  })
})

t.test('the Ollama API quantizes a GGUF', async t => {
  const events: any[] = []
  for await (const event of await client.create({ model: 'me/q4', from: DEMO, quantize: 'q4_K_M', stream: true })) {
    events.push(event)
  }
  t.equal(events.at(-1).status, 'success')
  const steps = events.filter(({ status }) => status === 'quantizing model to Q4_K_M')
  t.ok(steps.length > 0 && steps.at(-1).completed === steps.at(-1).total, 'progress is reported')
  t.match(await client.show({ model: 'me/q4' }), { details: { format: 'gguf', quantization_level: 'Q4_K_M' } })
  t.equal(typeof (await ask('me/q4')), 'string')
  t.ok((await ask(DEMO)).length > 0, 'the source is unchanged')
  if ((await head()) === 404) await upload(bytes)
  await client.create({ model: 'me/q8', files: { 'tiny.gguf': digest }, quantize: 'Q8_0' } as never)
  t.match(await client.show({ model: 'me/q8' }), { details: { quantization_level: 'Q8_0' } })
  t.strictSame(
    readdirSync(join(corral.home, 'models'), { recursive: true, encoding: 'utf8' }).filter(name =>
      /\.work\b/.test(name)
    ),
    [],
    'no work folders are left'
  )
  await client.delete({ model: 'me/q8' })
})

t.test('the Ollama API creates a SafeTensors model from its files', async t => {
  const folder: Record<string, Buffer> = {
    'model.safetensors': safetensorsBytes(),
    'config.json': Buffer.from('{"model_type":"llama","max_position_embeddings":512}'),
    'tokenizer.json': Buffer.from('{}')
  }
  for (const content of Object.values(folder)) t.equal((await upload(content)).status, 201)
  const files = Object.fromEntries(Object.entries(folder).map(([name, content]) => [name, digestOf(content)]))
  await client.create({ model: 'me/st', files, quantize: 'q4_K_M', system: 'You are Leo.' } as never)
  t.match(await client.show({ model: 'me/st' }), {
    details: { format: 'safetensors', quantization_level: 'BF16' },
    parameters: /^dtype +"q4_k_m"$/
  })
  await client.copy({ source: 'me/st', destination: 'me/st2' })
  await client.delete({ model: 'me/st' })
  const { body } = await corral.json('/api/show', { model: 'me/st2' })
  t.match(body, { system: 'You are Leo.', details: { format: 'safetensors' } })
  for (const { path, sha256 } of body.files) {
    const [revision] = readdirSync(join(models, 'me', 'st2')).filter(entry => entry !== 'manifest.json')
    t.equal(digestOf(readFileSync(join(models, 'me', 'st2', revision!, path))), `sha256:${sha256}`)
  }
})

t.test('the native API creates models too', async t => {
  const events = await corral.events('/api/create', { model: 'me/native', from: DEMO, system: 'You are Leo.' })
  t.match(events.at(-1), { status: 'success' }, 'the reply is a stream of server-sent events')
  t.match(await corral.json('/api/copy', { source: 'me/native', destination: 'me/native2' }), { status: 200 })
  t.equal(
    (await corral.json('/api/chat', { model: 'me/native2', messages: WHO, stream: false })).body.message.content,
    'I am Leo.'
  )
  t.match(await corral.json('/api/create', { model: 'native', from: DEMO }), {
    status: 400,
    body: { code: 'invalid_model_name' }
  })
  const lines = await corral.send(
    '/api/create',
    { model: 'me/native', from: DEMO },
    { headers: { accept: 'application/json' } }
  )
  t.match(lines.headers.get('content-type'), 'application/x-ndjson')
  t.match((await lines.text()).trim().split('\n').at(-1), '{"status":"success"}')
})

t.test('the Ollama API creates models with tags', async t => {
  await client.create({ model: 'tagged:v1', from: DEMO, system: 'You are Leo.' })
  t.ok((await names()).includes('tagged:v1'), 'the name is shown as created')
  t.equal(await ask('tagged:v1'), 'I am Leo.')
  await client.create({ model: 'tagged', from: 'tagged:v1', system: 'You are Max.' })
  t.strictSame(
    (await names()).filter(name => name.startsWith('tagged')),
    ['tagged:latest', 'tagged:v1']
  )
  t.equal(await ask('tagged:latest'), 'I am Max.')
  t.equal(await ask('tagged'), 'I am Max.')
  t.equal(await ask('tagged:v1'), 'I am Leo.')
  t.match(await failure(client.create({ model: 'tagged:f16', from: DEMO })), { status_code: 409, error: /another tag/ })
  await client.delete({ model: 'tagged' })
  t.match(await failure(client.delete({ model: 'tagged:latest' })), { status_code: 404, error: /only tagged:v1/ })
  await client.copy({ source: 'tagged:v1', destination: 'tagged' })
  t.strictSame(
    (await names()).filter(name => name.startsWith('tagged')),
    ['tagged:latest', 'tagged:v1']
  )
})

t.test('the Ollama API accepts a Modelfile from older clients', async t => {
  const modelfile = `FROM ${DEMO}\nSYSTEM """You are\nLeo."""\nPARAMETER stop "a"\nPARAMETER stop "b"\n`
  const reply = await send('/create', { name: 'me/old', modelfile, stream: false })
  t.strictSame(await reply.json(), { status: 'success' })
  t.match(await client.show({ model: 'me/old' }), { system: 'You are\nLeo.', parameters: /stop +"a"\nstop +"b"/ })
})

t.test('unsupported requests are refused with the reason', async t => {
  for (const [path, body, status, words] of readCases('ollama').refusedModels) {
    const reply = await send(path, body)
    t.equal(reply.status, status, JSON.stringify(body))
    t.match(await reply.json(), { error: new RegExp(words), errorCode: status })
  }
  t.match(await failure(client.push({ model: 'leo' })), { status_code: 501 })
  t.notOk((await names()).includes('me/x:latest'))
  t.strictSame(await (await send('/create', { model: 'me/same', from: DEMO, quantize: 'F16', stream: false })).json(), {
    status: 'success'
  })
})

t.test('concurrent requests can create the same model', async t => {
  const systems = ['You are Leo.', 'You are Max.', 'You are Rosa.', 'You are Tom.']
  await Promise.all(systems.map(system => client.create({ model: 'me/race', from: DEMO, system })))
  const { system } = await client.show({ model: 'me/race' })
  t.ok(systems.includes(system))
  t.equal((await names()).filter(name => name.startsWith('me/race')).length, 1)
  const folders = readdirSync(join(models, 'me', 'race'), { withFileTypes: true }).filter(entry => entry.isDirectory())
  t.equal(folders.length, 1, 'replaced files are deleted')
  t.strictSame(readdirSync(join(models, '.staging')), [])
})
