import { readdirSync, readFileSync } from 'node:fs'
import t from 'tap'
import { LogTail } from '../../../core/system/log-tail.ts'
import {
  CAUSES,
  classifyFailure,
  engineFailure,
  type FailureCause,
  findFailure,
  isFatal,
  reactionTo
} from '../../../runtimes/llama-server/failure.ts'
import { loadWarnings } from '../../../runtimes/llama-server/loading.ts'
import { renderFailureDocs } from '../../../scripts/failure-docs.ts'
import { readCases, readFixture } from '../../support/fixture.ts'

/** Recorded texts. Their first line names their origin. */
const FIXTURES = new URL('../../../../test/fixtures/', import.meta.url)

function recorded(name: string): string[] {
  return readFileSync(new URL(name, FIXTURES), 'utf8').split('\n').slice(1)
}

const CASES = 'failure-cases.yaml'
const FAILED = { code: 1, signal: null }

/** Output of several years by its cause, and lines that are printed when nothing is wrong. */
const { causes: VARIANTS, harmless } = readFixture<{ causes: Record<FailureCause, string[]>; harmless: string[] }>(
  'failure-lines.yaml'
)

/** The cause of each recording, and a required part of the sentence. None if the log reports no certain failure. */
const RECORDINGS = readCases<[name: string, cause?: FailureCause, sentence?: RegExp][]>(CASES, 'recordings')

t.test('the failure classifier recognizes recorded failures', t => {
  const names = RECORDINGS.map(([name]) => name)
  t.same(names, readdirSync(new URL('load-fail/', FIXTURES)).sort(), 'every recording is in the table')
  for (const [name, cause, sentence] of RECORDINGS) {
    const lines = recorded(`load-fail/${name}`)
    const found = findFailure(lines, [], false)
    t.equal(found?.cause, cause, name)
    if (!found) {
      const { line } = classifyFailure(lines, FAILED)
      t.notMatch(line, /\/(home|Users)\//, name)
      continue
    }
    t.equal(found.code, CAUSES[found.cause].code)
    t.match(found.sentence, sentence!, name)
    t.match(found.sentence, /\.$/, name)
    t.notMatch(`${found.sentence} ${found.line}`, /\/(home|Users|opt|usr|app|models|mnt)\//, `${name} shows no folder`)
    t.notMatch(found.sentence, /\$\d|undefined|\(\)\.|""/, name)
    t.same(classifyFailure(lines, FAILED), found, 'the log outranks the exit code')
  }
  t.end()
})

t.test('the failure classifier ignores recordings without a failure', t => {
  for (const name of readdirSync(new URL('load-ok/', FIXTURES))) {
    t.equal(findFailure(recorded(`load-ok/${name}`)), undefined, name)
  }
  for (const line of harmless) t.equal(findFailure([line]), undefined, line)
  t.end()
})

t.test('an incomplete log needs the exit facts to be classified', t => {
  const of = (name: string, exit?: { code: number | null; signal: string | null; oomKilled?: boolean }) =>
    classifyFailure(recorded(`load-fail/${name}`), exit).cause
  const stops = 'oom-during-load-log-just-stops.txt'
  t.equal(of(stops), 'unknown')
  t.equal(of(stops, { code: null, signal: 'SIGKILL' }), 'killed')
  t.equal(of(stops, { code: null, signal: 'SIGKILL', oomKilled: true }), 'oom_killed')
  const pending = 'cuda-oom-compute-buffer-2gpu-recovered.txt'
  t.equal(of(pending, FAILED), 'out_of_gpu_memory', 'after an exit there was no retry')
  t.equal(of('prefix-generic-tail-only-2026.txt', FAILED), 'unknown')
  t.end()
})

t.test('the failure classifier recognizes other wordings, back ends and years', t => {
  const all = Object.entries(VARIANTS).flatMap(([cause, outputs]) => outputs.map(output => ({ cause, output })))
  for (const { cause, output } of all) {
    const lines = output.split('\n')
    const first = lines[0]!
    for (const wrapped of [
      lines,
      ['0.00.001.000 I before', ...lines, 'E srv  llama_server: exiting due to model loading error']
    ]) {
      const failure = classifyFailure(wrapped, FAILED)
      t.equal(failure.cause, cause, first)
      t.match(failure.sentence, /\.$/, first)
      t.notMatch(failure.sentence, /\$\d|undefined|\(\)|""/, failure.sentence)
    }
  }
  const causes = Object.entries(CAUSES).filter(([, { lines, hints }]) => lines ?? hints)
  const untested = causes.map(([cause]) => cause).filter(cause => !(cause in VARIANTS))
  t.same(untested, [], 'every cause with patterns')
  t.end()
})

t.test('the first cause in a log wins over its consequences', t => {
  for (const [cause, lines] of readCases<Record<string, string[]>[]>(CASES, 'first').flatMap(Object.entries)) {
    t.equal(classifyFailure(lines, FAILED).cause, cause, lines.join())
  }
  const served = [
    'cudaMalloc failed: out of memory',
    'main: server is listening on http://x',
    'update_slots: all slots are idle'
  ]
  t.equal(findFailure(served), undefined, 'errors before it served are ignored')
  t.end()
})

t.test('the failure classifier warns about loads that succeed with limitations', t => {
  const of = (name: string, gpuLayers = -1) => loadWarnings(recorded(name), { gpuLayers })
  t.match(of('load-fail/prefix-cuda-oom-compute-RECOVERED-load-ok.txt'), [/pipeline parallelism, which is now off/])
  t.match(of('load-fail/chat-template-fallback-then-ready.txt'), [/badly formed.*--chat-template-file/])
  t.match(of('load-ok/zero-layers-offloaded-vulkan-build.txt'), [/None of the 49 layers/])
  t.same(of('load-ok/zero-layers-offloaded-vulkan-build.txt', 0), [], 'as requested')
  t.same(of('load-ok/cuda-2gpu-model-buffers-2026.txt'), [])
  const driver = ['ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected']
  t.match(loadWarnings([...driver, ...driver], { gpuLayers: -1 }), [/no CUDA-capable device is detected/])
  t.end()
})

t.test('the failure classifier reports which memory was too small, and its purpose', t => {
  const of = (...lines: string[]) => classifyFailure(lines, FAILED).details
  t.same(
    of(
      'ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1024.00 MiB on device 1: cudaMalloc failed: out of memory',
      'alloc_tensor_range: failed to allocate CUDA1 buffer of size 1073741824',
      'llama_model_load: error loading model: unable to allocate CUDA1 buffer'
    ),
    { stage: 'weights', device: 'CUDA1', wanted: 2 ** 30 }
  )
  t.same(
    of(
      'alloc_tensor_range: failed to allocate Vulkan0 buffer of size 5',
      'failed to initialize the context: failed to allocate buffer for kv cache'
    ),
    { stage: 'kv_cache', device: 'Vulkan0', wanted: 5 }
  )
  t.end()
})

t.test('the failures document is up to date', t => {
  const written = readFileSync(new URL('../../../../docs/failures.md', import.meta.url), 'utf8')
  t.equal(written, renderFailureDocs()['failures.md'], 'run "npm run docs:write"')
  t.end()
})

t.test('the failure classifier maps causes to reactions', t => {
  t.equal(reactionTo('killed'), 'retry')
  t.equal(reactionTo('cannot_listen'), 'retry')
  t.equal(reactionTo('out_of_gpu_memory'), 'evict')
  t.equal(reactionTo('library_missing'), 'other_build')
  t.equal(reactionTo('file_damaged'), 'give_up')
  t.equal(reactionTo('no such cause'), 'give_up')
  t.equal(reactionTo('toString'), 'give_up')
  for (const [cause, { code, reaction }] of Object.entries(CAUSES)) {
    const triesOther = reaction === 'other_build'
    t.equal(triesOther, code === 'runtime_missing', `${cause}: another build is tried if the build is to blame`)
    t.equal(reaction === 'evict', code === 'insufficient_memory', cause)
  }
  t.end()
})

t.test('the exit decides when no line does', t => {
  const { exits } = readFixture<{ exits: { exit: typeof FAILED; code: string; cause: string }[] }>(CASES)
  for (const { exit, ...expected } of exits) t.match(classifyFailure(['I loading'], exit), expected)
  t.same(classifyFailure([], FAILED).line, undefined)
  t.end()
})

t.test('no folder is shown, however it is written', t => {
  const path = '/srv/Application Support/models/secret owner/m.gguf'
  const lines = [
    `E mtmd_init: Failed to load CLIP model from ${path}`,
    "E x: failed to load model 'C:\\Users\\me\\m.gguf'",
    'E fatal error at /build/llama.cpp/ggml/src/ggml.c:12'
  ]
  for (const line of lines) {
    const failure = classifyFailure([line], FAILED, [path])
    t.notMatch(failure.line, /srv|Support|owner|Users|build/, line)
    t.match(failure.line, /m\.gguf|ggml\.c:12/, line)
  }
  t.end()
})

t.test('the failure classifier detects a GPU that has failed for good in a running process', t => {
  t.ok(recorded('load-fail/metal-oom-warmup-2026.txt').some(isFatal))
  t.notOk(recorded('load-fail/prefix-cuda-oom-compute-RECOVERED-load-ok.txt').some(isFatal))
  t.end()
})

t.test("clients do not see a serving engine's output", t => {
  const tail = new LogTail()
  tail.push('E CUDA error: out of memory')
  tail.mark()
  tail.push("E parse: error parsing grammar: somebody's rule")
  const exit = { code: null, signal: 'SIGABRT' }
  const serving = engineFailure('a/b', true, tail, [], exit)
  t.equal(serving.code, 'engine_crashed')
  t.notMatch(JSON.stringify([serving.message, serving.details]), /somebody/)
  t.notOk('line' in serving.details!)
  t.ok('line' in engineFailure('a/b', false, tail, [], exit).details!, 'while it loads there are no other clients')
  t.end()
})
