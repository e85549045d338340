import { spawnSync } from 'node:child_process'
import { cpSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { MAIN } from '../command-line/command.ts'
import {
  alive,
  begin,
  CAPITAL_ANSWER,
  capital,
  DEMO,
  endless,
  endlessHosted,
  lastEvent,
  startCorral,
  until
} from '../support/corral.ts'
import { engineBuildFolder } from '../support/engine-build.ts'
import { newFolder } from '../support/folder.ts'

const ask = capital()

const folder = newFolder(t)
const build = join(folder, 'build')
cpSync(engineBuildFolder(), build, { recursive: true, verbatimSymlinks: true })
const home = join(folder, 'home')
mkdirSync(home)
const options = { home, env: { CORRAL_LLAMA_CPP: build }, config: 'shutdown_grace: 2s\n' }
/** All tests start their servers in the same data directory, one after the other. */
let corral = await startCorral(t, options)
const root = t

t.test('a stream ends with an error event after kill -9 of its engine, and the next request is answered', async t => {
  for (const [path, body] of [
    ['/api/chat', endless(DEMO)],
    ['/v1/chat/completions', endlessHosted(DEMO)]
  ] as const) {
    const stream = await begin(corral, path, body)
    const [pid] = corral.enginePids()
    process.kill(pid!, 'SIGKILL')
    const text = await stream.rest()
    t.notMatch(text, /\[DONE\]/)
    if (path === '/api/chat')
      t.match(lastEvent(text), { done: true, done_reason: 'error', code: 'engine_crashed', errorCode: 500 })
    else t.match(lastEvent(text), { error: { code: 'engine_crashed', message: /\w/ } })
    t.equal((await corral.json('/api/chat', ask)).body.message.content, CAPITAL_ANSWER)
    t.not(corral.enginePids()[0], pid)
  }
})

t.test('a request is retried once when its engine is killed before the first output', async t => {
  const story = { ...endless(DEMO, { max_tokens: 1500 }), stream: false }
  const waiting = corral.json('/api/chat', story)
  const pid = await until('it runs', async () => {
    const { body } = await corral.json('/api/ps')
    return body.models[0]?.running === 1 ? corral.enginePids()[0] : undefined
  })
  process.kill(pid, 'SIGKILL')
  const { status, body } = await waiting
  t.equal(status, 200, JSON.stringify(body).slice(0, 300))
  t.equal(body.eval_count, 1500)
  t.match(corral.log(), /so a fresh one gets the request/)
})

t.test('invalid settings stop the start with advice', async t => {
  const run = (env: Record<string, string>, args: string[]) => {
    const home = newFolder(t)
    return spawnSync(process.execPath, [MAIN, 'serve', ...args], {
      cwd: home,
      env: { ...process.env, CORRAL_HOME: home, ...env },
      encoding: 'utf8',
      timeout: 30_000
    })
  }
  const wrong = run({ CORRAL_PORT: 'eleven' }, [])
  t.match(wrong, { status: 2, stderr: /CORRAL_PORT/ })
  const open = run({}, ['--port', '0', '--host', '0.0.0.0'])
  t.match(open, { status: 2, stderr: /insecure/ })
})

t.test('a model that cannot be loaded reports why on both APIs, backs off, and affects no other model', async t => {
  const gguf = readFileSync(join(packageRoot, 'plugins', 'models', 'storage', 'demo-model', 'tiny-chat-f16.gguf'))
  // Replaces the first "llama", the value of general.architecture, with an architecture that llama.cpp does not know.
  const at = gguf.indexOf('llama')
  gguf.write('lxama', at, 'latin1')
  const path = join(corral.home, 'unknown.gguf')
  writeFileSync(path, gguf)
  t.equal((await corral.json('/api/import', { model: 'test/unknown', path })).status, 200)

  const native = await corral.send('/api/chat', { ...ask, model: 'test/unknown' })
  t.equal(native.status, 500)
  t.equal(native.headers.get('x-should-retry'), 'false')
  t.match(await native.json(), { code: 'load_failed', cause: 'unsupported_architecture', error: /lxama/ })
  const streamed = await corral.json('/api/chat', { ...ask, model: 'test/unknown', stream: true })
  t.match(streamed, { status: 500, body: { code: 'load_failed' } }, 'no stream has begun')
  const hosted = await corral.send('/v1/chat/completions', { ...ask, model: 'test/unknown' })
  t.equal(hosted.status, 500)
  t.equal(hosted.headers.get('x-should-retry'), 'false')
  t.match(await hosted.json(), {
    error: { code: 'load_failed', message: /lxama.*2 times in a row.*The next attempt is possible in/s }
  })
  t.ok(Number(hosted.headers.get('retry-after')) > 0)
  const steps = await corral.json('/api/load', { model: 'test/unknown', stream: true })
  t.equal(steps.status, 500)

  t.equal((await corral.json('/api/chat', ask)).body.message.content, CAPITAL_ANSWER)
  t.match(await corral.json('/api/import', { model: DEMO, path }), { status: 409, body: { code: 'model_exists' } })
})

t.test('a deleted llama.cpp build is reported as runtime_missing, and found again when it is back', async t => {
  const moved = join(folder, 'moved')
  t.equal((await corral.json('/api/chat', ask)).status, 200)
  await corral.json('/api/stop', { model: DEMO })
  renameSync(build, moved)
  t.match(await corral.json('/api/chat', ask), { status: 503, body: { code: 'runtime_missing' } })
  renameSync(moved, build)
  t.equal((await corral.json('/api/chat', ask)).body.message?.content, CAPITAL_ANSWER)
})
t.test('no llama-server outlives a gateway that is killed with SIGKILL, and the next start is clean', async t => {
  await begin(corral, '/api/chat', endless(DEMO))
  await corral.json('/v1/embeddings', { model: DEMO, input: 'Hello' })
  const models = (await corral.json('/api/tags')).body.models.length
  const engines = corral.enginePids()
  t.equal(engines.length, 2)
  await corral.end('SIGKILL')
  const began = Date.now()
  await until('the engines end', () => engines.every(pid => !alive(pid)), 10_000)
  t.comment(`engines ended ${Date.now() - began} ms after their gateway`)
  corral = await startCorral(root, options)
  t.equal((await corral.json('/api/chat', ask)).body.message.content, CAPITAL_ANSWER)
  t.equal((await corral.json('/api/tags')).body.models.length, models)
})

t.test('SIGTERM under load finishes short answers, ends long ones with shutting_down, and exits with 0', async t => {
  const long = await begin(corral, '/api/chat', endless(DEMO))
  const [pid] = corral.enginePids()
  const ended = corral.end('SIGTERM')
  t.match(lastEvent(await long.rest()), { code: 'shutting_down', errorCode: 503 })
  t.equal(await ended, 0)
  t.notOk(alive(pid!))
})
