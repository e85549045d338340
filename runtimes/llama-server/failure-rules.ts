import type { FailureCause } from './failure-causes.ts'

/** What a line of llama-server's output, or of the system around it, says about a failure. */
export interface FailureRule {
  cause: FailureCause
  pattern: RegExp
  /** What happened and what to do; `$1` and so on stand for the pattern's groups. */
  sentence: string
  /** The line is printed too where llama-server goes on, or after a failure that has its own line: others go before it. */
  weak?: boolean
}

const rule = (cause: FailureCause, pattern: RegExp, sentence: string): FailureRule => ({ cause, pattern, sentence })
const hint = (...parts: Parameters<typeof rule>): FailureRule => ({ ...rule(...parts), weak: true })

export const OTHER_BUILD = 'Choose another llama.cpp build (corral doctor shows which there are).'
const LESS_GPU = 'Use a smaller num_ctx or num_parallel, a smaller quantization, or fewer GPU layers (n_gpu_layers).'
export const LESS_MEMORY = 'Use a smaller num_ctx or num_parallel, a smaller quantization, or close other programs.'
const FETCH_AGAIN = 'Delete the model and fetch or import it again.'
const NEWER_BUILD = 'A newer llama.cpp may know it; else choose another file of the model.'

const CORRECT = 'Correct it in the settings (engine arguments of config.yaml).'

/** Architectures of files that make images, videos or sound: llama-server will not serve them. */
const MEDIA =
  'sd\\d\\w*|sdxl\\w*|stable-?diffusion\\w*|flux\\w*|wan\\w*|hunyuan[-_]?video\\w*|hyvid\\w*|ltxv?\\w*|qwen[-_]?image\\w*|lumina\\w*|aura(?:flow)?|cosmos\\w*|hidream\\w*|pixart\\w*|chroma\\w*|z[-_]?image\\w*|kolors|mochi|cogvideo\\w*|omnigen\\w*|pig|minimax[-_]h\\w*'

const GPU = `The GPU's memory is too small for it. ${LESS_GPU}`
const HOST = `The memory of this machine is too small for it. ${LESS_MEMORY}`

const LIBRARY = 'Install it, or choose another llama.cpp build (corral doctor shows which there are).'
const DRIVER_TOO_OLD =
  'The GPU driver is older than this llama.cpp build needs. Update the driver, or choose another build.'
const NO_CODE = `This llama.cpp build has no code for this GPU. ${OTHER_BUILD}`
const LOST =
  'The GPU stopped answering ($1). Load the model again; if it keeps happening, check the driver, its power and its temperature, or restart the machine.'
const FAILED = 'The GPU failed ($1). Check its driver; try fewer GPU layers (n_gpu_layers) or another llama.cpp build.'

/** Where several rules match a line, the first one counts. */
export const FAILURE_RULES: readonly FailureRule[] = [
  // Arguments and options that llama-server refuses.
  rule(
    'bad_cache_type',
    /Unsupported cache type: (\S+)/i,
    'llama.cpp has no cache type $1. Use f16 or q8_0 (cache_type_k, cache_type_v).'
  ),
  rule(
    'bad_chat_template',
    /the supplied chat template is not supported|chat template parsing error|failed to initialize chat template|please consider disabling jinja/i,
    'The chat template cannot be used. Correct it, or leave it out to use the one of the model.'
  ),
  rule(
    'unknown_flag',
    /while handling argument "([^"]+)": (?:error: )?the argument has been removed\.?\s*(.*)/i,
    'This llama.cpp build no longer knows the flag $1. $2 Correct it in the settings, or use another build.'
  ),
  rule(
    'unknown_flag',
    /(?:invalid|unknown|unrecognized) (?:argument|option)s?: '?(-[^\s']*)/i,
    'This llama.cpp build does not know the flag $1. Remove it from the settings, or use another build.'
  ),
  rule(
    'bad_flag_value',
    /while handling argument "([^"]+)": (?:std::)?(?:stoi|stof|stol|stoul|stoull|stod)\b/,
    `llama-server refuses the flag $1: its value is not a number, or is too large. ${CORRECT}`
  ),
  rule(
    'bad_flag_value',
    /while handling (?:argument|environment variable) "([^"]+)": (?:error: )?(.+)/i,
    `llama-server refuses the flag $1 ($2). ${CORRECT}`
  ),
  rule(
    'bad_flag_value',
    /(?:invalid|missing) (?:parameter|value) for (?:argument:? ?)?'?(-{1,2}[\w-]+|main_gpu: .*|n_parallel)|error: (--\w[\w-]* requires .*|--\w[\w-]* is required|either --embeddings? or --rerank\w* .*)|(LLAMA_SPLIT_MODE_TENSOR needs .*)|(?:invalid|unknown) (split mode|value for --[\w-]+.*)|(DSpark draft has no confidence head.*)/i,
    `llama-server refuses its arguments ($1). ${CORRECT}`
  ),
  rule(
    'cannot_listen',
    /couldn'?t bind (?:HTTP |to )?(?:HTTP )?server socket|Address already in use|EADDRINUSE|Only one usage of each socket address|failed to bind (?:to|socket|address)|error while attempting to bind|unable to (?:bind|listen)|failed to listen on/i,
    'llama-server could not listen on its address. Try again; if it keeps failing, check the temporary folder.'
  ),
  rule(
    'rpc_unreachable',
    /Failed to connect to (\S+:\d+)|RPC handshake failed for (\S+)|Remote RPC server (crashed or returned malformed response)|RPC (server version mismatch.*|transport initialization failed)|Cannot resolve host '([^']+)'|Failed to parse endpoint: (\S+)/i,
    'A machine that should take part over RPC does not answer ($1). Start ggml-rpc-server there, of the same llama.cpp version, or leave it out of the settings.'
  ),
  rule(
    'flash_attention_required',
    /quantized V cache .*requires? (?:flash_attn|Flash Attention)|V cache quantization requires (?:flash_attn|Flash Attention)|SPLIT_MODE_TENSOR requires flash_attn/i,
    'A quantized cache_type_v needs flash attention, which is off or not possible here. Use cache_type_v f16, or allow flash attention.'
  ),
  rule(
    'bad_cache_type',
    /([KV]) cache type (\S+) with block size \d+ does not divide/i,
    'The $1 cache type $2 does not fit this model. Use f16 or q8_0 (cache_type_k, cache_type_v).'
  ),
  rule(
    'bad_cache_type',
    /does not support different K \((\S+)\) and V \((\S+)\) cache types/,
    'This model cannot use different cache types ($1 and $2). Use the same for cache_type_k and cache_type_v.'
  ),
  rule(
    'draft_unusable',
    /draft model .*(?:is not compatible|must match|must closely|incompatible)|(?:target|draft)(?: model)? vocab\w* .*(?:mismatch|incompatible|differ)|draft model is not eagle3|vocab type must match target/i,
    'The draft model does not match this model (their vocabularies or types differ). Choose another draft model in the settings.'
  ),
  hint(
    'draft_unusable',
    /failed to load draft model|failed to (?:create|initialize) (?:MTP|draft|speculative decoding) context|requires ctx_other|doesn't contain MTP layers/i,
    'The draft model cannot be used. Choose another one in the settings, or leave it out.'
  ),
  rule(
    'adapter_unusable',
    /(model arch and LoRA arch mismatch|LoRA tensor '[^']+' .*|tensor '[^']+' has incorrect shape \(hint: maybe wrong base model\?\)|expect (?:general|adapter)\.type to be .*|lora_a tensor is not transposed|control vector n_embd does not match model|no valid control vector files passed)/i,
    'A LoRA adapter or control vector cannot be used ($1). Choose one that was made for this very model.'
  ),
  hint(
    'adapter_unusable',
    /failed to (?:load|apply) (?:lora|control vector)/i,
    'A LoRA adapter or control vector cannot be used. Check its file, and that it was made for this very model.'
  ),
  rule(
    'system_limit',
    /(Too many open files|Thread creation failed|pthread_create failed|Resource temporarily unavailable|failed to create thread|can't start new thread)/i,
    'A limit of the system was reached ($1). Raise it (ulimit -n, ulimit -u), or load fewer models at once.'
  ),

  // The model's files.
  // Opening and reading them.
  rule(
    'file_unreadable',
    /failed to open (?:GGUF file )?'?([^']+?)'?[ :(].*(?:Permission denied|Operation not permitted|Access is denied)/i,
    'corral is not allowed to read the model file $1. Give its user permission to read it.'
  ),
  rule(
    'file_unreadable',
    /(Is a directory)|mmap failed: (Permission denied|Operation not permitted)/i,
    'corral is not allowed to read the model file ($1). Give its user permission to read it.'
  ),
  rule(
    'read_failed',
    /(Input\/output error|Stale (?:NFS )?file handle|Transport endpoint is not connected|device is not ready|semaphore timeout|cyclic redundancy check|in-page|No such device or address|I\/O error)|(?:read|seek|lseek|ftell) error: (.+)|mmap failed: (No such device)/i,
    'A file of the model could not be read ($1). Check its disk or network drive.'
  ),
  rule(
    'missing_shard',
    /failed to open (?:GGUF file )?'(?:[^']*[\\/])?([^'\\/]+-(?!0*1-of-)\d{5}-of-\d{5}\.gguf)'|failed to open (?:\S*[\\/])?([^\s'\\/]+-(?!0*1-of-)\d{5}-of-\d{5}\.gguf): /,
    `A part of the model is missing ($1). ${FETCH_AGAIN}`
  ),
  rule(
    'system_limit',
    /failed to open .*(Too many open files)/,
    'A limit of the system was reached ($1). Raise it (ulimit -n), or load fewer models at once.'
  ),
  rule(
    'file_missing',
    /failed to open (?:GGUF file )?'(.+)'|failed to open (\S+\.gguf): |failed to load CLIP model from (\S+)\. Does this file exist|(?:could not|cannot|can't|unable to) open (?:model )?file '?([^\s']+\.gguf)/i,
    `The model file $1 is missing or cannot be opened. ${FETCH_AGAIN}`
  ),
  hint(
    'missing_shard',
    /failed to load GGUF split from (.+)/,
    `A part of the model is missing or cannot be used ($1). ${FETCH_AGAIN}`
  ),
  rule(
    'bad_split',
    /(?:invalid|illegal) split (?:file|count)|missing key \S+ in GGUF split|model must be loaded with the first split/,
    `The parts of the model do not belong together, or were joined by hand. ${FETCH_AGAIN}`
  ),

  // The projector; its lines name other faults too, so they go before those.
  rule(
    'projector_unsupported',
    /unknown (?:vision |audio )?projector type:?\s*(\S*)|unsupported (minicpmv version: \d+)|unexpected (?:vision|audio) projector type (\d+)/,
    'This llama.cpp build does not know the type of the projector ($1). Use a newer llama.cpp, or load the model without its projector, for text alone.'
  ),
  rule(
    'projector_mismatch',
    /mismatch between (?:text model|vision and audio mmproj|.* and .*mmproj)|(?:you may be using|maybe) (?:the )?wrong mmproj|unsupported decoder rope type|multimodal .* not supported|does not support (?:vision|multimodal)/i,
    'The projector does not belong to this model. Fetch the one that was made for it.'
  ),
  rule(
    'projector_damaged',
    /clip_(?:init|model_load\w*): failed to load model '.+': (?!.*(?:allocat|memory|initialize|open|Does this file exist|failed to load CLIP))(.+)/,
    'The projector file is incomplete or damaged ($1). Fetch the model and its projector again.'
  ),
  hint(
    'projector_mismatch',
    /Failed to load CLIP model|failed to load multimodal model|failed to load mmproj/i,
    'The file that was given as projector cannot be used as one. Fetch the one that belongs to this model.'
  ),

  // Their contents.
  rule(
    'unsupported_file_version',
    /(GGUFv\d+ is no longer supported|this GGUF file is version \d+ but this software only supports up to version \d+|bad GGUF version: \d+|mismatch between the host and model endianness|unsupported (?:GGUF|file) version.*|byte ?swap.*)/i,
    `This llama.cpp build does not read this version of the file format ($1). ${NEWER_BUILD}`
  ),
  rule(
    'not_gguf',
    /invalid magic (?:characters|number)|bad magic|unknown \(magic, version\) combination|not a (?:valid )?GGUF/i,
    `The model file is not a GGUF file. ${FETCH_AGAIN}`
  ),
  rule(
    'unsupported_tensor_type',
    /has invalid ggml type (-?\d+)|(\w+) REMOVED, use|unknown (?:ggml|tensor|quantization) type:? '?(\S+?)'?$/i,
    `This llama.cpp build does not know the quantization of the file (type $1). ${NEWER_BUILD}`
  ),
  rule(
    'file_damaged',
    /(?:not|out of|outside) (?:within )?(?:the )?file bounds|corrupted or incomplete|corrupted model|(?:file|model) is corrupt|failed to read (?:magic|header|key-value pairs|tensor info|tensor data)|gguf_init_from_\w+: failed to (?:read|seek)|unexpectedly reached end of file|(?:data|file) is too short|string length \d+ exceeds|has invalid GGUF type|duplicate (?:key|tensor name)|is duplicated|(?:has|with) invalid data|encountered (?:length_error|bad_alloc) error while reading|tensor name \d+ is too long|invalid number of (?:dimensions|elements)|has offset \d+, expected|not a multiple of block size|number of (?:tensors|key value pairs) is -?\d+ but must|key \d+ is empty|is not a power of 2|size overflow|total number of elements in tensor|is not \d+ byte aligned/i,
    `The model file is cut short or damaged. ${FETCH_AGAIN}`
  ),
  rule(
    'unsupported_architecture',
    /unknown (?:model )?architecture: (?:''|""|$)/i,
    'The file names no architecture: it is not a language model that llama.cpp can serve. Choose another model.'
  ),
  rule(
    'unsupported_architecture',
    new RegExp(`(?:unknown|unsupported) (?:model )?architecture:? ['"]?(${MEDIA})['"]?(?:$|[^\\w-])`, 'i'),
    'The file holds a model for images, video or sound ("$1"), which llama-server does not serve. Choose a language model.'
  ),
  rule(
    'unsupported_architecture',
    /(CLIP) cannot be used as main model/,
    'The file holds a projector ($1), not a model. Import the model, with this file beside it.'
  ),
  rule(
    'unsupported_architecture',
    /(?:unknown|unsupported) (?:model )?architecture:? ['"]?([\w.-]+)/i,
    `This llama.cpp build does not know the architecture "$1". ${NEWER_BUILD}`
  ),
  rule(
    'unsupported_tokenizer',
    /unknown pre-tokenizer type: '([^']*)'|(?:unknown|unsupported) tokenizer:? '([^']*)'/i,
    `This llama.cpp build does not know the model's tokenizer "$1". ${NEWER_BUILD}`
  ),
  rule(
    'unsupported_tokenizer',
    /cannot find (tokenizer \w+) in model file|error loading model vocabulary: (.+)|(failed to load (?:model )?vocab\w*)/i,
    `The model's tokenizer cannot be used ($1). ${NEWER_BUILD}`
  ),
  rule(
    'missing_tensor',
    /missing tensor (?:info mapping for )?'?([\w.]+)|tensor '([^']+)' not found/i,
    `The file lacks the tensor "$1" that this llama.cpp build expects. ${NEWER_BUILD}`
  ),
  rule(
    'missing_tensor',
    /tensor '([^']+)' has wrong shape|((?:wrong number of|too many) tensors(?: created)?; expected \d+, got \d+)/i,
    `The tensors of the file are not those that this llama.cpp build expects ($1). ${NEWER_BUILD}`
  ),
  rule(
    'bad_metadata',
    /((?:array )?key not found in model: \S+)|error loading model hyperparameters: (.+)|(key \S+ has wrong (?:type|array)[^;]*)|(invalid n_rot[^,;]*)|(array length \d+ for key \S+ exceeds)|(expected scalar, found array for key: \S+)|(model has expert layers but no expert layers are used)/i,
    `The metadata of the file is not what this llama.cpp build expects ($1). ${NEWER_BUILD}`
  ),
  hint(
    'bad_metadata',
    /error loading model: (invalid vector subscript|vector::\S+.*|map::at|_Map_base::at|invalid (?:string position|character|argument)|basic_string\S*.*|bad optional access|stoi)/i,
    `The file holds what this llama.cpp build does not expect ($1). ${NEWER_BUILD}`
  ),
  hint(
    'file_unreadable',
    /Permission denied|Access is denied/i,
    'corral is not allowed to read a file. Give its user permission to read the model and its folder.'
  ),
  hint(
    'file_missing',
    /No such file or directory|The system cannot find the (?:file|path) specified/i,
    `A file is missing. ${FETCH_AGAIN}`
  ),

  // Memory ran out.
  rule(
    'oom_killed',
    /OOM killer|oom-kill|oom_reaper|OOMKilled|Out of memory: Kill(?:ed)? process|Memory cgroup out of memory|out of memory \(oom\)|low memory killer|jetsam/i,
    `The system ended llama-server because memory had run out. ${LESS_MEMORY}`
  ),

  // CUDA, and what is made of the same source: ROCm, MUSA.
  rule('out_of_gpu_memory', /(?:cuda|hip|musa)Malloc\w* failed: .*out of memory/i, GPU),
  rule(
    'out_of_gpu_memory',
    /(?:CUDA|ROCm|HIP|MUSA|SYCL|cuBLAS|hipBLAS|rocBLAS) error(?: \d+)?:? .*(?:out of memory|memory allocation|resource allocation failed)|(?:cuda|hip|musa)Error(?:OutOfMemory|MemoryAllocation)|(?:CUDA|HIP)_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|HIPBLAS_STATUS_ALLOC_FAILED|rocblas_status_memory_error|cuMem\w+.*out of memory|HSA_STATUS_ERROR_OUT_OF_RESOURCES/i,
    GPU
  ),
  // Vulkan.
  rule(
    'out_of_gpu_memory',
    /Error_?OutOfDeviceMemory|OutOfDeviceMemoryError|VK_ERROR_OUT_OF_(?:DEVICE|POOL)_MEMORY|ErrorOutOfPoolMemory|ErrorFragmentedPool|Requested (?:buffer|preallocation) size (?:exceeds device|is too large)|No suitable memory type found/i,
    GPU
  ),
  rule('out_of_memory', /Error_?OutOfHostMemory|OutOfHostMemoryError|VK_ERROR_OUT_OF_HOST_MEMORY/i, HOST),
  // Metal.
  rule(
    'out_of_gpu_memory',
    /kIOGPUCommandBufferCallbackErrorOutOfMemory|error: Insufficient Memory|ggml_(?:backend_)?metal\w*: .*failed to allocate .*buffer|failed to allocate Metal buffer/i,
    GPU
  ),
  // SYCL, OpenCL, CANN.
  rule(
    'out_of_gpu_memory',
    /(?:UR_RESULT|ZE_RESULT|PI)_ERROR_(?:OUT_OF_DEVICE_MEMORY|OUT_OF_RESOURCES|MEM_OBJECT_ALLOCATION_FAILURE)|can't allocate \d+ Bytes of memory on device|CL_OUT_OF_RESOURCES|CL_MEM_OBJECT_ALLOCATION_FAILURE|CL_INVALID_BUFFER_SIZE|ggml_opencl: .* error (?:-4|-5|-61)\b|aclrtMalloc.*(?:failed|out of memory)/i,
    GPU
  ),
  rule(
    'out_of_memory',
    /(?:UR_RESULT|ZE_RESULT|PI)_ERROR_OUT_OF_HOST_MEMORY|can't allocate \d+ Bytes of memory on host|CL_OUT_OF_HOST_MEMORY/i,
    HOST
  ),

  // Any back end: buffers by their names. Those that end in _Host lie in the machine's memory.
  rule(
    'out_of_gpu_memory',
    /(?:failed to|unable to|can't|cannot) allocate (?:backend )?(?:CUDA|ROCm|HIP|MUSA|Vulkan|Metal|MTL|SYCL|OpenCL|GPUOpenCL|CANN|Kompute|WebGPU|HTP|RPC)(?!\w*_Host)[\w[\]:.]* buffer/i,
    GPU
  ),
  rule(
    'out_of_memory',
    /(?:failed to|unable to|can't|cannot) allocate (?:\w+_Host|CPU\w*|AMX|HBM|host|BLAS) buffer|cpu_\w+: failed to allocate|failed to allocate buffer of size/i,
    HOST
  ),
  rule(
    'out_of_memory',
    /std::bad_alloc|posix_memalign failed|mmap failed: (?:Cannot allocate memory|Not enough)|(?:MapViewOfFile|CreateFileMappingA?) failed: .*(?:not enough|insufficient|paging file)|(?:aligned_malloc|ggml_(?:m|c)alloc|aligned_alloc)\w*: .*(?:insufficient memory|failed to allocate)|insufficient memory \(attempted to allocate|(?:malloc|calloc|realloc|new) failed|not enough space in the context's memory pool|error creating backtrace: mmap: 12|virtual memory exhausted|error: out of memory$|paging file is too small|Not enough memory resources/i,
    HOST
  ),

  // What follows from one of the above, or is got over.
  hint(
    'out_of_gpu_memory',
    /ggml_vulkan: (?:Device )?memory allocation of size \d+ failed|insufficient VRAM|not enough (?:VRAM|GPU memory|video memory)/i,
    GPU
  ),
  hint(
    'out_of_memory',
    /failed to allocate (?:compute|buffer for|graph|output|memory|context)|unable to allocate (?:backend )?buffer|failed to reserve (?:graph buffers|initial output buffer)|graph allocation: failed to reserve|failed to allocate \d[\d.]* (?:bytes|MB|MiB)|Cannot allocate memory|not enough memory|ENOMEM/i,
    HOST
  ),
  hint(
    'out_of_memory',
    /failed to (?:mlock|VirtualLock)/i,
    'The model could not be kept in memory. Raise the limit on locked memory (ulimit -l), or leave mlock out of the settings.'
  ),

  // The build, the libraries and drivers around it, and the GPU.
  rule(
    'executable_missing',
    /failed to execute (?:\S+): (.+)|(Exec format error|cannot execute binary file|bad CPU type in executable)/i,
    `llama-server could not be started ($1). ${OTHER_BUILD}`
  ),
  rule(
    'system_too_old',
    /version [`']((?:GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+)' not found/,
    'This llama.cpp build needs a newer system ($1). Use a build made for this system, such as one from source.'
  ),
  rule(
    'system_too_old',
    /built for (macOS [\d.]+) which is newer than running OS|requires a newer version of (Windows|macOS)/i,
    'This llama.cpp build needs a newer system ($1). Use a build made for this system, such as one from source.'
  ),
  rule(
    'library_missing',
    /error while loading shared libraries: ([^\s:]+)|Library not loaded: '?([^\s:']+)|because (\S+\.dll) was not found|(?:unable|failed) to load (?:dynamic library|DLL) '?"?([^\s'":]+)|Could not find module '([^']+)'|(\S+\.dll)(?: is)? (?:missing|not found)/i,
    `The library $1 that llama-server needs is missing. ${LIBRARY}`
  ),
  rule(
    'library_missing',
    /symbol lookup error: .*undefined symbol: (\S+)|dyld(?:\[\d+\])?: (?:missing symbol called|Symbol not found: (\S+))|entry point (\S+) could not be located|procedure entry point/i,
    `A library that llama-server uses is of another version ($1). Reinstall this build, or choose another one (corral doctor shows which there are).`
  ),
  rule(
    'library_missing',
    /no backends are loaded|no CPU backend found|failed to initialize CPU backend/,
    `This llama.cpp build is incomplete: its back ends cannot be loaded. ${OTHER_BUILD}`
  ),
  rule(
    'illegal_instruction',
    /illegal instruction|trap invalid opcode|\bSIGILL\b|STATUS_ILLEGAL_INSTRUCTION|0xc000001d/i,
    `This llama.cpp build uses instructions that this processor does not have. ${OTHER_BUILD}`
  ),
  rule(
    'gpu_not_supported_by_build',
    /no kernel image is available|invalid device function|device kernel image is invalid|invalid kernel file|shared object initialization failed|hipErrorNoBinaryForGpu|Unable to find code object|has no device code compatible|not compiled with any CUDA arch|TensileLibrary\S*: .*GPU arch|Cannot read .*TensileLibrary|No Tensile library|CUBLAS_STATUS_ARCH_MISMATCH|hipErrorInvalidDeviceFunction/i,
    NO_CODE
  ),
  rule(
    'gpu_not_supported_by_build',
    /does not support 16-bit storage|Vulkan 1\.\d required|ErrorFeatureNotPresent|ErrorExtensionNotPresent|Required aspect fp\d+ is not supported|Double type is not supported|UR_RESULT_ERROR_(?:INVALID_BINARY|PROGRAM_BUILD_FAILURE|UNSUPPORTED_FEATURE)|PI_ERROR_(?:BUILD_PROGRAM_FAILURE|INVALID_BINARY)|No kernel named \S+ was found|failed to initialize the Metal library|kernel not found in any metal library|error compiling (?:Metal )?source|ggml_opencl: kernel compile error/i,
    NO_CODE
  ),
  rule(
    'driver_too_old',
    /(?:CUDA|ROCm|HIP|MUSA) error: .*(?:driver version is insufficient|unsupported toolchain|driver is too old)/i,
    DRIVER_TOO_OLD
  ),
  rule(
    'driver_unavailable',
    /(?:CUDA|ROCm|HIP|MUSA) error: .*(no \S*-capable device|no ROCm-capable device|busy or unavailable|system not yet initialized|unsupported display driver|forward compatibility|initialization error|driver shutting down|invalid device ordinal)/i,
    `llama-server cannot use the GPU driver ($1). Check it (nvidia-smi, rocminfo; restart after an update of the driver), or choose another build.`
  ),
  rule(
    'gpu_lost',
    /(Error_?DeviceLost|DeviceLostError|VK_ERROR_DEVICE_LOST|device lost|(?:UR_RESULT|ZE_RESULT|PI)_ERROR_DEVICE_LOST)/i,
    LOST
  ),
  rule(
    'gpu_lost',
    /\b(Xid \(?[\w:. ]+\)?: \d+)|(fallen off the bus)|(?:CUDA|ROCm|HIP|MUSA) error: .*(unspecified launch failure|launch timed out|uncorrectable ECC error|hardware stack error|GPU is lost|device reset|unknown error)|(HW Exception by GPU|GPU Hang|GPU reset|ring \S+ timeout|amdgpu: .*(?:hang|reset))|(kIOGPUCommandBufferCallbackError(?:Timeout|Hang|InnocentVictim|SubmissionsIgnored|PageFault|ImpactingInteractivity))/i,
    LOST
  ),
  rule(
    'gpu_failed',
    /(?:CUDA|ROCm|HIP|MUSA|SYCL) error: (.+)|(Memory access fault by GPU)|(CUBLAS_STATUS_\w+|HIPBLAS_STATUS_\w+|HSA_STATUS_ERROR\w*|UR_RESULT_ERROR_\w+|ZE_RESULT_ERROR_\w+|PI_ERROR_\w+)|ggml_vulkan: .*(Error[A-Z]\w+)/,
    FAILED
  ),

  // Printed also where llama-server goes on without the GPU.
  hint('driver_too_old', /driver version is insufficient|driver is too old|ErrorIncompatibleDriver/i, DRIVER_TOO_OLD),
  hint(
    'driver_unavailable',
    /(Driver\/library version mismatch|(?:failed|unable) to initialize (?:CUDA|ROCm|HIP|MUSA|NVML|SYCL)[^\n]*|NVML: [^\n]*|couldn't communicate with the NVIDIA driver|no \S+-capable device is detected|hsa_init failed|ErrorInitializationFailed|No device of requested type available)/i,
    `llama-server cannot use the GPU driver ($1). Check it (nvidia-smi, rocminfo; restart after an update of the driver), or choose another build.`
  ),
  hint(
    'library_missing',
    /0xc0000135|0xc0000139|STATUS_DLL_NOT_FOUND|STATUS_ENTRYPOINT_NOT_FOUND|exit(?:ed)?(?: with)?(?: code| status)? 127\b/i,
    `A library that llama-server needs is missing. ${LIBRARY}`
  ),
  hint(
    'library_missing',
    /failed to load \S*ggml-\S+: (\S+?): cannot open shared object file/,
    `The library $1 that llama-server needs for the GPU is missing. ${LIBRARY}`
  ),
  hint(
    'gpu_failed',
    /(Compute pipeline creation failed)|(command buffer \d+ failed with status \d+)|(backend is in error state)|failed to initialize (\S+ backend)|failed to (create command queue)/,
    FAILED
  ),

  // Signs that are used only when no other rule matches.
  hint(
    'context_failed',
    /failed to initialize the context: (?!failed to allocate)(.+)/,
    'llama.cpp cannot make this context: $1. Ask for other load options (num_ctx, num_parallel, cache types).'
  ),
  hint(
    'bad_flag_value',
    /(failed to parse grammar)/,
    'llama-server refuses the grammar it was given ($1). Correct it in the settings.'
  ),
  hint(
    'assertion_failed',
    /GGML_ASSERT|ggml_abort|Assertion .* failed|: fatal error$|terminate called/,
    `llama.cpp stopped after an internal error. Choose another llama.cpp build (corral doctor shows which there are).`
  ),
  hint(
    'killed',
    /signal: killed|\bKilled\b(?: +\S*llama|: 9|$)|terminated by signal SIGKILL|exit(?:ed)?(?: with)?(?: code| status)? 137\b/,
    `llama-server was killed (SIGKILL), which systems do when memory runs out. ${LESS_MEMORY}`
  ),
  hint(
    'crashed',
    /(0xc0000005|0xc0000409|Segmentation fault|signal arrived during external code execution|Bus error|Aborted|Floating point exception|access violation|Trace\/breakpoint trap|stack smashing detected|double free or corruption)/i,
    'llama-server crashed ($1). Load the model again; if it crashes again, try another llama.cpp build.'
  )
]
