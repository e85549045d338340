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
import { readFixture } from '../../support/fixture.ts'

/** Recorded texts. Their first line names their origin. */
const FIXTURES = new URL('../../../../test/fixtures/', import.meta.url)

function recorded(name: string): string[] {
  return readFileSync(new URL(name, FIXTURES), 'utf8').split('\n').slice(1)
}

const FAILED = { code: 1, signal: null }

/** Output of several years by its cause, and lines that are printed when nothing is wrong. */
const { causes: VARIANTS, harmless } = readFixture<{ causes: Record<FailureCause, string[]>; harmless: string[] }>(
  'failure-lines.yaml'
)

/** File → cause and a required part of the sentence. Undefined if the log reports no certain failure. */
const TABLE: Record<string, [cause: FailureCause, sentence: RegExp] | undefined> = {
  'bad-flag-device-cpu.txt': ['bad_flag_value', /--device \(invalid device: CPU\)/],
  'bad-flag-flash-attn-needs-value-2026.txt': ['bad_flag_value', /--flash-attn \(expected value/],
  'bad-flag-flash-attn-swallows-next.txt': ['bad_flag_value', /--flash-attn .*'--ctx-size'/],
  'bad-flag-no-mmap-removed-2026.txt': ['unknown_flag', /does not know the flag --no-mmap/],
  'bind-failed-windows-2026.txt': ['cannot_listen', /could not listen/],
  'cat-merged-shards-invalid-split.txt': ['bad_split', /joined by hand/],
  'chat-template-fallback-then-ready.txt': undefined,
  'cpu-buffer-alloc-failed-weights.txt': ['out_of_memory', /This machine does not have enough memory.*for the weights/],
  'cuda-no-kernel-image-gb10-2026.txt': ['gpu_not_supported_by_build', /no code for this GPU/],
  'cuda-oom-compute-buffer-2gpu-recovered.txt': undefined,
  'gguf-bad-magic.txt': ['not_gguf', /not a GGUF/],
  'gguf-truncated-tensor-bounds.txt': ['file_damaged', /truncated/],
  'glibc-238-glibcxx-release-binary.txt': ['system_too_old', /GLIBCXX_3\.4\.32/],
  'glibc-version-not-found.txt': ['system_too_old', /GLIBC_2\.32/],
  'metal-oom-repeating-no-exit.txt': ['out_of_gpu_memory', /num_ctx/],
  'metal-oom-warmup-2026.txt': ['out_of_gpu_memory', /num_ctx/],
  'missing-libllama-common-so.txt': ['library_missing', /libllama-common\.so\.0/],
  'missing-shard-2025.txt': ['missing_shard', /Kimi-K2\S+-00002-of-00013\.gguf/],
  'missing-tensor-output-weight.txt': ['missing_tensor', /"output\.weight"/],
  'missing-tensor-ssm-conv1d-2026.txt': ['missing_tensor', /"blk\.40\.ssm_conv1d\.weight"/],
  'mmproj-missing-tensor-incomplete.txt': ['projector_damaged', /unable to find tensor v\.blk\.0/],
  'mmproj-unknown-projector-2025.txt': ['projector_unsupported', /type of the projector/],
  'model-file-cannot-open.txt': ['file_missing', /gemma-3-12b-it-qat-q4_0\.gguf/],
  'oom-during-load-log-just-stops.txt': undefined,
  'oom-killer-systemd-2026.txt': ['oom_killed', /memory ran out/],
  'prefix-cuda-oom-compute-RECOVERED-load-ok.txt': undefined,
  'prefix-generic-tail-only-2026.txt': undefined,
  'prefix-mmproj-unknown-projector-router-2026.txt': ['projector_unsupported', /gemma4uv/],
  'prefix-unknown-arch-empty-2026.txt': ['unsupported_architecture', /does not name an architecture/],
  'quant-v-no-fa-2025-segv.txt': ['flash_attention_required', /cache_type_v f16/],
  'rocblas-tensile-missing-gfx1103.txt': ['gpu_not_supported_by_build', /no code for this GPU.*gfx1103/],
  'rocm-invalid-device-function-2024.txt': ['gpu_not_supported_by_build', /no code for this GPU/],
  'rocm-invalid-device-function-2gpu-2026.txt': ['gpu_not_supported_by_build', /740M Graphics, gfx1103.*--device/],
  'rocm-oom-compute-buffer-2025.txt': ['out_of_gpu_memory', /n_gpu_layers.* for computing on ROCm0/],
  'router-model-file-cannot-open-errno-2026.txt': ['file_missing', /mistral-7b-v0\.1\.Q8_0\.gguf/],
  'sigill-kernel-log-libllama.txt': ['illegal_instruction', /processor/],
  'sigill-prebuilt-binary-2026.txt': ['illegal_instruction', /processor/],
  'unknown-arch-diffusion-sd3.txt': ['unsupported_architecture', /images, video or sound \("sd3"\)/],
  'unknown-arch-pangu-2025.txt': ['unsupported_architecture', /"pangu-embedded".*newer llama\.cpp/],
  'vulkan-oom-asahi-m1-2026.txt': ['out_of_gpu_memory', /GPU does not have enough memory/],
  'vulkan-out-of-host-memory-gfx1151.txt': ['rpc_unreachable', /ggml-rpc-server/]
}

t.test('classifies recorded failures', t => {
  t.same(
    Object.keys(TABLE).sort(),
    readdirSync(new URL('load-fail/', FIXTURES)).sort(),
    'every recording is in the table'
  )
  for (const [name, expected] of Object.entries(TABLE)) {
    const lines = recorded(`load-fail/${name}`)
    const found = findFailure(lines, [], false)
    t.equal(found?.cause, expected?.[0], name)
    if (!found || !expected) {
      const { line } = classifyFailure({ lines, exit: FAILED })
      t.notMatch(line, /\/(home|Users)\//, name)
      continue
    }
    t.equal(found.code, CAUSES[found.cause].code)
    t.match(found.sentence, expected[1], name)
    t.match(found.sentence, /\.$/, name)
    t.notMatch(`${found.sentence} ${found.line}`, /\/(home|Users|opt|usr|app|models|mnt)\//, `${name} shows no folder`)
    t.notMatch(found.sentence, /\$\d|undefined|\(\)\.|""/, name)
    t.same(classifyFailure({ lines, exit: FAILED }), found, 'the log outranks the exit code')
  }
  t.end()
})

t.test('ignores recordings without a failure', t => {
  for (const name of readdirSync(new URL('load-ok/', FIXTURES))) {
    t.equal(findFailure(recorded(`load-ok/${name}`)), undefined, name)
  }
  for (const line of harmless) t.equal(findFailure([line]), undefined, line)
  t.end()
})

t.test('an incomplete log needs the exit facts to be classified', t => {
  const of = (name: string, exit?: { code: number | null; signal: string | null; oomKilled?: boolean }) =>
    classifyFailure({ lines: recorded(`load-fail/${name}`), exit }).cause
  const stops = 'oom-during-load-log-just-stops.txt'
  t.equal(of(stops), 'unknown')
  t.equal(of(stops, { code: null, signal: 'SIGKILL' }), 'killed')
  t.equal(of(stops, { code: null, signal: 'SIGKILL', oomKilled: true }), 'oom_killed')
  const pending = 'cuda-oom-compute-buffer-2gpu-recovered.txt'
  t.equal(of(pending, FAILED), 'out_of_gpu_memory', 'after an exit there was no retry')
  t.equal(of('prefix-generic-tail-only-2026.txt', FAILED), 'unknown')
  t.end()
})

t.test('classifies other wordings, back ends and years', t => {
  const all = Object.entries(VARIANTS).flatMap(([cause, outputs]) => outputs.map(output => ({ cause, output })))
  for (const { cause, output } of all) {
    const lines = output.split('\n')
    const first = lines[0]!
    for (const wrapped of [
      lines,
      ['0.00.001.000 I before', ...lines, 'E srv  llama_server: exiting due to model loading error']
    ]) {
      const failure = classifyFailure({ lines: wrapped, exit: FAILED })
      t.equal(failure.cause, cause, first)
      t.match(failure.sentence, /\.$/, first)
      t.notMatch(failure.sentence, /\$\d|undefined|\(\)|""/, failure.sentence)
    }
  }
  const causes = Object.entries(CAUSES).filter(([, { lines, hints }]) => lines ?? hints)
  t.same(
    causes.map(([cause]) => cause).filter(cause => !(cause in VARIANTS)),
    [],
    'every cause with patterns'
  )
  t.end()
})

t.test('the first cause in a log wins over its consequences', t => {
  const cases: [FailureCause, string[]][] = [
    [
      'rpc_unreachable',
      ['Failed to connect to 10.0.0.2:50052', 'alloc_tensor_range: failed to allocate RPC0 buffer of size 1']
    ],
    [
      'missing_tensor',
      ["llama_model_load: error loading model: missing tensor 'a'", 'GGML_ASSERT(model) failed', 'Segmentation fault']
    ],
    ['out_of_gpu_memory', ['CUDA error: out of memory', 'CUDA error: unspecified launch failure']],
    [
      'file_damaged',
      [
        'ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected',
        'gguf_init_from_reader: failed to read tensor info'
      ]
    ],
    [
      'gpu_lost',
      [
        'retrying without pipeline parallelism',
        'vk::Queue::submit: ErrorDeviceLost',
        'cudaMalloc failed: out of memory'
      ]
    ]
  ]
  for (const [cause, lines] of cases) t.equal(classifyFailure({ lines, exit: FAILED }).cause, cause, lines.join())
  const served = [
    'cudaMalloc failed: out of memory',
    'main: server is listening on http://x',
    'update_slots: all slots are idle'
  ]
  t.equal(findFailure(served), undefined, 'errors before it served are ignored')
  t.end()
})

t.test('warns about loads that succeed with limitations', t => {
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

t.test('reports which memory was too small, and its purpose', t => {
  const of = (...lines: string[]) => classifyFailure({ lines, exit: FAILED }).details
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

t.test('maps causes to reactions', t => {
  t.equal(reactionTo('killed'), 'retry')
  t.equal(reactionTo('cannot_listen'), 'retry')
  t.equal(reactionTo('out_of_gpu_memory'), 'evict')
  t.equal(reactionTo('library_missing'), 'other_build')
  t.equal(reactionTo('file_damaged'), 'give_up')
  t.equal(reactionTo('no such cause'), 'give_up')
  t.equal(reactionTo('toString'), 'give_up')
  for (const [cause, { code, reaction }] of Object.entries(CAUSES)) {
    t.equal(
      reaction === 'other_build',
      code === 'runtime_missing',
      `${cause}: another build is tried if the build is to blame`
    )
    t.equal(reaction === 'evict', code === 'insufficient_memory', cause)
  }
  t.end()
})

t.test('the exit decides when no line does', t => {
  const of = (exit: { code: number | null; signal: string | null }) => {
    const { code, cause } = classifyFailure({ lines: ['I loading'], exit })
    return `${code} ${cause}`
  }
  t.equal(of({ code: null, signal: 'SIGKILL' }), 'load_failed killed')
  t.equal(of({ code: null, signal: 'SIGILL' }), 'runtime_missing illegal_instruction')
  t.equal(of({ code: null, signal: 'SIGSEGV' }), 'load_failed crashed')
  t.equal(of({ code: null, signal: 'SIGABRT' }), 'load_failed crashed')
  t.equal(of({ code: null, signal: 'SIGHUP' }), 'load_failed terminated')
  t.equal(of({ code: 0xc0000135, signal: null }), 'runtime_missing library_missing')
  t.equal(of({ code: 0xc000001d, signal: null }), 'runtime_missing illegal_instruction')
  t.equal(of({ code: -1073741515, signal: null }), 'runtime_missing library_missing')
  t.equal(of({ code: 0xc0000006, signal: null }), 'load_failed read_failed')
  t.equal(of({ code: null, signal: 'SIGBUS' }), 'load_failed read_failed')
  t.equal(of({ code: 137, signal: null }), 'load_failed killed')
  t.equal(of({ code: 132, signal: null }), 'runtime_missing illegal_instruction')
  t.equal(of({ code: 127, signal: null }), 'runtime_missing library_missing')
  t.equal(of({ code: 3, signal: null }), 'load_failed unknown')
  t.same(classifyFailure({ lines: [], exit: FAILED }).line, undefined)
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
    const failure = classifyFailure({ lines: [line], exit: FAILED, paths: [path] })
    t.notMatch(failure.line, /srv|Support|owner|Users|build/, line)
    t.match(failure.line, /m\.gguf|ggml\.c:12/, line)
  }
  t.end()
})

t.test('detects a GPU that has failed for good in a running process', t => {
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
