import { readdirSync, readFileSync } from 'node:fs'
import t from 'tap'
import { classifyFailure, isFatal } from '../../runtimes/llama-server/failure.ts'

/** Recorded texts; their first line says where each comes from. */
const FIXTURES = new URL('../../../test/fixtures/load-fail/', import.meta.url)

function recorded(name: string): string[] {
  return readFileSync(new URL(name, FIXTURES), 'utf8').split('\n').slice(1)
}

const FAILED = { code: 1, signal: null }

/** File → code, cause, what the sentence must hold. */
const TABLE: Record<string, [code: string, cause: string, sentence: RegExp]> = {
  'bad-flag-device-cpu.txt': ['load_failed', 'bad_argument', /--device \(invalid device: CPU\)/],
  'bad-flag-flash-attn-needs-value-2026.txt': ['load_failed', 'bad_argument', /--flash-attn \(expected value/],
  'bad-flag-flash-attn-swallows-next.txt': ['load_failed', 'bad_argument', /--flash-attn .*'--ctx-size'/],
  'bad-flag-no-mmap-removed-2026.txt': ['load_failed', 'bad_argument', /does not know the flag --no-mmap/],
  'bind-failed-windows-2026.txt': ['load_failed', 'address_in_use', /could not listen/],
  'cat-merged-shards-invalid-split.txt': ['load_failed', 'bad_split', /joined by hand/],
  'cpu-buffer-alloc-failed-weights.txt': ['insufficient_memory', 'out_of_memory', /memory of this machine/],
  'cuda-no-kernel-image-gb10-2026.txt': ['runtime_missing', 'gpu_not_supported_by_build', /no code for this GPU/],
  'gguf-truncated-tensor-bounds.txt': ['load_failed', 'file_truncated', /cut short/],
  'glibc-238-glibcxx-release-binary.txt': ['runtime_missing', 'system_too_old', /GLIBCXX_3\.4\.32/],
  'glibc-version-not-found.txt': ['runtime_missing', 'system_too_old', /GLIBC_2\.32/],
  'metal-oom-warmup-2026.txt': ['insufficient_memory', 'out_of_gpu_memory', /num_ctx/],
  'missing-libllama-common-so.txt': ['runtime_missing', 'library_missing', /libllama-common\.so\.0/],
  'missing-shard-2025.txt': ['load_failed', 'missing_shard', /Kimi-K2\S+-00002-of-00013\.gguf/],
  'missing-tensor-output-weight.txt': ['load_failed', 'missing_tensor', /"output\.weight"/],
  'missing-tensor-ssm-conv1d-2026.txt': ['load_failed', 'missing_tensor', /"blk\.40\.ssm_conv1d\.weight"/],
  'mmproj-missing-tensor-incomplete.txt': ['load_failed', 'bad_projector', /unable to find tensor v\.blk\.0/],
  'mmproj-unknown-projector-2025.txt': ['load_failed', 'bad_projector', /unknown projector type/],
  'model-file-cannot-open.txt': ['load_failed', 'file_missing', /gemma-3-12b-it-qat-q4_0\.gguf/],
  'oom-during-load-log-just-stops.txt': ['load_failed', 'unknown', /exit code 1/],
  'oom-killer-systemd-2026.txt': ['insufficient_memory', 'out_of_memory', /memory of this machine/],
  'prefix-cuda-oom-compute-RECOVERED-load-ok.txt': ['load_failed', 'unknown', /exit code 1/],
  'prefix-generic-tail-only-2026.txt': ['load_failed', 'unknown', /exit code 1/],
  'prefix-mmproj-unknown-projector-router-2026.txt': ['load_failed', 'bad_projector', /gemma4uv/],
  'prefix-unknown-arch-empty-2026.txt': ['load_failed', 'unsupported_architecture', /names no architecture/],
  'quant-v-no-fa-2025-segv.txt': ['load_failed', 'flash_attention_required', /cache_type_v f16/],
  'rocblas-tensile-missing-gfx1103.txt': ['runtime_missing', 'gpu_not_supported_by_build', /no code for this GPU/],
  'rocm-invalid-device-function-2024.txt': ['runtime_missing', 'gpu_not_supported_by_build', /no code for this GPU/],
  'rocm-invalid-device-function-2gpu-2026.txt': ['runtime_missing', 'gpu_not_supported_by_build', /no code/],
  'rocm-oom-compute-buffer-2025.txt': ['insufficient_memory', 'out_of_gpu_memory', /n_gpu_layers/],
  'router-model-file-cannot-open-errno-2026.txt': ['load_failed', 'file_missing', /mistral-7b-v0\.1\.Q8_0\.gguf/],
  'sigill-kernel-log-libllama.txt': ['runtime_missing', 'illegal_instruction', /processor/],
  'sigill-prebuilt-binary-2026.txt': ['runtime_missing', 'illegal_instruction', /processor/],
  'unknown-arch-diffusion-sd3.txt': ['load_failed', 'unsupported_architecture', /"sd3"/],
  'unknown-arch-pangu-2025.txt': ['load_failed', 'unsupported_architecture', /"pangu-embedded"/],
  'vulkan-oom-asahi-m1-2026.txt': ['insufficient_memory', 'out_of_gpu_memory', /GPU's memory/]
}

t.test('recorded failures', t => {
  t.same(Object.keys(TABLE).sort(), readdirSync(FIXTURES).sort(), 'every recorded text has its line in the table')
  for (const [name, [code, cause, sentence]] of Object.entries(TABLE)) {
    const lines = recorded(name)
    const failure = classifyFailure({ lines, exit: FAILED })
    t.same([failure.code, failure.cause], [code, cause], name)
    t.match(failure.sentence, sentence, name)
    t.match(failure.sentence, /\.$/, name)
    t.notMatch(
      `${failure.sentence} ${failure.line}`,
      /\/(home|Users|opt|usr|app|models|mnt)\//,
      `${name} shows no folder`
    )
    t.notMatch(failure.sentence, /\$\d|undefined/, name)
  }
  t.end()
})

t.test('texts of llama.cpp 0.5.0', t => {
  const cases: [line: string, code: string, cause: string][] = [
    [
      "E gguf_init_from_file: failed to open GGUF file '/x/y.gguf' (Permission denied)",
      'load_failed',
      'file_unreadable'
    ],
    ["E gguf_init_from_reader: invalid magic characters: '<htm', expected 'GGUF'", 'load_failed', 'not_gguf'],
    ['E gguf_init_from_reader: failed to read magic', 'load_failed', 'file_truncated'],
    ['E gguf_init_from_reader: failed to read key-value pairs', 'load_failed', 'file_truncated'],
    [
      "E gguf_init_from_file: tensor 'a' has invalid ggml type 99. should be in [0, 43)",
      'load_failed',
      'unsupported_tensor_type'
    ],
    [
      "E llama_model_load: error loading model: error loading model vocabulary: unknown pre-tokenizer type: 'new'",
      'load_failed',
      'unsupported_tokenizer'
    ],
    [
      'E llama_init_from_model: K cache type q4_0 with block size 32 does not divide n_embd_head_k=80',
      'load_failed',
      'bad_cache_type'
    ],
    [
      'E mtmd_init_from_file: error: mismatch between text model (n_embd = 1) and mmproj (n_embd = 2)',
      'load_failed',
      'bad_projector'
    ],
    [
      'E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache',
      'insufficient_memory',
      'out_of_memory'
    ],
    ['E common_init: std::bad_alloc', 'insufficient_memory', 'out_of_memory'],
    [
      'W llama_init_from_model: failed to initialize the context: n_seq_max must be <= 256',
      'load_failed',
      'context_failed'
    ],
    ['setpriv: failed to execute /opt/llama-server: Permission denied', 'runtime_missing', 'executable_missing'],
    [
      "E gguf_init_from_file: failed to open GGUF file '/x/big-00003-of-00004.gguf' (No such file or directory)",
      'load_failed',
      'missing_shard'
    ],
    [
      "E gguf_init_from_file: failed to open GGUF file '/x/big-00001-of-00004.gguf' (No such file or directory)",
      'load_failed',
      'file_missing'
    ],
    ['CUDA error: an illegal memory access was encountered', 'load_failed', 'gpu_failed'],
    ['/src/ggml.c:123: GGML_ASSERT(a == b) failed', 'load_failed', 'assertion_failed']
  ]
  for (const [line, code, cause] of cases) {
    const failure = classifyFailure({ lines: ['I before', line, 'E srv  llama_server: exiting'], exit: FAILED })
    t.same([failure.code, failure.cause], [code, cause], line)
    t.match(failure.line, line.replace(/^E /, '').slice(-20).replace(/^.*\//, ''), 'the decisive line')
  }
  t.end()
})

t.test('how it ended decides where no line does', t => {
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

t.test('a GPU that has failed for good while the process lives on', t => {
  t.ok(recorded('metal-oom-warmup-2026.txt').some(isFatal))
  t.notOk(recorded('prefix-cuda-oom-compute-RECOVERED-load-ok.txt').some(isFatal))
  t.end()
})
