import { chmodSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import type { Progress } from '../../../core/contracts/progress.ts'
import { processStartTime } from '../../../core/system/processes.ts'
import { readText } from '../../../core/system/response-body.ts'
import { createLlamaServerEngine, type EngineDeps } from '../../../runtimes/llama-server/engine.ts'
import { failure } from '../../support/failure.ts'
import { trialCount } from '../../support/trial-count.ts'
import { buildOf, engineDeps, engineSpec } from './support.ts'

// Scripts play faults that the real llama-server does not show on demand.

const NEVER = new AbortController().signal

/** Listens at the given address, without the child protocol, and answers from `routes`. */
const SERVER = `
import { createServer } from 'node:http'
const value = flag => process.argv[process.argv.indexOf(flag) + 1]
const props = { total_slots: 2, default_generation_settings: { n_ctx: 512 } }
const routes = { '/health': { status: 'ok' }, '/props': props }
const server = createServer((request, response) => {
  if (globalThis.onRequest?.(request, response)) return
  const reply = routes[request.url]
  response.writeHead(reply ? 200 : 404).end(JSON.stringify(reply ?? {}))
})
const host = value('--host')
host.endsWith('.sock') ? server.listen(host) : server.listen(Number(value('--port')), host)
process.stdin.resume()
`
const STATE = `const state = (name, value) => console.log('\\ncmd_child_to_router:state:' + JSON.stringify({ state: name, payload: { stages: ['text_model'], current: 'text_model', value } }))
`

/** Starts an engine with this script as its llama-server. */
function play(t: { teardown(end: () => Promise<void>): void }, script: string, given: Partial<EngineDeps> = {}) {
  const folder = mkdtempSync(join(tmpdir(), 'corral-test-'))
  const server = join(folder, 'llama-server.mjs')
  const quietHelp = `if (process.argv.includes('--help')) process.exit(0)\n`
  const program = `#!${process.execPath}\nimport { writeSync } from 'node:fs'\n${quietHelp}${script}`
  writeFileSync(server, script.startsWith('#!') ? script : program)
  chmodSync(server, 0o755)
  const run = join(folder, 'run')
  const progress: Progress[] = []
  const engine = createLlamaServerEngine(buildOf(server), engineSpec(), engineDeps(run, given), {
    onProgress: step => progress.push(step)
  })
  t.teardown(async () => {
    await engine.then(
      started => started.stop(),
      () => {
        // Most engines here fail to start.
      }
    )
    rmSync(folder, { recursive: true })
  })
  return { engine, run, progress }
}

// Most of these tests wait.
t.jobs = 4

t.test('a hanging load is given up', async t => {
  const { engine, run } = play(t, `console.log('my pid', process.pid)\nsetInterval(() => {}, 1000)`, {
    loadTimeout: 1000
  })
  const error = await failure(engine)
  t.equal(error.code, 'load_timeout')
  t.match(error.message, /no progress for 1 s/)
  t.same(readdirSync(run), [], 'the process has ended and nothing is left')
})

t.test('a slow load with progress is not given up, and its end is explained', async t => {
  const { engine, progress } = play(
    t,
    `${STATE}
let step = 0
const timer = setInterval(() => {
  if (++step <= 30) return state('loading', step / 40)
  clearInterval(timer)
  console.error('0.01.000.000 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 51748.72 MiB on device 0: cudaMalloc failed: out of memory')
  console.error('0.01.000.001 E ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 54262464512')
  console.error("0.01.000.002 E srv    load_model: failed to load model, '/secret/place/model.gguf'")
  process.exitCode = 1
  process.stdin.destroy()
}, 100)
process.stdin.resume()`,
    { loadTimeout: 2000 }
  )
  const error = await failure(engine)
  t.equal(error.code, 'insufficient_memory')
  t.equal(error.details?.cause, 'out_of_gpu_memory')
  t.match(error.details?.line, /^ggml_backend_cuda.*cudaMalloc failed: out of memory$/)
  t.match(error.message, /GPU does not have enough memory.*n_gpu_layers/)
  t.equal(progress.at(-1)?.fraction, 0.75)
})

t.test('the last line of a process is read, with or without a line end', async t => {
  const { engine } = play(t, `writeSync(2, 'x\\n'.repeat(5000) + 'GGML_ASSERT(/src/ggml.c) failed'); process.abort()`)
  const error = await failure(engine)
  t.match(error.details, { cause: 'assertion_failed', signal: 'SIGABRT' })
})

t.test('a GPU failure ends a running process', async t => {
  const { engine, run } = play(
    t,
    `const groan = () => writeSync(2, 'error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\\n')
groan()
setInterval(groan, 50)
${SERVER}`
  )
  const error = await failure(engine)
  t.same([error.code, error.details?.cause], ['insufficient_memory', 'out_of_gpu_memory'])
  t.same(readdirSync(run), [])
})

t.test('a GPU failure before the launch is recorded ends the engine', async t => {
  // A shell prints before the process is recorded on disk.
  const script = `#!/bin/sh
[ "$1" = --help ] && exit
echo 'error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)' >&2
exec sleep 1000
`
  for (let trial = 0; trial < trialCount(3); trial++) {
    const { engine, run } = play(t, script, { loadTimeout: 20_000 })
    const error = await failure(engine)
    t.same([error.code, error.details?.cause], ['insufficient_memory', 'out_of_gpu_memory'])
    t.same(readdirSync(run), [])
  }
})

t.test('a GPU failure while serving is reported to waiting requests', async t => {
  const engine = await play(
    t,
    `${SERVER}
globalThis.onRequest = (request, response) => {
  if (request.url !== '/groan') return false
  writeSync(2, 'ggml_metal_synchronize: error: command buffer 1 failed with status 5\\nerror: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\\n')
  return true
}`
  ).engine
  const error = await failure(engine.request({ method: 'GET', path: '/groan', signal: NEVER }))
  t.same([error.code, error.details?.cause], ['engine_crashed', 'out_of_gpu_memory'])
  t.match(error.message, /GPU does not have enough memory/)
  t.match(await engine.exited, { signal: 'SIGKILL', expected: false })
})

t.test('a load that was killed from outside is repeated once', async t => {
  const mark = `import { existsSync, writeFileSync, readFileSync } from 'node:fs'
const mark = process.argv[1] + '.tried'
const tries = existsSync(mark) ? readFileSync(mark, 'utf8').length : 0
writeFileSync(mark, 'x'.repeat(tries + 1))
`
  const once = await play(t, `${mark}if (tries === 0) process.kill(process.pid, 'SIGKILL')\n${SERVER}`).engine
  t.equal(once.contextSize, 512)
  for (const [signal, cause] of [
    ['SIGKILL', 'killed'],
    ['SIGTERM', 'terminated']
  ]) {
    const always = play(t, `${mark}if (tries > 1) process.exit(9)\nprocess.kill(process.pid, '${signal}')\n${SERVER}`)
    const error = await failure(always.engine)
    t.match([error.code, error.details], ['load_failed', { cause, signal }], 'tried twice, not three times')
    t.same(readdirSync(always.run), [])
  }
})

t.test('the provider supports builds without the child protocol, and kills one that ignores SIGTERM', async t => {
  const playing = play(t, `${SERVER}process.on('SIGTERM', () => {})`)
  const engine = await playing.engine
  t.equal(engine.contextSize, 512)
  t.equal(engine.slots, 2)
  t.equal(engine.memory, undefined)
  const { pid } = engine
  await engine.stop()
  t.same(await engine.exited, { code: null, signal: 'SIGKILL', expected: true })
  t.equal(await processStartTime(pid!), undefined)
  t.same(readdirSync(playing.run), [])
})

t.test('the provider rejects a server that does not describe itself', async t => {
  const { engine } = play(t, `${SERVER}delete routes['/props']`)
  const error = await failure(engine)
  t.equal(error.code, 'load_failed')
  t.match(error.message, /GET \/props gave no usable answer \(status 404\)/)
})

t.test('a taken port is replaced by another', async t => {
  const taken = `
import { existsSync, writeFileSync } from 'node:fs'
const mark = process.argv[1] + '.tried'
if (!existsSync(mark)) {
  writeFileSync(mark, '')
  console.error("0.00.010.000 E srv  start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 1")
  process.exit(1)
}
`
  const socketRoot = join(t.testdir({ ['d'.repeat(100)]: {} }), 'd'.repeat(100))
  const engine = await play(t, taken + SERVER, { socketRoot }).engine
  t.equal(engine.contextSize, 512)
  await engine.stop()
})

t.test('the provider handles broken connections', async t => {
  const breaking = `
let seen = 0
globalThis.onRequest = (request, response) => {
  if (request.url === '/once' && seen++ === 0) return request.socket.destroy()
  if (request.url === '/once') return response.end('second')
  if (request.url === '/never') return request.socket.destroy()
  if (request.url === '/half') return response.write('first part', () => request.socket.destroy())
  if (request.url === '/clean') return response.end('data: 1\\n\\n')
  if (request.url === '/headers') return response.end(JSON.stringify([request.headers, request.socket.remotePort]))
}
`
  const engine = await play(t, `${SERVER}${breaking}`).engine
  t.teardown(() => engine.stop())
  const get = (path: string) => engine.request({ method: 'GET', path, signal: NEVER })

  t.equal(await readText((await get('/once')).body), 'second', 'repeated once before anything has arrived')
  const never = await failure(get('/never'))
  t.equal(never.code, 'engine_crashed')
  t.match(never.message, /closed the connection/)
  const half = await failure(get('/half').then(({ body }) => readText(body)))
  t.equal(half.code, 'engine_crashed')
  t.equal(await readText((await get('/clean')).body), 'data: 1\n\n', 'the caller judges a clean end')
  const [headers] = JSON.parse(await readText((await get('/headers')).body))
  t.match(headers, { connection: 'close', authorization: /^Bearer [\w-]{32}$/ })
})
