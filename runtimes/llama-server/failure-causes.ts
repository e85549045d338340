import type { ErrorCode } from '../../core/errors.ts'

/** The error code for an engine that failed while loading. `runtime_missing` blames the build. */
export type FailureCode = Extract<
  ErrorCode,
  'load_failed' | 'load_timeout' | 'insufficient_memory' | 'runtime_missing' | 'engine_unreachable'
>

/**
 * How corral reacts to a failure.
 * - `retry`: repeat the load immediately.
 * - `evict`: repeat it after other models have made room.
 * - `other_build`: try the next best llama.cpp build.
 * - `give_up`: fail the request. The next request tries again, after growing pauses.
 * - `ask_again`: fail the request before anything is loaded. The next request tries again immediately.
 */
export type Reaction = 'retry' | 'evict' | 'other_build' | 'give_up' | 'ask_again'

type Patterns = RegExp | readonly (RegExp | { pattern: RegExp; sentence: string })[]

interface CauseFacts {
  code: FailureCode
  reaction: Reaction
  /** The problem and its solution. `$1` and so on stand for the groups of the pattern that matched. */
  sentence: string
  /** Lines that are a cause by themselves. A pattern may have its own sentence. */
  lines: Patterns
  /** Lines that are also printed when llama-server continues, or after a failure that has its own line. */
  hints: Patterns
  /** A file is to blame, which may not be the model's own. */
  ofFile: boolean
}

const causes =
  (code: FailureCode, reaction: Reaction, ofFile = false) =>
  (sentence: string, lines: Patterns = [], hints: Patterns = []): CauseFacts => {
    return { code, reaction, sentence, lines, hints, ofFile }
  }
const memoryRanOut = causes('insufficient_memory', 'evict')
const buildUnusable = causes('runtime_missing', 'other_build')
const loadRefused = causes('load_failed', 'give_up')
const fileRefused = causes('load_failed', 'give_up', true)
const retryOnce = causes('load_failed', 'retry')
const elsewhere = causes('engine_unreachable', 'ask_again')

const OTHER_BUILD = 'Choose another llama.cpp build ("corral doctor" lists them).'
const INSTALL = 'Install it, or choose another llama.cpp build ("corral doctor" lists them).'
const LESS_GPU = 'Use a smaller num_ctx or num_parallel, a smaller quantization, or fewer GPU layers (n_gpu_layers).'
const LESS_MEMORY = 'Use a smaller num_ctx or num_parallel, a smaller quantization, or close other programs.'
const FETCH_AGAIN = 'Delete the model and fetch or import it again.'
const FETCH_PROJECTOR = 'Fetch the model and its projector again, or load it without the projector, for text alone.'
const NEWER_BUILD = 'A newer llama.cpp may support it. Otherwise choose another file of the model.'

/** Architectures of models for images, video or sound, which llama-server does not serve. */
const MEDIA =
  'sd\\d\\w*|sdxl\\w*|stable-?diffusion\\w*|flux\\w*|wan\\w*|hunyuan[-_]?video\\w*|hyvid\\w*|ltxv?\\w*|qwen[-_]?image\\w*|lumina\\w*|aura(?:flow)?|cosmos\\w*|hidream\\w*|pixart\\w*|chroma\\w*|z[-_]?image\\w*|kolors|mochi|cogvideo\\w*|omnigen\\w*|pig|minimax[-_]h\\w*'

/**
 * Every cause of an engine's failure, and the lines that reveal it. The names are stable, because programs read them in
 * `details.cause`. If several causes match a line, the first one here wins.
 */
export const CAUSES = {
  // How the engine was started.
  bad_cache_type: loadRefused(
    'The cache types do not fit this model or llama.cpp build ($1). Use f16 or q8_0 for both (cache_type_k, cache_type_v).',
    [
      /(Unsupported cache type: \S+)/i,
      /([KV] cache type \S+ with block size \d+ does not divide)/i,
      /does not support (different K \(\S+\) and V \(\S+\) cache types)/
    ]
  ),
  bad_chat_template: loadRefused(
    'The chat template cannot be used. Correct it, or leave it out to use the one of the model.',
    /the supplied chat template is not supported|chat template parsing error|failed to initialize chat template|please consider disabling jinja/i
  ),
  unknown_flag: loadRefused(
    'This llama.cpp build does not know the flag $1 ($2). Remove it from the settings or correct it, or use another build.',
    [
      /while handling argument "([^"]+)": (?:error: )?the argument has been removed\.?\s*(.*)/i,
      /(?:invalid|unknown|unrecognized) (?:argument|option)s?: '?(-[^\s']*)/i
    ]
  ),
  bad_flag_value: loadRefused(
    'llama-server rejects its arguments: $1 ($2). Correct them in the settings (engine arguments of config.yaml).',
    [
      {
        pattern: /while handling argument "([^"]+)": (?:std::)?(?:stoi|stof|stol|stoul|stoull|stod)\b/,
        sentence:
          'llama-server rejects the flag $1: its value is not a number, or is too large. Correct it in the settings.'
      },
      /while handling (?:argument|environment variable) "([^"]+)": (?:error: )?(.+)/i,
      /(?:invalid|missing) (?:parameter|value) for (?:argument:? ?)?'?(-{1,2}[\w-]+|main_gpu: .*|n_parallel)|error: (--\w[\w-]* requires .*|--\w[\w-]* is required|either --embeddings? or --rerank\w* .*)|(LLAMA_SPLIT_MODE_TENSOR needs .*)|(?:invalid|unknown) (split mode|value for --[\w-]+.*)|(DSpark draft has no confidence head.*)/i
    ],
    /(failed to parse grammar)/
  ),
  cannot_listen: retryOnce(
    'llama-server could not listen on its address. Try again; if it keeps failing, check the temporary folder.',
    /couldn'?t bind (?:HTTP |to )?(?:HTTP )?server socket|Address already in use|EADDRINUSE|Only one usage of each socket address|failed to bind (?:to|socket|address)|error while attempting to bind|unable to (?:bind|listen)|failed to listen on/i
  ),
  rpc_unreachable: elsewhere(
    'A machine that should take part over RPC does not answer ($1). Start `corral worker` there (or ggml-rpc-server of the same llama.cpp version), or remove it from the settings.',
    /Failed to connect to (\S+:\d+)|RPC handshake failed for (\S+)|Remote RPC server (crashed or returned malformed response)|RPC (server version mismatch.*|transport initialization failed)|Cannot resolve host '([^']+)'|Failed to parse endpoint: (\S+)/i
  ),
  rpc_lost: loadRefused(
    'A worker went away. Start `corral worker` there again. The next request then loads the model again.'
  ),
  rpc_public: loadRefused(
    'A worker has a public address. Use an address of a private network or a VPN, or set `rpc_insecure` for the model.'
  ),
  rpc_mismatch: loadRefused(
    'A worker runs another version of llama.cpp. Install the same release on both machines, and restart the worker.'
  ),
  rpc_busy: elsewhere(
    'A worker serves another client. Stop the model that uses it, or start another worker on that machine.'
  ),
  flash_attention_required: loadRefused(
    'A quantized cache_type_v needs flash attention, which is off or not possible here. Use cache_type_v f16, or allow flash attention.',
    /quantized V cache .*requires? (?:flash_attn|Flash Attention)|V cache quantization requires (?:flash_attn|Flash Attention)|SPLIT_MODE_TENSOR requires flash_attn/i
  ),
  draft_unusable: loadRefused(
    'The draft model cannot be used, or does not match this model. Choose another one in the settings, or leave it out.',
    /draft model .*(?:is not compatible|must match|must closely|incompatible)|(?:target|draft)(?: model)? vocab\w* .*(?:mismatch|incompatible|differ)|draft model is not eagle3|vocab type must match target/i,
    /failed to load draft model|failed to (?:create|initialize) (?:MTP|draft|speculative decoding) context|requires ctx_other|doesn't contain MTP layers/i
  ),
  adapter_unusable: loadRefused(
    'A LoRA adapter or control vector cannot be used ($1). Check its file, and that it was made for this model.',
    /(model arch and LoRA arch mismatch|LoRA tensor '[^']+' .*|tensor '[^']+' has incorrect shape \(hint: maybe wrong base model\?\)|expect (?:general|adapter)\.type to be .*|lora_a tensor is not transposed|control vector n_embd does not match model|no valid control vector files passed)/i,
    /failed to (?:load|apply) (?:lora|control vector)/i
  ),
  system_limit: loadRefused(
    'A limit of the system was reached ($1). Raise it (ulimit -n, ulimit -u), or load fewer models.',
    /(Too many open files|Thread creation failed|pthread_create failed|Resource temporarily unavailable|failed to create thread|can't start new thread)/i
  ),

  // The files of the model.
  file_unreadable: fileRefused(
    'corral is not allowed to read a file of the model ($1). Give its user permission to read it and its folder.',
    [
      /failed to open (?:GGUF file )?'?([^']+?)'?[ :(].*(?:Permission denied|Operation not permitted|Access is denied)/i,
      /(Is a directory)|mmap failed: (Permission denied|Operation not permitted)/i
    ],
    /Permission denied|Access is denied/i
  ),
  read_failed: loadRefused(
    'A file of the model could not be read ($1). Check its disk or network drive, and fetch the model again if it is damaged.',
    /(Input\/output error|Stale (?:NFS )?file handle|Transport endpoint is not connected|device is not ready|semaphore timeout|cyclic redundancy check|in-page|No such device or address|I\/O error)|(?:read|seek|lseek|ftell) error: (.+)|mmap failed: (No such device)/i
  ),
  missing_shard: fileRefused(
    `A part of the model is missing or cannot be used ($1). ${FETCH_AGAIN}`,
    /failed to open (?:GGUF file )?'(?:[^']*[\\/])?([^'\\/]+-(?!0*1-of-)\d{5}-of-\d{5}\.gguf)'|failed to open (?:\S*[\\/])?([^\s'\\/]+-(?!0*1-of-)\d{5}-of-\d{5}\.gguf): /,
    /failed to load GGUF split from (.+)/
  ),
  bad_split: fileRefused(
    `The parts of the model do not belong together, or were joined by hand. ${FETCH_AGAIN}`,
    /(?:invalid|illegal) split (?:file|count)|missing key \S+ in GGUF split|model must be loaded with the first split/
  ),

  // The projector. Its lines also match later causes, so it comes first.
  projector_missing: loadRefused(`The projector file is missing or cannot be read. ${FETCH_PROJECTOR}`),
  projector_unsupported: loadRefused(
    'This llama.cpp build does not know the type of the projector ($1). Use a newer llama.cpp, or load the model without its projector, for text alone.',
    /unknown (?:vision |audio )?projector type:?\s*(\S*)|unsupported (minicpmv version: \d+)|unexpected (?:vision|audio) projector type (\d+)/
  ),
  projector_mismatch: loadRefused(
    'The projector does not belong to this model, or is not a projector. Fetch the one that belongs to the model.',
    /mismatch between (?:text model|vision and audio mmproj|.* and .*mmproj)|(?:you may be using|maybe) (?:the )?wrong mmproj|unsupported decoder rope type|multimodal .* not supported|does not support (?:vision|multimodal)/i,
    /Failed to load CLIP model|failed to load multimodal model|failed to load mmproj/i
  ),
  projector_damaged: loadRefused(
    `The projector file is incomplete or damaged ($1). ${FETCH_PROJECTOR}`,
    /clip_(?:init|model_load\w*): failed to load model '.+': (?!.*(?:allocat|memory|initialize|open|Does this file exist|failed to load CLIP))(.+)/
  ),

  // The contents of the files.
  unsupported_file_version: fileRefused(
    `This llama.cpp build does not read this version of the file format ($1). ${NEWER_BUILD}`,
    /(GGUFv\d+ is no longer supported|this GGUF file is version \d+ but this software only supports up to version \d+|bad GGUF version: \d+|mismatch between the host and model endianness|unsupported (?:GGUF|file) version.*|byte ?swap.*)/i
  ),
  not_gguf: fileRefused(
    `The model file is not a GGUF file. ${FETCH_AGAIN}`,
    /invalid magic (?:characters|number)|bad magic|unknown \(magic, version\) combination|not a (?:valid )?GGUF/i
  ),
  unsupported_tensor_type: fileRefused(
    `This llama.cpp build does not know the quantization of the file (type $1). ${NEWER_BUILD}`,
    /has invalid ggml type (-?\d+)|(\w+) REMOVED, use|unknown (?:ggml|tensor|quantization) type:? '?(\S+?)'?$/i
  ),
  file_damaged: fileRefused(
    `The model file is truncated or damaged. ${FETCH_AGAIN}`,
    /(?:not|out of|outside) (?:within )?(?:the )?file bounds|corrupted or incomplete|corrupted model|(?:file|model) is corrupt|failed to read (?:magic|header|key-value pairs|tensor info|tensor data)|gguf_init_from_\w+: failed to (?:read|seek)|unexpectedly reached end of file|(?:data|file) is too short|string length \d+ exceeds|has invalid GGUF type|duplicate (?:key|tensor name)|is duplicated|(?:has|with) invalid data|encountered (?:length_error|bad_alloc) error while reading|tensor name \d+ is too long|invalid number of (?:dimensions|elements)|has offset \d+, expected|not a multiple of block size|number of (?:tensors|key value pairs) is -?\d+ but must|key \d+ is empty|is not a power of 2|size overflow|total number of elements in tensor|is not \d+ byte aligned/i
  ),
  unsupported_architecture: fileRefused(`This llama.cpp build does not support the architecture "$1". ${NEWER_BUILD}`, [
    {
      pattern: /unknown (?:model )?architecture: (?:''|""|$)/i,
      sentence:
        'The file does not name an architecture, so it is not a language model that llama.cpp can serve. Choose another model.'
    },
    {
      pattern: new RegExp(`(?:unknown|unsupported) (?:model )?architecture:? ['"]?(${MEDIA})['"]?(?:$|[^\\w-])`, 'i'),
      sentence:
        'The file contains a model for images, video or sound ("$1"), which llama-server does not serve. Choose a language model.'
    },
    {
      pattern: /(CLIP) cannot be used as main model/,
      sentence: 'The file contains a projector ($1), not a model. Import the model, with this file beside it.'
    },
    /(?:unknown|unsupported) (?:model )?architecture:? ['"]?([\w.-]+)/i
  ]),
  unsupported_tokenizer: fileRefused(`This llama.cpp build cannot use the model's tokenizer ($1). ${NEWER_BUILD}`, [
    /unknown pre-tokenizer type: '([^']*)'|(?:unknown|unsupported) tokenizer:? '([^']*)'/i,
    /cannot find (tokenizer \w+) in model file|error loading model vocabulary: (.+)|(failed to load (?:model )?vocab\w*)/i
  ]),
  missing_tensor: fileRefused(
    `The tensors of the file do not match what this llama.cpp build expects: "$1". ${NEWER_BUILD}`,
    [
      /missing tensor (?:info mapping for )?'?([\w.]+)|tensor '([^']+)' not found/i,
      /tensor '([^']+)' has wrong shape|((?:wrong number of|too many) tensors(?: created)?; expected \d+, got \d+)/i
    ]
  ),
  bad_metadata: fileRefused(
    `The metadata of the file does not match what this llama.cpp build expects ($1). ${NEWER_BUILD}`,
    /((?:array )?key not found in model: \S+)|error loading model hyperparameters: (.+)|(key \S+ has wrong (?:type|array)[^;]*)|(invalid n_rot[^,;]*)|(array length \d+ for key \S+ exceeds)|(expected scalar, found array for key: \S+)|(model has expert layers but no expert layers are used)/i,
    /error loading model: (invalid vector subscript|vector::\S+.*|map::at|_Map_base::at|invalid (?:string position|character|argument)|basic_string\S*.*|bad optional access|stoi)/i
  ),
  file_missing: fileRefused(
    `The model file $1 is missing or cannot be opened. ${FETCH_AGAIN}`,
    /failed to open (?:GGUF file )?'(.+)'|failed to open (\S+\.gguf): |failed to load CLIP model from (\S+)\. Does this file exist|(?:could not|cannot|can't|unable to) open (?:model )?file '?([^\s']+\.gguf)/i,
    /No such file or directory|The system cannot find the (?:file|path) specified/i
  ),

  // Memory.
  oom_killed: memoryRanOut(
    `The system ended llama-server because memory ran out. ${LESS_MEMORY}`,
    /OOM killer|oom-kill|oom_reaper|OOMKilled|Out of memory: Kill(?:ed)? process|Memory cgroup out of memory|out of memory \(oom\)|low memory killer|jetsam/i
  ),

  // In order: CUDA and its derivatives (ROCm, MUSA), Vulkan, Metal, others, buffers by their names. A buffer whose name
  // ends in _Host is in the machine's memory.
  out_of_gpu_memory: memoryRanOut(
    `The GPU does not have enough memory for it. ${LESS_GPU}`,
    [
      /(?:cuda|hip|musa)Malloc\w* failed: .*out of memory/i,
      /(?:CUDA|ROCm|HIP|MUSA|SYCL|cuBLAS|hipBLAS|rocBLAS) error(?: \d+)?:? .*(?:out of memory|memory allocation|resource allocation failed)|(?:cuda|hip|musa)Error(?:OutOfMemory|MemoryAllocation)|(?:CUDA|HIP)_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|HIPBLAS_STATUS_ALLOC_FAILED|rocblas_status_memory_error|cuMem\w+.*out of memory|HSA_STATUS_ERROR_OUT_OF_RESOURCES/i,
      /Error_?OutOfDeviceMemory|OutOfDeviceMemoryError|VK_ERROR_OUT_OF_(?:DEVICE|POOL)_MEMORY|ErrorOutOfPoolMemory|ErrorFragmentedPool|Requested (?:buffer|preallocation) size (?:exceeds device|is too large)|No suitable memory type found/i,
      /kIOGPUCommandBufferCallbackErrorOutOfMemory|error: Insufficient Memory|ggml_(?:backend_)?metal\w*: .*failed to allocate .*buffer|failed to allocate Metal buffer/i,
      /(?:UR_RESULT|ZE_RESULT|PI)_ERROR_(?:OUT_OF_DEVICE_MEMORY|OUT_OF_RESOURCES|MEM_OBJECT_ALLOCATION_FAILURE)|can't allocate \d+ Bytes of memory on device|CL_OUT_OF_RESOURCES|CL_MEM_OBJECT_ALLOCATION_FAILURE|CL_INVALID_BUFFER_SIZE|ggml_opencl: .* error (?:-4|-5|-61)\b|aclrtMalloc.*(?:failed|out of memory)/i,
      /(?:failed to|unable to|can't|cannot) allocate (?:backend )?(?:CUDA|ROCm|HIP|MUSA|Vulkan|Metal|MTL|SYCL|OpenCL|GPUOpenCL|CANN|Kompute|WebGPU|HTP|RPC)(?!\w*_Host)[\w[\]:.]* buffer/i
    ],
    /ggml_vulkan: (?:Device )?memory allocation of size \d+ failed|insufficient VRAM|not enough (?:VRAM|GPU memory|video memory)/i
  ),
  out_of_memory: memoryRanOut(
    `This machine does not have enough memory for it. ${LESS_MEMORY}`,
    [
      /Error_?OutOfHostMemory|OutOfHostMemoryError|VK_ERROR_OUT_OF_HOST_MEMORY/i,
      /(?:UR_RESULT|ZE_RESULT|PI)_ERROR_OUT_OF_HOST_MEMORY|can't allocate \d+ Bytes of memory on host|CL_OUT_OF_HOST_MEMORY/i,
      /(?:failed to|unable to|can't|cannot) allocate (?:\w+_Host|CPU\w*|AMX|HBM|host|BLAS) buffer|cpu_\w+: failed to allocate|failed to allocate buffer of size/i,
      /std::bad_alloc|posix_memalign failed|mmap failed: (?:Cannot allocate memory|Not enough)|(?:MapViewOfFile|CreateFileMappingA?) failed: .*(?:not enough|insufficient|paging file)|(?:aligned_malloc|ggml_(?:m|c)alloc|aligned_alloc)\w*: .*(?:insufficient memory|failed to allocate)|insufficient memory \(attempted to allocate|(?:malloc|calloc|realloc|new) failed|not enough space in the context's memory pool|error creating backtrace: mmap: 12|virtual memory exhausted|error: out of memory$|paging file is too small|Not enough memory resources/i
    ],
    [
      /failed to allocate (?:compute|buffer for|graph|output|memory|context)|unable to allocate (?:backend )?buffer|failed to reserve (?:graph buffers|initial output buffer)|graph allocation: failed to reserve|failed to allocate \d[\d.]* (?:bytes|MB|MiB)|Cannot allocate memory|not enough memory|ENOMEM/i,
      /failed to (?:mlock|VirtualLock)/i
    ]
  ),

  // The build, its libraries and drivers, and the GPU. The hints are also printed when llama-server continues without
  // the GPU.
  executable_missing: buildUnusable(
    `llama-server could not be started ($1). ${OTHER_BUILD}`,
    /failed to execute .+: (.+)|(Exec format error|cannot execute binary file|bad CPU type in executable)/i
  ),
  system_too_old: buildUnusable(
    'This llama.cpp build needs a newer system ($1). Use a build made for this system, such as one from source.',
    [
      /version [`']((?:GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+)' not found/,
      /built for (macOS [\d.]+) which is newer than running OS|requires a newer version of (Windows|macOS)/i
    ]
  ),
  library_missing: buildUnusable(
    `A library that llama-server needs is missing or of another version ($1). ${INSTALL}`,
    [
      {
        pattern:
          /error while loading shared libraries: ([^\s:]+)|Library not loaded: '?([^\s:']+)|because (\S+\.dll) was not found|(?:unable|failed) to load (?:dynamic library|DLL) '?"?([^\s'":]+)|Could not find module '([^']+)'|(\S+\.dll)(?: is)? (?:missing|not found)/i,
        sentence: `The library $1 that llama-server needs is missing. ${INSTALL}`
      },
      /symbol lookup error: .*undefined symbol: (\S+)|dyld(?:\[\d+\])?: (?:missing symbol called|Symbol not found: (\S+))|entry point (\S+) could not be located|procedure entry point/i,
      /(no backends are loaded|no CPU backend found|failed to initialize CPU backend)/
    ],
    [
      /0xc0000135|0xc0000139|STATUS_DLL_NOT_FOUND|STATUS_ENTRYPOINT_NOT_FOUND|exit(?:ed)?(?: with)?(?: code| status)? 127\b/i,
      /failed to load \S*ggml-\S+: (\S+?): cannot open shared object file/
    ]
  ),
  illegal_instruction: buildUnusable(
    `This llama.cpp build uses instructions that this processor does not have. ${OTHER_BUILD}`,
    /illegal instruction|trap invalid opcode|\bSIGILL\b|STATUS_ILLEGAL_INSTRUCTION|0xc000001d/i
  ),
  gpu_not_supported_by_build: buildUnusable(`This llama.cpp build has no code for this GPU. ${OTHER_BUILD}`, [
    /no kernel image is available|invalid device function|device kernel image is invalid|invalid kernel file|shared object initialization failed|hipErrorNoBinaryForGpu|Unable to find code object|has no device code compatible|not compiled with any CUDA arch|TensileLibrary\S*: .*GPU arch|Cannot read .*TensileLibrary|No Tensile library|CUBLAS_STATUS_ARCH_MISMATCH|hipErrorInvalidDeviceFunction/i,
    /does not support 16-bit storage|Vulkan 1\.\d required|ErrorFeatureNotPresent|ErrorExtensionNotPresent|Required aspect fp\d+ is not supported|Double type is not supported|UR_RESULT_ERROR_(?:INVALID_BINARY|PROGRAM_BUILD_FAILURE|UNSUPPORTED_FEATURE)|PI_ERROR_(?:BUILD_PROGRAM_FAILURE|INVALID_BINARY)|No kernel named \S+ was found|failed to initialize the Metal library|kernel not found in any metal library|error compiling (?:Metal )?source|ggml_opencl: kernel compile error/i
  ]),
  driver_too_old: buildUnusable(
    'The GPU driver is older than this llama.cpp build needs. Update the driver, or choose another build.',
    /(?:CUDA|ROCm|HIP|MUSA) error: .*(?:driver version is insufficient|unsupported toolchain|driver is too old)/i,
    /driver version is insufficient|driver is too old|ErrorIncompatibleDriver/i
  ),
  driver_unavailable: buildUnusable(
    'llama-server cannot use the GPU driver ($1). Check it (nvidia-smi, rocminfo; restart after an update of the driver), or choose another build.',
    /(?:CUDA|ROCm|HIP|MUSA) error: .*(no \S*-capable device|no ROCm-capable device|busy or unavailable|system not yet initialized|unsupported display driver|forward compatibility|initialization error|driver shutting down|invalid device ordinal)/i,
    /(Driver\/library version mismatch|(?:failed|unable) to initialize (?:CUDA|ROCm|HIP|MUSA|NVML|SYCL)[^\n]*|NVML: [^\n]*|couldn't communicate with the NVIDIA driver|no \S+-capable device is detected|hsa_init failed|ErrorInitializationFailed|No device of requested type available)/i
  ),
  gpu_lost: loadRefused(
    'The GPU stopped answering ($1). Load the model again. If it happens again, check the driver, the power supply and the temperature, or restart the machine.',
    [
      /(Error_?DeviceLost|DeviceLostError|VK_ERROR_DEVICE_LOST|device lost|(?:UR_RESULT|ZE_RESULT|PI)_ERROR_DEVICE_LOST)/i,
      /\b(Xid \(?[\w:. ]+\)?: \d+)|(fallen off the bus)|(?:CUDA|ROCm|HIP|MUSA) error: .*(unspecified launch failure|launch timed out|uncorrectable ECC error|hardware stack error|GPU is lost|device reset|unknown error)|(HW Exception by GPU|GPU Hang|GPU reset|ring \S+ timeout|amdgpu: .*(?:hang|reset))|(kIOGPUCommandBufferCallbackError(?:Timeout|Hang|InnocentVictim|SubmissionsIgnored|PageFault|ImpactingInteractivity))/i
    ]
  ),
  gpu_failed: loadRefused(
    'The GPU failed ($1). Check its driver; try fewer GPU layers (n_gpu_layers) or another llama.cpp build.',
    /(?:CUDA|ROCm|HIP|MUSA|SYCL) error: (.+)|(Memory access fault by GPU)|(CUBLAS_STATUS_\w+|HIPBLAS_STATUS_\w+|HSA_STATUS_ERROR\w*|UR_RESULT_ERROR_\w+|ZE_RESULT_ERROR_\w+|PI_ERROR_\w+)|ggml_vulkan: .*(Error[A-Z]\w+)/,
    /(Compute pipeline creation failed)|(command buffer \d+ failed with status \d+)|(backend is in error state)|failed to initialize (\S+ backend)|failed to (create command queue)/
  ),

  // How the process ended.
  context_failed: loadRefused(
    'llama.cpp cannot create this context: $1. Request other load options (num_ctx, num_parallel, cache types).',
    [],
    /failed to initialize the context: (?!failed to allocate)(.+)/
  ),
  assertion_failed: loadRefused(
    `llama.cpp stopped after an internal error. ${OTHER_BUILD}`,
    [],
    /GGML_ASSERT|ggml_abort|Assertion .* failed|: fatal error$|terminate called/
  ),
  killed: retryOnce(
    `llama-server was killed from outside (SIGKILL), as systems do when memory runs out. Load the model again. If it is killed again: ${LESS_MEMORY}`,
    [],
    /signal: killed|\bKilled\b(?: +\S*llama|: 9|$)|terminated by signal SIGKILL|exit(?:ed)?(?: with)?(?: code| status)? 137\b/
  ),
  crashed: loadRefused(
    'llama-server crashed ($1). Load the model again. If it crashes again, try another llama.cpp build.',
    [],
    /(0xc0000005|0xc0000409|Segmentation fault|signal arrived during external code execution|Bus error|Aborted|Floating point exception|access violation|Trace\/breakpoint trap|stack smashing detected|double free or corruption)/i
  ),
  terminated: retryOnce('llama-server was ended from outside ($1). Load the model again.'),
  stalled: causes(
    'load_timeout',
    'give_up'
  )('Loading made no progress for `runtimes.load_timeout`. Check the disk, or raise that setting.'),
  hung: retryOnce(
    'llama-server neither answered nor used the processor, so corral ended it. Send the request again to reload the model.'
  ),
  stuck: loadRefused(
    'llama-server used the processor for `limits.stuck_after` without progress, so corral ended it. If a grammar, JSON schema or chat template is the cause, simplify it. Otherwise send the request again.'
  ),
  over_memory: loadRefused(
    'llama-server used far more memory than was reserved for it, so corral ended it. If a grammar, JSON schema or chat template is the cause, simplify it. Otherwise send the request again.'
  ),
  unknown: loadRefused('llama-server ended ($1). See the end of its log (corral logs).')
} satisfies Record<string, CauseFacts>

export type FailureCause = keyof typeof CAUSES

/** Returns how to react to an engine's failure. Unknown causes are given up. */
export function reactionTo(cause: FailureCause | (string & {}) | undefined): Reaction {
  return cause !== undefined && Object.hasOwn(CAUSES, cause) ? CAUSES[cause as FailureCause].reaction : 'give_up'
}
