import type { ErrorCode } from '../../core/errors.ts'

/** The error's code when an engine failed while loading; `runtime_missing` is a fault of the build. */
export type FailureCode = Extract<ErrorCode, 'load_failed' | 'insufficient_memory' | 'runtime_missing'>

/** What a line of llama-server's output says about a failure. */
export interface FailureRule {
  cause: string
  /** `load_failed` when not given. */
  code?: FailureCode
  pattern: RegExp
  /** `$1` and so on stand for the pattern's groups. */
  sentence: string
}

export const OTHER_BUILD = 'Choose another llama.cpp build (corral doctor shows which there are).'
const LESS_GPU = 'Use a smaller num_ctx or num_parallel, a smaller quantization, or fewer GPU layers (n_gpu_layers).'
export const LESS_MEMORY = 'Use a smaller num_ctx or num_parallel, a smaller quantization, or close other programs.'
const FETCH_AGAIN = 'Delete the model and fetch or import it again.'
const NEWER_BUILD = 'A newer llama.cpp may know it; else choose another file of the model.'

/** From the particular to the general: the first rule that finds a line decides. */
export const FAILURE_RULES: FailureRule[] = [
  // The build does not run on this machine.
  {
    cause: 'executable_missing',
    code: 'runtime_missing',
    pattern: /failed to execute (\S+): (.+)/,
    sentence: `llama-server could not be started ($2). ${OTHER_BUILD}`
  },
  {
    cause: 'system_too_old',
    code: 'runtime_missing',
    pattern: /version `((?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)' not found/,
    sentence: `This llama.cpp build needs a newer system ($1). Use a build made for this system, such as one from source.`
  },
  {
    cause: 'library_missing',
    code: 'runtime_missing',
    pattern: /(?:error while loading shared libraries: |Library not loaded: )(\S+?)(?::|$)/,
    sentence: `The library $1 that llama-server needs is missing. Install it, or choose another llama.cpp build.`
  },
  {
    cause: 'illegal_instruction',
    code: 'runtime_missing',
    pattern: /illegal instruction|trap invalid opcode/i,
    sentence: `This llama.cpp build uses instructions that this processor does not have. ${OTHER_BUILD}`
  },
  {
    cause: 'driver_too_old',
    code: 'runtime_missing',
    pattern: /CUDA driver version is insufficient for CUDA runtime version/,
    sentence: `The GPU driver is older than this llama.cpp build needs. Update the driver, or choose another build.`
  },
  {
    cause: 'gpu_not_supported_by_build',
    code: 'runtime_missing',
    pattern:
      /no kernel image is available|invalid device function|TensileLibrary\S*: .*GPU arch|Cannot read .*TensileLibrary/,
    sentence: `This llama.cpp build has no code for this GPU. ${OTHER_BUILD}`
  },

  // How it was called.
  {
    cause: 'bad_argument',
    pattern: /error: invalid argument: (\S+)/,
    sentence: `This llama.cpp build does not know the flag $1. Remove it from the settings, or use another build.`
  },
  {
    cause: 'bad_argument',
    pattern: /while handling argument "([^"]+)": (?:error: )?(.+)/,
    sentence: `llama-server refuses the flag $1 ($2). Correct it in the settings.`
  },
  {
    cause: 'address_in_use',
    pattern: /couldn't bind HTTP server socket/i,
    sentence: 'llama-server could not listen on its address. Try again; check the temporary folder if it goes on.'
  },

  // Memory.
  {
    cause: 'out_of_gpu_memory',
    code: 'insufficient_memory',
    pattern:
      /cudaMalloc failed: out of memory|(?:CUDA|ROCm) error: out of memory|ErrorOutOfDeviceMemory|kIOGPUCommandBufferCallbackErrorOutOfMemory/,
    sentence: `The GPU's memory is too small for it. ${LESS_GPU}`
  },
  {
    cause: 'out_of_gpu_memory',
    code: 'insufficient_memory',
    pattern: /(?:failed to|unable to) allocate (?:CUDA|ROCm|Vulkan|Metal|MTL|SYCL)\w* buffer/,
    sentence: `The GPU's memory is too small for it. ${LESS_GPU}`
  },
  {
    cause: 'out_of_memory',
    code: 'insufficient_memory',
    pattern:
      /std::bad_alloc|ErrorOutOfHostMemory|(?:failed to|unable to) allocate (?:CPU\w* )?buffer|failed to allocate buffer for|failed to allocate compute|Cannot allocate memory|OOM killer|oom-kill/,
    sentence: `The memory of this machine is too small for it. ${LESS_MEMORY}`
  },

  // The files.
  {
    cause: 'missing_shard',
    pattern:
      /failed to load GGUF split from (.+)|failed to open GGUF file '(?:[^']*[\\/])?([^'\\/]+-(?!00001-of-)\d{5}-of-\d{5}\.gguf)'/,
    sentence: `A part of the model is missing ($1). ${FETCH_AGAIN}`
  },
  {
    cause: 'file_unreadable',
    pattern: /failed to open GGUF file '(.+)' \(.*Permission denied\)/,
    sentence: 'The model file $1 may not be read. Give the user that runs corral the right to read it.'
  },
  {
    cause: 'file_missing',
    pattern: /failed to open GGUF file '(.+)'/,
    sentence: `The model file $1 is missing or cannot be opened. ${FETCH_AGAIN}`
  },
  {
    cause: 'bad_split',
    pattern: /invalid split file|illegal split file/,
    sentence: `The parts of the model do not belong together, or were joined by hand. ${FETCH_AGAIN}`
  },
  {
    cause: 'bad_projector',
    pattern: /clip_init: failed to load model '.+': (.+)/,
    sentence: `The projector file cannot be used ($1). A newer llama.cpp may know it; else fetch the model again.`
  },
  {
    cause: 'bad_projector',
    pattern: /Failed to load CLIP model|failed to load multimodal model|mismatch between text model .* and .*mmproj/,
    sentence: 'The projector file cannot be used with this model. Fetch the projector that belongs to it.'
  },
  {
    cause: 'not_gguf',
    pattern: /invalid magic (?:characters|number)/,
    sentence: `The model file is not a GGUF file. ${FETCH_AGAIN}`
  },
  {
    cause: 'file_truncated',
    pattern:
      /data is not within the file bounds|gguf_init_from_\w+: failed to read|unexpectedly reached end of file|tensor data is too short/,
    sentence: `The model file is cut short or damaged. ${FETCH_AGAIN}`
  },
  {
    cause: 'unsupported_architecture',
    pattern: /unknown model architecture: ''/,
    sentence: `The file names no architecture: it is not a language model that llama.cpp can serve. Choose another model.`
  },
  {
    cause: 'unsupported_architecture',
    pattern: /unknown model architecture: '([^']+)'/,
    sentence: `This llama.cpp build does not know the architecture "$1". ${NEWER_BUILD}`
  },
  {
    cause: 'unsupported_tokenizer',
    pattern: /unknown pre-tokenizer type: '([^']*)'|unknown tokenizer: '([^']*)'/,
    sentence: `This llama.cpp build does not know the model's tokenizer "$1". ${NEWER_BUILD}`
  },
  {
    cause: 'unsupported_tensor_type',
    pattern: /tensor '.+' has invalid ggml type (\d+)/,
    sentence: `This llama.cpp build does not know the quantization of the file (type $1). ${NEWER_BUILD}`
  },
  {
    cause: 'missing_tensor',
    pattern: /missing tensor '([^']+)'|tensor '([^']+)' not found/,
    sentence: `The file lacks the tensor "$1" that this llama.cpp build expects. ${NEWER_BUILD}`
  },

  // Options that do not go together.
  {
    cause: 'flash_attention_required',
    pattern: /quantized V cache requires flash_attn|V cache quantization requires flash_attn/,
    sentence:
      'A quantized cache_type_v needs flash attention, which is off or not possible here. Use cache_type_v f16, or allow flash attention.'
  },
  {
    cause: 'bad_cache_type',
    pattern: /([KV]) cache type (\S+) with block size \d+ does not divide/,
    sentence: 'The $1 cache type $2 does not fit this model. Use f16 or q8_0 (cache_type_k, cache_type_v).'
  },
  {
    cause: 'bad_chat_template',
    pattern: /the supplied chat template is not supported/,
    sentence: 'The chat template cannot be used. Correct it, or leave it out to use the one of the model.'
  },

  // What is left.
  {
    cause: 'gpu_failed',
    pattern: /(?:CUDA|ROCm) error: (.+)|(ErrorDeviceLost)|command buffer \d+ failed with (status \d+)/,
    sentence: 'The GPU failed ($1). Check its driver; try fewer GPU layers (n_gpu_layers) or another llama.cpp build.'
  },
  {
    cause: 'context_failed',
    pattern: /failed to initialize the context: (.+)/,
    sentence: 'llama.cpp cannot make this context: $1. Ask for other load options (num_ctx, num_parallel, cache types).'
  },
  {
    cause: 'assertion_failed',
    pattern: /GGML_ASSERT\(?(.*)/,
    sentence: `llama.cpp stopped itself after a fault of its own. ${OTHER_BUILD}`
  }
]
