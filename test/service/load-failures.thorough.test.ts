import { execFileSync, spawnSync } from 'node:child_process'
import { cpSync, mkdirSync, readdirSync, readFileSync, renameSync, rmdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { MAIN } from '../command-line/command.ts'
import {
  begin,
  CAPITAL_ANSWER,
  type Corral,
  capital,
  DEMO,
  endless,
  lastEvent,
  startCorral,
  until
} from '../support/corral.ts'
import { engineBuildFolder } from '../support/engine-build.ts'
import { refusedWith } from '../support/failure.ts'
import { faultyBuild } from '../support/faulty-build.ts'
import { newFolder } from '../support/folder.ts'
import { writeGguf } from '../support/gguf-writer.ts'

const TINY = join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf')

const folder = newFolder(t)
const temporary = newFolder(t)
const build = faultyBuild(folder)
/** Shared by all tests except tests with other settings. */
const corral = await startCorral(t, { env: { CORRAL_LLAMA_CPP: build.folder, TMPDIR: temporary } })

async function importModel(corral: Corral, model: string, path: string): Promise<string> {
  const { status, body } = await corral.json('/api/import', { model, path, stream: false })
  if (status !== 200) throw new Error(`${model} was not imported: ${JSON.stringify(body)}`)
  const folder = join(corral.home, 'models', model)
  return join(folder, readdirSync(folder, { withFileTypes: true }).find(entry => entry.isDirectory())!.name)
}

/** Asks both APIs. Both must report the same code, cause and advice, and no path of this machine. */
async function fails(
  t: Test,
  corral: Corral,
  model: string,
  expected: { status: number; code: string; cause: string; advice: RegExp },
  options: object = {}
): Promise<void> {
  const native = await corral.json('/api/chat', capital(model, options))
  const hosted = await corral.json('/v1/chat/completions', capital(model, options))
  for (const [surface, { status, body }] of Object.entries({ native, hosted })) {
    const error = surface === 'native' ? body : body.error
    const message = surface === 'native' ? body.error : body.error.message
    t.same(
      [status, error.code, error.cause],
      [expected.status, expected.code, expected.cause],
      `${surface}: ${message}`
    )
    t.match(message, expected.advice, surface)
    t.notMatch(JSON.stringify(body), /\/(tmp|work|home|root)\//, `${surface} shows no folder`)
  }
  const { body } = await corral.json(`/api/logs/${model}`, undefined, { local: true })
  t.match(body.engines[0].failure, { code: expected.code, cause: expected.cause }, 'the log says so too')
  t.ok(body.engines[0].endedAt)
}

/** Repeated failures delay the next load. */
async function loadsAgain(t: Test, corral: Corral, model: string, options: object = {}): Promise<void> {
  const reply = await until(`${model} loads again`, async () => {
    const { status, body } = await corral.json('/api/chat', capital(model, options))
    return status === 200 ? body : undefined
  })
  t.equal(reply.message.content, CAPITAL_ANSWER, `${model} answers once the fault is fixed`)
}

t.test('a damaged, missing or mismatched model file is reported with its cause', async t => {
  const good = readFileSync(TINY)
  const load_failed = { status: 500, code: 'load_failed' }

  const cut = join(await importModel(corral, 'test/cut', TINY), 'tiny-chat-f16.gguf')
  rmSync(cut)
  await fails(t, corral, 'test/cut', { ...load_failed, cause: 'file_missing', advice: /fetch or import it again/ })
  writeFileSync(cut, good.subarray(0, 1_000_000))
  await corral.json('/api/stop', { model: 'test/cut' })
  await until('its failure is reported', async () => {
    const { body } = await corral.json('/api/chat', capital('test/cut'))
    return body.cause === 'file_damaged'
  })
  writeFileSync(cut, good)
  await loadsAgain(t, corral, 'test/cut')

  const arch = join(await importModel(corral, 'test/arch', TINY), 'tiny-chat-f16.gguf')
  rmSync(arch)
  writeFileSync(arch, Buffer.from(good.toString('latin1').replace('llama', 'lxama'), 'latin1'))
  await fails(t, corral, 'test/arch', {
    ...load_failed,
    cause: 'unsupported_architecture',
    advice: /"lxama".*newer llama\.cpp/
  })
  writeFileSync(arch, good)
  await loadsAgain(t, corral, 'test/arch')

  const split = join(folder, 'split')
  mkdirSync(split)
  execFileSync(join(engineBuildFolder(), 'llama-gguf-split'), [
    '--split',
    '--split-max-tensors',
    '12',
    TINY,
    join(split, 'big')
  ])
  const shards = readdirSync(split).sort()
  t.ok(shards.length > 1)
  const parts = await importModel(corral, 'test/split', join(split, shards[0]!))
  renameSync(join(parts, shards[1]!), join(folder, shards[1]!))
  await fails(t, corral, 'test/split', {
    ...load_failed,
    cause: 'missing_shard',
    advice: /big-00002-of-\d+\.gguf.*fetch or import it again/
  })
  cpSync(join(folder, shards[1]!), join(parts, shards[1]!))
  await loadsAgain(t, corral, 'test/split')

  const seeing = join(folder, 'seeing')
  mkdirSync(seeing)
  cpSync(TINY, join(seeing, 'tiny.gguf'))
  writeGguf(join(seeing, 'mmproj-tiny.gguf'), { metadata: { 'general.architecture': 'clip' } })
  const withEyes = await importModel(corral, 'test/seeing', join(seeing, 'tiny.gguf'))
  const projector = readdirSync(withEyes).find(name => name.includes('mmproj'))!
  await fails(t, corral, 'test/seeing', { ...load_failed, cause: 'projector_mismatch', advice: /belongs to the model/ })
  rmSync(join(withEyes, projector))
  await until('its failure is reported', async () => {
    const { body } = await corral.json('/api/chat', capital('test/seeing'))
    return body.cause === 'projector_missing' && /without the projector, for text alone/.test(body.error)
  })
})

t.test('an unknown flag, a bad value or a conflict of options is reported with its cause', async t => {
  const home = newFolder(t)
  const settings = { 'test/flag': '[--no-such-flag]', 'test/value': '[--ctx-size, many]', 'test/flash': '[-fa, "off"]' }
  const config = `models:\n${Object.entries(settings)
    .map(([model, list]) => `  ${model}: {arguments: ${list}}\n`)
    .join('')}`
  const first = await startCorral(t, { home, config })
  for (const model of Object.keys(settings)) await importModel(first, model, TINY)
  const failed = { status: 500, code: 'load_failed' }
  const advice = /does not know the flag --no-such-flag.*Remove it/
  await fails(t, first, 'test/flag', { ...failed, cause: 'unknown_flag', advice })
  await fails(t, first, 'test/value', {
    ...failed,
    cause: 'bad_flag_value',
    advice: /--ctx-size.*not a number.*Correct it/
  })
  const quantized = { cache_type_v: 'q8_0' }
  const flash = { ...failed, cause: 'flash_attention_required', advice: /Use cache_type_v f16/ }
  await fails(t, first, 'test/flash', flash, quantized)
  await loadsAgain(t, first, 'test/flash', { cache_type_v: 'f16' })
  await first.end()

  const second = await startCorral(t, { home })
  await loadsAgain(t, second, 'test/flag')
  await loadsAgain(t, second, 'test/flash', quantized)
})

t.test('an engine that is killed, out of memory or misses a library is reported with its cause', async t => {
  const mark = join(build.folder, '..', 'once')

  // Only once: the retry succeeds and the client does not notice.
  build.before(`[ -e ${mark} ] || { : >${mark}; kill -9 $$; }`)
  t.equal((await corral.json('/api/chat', capital(DEMO))).body.message?.content, CAPITAL_ANSWER)
  t.match(corral.log(), /the load failed and is tried once more/)
  const { body: log } = await corral.json(`/api/logs/${DEMO}`, undefined, { local: true })
  t.equal(log.engines.length, 2)
  t.match(log.engines[1], { exit: { code: null, signal: 'SIGKILL' }, failure: { cause: 'killed' } })
  await corral.json('/api/stop', { model: DEMO })

  // The real process, each time. It listens at another socket, so that it cannot answer before it is killed. It also
  // cannot fail to listen and be started with a port.
  build.before(`for word do shift; case "$word" in *.sock) word="\${word%.sock}-2.sock";; esac; set -- "$@" "$word"; done
(sleep 0.05; kill -9 $$) >/dev/null 2>&1 </dev/null &`)
  const killed = {
    status: 500,
    code: 'load_failed',
    cause: 'killed',
    advice: /killed from outside \(SIGKILL\).*Load the model again/
  }
  await fails(t, corral, DEMO, killed)
  build.before('kill -TERM $$')
  await until('its failure is reported', async () => {
    const { body } = await corral.json('/api/chat', capital(DEMO))
    return body.cause === 'terminated' && /SIGTERM/.test(body.error)
  })
  build.mend()
  await loadsAgain(t, corral, DEMO)
  await corral.json('/api/stop', { model: DEMO })

  // A memory limit far below the size of the requested KV cache.
  build.before('ulimit -v 600000')
  const memory = { status: 503, code: 'insufficient_memory', cause: 'out_of_memory', advice: /smaller num_ctx/ }
  await fails(t, corral, DEMO, memory, { num_ctx: 32_768, num_parallel: 8 })
  build.mend()
  await loadsAgain(t, corral, DEMO)
  await corral.json('/api/stop', { model: DEMO })

  // A missing library: the program is started without the libraries beside it.
  build.before(`exec "${build.bare}" "$@"`)
  const missing = await corral.json('/api/chat', capital(DEMO))
  t.match(missing, { status: 503, body: { code: 'runtime_missing' } })
  t.match((await corral.json(`/api/logs/${DEMO}`, undefined, { local: true })).body.engines[0].failure, {
    cause: 'library_missing',
    message: /The library lib\S+ that llama-server needs is missing\. Install it/
  })
  build.mend()
  await loadsAgain(t, corral, DEMO)
})

/** A control group in which no model fits, or undefined if this machine does not allow one. */
function smallGroup(): string | undefined {
  const group = join('/sys/fs/cgroup/memory', `corral-test-${process.pid}`)
  try {
    mkdirSync(group)
    writeFileSync(join(group, 'memory.limit_in_bytes'), String(24 * 2 ** 20))
    return group
  } catch {
    // This machine has no control groups, or this user may not create one.
    return undefined
  }
}
const group = smallGroup()

t.test(
  'a load that the kernel kills for memory is reported as out of memory',
  { skip: !group && 'this machine allows no control group' },
  async t => {
    t.teardown(() => rmdirSync(group!))
    await corral.json('/api/stop', { model: DEMO })
    build.before(`echo $$ >${group}/cgroup.procs`)
    await fails(t, corral, DEMO, {
      status: 503,
      code: 'insufficient_memory',
      cause: 'oom_killed',
      advice: /ended llama-server because memory ran out\. Use a smaller num_ctx/
    })
    build.mend()
    await loadsAgain(t, corral, DEMO)
  }
)

t.test('an engine starts when its socket path is taken or the temporary folder is missing', async t => {
  await corral.json('/api/stop', { model: DEMO })
  // A file at the socket's path.
  build.before('for word in "$@"; do case "$word" in *.sock) : >"$word";; esac; done')
  t.equal((await corral.json('/api/chat', capital(DEMO))).body.message?.content, CAPITAL_ANSWER, 'it listens elsewhere')
  t.match((await corral.json(`/api/logs/${DEMO}`, undefined, { local: true })).body.engines[1].failure, {
    cause: 'cannot_listen'
  })
  build.mend()
  await corral.json('/api/stop', { model: DEMO })
  rmSync(temporary, { recursive: true })
  const { status, body } = await corral.json('/api/chat', capital(DEMO))
  t.same([status, body.code, body.cause], [500, 'load_failed', 'cannot_listen'])
  t.match(body.error, /ENOENT.*TMPDIR/)
  mkdirSync(temporary)
  await loadsAgain(t, corral, DEMO)
})

t.test('a hung engine is killed, requests without output are retried, and streams get an error event', async t => {
  const corral = await startCorral(t, { runtimes: '  hang_timeout: 2s' })
  t.equal((await corral.json('/api/chat', capital(DEMO))).status, 200)
  const [pid] = corral.enginePids()
  process.kill(pid!, 'SIGSTOP')
  const { status, body } = await corral.json('/api/chat', capital(DEMO))
  t.same([status, body.message?.content], [200, CAPITAL_ANSWER])
  t.not(corral.enginePids()[0], pid)

  const stream = await begin(corral, '/api/chat', endless(DEMO))
  process.kill(corral.enginePids()[0]!, 'SIGSTOP')
  t.match(lastEvent(await stream.rest()), {
    code: 'engine_crashed',
    cause: 'hung',
    error: /hung.*Send the request again/
  })
  const { body: log } = await corral.json(`/api/logs/${DEMO}`, undefined, { local: true })
  t.match(log.engines[0], { exit: { signal: 'SIGKILL' }, failure: { code: 'engine_crashed', cause: 'hung' } })
  t.equal((await corral.json('/api/chat', capital(DEMO))).body.message.content, CAPITAL_ANSWER)
})

t.test('deleting a model removes its logs', async t => {
  const model = 'x/y'
  for (let round = 0; round < 2; round++) {
    t.match(await corral.json('/api/import', { model, path: TINY }), { status: 200 })
    t.same((await corral.json(`/api/logs/${model}`, undefined, { local: true })).body.engines, [])
    t.equal((await corral.json('/api/chat', capital(model))).status, 200)
    t.equal((await corral.json(`/api/logs/${model}`, undefined, { local: true })).body.engines.length, 1)
    t.equal((await corral.json('/api/delete', { model }, { method: 'DELETE' })).status, 200)
  }
})

t.test('the logs of a model are listed and read', async t => {
  const model = 'test/logs'
  await importModel(corral, model, TINY)
  t.same((await corral.json(`/api/logs/${model}`, undefined, { local: true })).body, { model, engines: [] })
  await corral.json('/api/chat', capital(model))
  const { body } = await corral.json(`/api/logs/${encodeURIComponent(model)}`, undefined, { local: true })
  t.equal(body.engines.length, 1)
  const [engine] = body.engines
  t.match(engine, { engine: /^\w+$/, build: /\w/, startedAt: /^\d{4}-.*Z$/, dropped: 0 })
  t.ok(engine.lines.some((line: string) => line.includes('model loaded')))
  t.notMatch(engine.lines.join('\n'), corral.home, 'no path of the store')
  // The engine writes a last line about the answer, so a later reading may have one more line.
  const [whole, few] = await until('two readings of the log agree', async () => {
    const readings = []
    for (const query of ['', '?lines=2']) {
      readings.push((await corral.json(`/api/logs/${model}:F16${query}`, undefined, { local: true })).body.engines[0])
    }
    const [all, last] = readings
    return all.lines.length === last.lines.length + last.dropped ? readings : undefined
  })
  t.same(few.lines, whole.lines.slice(-2))
  t.equal(few.dropped, whole.lines.length - 2)
  t.match(await corral.json('/api/logs/no/such', undefined, { local: true }), refusedWith(404, 'model_not_found'))
  t.match(await corral.json('/api/logs/nonsense', undefined, { local: true }), refusedWith(404, 'model_not_found'))
  const lines = await corral.json(`/api/logs/${model}?lines=-1`, undefined, { local: true })
  t.match(lines, refusedWith(400, 'invalid_request'))

  const run = (...words: string[]) =>
    spawnSync(process.execPath, [MAIN, 'logs', ...words], {
      cwd: corral.home,
      env: { ...process.env, CORRAL_HOME: corral.home },
      encoding: 'utf8',
      timeout: 30_000
    })
  const printed = run(model, '--raw', '-n', '3')
  t.equal(printed.status, 0, printed.stderr)
  t.match(printed.stdout, /^== engine \w+, started .* ==\n\(\d+ earlier lines\)\n/)
  t.equal(run('no/such').status, 4)

  const following = await corral.send(`/api/logs/${model}?follow=1&lines=1`, undefined, { local: true })
  t.match(following.headers.get('content-type'), 'text/event-stream')
  await corral.json('/api/stop', { model })
  await corral.json('/api/chat', capital(model))
  const decoder = new TextDecoder()
  let text = ''
  for await (const part of following.body!) {
    text += decoder.decode(part as Uint8Array, { stream: true })
    if (/endedAt[\s\S]*startedAt[\s\S]*model loaded/.test(text)) break
  }
  t.match(text, /endedAt[\s\S]*startedAt[\s\S]*model loaded/, 'the end of one engine and the start of the next')
  const open = corral.send(`/api/logs/${model}?follow=1`, undefined, { local: true })
  await (await open).body!.getReader().read()
  t.equal(await corral.end(), 0, 'a follower does not delay the end')
})
