import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { processStartTime } from '../../../../core/system/processes.ts'
import { fillIn, missingPrograms, splitCommand } from '../../../../runtimes/remote/programs/program-settings.ts'
import { startTestCorral } from '../../../../testing/index.ts'
import { newKey, startCorral, until } from '../../../support/corral.ts'
import { engineBuildFolder } from '../../../support/engine-build.ts'
import { newFolder } from '../../../support/folder.ts'
import { thorough } from '../../../support/thorough.ts'

/** One grey pixel. */
const PNG = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg==',
  'base64'
)
const SCRIPT = join(packageRoot, 'test', 'fixtures', 'scripted-program.mjs')
const DEMO_FILE = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
const model = 'other/one'
const messages = [{ role: 'user', content: 'Hello' }]

const scripted = (fault = 'none', more: object = {}) => ({
  command: `"${process.execPath}" '${SCRIPT}' {port} ${fault} {model}`,
  stop_timeout: '200ms',
  ...more
})

async function corralOf(t: Test, engines: object, models: object = { [model]: { engine: 'scripted' } }) {
  const config = `engines: ${JSON.stringify(engines)}\nmodels: ${JSON.stringify(models)}`
  const corral = await startTestCorral({ echo: false, config })
  t.teardown(() => corral.close())
  return corral
}
type Corral = Pick<Awaited<ReturnType<typeof corralOf>>, 'json'>

const ask = (corral: Corral, more: object = {}) => corral.json('/v1/chat/completions', { model, messages, ...more })
const pidOf = async (corral: Corral) => Number.parseInt((await ask(corral)).body.choices[0].message.content, 10)
const unload = (corral: Corral, name = model) =>
  corral.json('/api/generate', { model: name, keep_alive: 0, stream: false })
/** Tests of a whole server's processes and memory share it. Its engines cannot be reloaded. */
const shared = startCorral(t, {
  config: `scheduler: { memory: 4GiB, load_grace: 100ms }\nengines: ${JSON.stringify({
    drowsy: scripted('drowsy', { sleep: { path: '/sleep?level=1', wake: '/wake_up' } }),
    big: scripted('none', { memory: { host: '3GiB' } }),
    huge: scripted('none', { memory: { host: '5GiB' } }),
    small: scripted(),
    second: {
      command: `${join(engineBuildFolder(), 'llama-server')} --port {port} --model {model} --threads 1 --ctx-size 4096 --offline --jinja`,
      environment: { LLAMA_API_KEY: '{key}' }
    }
  })}\nmodels: ${JSON.stringify({
    'other/drowsy': { engine: 'drowsy' },
    'other/a': { engine: 'big' },
    'other/b': { engine: 'big' },
    'other/huge': { engine: 'huge' },
    'other/c': { engine: 'small', groups: ['g'] },
    'other/second': { engine: 'second', files: DEMO_FILE },
    'corral/tiny-chat': { groups: ['g'] }
  })}\n`
})
const isRunning = async (pid: number) => (await processStartTime(pid)) !== undefined

t.test('a command is split into arguments like in a shell, without expanding anything', async t => {
  const table: [string, string[]][] = [
    ['vllm serve {model}', ['vllm', 'serve', '{model}']],
    [' a\n  b\t"c d" ', ['a', 'b', 'c d']],
    [`x "it's" 'say "hi"' ''`, ['x', "it's", 'say "hi"', '']],
    ['a\\ b "c\\"d" C:\\models\\x', ['a b', 'c"d', 'C:\\models\\x']],
    ['--x="a b"c $HOME `ls` *', ['--x=a bc', '$HOME', '`ls`', '*']]
  ]
  for (const [command, words] of table) t.same(splitCommand(command), words, command)
  for (const [command, message] of [
    ['', /empty/],
    ['  ', /empty/],
    ['a "b', /not closed/],
    ["a 'b", /not closed/]
  ] as const) {
    t.throws(() => splitCommand(command), message, command)
  }
  const values = { port: '1', model: '{key}', key: 'k' }
  t.equal(fillIn('{port} {model} {key} {other} {}', values), '1 {key} k {other} {}', 'values are not filled in again')
})

t.test('a program answers on every API, and its process ends with its model', async t => {
  const files = '/srv/models/one model.bin'
  const corral = await corralOf(t, { scripted: scripted() }, { [model]: { engine: 'scripted', files } })
  const chats: [string, object, (body: any) => string][] = [
    ['/api/chat', { messages, stream: false }, body => body.message.content],
    ['/v1/chat/completions', { messages }, body => body.choices[0].message.content],
    ['/v1/responses', { input: 'Hello' }, body => body.output.at(-1).content[0].text],
    ['/v1/messages', { messages, max_tokens: 9 }, body => body.content[0].text],
    ['/ollama/api/chat', { messages, stream: false }, body => body.message.content]
  ]
  const answers = new Set<string>()
  for (const [path, body, read] of chats) {
    const reply = await corral.json(path, { model, ...body })
    t.equal(reply.status, 200, path)
    answers.add(read(reply.body))
  }
  t.equal(answers.size, 1, 'one process answers all')
  const [answer] = answers
  const pid = Number.parseInt(answer!, 10)
  t.equal(answer, `${pid} ${files}`, 'the path of its files stays one argument')
  const { body: ps } = await corral.json('/api/ps')
  t.match(ps.models, [{ model, format: 'engines', slots: 8 }])
  t.ok(ps.models[0].memory.host > 2 ** 20, 'its memory is measured')
  await unload(corral)
  await until('the process has ended', async () => !(await isRunning(pid)))
  t.not(await pidOf(corral), pid, 'the next request starts it again')
})

t.test("a long prompt does not grow a program's context, which its command sets", thorough, async t => {
  const corral = await corralOf(t, { scripted: scripted('none', { context: 32_768 }) })
  const body = JSON.stringify({ model, messages: [{ role: 'user', content: 'word '.repeat(12_000) }] })
  const reply = await fetch(`${corral.url}/v1/chat/completions`, { method: 'POST', body })
  t.equal(reply.status, 200)
  t.equal(reply.headers.get('x-corral-context'), null)
})

t.test('embeddings, ranking and transcription reach the program of their kind', async t => {
  const kinds = ['embedding', 'rerank', 'transcribe']
  const corral = await corralOf(
    t,
    Object.fromEntries(kinds.map(kind => [kind, scripted('none', { kind })])),
    Object.fromEntries(kinds.map(kind => [`other/${kind}`, { engine: kind }]))
  )
  const vectors = await corral.json('/v1/embeddings', { model: 'other/embedding', input: 'a' })
  t.same(vectors.body.data[0].embedding, [1, 2])
  const ranking = await corral.json('/v1/rerank', { model: 'other/rerank', query: 'a', documents: ['b', 'c'] })
  t.match(ranking.body.results, [{ index: 1, relevance_score: 0.5 }])
  const file = Buffer.from('RIFF....WAVEfmt ').toString('base64')
  for (const path of ['transcriptions', 'translations']) {
    const text = await corral.json(`/v1/audio/${path}`, { model: 'other/transcribe', file, language: 'de' })
    t.match(text, { status: 200, body: { text: `${path} de true` } }, path)
  }
  const chat = await corral.json('/v1/chat/completions', { model: 'other/transcribe', messages })
  t.match(chat.body.error, { code: 'unsupported_capability' })
})

t.test('images are made and changed by a program that draws, with the limits of its models', async t => {
  const corral = await corralOf(
    t,
    { draws: scripted('none', { kind: 'draw' }), blank: scripted('blank', { kind: 'draw', capabilities: [] }) },
    { 'other/draws': { engine: 'draws' }, 'other/blank': { engine: 'blank' } }
  )
  const make = (path: string, more: object) => corral.json(`/v1/images/${path}`, { model: 'other/draws', ...more })
  const sent = (image: { b64_json: string }) => Buffer.from(image.b64_json, 'base64').toString()
  const drawn = await make('generations', { prompt: 'a horse', size: '64x32', seed: 7, quality: 'high', n: 1 })
  t.match(drawn, { status: 200, body: { created: Number, usage: { total_tokens: 12 } } })
  t.same(JSON.parse(sent(drawn.body.data[0])), {
    model: 'other/draws',
    prompt: 'a horse',
    n: 1,
    size: '64x32',
    seed: 7,
    response_format: 'b64_json'
  })
  const png = PNG.toString('base64')
  const edited = await make('edits', {
    prompt: 'without riders',
    image: [`data:image/png;base64,${png}`, png],
    mask: png
  })
  const form = sent(edited.body.data[0])
  for (const part of ['name="image[]"', 'name="mask"', 'without riders', 'PNG']) t.ok(form.includes(part), part)
  t.equal(form.split('name="image[]"').length, 3, 'both images')
  const events = await corral.events('/v1/images/generations', { model: 'other/draws', prompt: 'a', stream: true })
  t.match(events, [{ type: 'image_generation.completed', b64_json: String, created_at: Number }])
  const refused: [string, object, number, object][] = [
    ['generations', {}, 400, { code: 'invalid_request', param: 'prompt' }],
    ['generations', { prompt: 'a', size: '9000x9000' }, 400, { code: 'over_limit', param: 'size' }],
    ['generations', { prompt: 'a', size: 'big' }, 400, { code: 'invalid_request', param: 'size' }],
    ['generations', { prompt: 'a', n: 1000 }, 400, { code: 'over_limit', param: 'n' }],
    ['generations', { prompt: 'a', response_format: 'url' }, 400, { param: 'response_format' }],
    ['edits', { prompt: 'a' }, 400, { code: 'invalid_request', param: 'image' }],
    ['edits', { prompt: 'a', image: 'http://10.0.0.1/x.png' }, 400, { code: 'invalid_request', param: 'image' }],
    ['edits', { prompt: 'a', image: [png, 'eHh4'] }, 400, { code: 'invalid_request', param: 'image[1]' }],
    ['variations', { image: png }, 400, { code: 'unsupported_capability', param: 'model' }],
    ['edits', { model: 'other/blank', prompt: 'a', image: png }, 400, { code: 'unsupported_capability' }],
    ['generations', { model: 'other/blank', prompt: 'a' }, 500, { message: /answered without images/ }]
  ]
  for (const [path, body, status, error] of refused) {
    t.match(await make(path, body), { status, body: { error } }, JSON.stringify(body).slice(0, 60))
  }
  const chat = await ask(corral, { model: 'other/draws' })
  t.match(chat.body.error, { code: 'unsupported_capability' })
  const shown = await corral.json('/api/show', { model: 'other/draws' })
  t.same(shown.body.capabilities, ['draw', 'edit_image'])
})

t.test('a program that cannot serve is reported with the reason and what to do', async t => {
  const taken = createServer().listen(0, '127.0.0.1')
  await once(taken, 'listening')
  t.teardown(() => taken.close())
  const { port } = taken.address() as { port: number }
  const table: [string, object, RegExp][] = [
    [
      'missing',
      { command: 'no-such-program --port {port}' },
      /could not be started before it was ready.*not found.*Correct "command" under engines/
    ],
    ['ending', scripted('exits'), /ended with exit code 3 before it was ready. Its last line: no such model/],
    [
      'silent',
      scripted('never', { start_timeout: '300ms' }),
      /did not answer at \/health within 0.3 s.*"start_timeout"/
    ],
    ['squatted', scripted('none', { port }), /Another program already listens on port \d+/],
    ['page', scripted('html'), /text\/html, which is not a model's answer/]
  ]
  const engines = Object.fromEntries(table.map(([name, program]) => [name, program]))
  const models = Object.fromEntries(table.map(([name]) => [`other/${name}`, { engine: name }]))
  const corral = await startCorral(t, {
    config: `engines: ${JSON.stringify(engines)}\nmodels: ${JSON.stringify(models)}\n`
  })
  for (const [name, , message] of table) {
    const reply = await ask(corral, { model: `other/${name}` })
    t.ok(reply.status >= 500, name)
    t.match(reply.body.error.message, message, name)
  }
  const logsOf = async (name: string) =>
    (await corral.json(`/api/logs/other/${name}`, undefined, { local: true })).body.engines
  const ending = await logsOf('ending')
  t.match(ending, [{ build: 'ending', exit: { code: 3 }, failure: { code: 'load_failed', cause: 'exited' } }])
  t.ok(ending[0].lines.includes('no such model'), 'the output of a program that never became ready is kept')
  t.match(await logsOf('silent'), [{ failure: { code: 'load_timeout' } }])
})

t.test('a crash during an answer is its error, and the next request starts the program again', async t => {
  const corral = await corralOf(t, { scripted: scripted() })
  const pid = await pidOf(corral)
  const events = await corral.events('/v1/chat/completions', {
    model,
    messages: [{ role: 'user', content: 'crash' }],
    stream: true
  })
  t.match(events.at(-1), { error: { code: 'engine_crashed', message: /"scripted" ended with exit code 7/ } })
  t.not(await pidOf(corral), pid)
})

t.test('a program that sleeps keeps its process and wakes up for the next request', async t => {
  const sleep = { path: '/sleep?level=1', wake: '/wake_up' }
  const corral = await corralOf(
    t,
    {
      scripted: scripted('none', { sleep }),
      comatose: scripted('comatose', { sleep }),
      short: scripted('none', { sleep: { ...sleep, for: '100ms' } })
    },
    { [model]: { engine: 'scripted' }, 'other/comatose': { engine: 'comatose' }, 'other/short': { engine: 'short' } }
  )
  const pid = await pidOf(corral)
  await unload(corral)
  t.same((await corral.json('/api/ps')).body.models, [], 'it is not listed as loaded')
  t.ok(await isRunning(pid))
  t.equal(await pidOf(corral), pid, 'the same process answers')

  const askOther = async (name: string) =>
    Number.parseInt((await ask(corral, { model: name })).body.choices[0].message.content, 10)
  const first = await askOther('other/comatose')
  await unload(corral, 'other/comatose')
  t.not(await askOther('other/comatose'), first, 'one that does not wake up is started again')
  const brief = await askOther('other/short')
  await unload(corral, 'other/short')
  await until('a program that has slept too long is ended', async () => !(await isRunning(brief)))
  await unload(corral)
  await corral.close()
  t.notOk(await isRunning(pid), 'a sleeping program ends with the server')
})

t.test('a program that is woken for a client that leaves does not stay half awake', thorough, async t => {
  const corral = await shared
  const body = { model: 'other/drowsy', messages }
  const pid = Number.parseInt((await corral.json('/v1/chat/completions', body)).body.choices[0].message.content, 10)
  await corral.json('/api/generate', { model: body.model, keep_alive: 0, stream: false })
  const leaving = new AbortController()
  const asking = corral.send('/v1/chat/completions', body, { signal: leaving.signal }).catch(() => {})
  await until('it is being woken', async () => (await corral.json('/api/ps')).body.loading?.length === 1)
  t.ok(await isRunning(pid))
  leaving.abort()
  await asking
  await until('its process has ended', async () => !(await isRunning(pid)))
  t.pass('it was ended, so that the next request starts it again')
})

t.test('nothing of two programs and a llama-server outlives a killed server', async t => {
  const faults = ['stubborn', 'child']
  const corral = await startCorral(t, {
    config: `engines: ${JSON.stringify(Object.fromEntries(faults.map(fault => [fault, scripted(fault)])))}\nmodels: ${JSON.stringify(
      Object.fromEntries(faults.map(fault => [`other/${fault}`, { engine: fault }]))
    )}\n`
  })
  const ask = async (model: string) =>
    (await corral.json('/v1/chat/completions', { model, messages, max_tokens: 1 })).body.choices[0].message.content
  const pids: number[] = []
  for (const fault of faults) {
    const group = groupOf(Number.parseInt(await ask(`other/${fault}`), 10))
    t.equal(group.length, fault === 'child' ? 2 : 1)
    pids.push(...group)
  }
  await ask('corral/tiny-chat')
  const servers = corral.enginePids()
  t.equal(servers.length, 1)
  await corral.end('SIGKILL')
  await until('every process ends', async () => {
    const left = await Promise.all([...pids, ...servers].map(isRunning))
    return left.every(runs => !runs)
  })
})

t.test('a program gets the name of its model and is ended by its own command', async t => {
  const folder = newFolder(t)
  const stop = `'${process.execPath}' -e "require('fs').appendFileSync('${folder}/stopped', '{port} ')"`
  const engines = { scripted: scripted('none', { model: 'its-own-name', stop }) }
  const config = `engines: ${JSON.stringify(engines)}\nmodels: ${JSON.stringify({ [model]: { engine: 'scripted' } })}\n`
  const corral = await startCorral(t, { config })
  const lastLog = async () => (await corral.json(`/api/logs/${model}`, undefined, { local: true })).body.engines[0]
  const pid = await pidOf(corral)
  const { lines } = await lastLog()
  t.ok(lines.includes('asked for its-own-name'), lines.join())
  await unload(corral)
  await until('the process has ended', async () => !(await isRunning(pid)))
  t.match(readFileSync(`${folder}/stopped`, 'utf8'), /^\d+ $/, 'the command ran once')
  t.notOk((await lastLog()).failure, 'its end was expected')
})

t.test('listed paths of a program are passed on with keys, limits and usage', async t => {
  const paths = ['/v1/classify', '/v1/events', '/v1/sound', '/v1/ocr/page', '/v1/fails']
  const corral = await startCorral(t, {
    config: `engines: ${JSON.stringify({ scripted: scripted('none', { paths, model: 'own-name' }), plain: scripted() })}\nmodels: ${JSON.stringify(
      { [model]: { engine: 'scripted', aliases: ['short'] }, 'other/plain': { engine: 'plain' } }
    )}\n`
  })
  const key = await newKey(corral, 'scanner', { models: [model] })
  const headers = { authorization: `Bearer ${key}` }
  const post = (path: string, body: unknown) => corral.json(path, body, { headers })
  t.match(await post('/v1/classify', { model: 'short', input: 'a', stream: false }), {
    status: 200,
    body: { got: { model: 'own-name', input: 'a', stream: false } }
  })
  const sound = await corral.send('/v1/sound', { model }, { headers })
  t.equal(sound.headers.get('content-type'), 'audio/wav')
  t.equal(Buffer.from(await sound.arrayBuffer()).toString('hex'), '52494646ff00')
  t.match(await corral.events('/v1/events', { model, stream: true }, { headers }), [{ n: 1 }, { n: 2 }])
  const form = new FormData()
  form.set('model', model)
  form.append('tags', 'x')
  form.append('tags', 'y')
  form.set('page', new Blob([Buffer.from([0, 255])], { type: 'image/png' }), 'a.png')
  const read = await fetch(`${corral.url}/v1/ocr/page`, { method: 'POST', body: form, headers })
  const { got } = (await read.json()) as { got: string }
  for (const part of ['own-name', 'name="tags"\r\n\r\ny', 'filename="a.png"', 'image/png', '\r\n\r\n\0\xff\r\n']) {
    t.ok(got.includes(part), part)
  }
  const broken = await fetch(`${corral.url}/v1/ocr/page`, {
    method: 'POST',
    body: 'x',
    headers: { ...headers, 'content-type': 'multipart/form-data; boundary=y' }
  })
  t.match([broken.status, await broken.json()], [400, { error: { code: 'invalid_request' } }])

  const refused: [string, unknown, object, RegExp][] = [
    ['/v1/classify', { model: 'other/plain' }, {}, /other\/plain/],
    ['/v1/unlisted', { model }, { status: 404, body: { error: { code: 'route_not_found' } } }, /no route/],
    ['/v1/classify', [], { status: 400, body: { error: { code: 'invalid_request' } } }, /object or a form/],
    ['/v1/classify', {}, { status: 400 }, /model/],
    ['/v1/fails', { model }, { status: 400, body: { error: { code: 'invalid_request' } } }, /no such page/]
  ]
  for (const [path, body, expected, message] of refused) {
    const reply = await post(path, body)
    t.match(reply, expected, path)
    t.match(reply.body.error.message, message, path)
  }
  t.equal((await corral.json('/v1/classify', { model })).status, 401, 'a key is needed')
  t.match(await corral.json('/v1/classify', { model: 'other/plain' }, { local: true }), {
    body: { error: { code: 'unsupported_capability' } }
  })
  const usage = await corral.json('/api/usage', undefined, { local: true })
  t.match(JSON.stringify(usage.body), /scanner/)
  const metrics = await (await corral.send('/metrics', undefined, { local: true })).text()
  t.match(metrics, /\/v1\/classify/)
})

t.test('programs and stored models share the memory budget, and groups exclude each other', async t => {
  const corral = await shared
  const loaded = async () => (await corral.json('/api/ps')).body.models.map((each: any) => each.model).sort()
  const load = (name: string) => corral.json('/v1/chat/completions', { model: name, messages, max_tokens: 1 })
  for (const name of ['other/a', 'other/b']) {
    t.equal((await load(name)).status, 200)
    t.same(await loaded(), [name], 'the other one was unloaded')
  }
  t.match((await load('other/huge')).body.error, { code: 'insufficient_memory', message: /engines\.huge\.memory/ })
  await load('corral/tiny-chat')
  await load('other/c')
  t.notOk((await loaded()).includes('corral/tiny-chat'), 'a model of the same group was unloaded')
})

t.test('a second llama-server that a command starts answers like the own one', thorough, async t => {
  const corral = await shared
  const texts: string[] = []
  for (const name of ['other/second', 'corral/tiny-chat']) {
    const body = { model: name, messages, temperature: 0, max_tokens: 20 }
    const reply = await corral.json('/v1/chat/completions', body)
    t.equal(reply.status, 200, JSON.stringify(reply.body))
    texts.push(reply.body.choices[0].message.content)
  }
  t.equal(texts[0], texts[1])
  const long = await corral.json('/v1/chat/completions', {
    model: 'other/second',
    messages: [{ role: 'user', content: 'many words '.repeat(5000) }]
  })
  t.match(long, { status: 400, body: { error: { code: 'context_length_exceeded' } } })
})

t.test('mistakes in the configuration name the setting', async t => {
  const table: [object, object, RegExp][] = [
    [{}, { [model]: { engine: 'whisper' } }, /models\.other\/one\.engine.*no program "whisper".*none/],
    [{ whisper: { command: 'x {port}' } }, { [model]: { engine: 'wisper' } }, /These exist: whisper/],
    [{ x: { command: 'x --port 1' } }, { [model]: { engine: 'x' } }, /engines\.x\.command.*contains \{port\}/],
    [{ x: { command: 'x "{port}' } }, { [model]: { engine: 'x' } }, /not closed/],
    [{ x: { command: 'x {port}', kind: 'dance' } }, {}, /engines\.x\.kind/]
  ]
  for (const [engines, models, message] of table) await t.rejects(corralOf(t, engines, models), message)
  t.match(missingPrograms({ x: { command: 'no-such-program {port}' } }), [
    /"no-such-program" of engines\.x was not found/
  ])
  const present = `"${process.execPath}" {port}`
  t.match(missingPrograms({ x: { command: present, stop: 'no-such-stop now' } }), [
    /"no-such-stop" of engines\.x was not found.*in "stop"/
  ])
  t.strictSame(missingPrograms({ x: { command: present } }, { a: { engine: 'x', files: SCRIPT }, b: {} }), [])
  t.match(missingPrograms({}, { a: { engine: 'x', files: '/none' } }), [
    /^\/none, the file of model "a", was not found/
  ])
  t.throws(() => missingPrograms({ x: { command: 'x "' } }), /engines\.x\.command.*not closed/)
})

/** The process and those that it has started. */
function groupOf(pid: number): number[] {
  const { stdout } = spawnSync('ps', ['-o', 'pid=', '--ppid', `${pid}`], { encoding: 'utf8' })
  return [pid, ...stdout.split(/\s+/).filter(Boolean).map(Number)]
}
