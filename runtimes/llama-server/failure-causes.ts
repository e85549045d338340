import type { ErrorCode } from '../../core/errors.ts'

/** The error's code when an engine failed while loading; `runtime_missing` is a fault of the build. */
export type FailureCode = Extract<ErrorCode, 'load_failed' | 'load_timeout' | 'insufficient_memory' | 'runtime_missing'>

/**
 * What corral does about a failure by itself.
 * - `retry`: the same once more, at once.
 * - `evict`: once more when other models have made room.
 * - `other_build`: the next best llama.cpp build is tried.
 * - `give_up`: the request fails; the next one tries again, after growing pauses.
 */
export type Reaction = 'retry' | 'evict' | 'other_build' | 'give_up'

interface CauseFacts {
  code: FailureCode
  reaction: Reaction
  /** For `docs/failures.md`. */
  meaning: string
}

const facts =
  (code: FailureCode, reaction: Reaction) =>
  (meaning: string): CauseFacts => ({ code, reaction, meaning })
const memoryRanOut = facts('insufficient_memory', 'evict')
const buildUnusable = facts('runtime_missing', 'other_build')
const loadRefused = facts('load_failed', 'give_up')
const retryOnce = facts('load_failed', 'retry')

/** Every cause that an engine's failure can have. The names are stable: programs read them in `details.cause`. */
export const CAUSES = {
  // Memory.
  out_of_gpu_memory: memoryRanOut("A GPU's memory was too small: for the weights, the KV cache or the compute buffers"),
  out_of_memory: memoryRanOut("The machine's memory was too small, or a limit on it was reached"),
  oom_killed: memoryRanOut('The kernel ended the engine because memory had run out'),

  // The build and this machine.
  executable_missing: buildUnusable('llama-server is missing or cannot be executed'),
  library_missing: buildUnusable('A library that llama-server needs is missing or is another version'),
  system_too_old: buildUnusable("The build needs a newer C library than the system's"),
  illegal_instruction: buildUnusable('The build uses instructions that the processor does not have'),
  driver_too_old: buildUnusable('The GPU driver is older than the build needs'),
  driver_unavailable: buildUnusable('The GPU driver is not loaded, does not fit its libraries, or serves no device'),
  gpu_not_supported_by_build: buildUnusable('The build has no code for this GPU'),
  gpu_lost: loadRefused('The GPU stopped answering: it hung, was reset, or fell off the bus'),
  gpu_failed: loadRefused('Another failure on the GPU'),

  // The model's files.
  file_missing: loadRefused('A file of the model is not there'),
  file_unreadable: loadRefused('corral is not allowed to read a file of the model, or it is a folder'),
  read_failed: loadRefused(
    'Reading the file failed: the disk or network drive failed, or the file was cut short while in use'
  ),
  missing_shard: loadRefused('A part of a split model is not there'),
  bad_split: loadRefused('The parts of a split model do not belong together'),
  not_gguf: loadRefused('The file is not a GGUF file'),
  file_damaged: loadRefused('The file is cut short or damaged'),
  unsupported_file_version: loadRefused('The version or byte order of the GGUF file is not one that the build reads'),
  unsupported_architecture: loadRefused("The build does not know the model's architecture"),
  unsupported_tokenizer: loadRefused("The build does not know the model's tokenizer"),
  unsupported_tensor_type: loadRefused('The build does not know a quantization that the file uses'),
  missing_tensor: loadRefused('Tensors are missing, too many, or of another shape than the build expects'),
  bad_metadata: loadRefused('The metadata of the file lacks something, or holds what the build does not expect'),
  projector_missing: loadRefused('The projector (mmproj) file is not there'),
  projector_unsupported: loadRefused('The build does not know the type of the projector'),
  projector_damaged: loadRefused('The projector is incomplete or damaged'),
  projector_mismatch: loadRefused('The projector belongs to another model, or cannot be used with this one'),
  adapter_unusable: loadRefused('A LoRA adapter or control vector is missing, damaged, or made for another model'),
  draft_unusable: loadRefused('The draft model cannot be loaded, or does not match the model'),

  // How it was called.
  unknown_flag: loadRefused('llama-server does not know a flag, or no longer knows it'),
  bad_flag_value: loadRefused('llama-server refuses the value of a flag, or misses one'),
  cannot_listen: retryOnce('llama-server could not listen on its address: it is taken, or its folder cannot be used'),
  flash_attention_required: loadRefused('A quantized V cache was requested without flash attention'),
  bad_cache_type: loadRefused('A cache type is unknown or does not fit the model'),
  bad_chat_template: loadRefused('The chat template cannot be used'),
  rpc_unreachable: loadRefused(
    'A machine that should take part over RPC could not be reached, or its connection broke'
  ),
  context_failed: loadRefused('llama.cpp could not make the context for another reason, which the message gives'),
  system_limit: loadRefused('A limit of the system on threads, processes or open files was reached'),

  // How it ended.
  killed: retryOnce(
    'Something outside corral killed the engine (SIGKILL); where the kernel does not say, memory may have run out'
  ),
  terminated: retryOnce('Something outside corral asked the engine to end (SIGTERM, SIGHUP, SIGINT, …)'),
  stalled: {
    code: 'load_timeout',
    reaction: 'give_up',
    meaning: 'A load made no progress for `runtimes.load_timeout`'
  },
  hung: retryOnce('The engine neither responded nor worked, and corral ended it'),
  assertion_failed: loadRefused('llama.cpp stopped after an internal error'),
  crashed: loadRefused('The engine crashed (SIGSEGV, SIGABRT, …)'),
  unknown: loadRefused('Unknown: the last lines of the log may help')
} satisfies Record<string, CauseFacts>

export type FailureCause = keyof typeof CAUSES

export function isFailureCause(value: unknown): value is FailureCause {
  return typeof value === 'string' && Object.hasOwn(CAUSES, value)
}

/** What to do about an engine's failure; unknown causes are given up. */
export function reactionTo(cause: FailureCause | (string & {}) | undefined): Reaction {
  return isFailureCause(cause) ? CAUSES[cause].reaction : 'give_up'
}
