import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { TINY_SAFETENSORS } from '../../../support/conversion-python.ts'
import { alive, CAPITAL_ANSWER, type Corral, lastEvent, until } from '../../../support/corral.ts'
import { refusedWith } from '../../../support/failure.ts'
import {
  capital,
  convertedFolders,
  importModel,
  MODEL,
  modelFolder,
  scriptedPython,
  stagedFolders,
  startConverting,
  storedFolder,
  temporaryFolder
} from './support.ts'

// Conversions that pause and fail on demand. converting.thorough.test.ts uses the real tools.

const python = scriptedPython(t)
const corral = await startConverting(t, python.path, { config: 'api-native:\n  heartbeat: 100ms\n' })

/** Resets the test: the model is stored but not converted, and conversions neither pause nor fail. */
async function freshModel(path = TINY_SAFETENSORS): Promise<void> {
  python.reset()
  await corral.json('/api/delete', { model: MODEL }, { method: 'DELETE' })
  await importModel(corral, path)
}

/** Waits until the converter has run this many times and is paused. Returns its process id. */
const converter = (count = 1) =>
  until('the converter runs', () => (python.runs().length === count ? python.runs().at(-1) : undefined))

const loading = async () => (await corral.json('/api/ps')).body.loading[0]

t.test('progress is reported to waiting clients and in /api/ps', async t => {
  await freshModel()
  python.hold()
  const response = await corral.send('/api/chat', {
    model: MODEL,
    messages: [{ role: 'user', content: 'What is the capital of France?' }],
    options: { temperature: 0 }
  })
  let text = ''
  const ended = (async () => {
    for await (const piece of response.body!) text += Buffer.from(piece).toString()
  })()
  await until('it is 42% done', async () => (await loading())?.progress > 0.4)
  t.match(await loading(), {
    model: MODEL,
    format: 'safetensors',
    state: 'converting',
    status: 'converting 42%',
    queued: 1
  })
  await until('heartbeats report it', () => /^: converting 42%$/m.test(text))
  const steps = corral.events('/api/load', { model: MODEL, stream: true })
  python.letGo()
  await ended
  t.match(lastEvent(text), { done: true, done_reason: 'stop' })
  t.match(await steps, [{ status: 'converting' }])
  t.equal((await steps).at(-1).status, 'ready')
  t.equal(python.runs().length, 1)
})

t.test('a conversion is cancelled when its last client disconnects', async t => {
  await freshModel()
  python.hold()
  const body = { model: MODEL, dtype: 'f16' }
  const clients = [new AbortController(), new AbortController()]
  const gone = clients.map(async ({ signal }) => {
    const response = await corral.send('/api/convert', body, { signal })
    return await response.text()
  })
  const ended = Promise.allSettled(gone)
  const pid = await converter()
  clients[0]!.abort()
  // The conversion is still running, as a third client's progress shows.
  const third = new AbortController()
  const response = await corral.send('/api/convert', body, { signal: third.signal })
  const reader = response.body!.getReader()
  t.match(new TextDecoder().decode((await reader.read()).value), /converting/)
  t.ok(alive(pid))
  t.equal(python.runs().length, 1, 'one conversion for all')
  third.abort()
  clients[1]!.abort()
  await ended
  await until('the converter ends', () => !alive(pid), 10_000)
  await until('nothing remains', () => stagedFolders(corral).length === 0, 10_000)

  const next = corral.json('/api/convert', { ...body, stream: false })
  await converter(2)
  python.letGo()
  t.match(await next, { status: 200, body: { status: 'success' } })
})

t.test('a conversion started by a request continues after the client disconnects, until it is stopped', async t => {
  await freshModel()
  python.hold()
  const client = new AbortController()
  const load = { model: MODEL, stream: true }
  const left = corral.send('/api/load', load, { signal: client.signal }).then(response => response.text())
  const pid = await converter()
  client.abort()
  await t.rejects(left)
  const waiting = capital(corral, {})
  await until('the next one waits for it', async () => (await loading())?.queued === 1)
  t.equal(python.runs().length, 1)
  t.match(await corral.json('/api/stop', { model: MODEL }), { status: 200 })
  t.match(await waiting, { status: 503, body: { code: 'model_stopped' } })
  t.notOk(alive(pid), 'the stop is answered when the converter has ended')
  t.same([...convertedFolders(corral), ...stagedFolders(corral)], [])
})

t.test('deleting a model cancels its conversion', async t => {
  await freshModel()
  python.hold()
  const asking = capital(corral, {})
  const pid = await converter()
  const ahead = corral.json('/api/convert', { model: MODEL, dtype: 'f16', stream: false })
  t.match(await corral.json('/api/delete', { model: MODEL }, { method: 'DELETE' }), { status: 200 })
  t.match(await asking, { status: 404, body: { code: 'model_not_found' } })
  t.match(await ahead, { status: 404, body: { code: 'model_not_found' } })
  t.notOk(alive(pid))
  t.notOk(readdirSync(join(corral.home, 'models')).includes('test'))
})

t.test('two types of one model are converted in turn, two models in parallel', async t => {
  await freshModel()
  await importModel(corral, TINY_SAFETENSORS, 'test/other')
  python.hold()
  const convert = (model: string, dtype: string) => corral.json('/api/convert', { model, dtype, stream: false })
  const first = convert(MODEL, 'f16')
  await converter(1)
  const second = convert(MODEL, 'bf16')
  const other = convert('test/other', 'f16')
  await converter(2)
  t.equal(stagedFolders(corral).length, 2, 'the second type waits')
  python.letGo()
  for (const { status } of await Promise.all([first, second, other])) t.equal(status, 200)
  t.same(convertedFolders(corral), ['bf16', 'f16'])
})

t.test('a vision model is converted with its projector, or without it', async t => {
  const seeing = modelFolder(t, folder => {
    const config = join(folder, 'config.json')
    writeFileSync(config, readFileSync(config, 'utf8').replace('{', '{"vision_config":{"hidden_size":64},'))
  })
  await freshModel(seeing)
  const convert = (dtype: string) => corral.events('/api/convert', { model: MODEL, dtype })
  const events = await convert('q8_0')
  t.match(events.at(-1), { status: 'success', projector: true })
  t.same([...new Set(events.filter(event => event.step).map(event => `${event.step}/${event.steps}`))], ['1/2', '2/2'])
  t.same(readdirSync(join(storedFolder(corral), 'converted', 'q8_0')).sort(), [
    'conversion.json',
    'mmproj-tiny-st-F16.gguf',
    'tiny-st-Q8_0.gguf'
  ])

  python.failWith('ERROR:hf-to-gguf:Model LlamaForCausalLM is not supported\n', 'projector')
  t.match((await convert('f16')).at(-1), { status: 'success', projector: false })
  t.match(corral.log(), /will not see images or hear/)
  t.equal(python.runs().length, 4)
})

t.test('conversion failures are reported with the cause', async t => {
  await freshModel()
  const convert = () => corral.json('/api/convert', { model: MODEL, dtype: 'f16', stream: false })

  python.failWith('Traceback (most recent call last):\n  File "x.py", line 1\nMemoryError\n')
  t.match(await convert(), refusedWith(500, 'conversion_failed', /could not be converted to f16.*memory/i))
  python.failWith('Traceback (most recent call last):\nOSError: [Errno 28] No space left on device\n')
  t.match(await convert(), { status: 507, body: { code: 'insufficient_storage', error: /disk is full/ } })
  python.failWith('Traceback (most recent call last):\nValueError: something nobody has met\n')
  t.match(await convert(), { status: 500, body: { error: /exit code 1.*something nobody has met.*\(log: / } })
  t.same([...convertedFolders(corral), ...stagedFolders(corral)], [])

  python.hold()
  const killed = convert()
  process.kill(await converter(4), 'SIGKILL')
  t.match(await killed, {
    status: 500,
    body: { error: /killed, most likely because this machine does not have enough memory/ }
  })

  const refused: [object, RegExp][] = [
    [{ model: MODEL, dtype: 'banana' }, /"banana"\. The types are f32, f16/],
    [{ model: MODEL, dtype: 'iq2_xs' }, /importance matrix/]
  ]
  for (const [body, error] of refused) {
    t.match(await corral.json('/api/convert', body), { status: 400, body: { code: 'invalid_option', error } })
  }
  t.match(await capital(corral, { dtype: 'banana' }), { status: 400, body: { code: 'invalid_option' } })
  const present = await corral.json('/api/convert', { model: 'corral/tiny-chat', dtype: 'f16' })
  t.match(present, refusedWith(400, 'invalid_request', /is already a GGUF \(F16\)/))
  t.match(await corral.json('/api/convert', { model: 'test/none', dtype: 'f16' }), { status: 404 })
  t.match(await corral.json('/api/convert', { model: MODEL, dtype: 7 }), refusedWith(400, 'invalid_request'))
  t.equal(python.runs().length, 4, 'none of these was attempted')
})

t.test('missing tools are reported', async t => {
  const nowhere = await startConverting(t, join(temporaryFolder(t), 'no-python'))
  await importModel(nowhere, TINY_SAFETENSORS)
  const convert = (corral: Corral, dtype: string) => corral.json('/api/convert', { model: MODEL, dtype, stream: false })
  t.match(await convert(nowhere, 'f16'), {
    status: 500,
    body: {
      code: 'conversion_failed',
      error: /conversion\.python names .*no-python, which is not an executable program/
    }
  })

  const empty = join(temporaryFolder(t), 'python')
  writeFileSync(empty, `#!/bin/sh\necho "ModuleNotFoundError: No module named 'torch'" >&2\nexit 1\n`, { mode: 0o755 })
  await nowhere.end()
  const without = await startConverting(t, empty, { home: nowhere.home })
  const unusable = /cannot run llama\.cpp's converter.*\(torch\).*requirements/
  t.match(await convert(without, 'f16'), refusedWith(500, 'conversion_failed', unusable))
  t.notOk(existsSync(join(without.home, 'python')), 'a configured Python is never changed or replaced')
})

t.test('kill -9 of the gateway leaves no converter process and no partial GGUF', async t => {
  await freshModel()
  python.hold()
  const lost = capital(corral, {}).catch(() => 'cut')
  const pid = await converter()
  t.equal(stagedFolders(corral).length, 1)
  await corral.end('SIGKILL')
  t.equal(await lost, 'cut')
  await until('the converter ends with the gateway', () => !alive(pid), 10_000)

  const again = await startConverting(t, python.path, { home: corral.home })
  await until('its leftovers are removed', () => stagedFolders(again).length === 0, 10_000)
  t.same((await again.json('/api/show', { model: MODEL })).body.conversions, [])
  python.letGo()
  t.equal((await capital(again, {})).body.message?.content, CAPITAL_ANSWER)
  t.same(convertedFolders(again), ['f16'])
})
