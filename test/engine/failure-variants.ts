import type { FailureCause } from '../../runtimes/llama-server/failure-causes.ts'

/** Lines that llama-server, libraries, drivers and kernels print, of several years: the cause of each and the lines. */
export const VARIANTS: [cause: FailureCause, line: string, ...more: string[]][] = [
  // Memory of GPUs.
  [
    'out_of_gpu_memory',
    '0.02.114.518 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 22528.00 MiB on device 0: cudaMalloc failed: out of memory',
    '0.02.114.530 E alloc_tensor_range: failed to allocate CUDA0 buffer of size 23622320128',
    '0.02.201.001 E llama_model_load: error loading model: unable to allocate CUDA0 buffer',
    "0.02.201.100 E srv    load_model: failed to load model, '/m/x.gguf'"
  ],
  [
    'out_of_gpu_memory',
    'alloc_tensor_range: failed to allocate ROCm1 buffer of size 4294967296',
    'llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache'
  ],
  ['out_of_gpu_memory', 'llama_model_load: error loading model: unable to allocate Vulkan0 buffer'],
  ['out_of_gpu_memory', 'ggml_gallocr_reserve_n_impl: failed to allocate SYCL0 buffer of size 1073741824'],
  ['out_of_gpu_memory', 'ggml_gallocr_reserve_n: failed to allocate MTL0 buffer of size 1073741824'],
  ['out_of_gpu_memory', 'CUDA error: out of memory', '  current device: 0, in function alloc at ggml-cuda.cu:500'],
  ['out_of_gpu_memory', 'ROCm error: out of memory'],
  ['out_of_gpu_memory', 'CUDA error 2 at ggml-cuda.cu:7036: out of memory'],
  ['out_of_gpu_memory', 'CUDA error: the resource allocation failed', '  cublasCreate_v2(&cublas_handles[device])'],
  ['out_of_gpu_memory', 'MUSA error: out of memory'],
  ['out_of_gpu_memory', 'hipErrorOutOfMemory: hipMalloc(&ptr, size)'],
  [
    'out_of_gpu_memory',
    'E ggml_vulkan: Requested buffer size exceeds device buffer size limit: ErrorOutOfDeviceMemory'
  ],
  [
    'out_of_gpu_memory',
    "terminate called after throwing an instance of 'vk::OutOfDeviceMemoryError'",
    '  what():  vk::Device::allocateMemory: ErrorOutOfDeviceMemory'
  ],
  ['out_of_gpu_memory', 'ggml_vulkan: No suitable memory type found: ErrorOutOfDeviceMemory'],
  ['out_of_gpu_memory', 'ggml_metal_buffer_init: error: failed to allocate buffer, size =  8192.00 MiB'],
  [
    'out_of_gpu_memory',
    'ggml_backend_metal_buffer_type_alloc_buffer: error: failed to allocate buffer, size = 10240.00 MiB'
  ],
  ['out_of_gpu_memory', 'ggml_metal_log_allocated_size: failed to allocate Metal buffer of 123 bytes (out of memory)'],
  [
    'out_of_gpu_memory',
    'ggml_metal_graph_compute: command buffer 3 failed with status 5',
    'error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)',
    'llama_graph_compute: ggml_backend_sched_graph_compute_async failed with error -1'
  ],
  [
    'out_of_gpu_memory',
    "ggml_backend_sycl_buffer_type_alloc_buffer: can't allocate 8589934592 Bytes of memory on device"
  ],
  ['out_of_gpu_memory', 'level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)'],
  ['out_of_gpu_memory', 'Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES)'],
  [
    'out_of_gpu_memory',
    'ggml_opencl: clCreateBuffer(context, CL_MEM_READ_WRITE, size, NULL, &err) error -61 at ggml-opencl.cpp:100'
  ],
  [
    'out_of_gpu_memory',
    'Memory allocation failed: HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources.'
  ],

  ['out_of_gpu_memory', 'ggml_vulkan: Device memory allocation of size 313262080 failed.'],
  [
    'out_of_gpu_memory',
    'ggml_gallocr_reserve_n_impl: failed to allocate RPC0[10.0.0.3:50053] buffer of size 500926080',
    'graph_reserve: failed to allocate compute buffers'
  ],
  ['out_of_gpu_memory', 'llama_model_load: error loading model: unable to allocate CUDA0 buffer of size 500.00 MiB'],

  // Memory of the machine.
  ['out_of_memory', 'ggml_aligned_malloc: insufficient memory (attempted to allocate 4096.00 MB)'],
  ['out_of_memory', 'llama_model_load: error loading model: mmap failed: Cannot allocate memory'],
  ['out_of_memory', 'llama_model_load: error loading model: posix_memalign failed with error 12'],
  ['out_of_memory', "terminate called after throwing an instance of 'std::bad_alloc'", '  what():  std::bad_alloc'],
  ['out_of_memory', 'E llama_init_from_model: failed to initialize the context: std::bad_alloc'],
  [
    'out_of_memory',
    'ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 17179869184',
    'llama_kv_cache_init: failed to allocate buffer for kv cache'
  ],
  ['out_of_memory', 'llama_model_load: error loading model: unable to allocate CPU_REPACK buffer'],
  ['out_of_memory', 'alloc_tensor_range: failed to allocate CUDA_Host buffer of size 2147483648'],
  [
    'out_of_memory',
    'llama_model_load: error loading model: MapViewOfFile failed: Not enough memory resources are available to process this command.'
  ],
  [
    'out_of_memory',
    'llama_model_load: error loading model: CreateFileMappingA failed: The paging file is too small for this operation to complete.'
  ],
  [
    'out_of_memory',
    'ggml_vulkan: Memory allocation of size 536870912 failed.',
    'ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfHostMemory'
  ],
  ['out_of_memory', "ggml_backend_sycl_host_buffer_type: can't allocate 1024 Bytes of memory on host"],
  ['out_of_memory', 'llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers'],
  [
    'out_of_memory',
    'warning: failed to mlock 4294967296-byte buffer (after previously locking 0 bytes): Cannot allocate memory',
    'common_init_result: failed to load model'
  ],
  ['out_of_memory', "ggml_new_object: not enough space in the context's memory pool (needed 400, available 368)"],
  [
    'oom_killed',
    '[12345.678] Out of memory: Killed process 4242 (llama-server) total-vm:33554432kB, anon-rss:16000000kB'
  ],
  ['oom_killed', 'Memory cgroup out of memory: Killed process 77 (llama-server)'],
  ['out_of_memory', 'Fatal signal: Segmentation fault', '----- Backtrace -----', 'error creating backtrace: mmap: 12'],
  ['oom_killed', "llama.service: Failed with result 'oom-kill'."],

  // Build, libraries, drivers.
  [
    'library_missing',
    '/opt/llama/llama-server: error while loading shared libraries: libcudart.so.12: cannot open shared object file: No such file or directory'
  ],
  [
    'library_missing',
    'llama-server: error while loading shared libraries: libgomp.so.1: cannot open shared object file: No such file or directory'
  ],
  [
    'library_missing',
    'dyld[4711]: Library not loaded: @rpath/libllama.dylib',
    '  Referenced from: <A6F7> /opt/llama/llama-server'
  ],
  ['library_missing', 'dyld[12182]: missing symbol called'],
  ['library_missing', 'Error: llama-server process has terminated: exit status 0xc0000135'],
  ['illegal_instruction', 'llama-server exited: 0xc000001d'],
  ['library_missing', 'dyld[99]: Symbol not found: _ggml_backend_load_all'],
  [
    'library_missing',
    './llama-server: symbol lookup error: ./llama-server: undefined symbol: llama_memory_breakdown_print'
  ],
  [
    'library_missing',
    'The code execution cannot proceed because cublas64_12.dll was not found. Reinstalling the program may fix this problem.'
  ],
  ['library_missing', 'The procedure entry point ggml_init could not be located in the dynamic link library ggml.dll.'],
  ['library_missing', 'E llama_model_load: error loading model: make_cpu_buft_list: no CPU backend found'],
  [
    'library_missing',
    'E llama_model_load_from_file_impl: no backends are loaded. hint: use ggml_backend_load() or ggml_backend_load_all() to load a backend before calling this function'
  ],
  ['system_too_old', "llama-server: /lib64/libm.so.6: version `GLIBC_2.38' not found (required by llama-server)"],
  [
    'system_too_old',
    "llama-server: /usr/lib/libstdc++.so.6: version `CXXABI_1.3.15' not found (required by /opt/libggml.so)"
  ],
  ['system_too_old', 'dyld: Symbol not found: _x built for macOS 15.0 which is newer than running OS'],
  ['executable_missing', 'setpriv: failed to execute /opt/llama-server: No such file or directory'],
  ['executable_missing', 'bash: ./llama-server: cannot execute binary file: Exec format error'],
  ['illegal_instruction', 'Illegal instruction: 4'],
  ['illegal_instruction', 'traps: llama-server[31337] trap invalid opcode ip:55 sp:7f error:0 in libggml-cpu.so[55+1]'],
  [
    'driver_too_old',
    'ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version',
    "E srv load_model: failed to load model, 'x.gguf'"
  ],
  ['driver_too_old', 'CUDA error: CUDA driver version is insufficient for CUDA runtime version'],
  ['driver_too_old', 'CUDA error: the provided PTX was compiled with an unsupported toolchain.'],
  ['driver_unavailable', 'ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected'],
  [
    'driver_unavailable',
    'CUDA error: CUDA-capable device(s) is/are busy or unavailable',
    '  cudaMemGetInfo(free, total)'
  ],
  ['driver_unavailable', 'Failed to initialize NVML: Driver/library version mismatch'],
  ['driver_unavailable', 'CUDA error: system has unsupported display driver / cuda driver combination'],
  ['driver_unavailable', 'CUDA error: system not yet initialized'],
  ['driver_unavailable', 'ggml_cuda_init: failed to initialize ROCm: no ROCm-capable device is detected'],
  [
    'gpu_not_supported_by_build',
    'ERROR: CUDA kernel flash_attn_vec has no device code compatible with CUDA arch 520. ggml-cuda.cu was compiled for: 750'
  ],
  ['gpu_not_supported_by_build', 'CUDA error: device kernel image is invalid'],
  ['gpu_not_supported_by_build', 'ROCm error: invalid kernel file', '  current device: 2, in function x at y:1'],
  [
    'gpu_not_supported_by_build',
    'rocBLAS error: Could not initialize Tensile host: No Tensile library found',
    'rocBLAS error: Cannot read /opt/rocm/lib/rocblas/library/TensileLibrary.dat: No such file or directory for GPU arch : gfx1036'
  ],
  ['gpu_not_supported_by_build', '"hipErrorNoBinaryForGpu: Unable to find code object for all current devices!"'],
  [
    'gpu_not_supported_by_build',
    'ggml_vulkan: device Vulkan0 does not support 16-bit storage.',
    "terminate called after throwing an instance of 'std::runtime_error'"
  ],
  [
    'gpu_not_supported_by_build',
    'ggml_metal_init: error: failed to initialize the Metal library',
    'llama_init_from_model: failed to initialize the context: failed to initialize Metal backend'
  ],
  [
    'gpu_not_supported_by_build',
    "terminate called after throwing an instance of 'sycl::_V1::exception'",
    '  what():  Required aspect fp64 is not supported on the device'
  ],

  // The GPU at work.
  [
    'gpu_lost',
    "terminate called after throwing an instance of 'vk::DeviceLostError'",
    '  what():  vk::Queue::submit: ErrorDeviceLost'
  ],
  ['gpu_lost', 'ggml_vulkan: device lost on AMD Radeon RX 7900 XTX'],
  [
    'gpu_lost',
    'CUDA error: unspecified launch failure',
    '  current device: 0, in function ggml_backend_cuda_synchronize at ggml-cuda.cu:2508'
  ],
  ['gpu_lost', 'CUDA error: the launch timed out and was terminated'],
  ['gpu_lost', 'CUDA error: uncorrectable ECC error encountered'],
  ['gpu_lost', 'NVRM: Xid (PCI:0000:01:00): 79, pid=1234, name=llama-server, GPU has fallen off the bus.'],
  ['gpu_lost', 'HW Exception by GPU node-1 (Agent handle: 0x55) reason :GPU Hang'],
  ['gpu_lost', 'amdgpu 0000:03:00.0: amdgpu: GPU reset begin!'],
  ['gpu_lost', 'Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)'],
  ['gpu_lost', 'error: Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)'],
  ['gpu_failed', 'CUDA error: an illegal memory access was encountered'],
  [
    'gpu_failed',
    'Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x7f. Reason: Page not present or supervisor privilege.'
  ],
  [
    'gpu_failed',
    'ggml_metal_synchronize: error: command buffer 0 failed with status 5',
    'ggml-metal-context.m:235: fatal error'
  ],

  // Files.
  [
    'file_missing',
    "E gguf_init_from_file: failed to open GGUF file '/m/a.gguf' (No such file or directory)",
    'E llama_model_load: error loading model: llama_model_loader: failed to load model from /m/a.gguf'
  ],
  ['file_missing', "gguf_init_from_file: failed to open '/m/a.gguf': 'No such file or directory'"],
  ['file_missing', 'llama_model_load: error loading model: failed to open /m/a.gguf: No such file or directory'],
  ['file_unreadable', "E gguf_init_from_file: failed to open GGUF file '/m/a.gguf' (Permission denied)"],
  ['file_unreadable', 'llama_model_load: error loading model: failed to open /m/a.gguf: Permission denied'],
  ['file_unreadable', "gguf_init_from_file: failed to open 'C:\\m\\a.gguf' (Access is denied)"],
  ['file_unreadable', 'llama_model_load: error loading model: read error: Is a directory'],
  ['read_failed', 'llama_model_load: error loading model: read error: Input/output error'],
  ['read_failed', 'llama_model_load: error loading model: read error: Stale file handle'],
  ['read_failed', 'llama_model_load: error loading model: mmap failed: No such device'],
  [
    'missing_shard',
    "gguf_init_from_file: failed to open GGUF file '/m/big-00003-of-00009.gguf' (No such file or directory)",
    'llama_model_load: error loading model: llama_model_loader: failed to load GGUF split from /m/big-00003-of-00009.gguf'
  ],
  [
    'missing_shard',
    'llama_model_load: error loading model: llama_model_loader: failed to load GGUF split from C:\\m\\big-00002-of-00003.gguf'
  ],
  [
    'file_missing',
    "gguf_init_from_file: failed to open GGUF file '/m/big-00001-of-00009.gguf' (No such file or directory)"
  ],
  [
    'bad_split',
    'llama_model_load: error loading model: illegal split file idx: 1 (file: /m/b.gguf), model must be loaded with the first split'
  ],
  ['bad_split', 'llama_model_load: error loading model: invalid split file idx: 3 (file: /m/b.gguf), expected 2'],
  ['bad_split', 'llama_model_load: error loading model: invalid split count, given: 2 splits, but expected 3'],
  ['not_gguf', "E gguf_init_from_reader: invalid magic characters: '<!DO', expected 'GGUF'"],
  [
    'not_gguf',
    'llama_model_load: error loading model: unknown (magic, version) combination: 73726576, 206e6f69; is this really a GGML file?'
  ],
  ['not_gguf', 'gguf_init_from_file: invalid magic number 46554747'],
  [
    'unsupported_file_version',
    'gguf_init_from_file: GGUFv1 is no longer supported. please use a more up-to-date version'
  ],
  [
    'unsupported_file_version',
    'E gguf_init_from_reader: this GGUF file is version 4 but this software only supports up to version 3'
  ],
  [
    'unsupported_file_version',
    'E gguf_init_from_reader: failed to load model: this GGUF file version 50331648 is extremely large, is there a mismatch between the host and model endianness?'
  ],
  ['file_damaged', 'E gguf_init_from_reader: failed to read key-value pairs'],
  ['file_damaged', 'gguf_init_from_file_impl: failed to read tensor info'],
  ['file_damaged', 'E gguf_init_from_reader: failed to read magic', "E srv load_model: failed to load model, 'x'"],
  ['file_damaged', 'llama_model_load: error loading model: unexpectedly reached end of file'],
  [
    'file_damaged',
    "llama_model_load: error loading model: tensor 'output.weight' data is not within the file bounds, model is corrupted or incomplete"
  ],
  ['file_damaged', 'llama_model_load: error loading model: corrupted model: 1025 tensors expected but 843 found'],
  [
    'file_damaged',
    'E gguf_read: string length 1099511627776 exceeds remaining file size 1234 bytes',
    'E gguf_init_from_reader: failed to read key-value pairs'
  ],
  ['file_damaged', "llama_model_load: error loading model: invalid model: tensor 'blk.0.attn_q.weight' is duplicated"],
  ['file_damaged', 'llama_model_load: error loading model: found tensors with invalid data'],
  ['unsupported_architecture', "llama_model_load: error loading model: unknown model architecture: 'qwen9moe'"],
  ['unsupported_architecture', "E llama_model_load: error loading model: unsupported model architecture: 'newarch-2'"],
  ['unsupported_architecture', "error loading model: unknown model architecture: 'flux'"],
  ['unsupported_architecture', "llama_model_load: error loading model: unknown model architecture: 'wan'"],
  [
    'unsupported_architecture',
    'llama_model_load: error loading model: CLIP cannot be used as main model, use it with --mmproj instead'
  ],
  [
    'unsupported_tokenizer',
    "llama_model_load: error loading model: error loading model vocabulary: unknown pre-tokenizer type: 'kimi-k9'"
  ],
  [
    'unsupported_tokenizer',
    "llama_model_load: error loading model: error loading model vocabulary: unknown tokenizer: 'tekken2'"
  ],
  [
    'unsupported_tokenizer',
    'llama_model_load: error loading model: error loading model vocabulary: cannot find tokenizer merges in model file'
  ],
  [
    'unsupported_tensor_type',
    "gguf_init_from_reader: tensor 'blk.0.ffn_up.weight' has invalid ggml type 142. should be in [0, 41)",
    'gguf_init_from_reader: failed to read tensor info'
  ],
  ['unsupported_tensor_type', "gguf_init_from_file_impl: tensor 'token_embd.weight' has invalid ggml type 31 (NONE)"],
  ['unsupported_tensor_type', 'TYPE_Q4_0_4_4 REMOVED, use Q4_0 with runtime repacking'],
  [
    'unsupported_tensor_type',
    "gguf_init_from_file_impl: tensor 'a' of type 31 (TYPE_Q4_0_4_4 REMOVED, use Q4_0 with runtime repacking) has 4096 elements per row, not a multiple of block size (0)"
  ],
  ['missing_tensor', "llama_model_load: error loading model: missing tensor 'blk.0.attn_q.weight'"],
  [
    'missing_tensor',
    'llama_model_load: error loading model: done_getting_tensors: wrong number of tensors; expected 292, got 291'
  ],
  [
    'missing_tensor',
    "llama_model_load: error loading model: check_tensor_dims: tensor 'blk.0.attn_k.weight' has wrong shape; expected  8192,  8192, got  8192,  1024,     1,     1"
  ],
  [
    'bad_metadata',
    'llama_model_load: error loading model: error loading model hyperparameters: key not found in model: qwen3.context_length'
  ],
  [
    'bad_metadata',
    'llama_model_load: error loading model: error loading model hyperparameters: invalid n_rot: 128, expected 64'
  ],

  ['bad_metadata', 'E llama_model_load: error loading model: invalid vector subscript'],
  ['file_damaged', 'failed to load model: the file is corrupted'],
  ['read_failed', 'llama_model_load: error loading model: read error: Bad address'],

  // Beside the model.
  [
    'projector_missing',
    "gguf_init_from_file: failed to open GGUF file '/m/mmproj-F16.gguf' (No such file or directory)",
    "clip_init: failed to load model '/m/mmproj-F16.gguf': clip_model_loader: failed to load CLIP model from /m/mmproj-F16.gguf. Does this file exist?",
    'mtmd_init_from_file: error: Failed to load CLIP model from /m/mmproj-F16.gguf'
  ],
  [
    'projector_damaged',
    'gguf_init_from_reader: failed to read tensor info',
    "clip_init: failed to load model 'mmproj.gguf': clip_model_loader: failed to load CLIP model from mmproj.gguf. Does this file exist?",
    "srv load_model: failed to load multimodal model, 'mmproj.gguf'"
  ],
  ['projector_damaged', "clip_init: failed to load model 'm.gguf': clip_model_loader: tensor mm.0.weight is empty"],
  [
    'projector_unsupported',
    "clip_model_load: failed to load model 'a.gguf': load_hparams: unknown projector type: gemma9v"
  ],
  [
    'projector_mismatch',
    'mtmd_init_from_file: error: mismatch between text model (n_embd = 2048) and mmproj (n_embd = 4096)',
    'hint: you may be using wrong mmproj'
  ],
  [
    'out_of_gpu_memory',
    'ggml_backend_cuda_buffer_type_alloc_buffer: allocating 900.00 MiB on device 0: cudaMalloc failed: out of memory',
    "clip_init: failed to load model 'm.gguf': failed to allocate buffer",
    'mtmd_init_from_file: error: Failed to load CLIP model from m.gguf'
  ],
  [
    'adapter_unusable',
    'llama_adapter_lora_init: failed to apply lora adapter: model arch and LoRA arch mismatch',
    "cmn common_init_: failed to load lora adapter '/m/l.gguf'"
  ],
  [
    'adapter_unusable',
    "llama_adapter_lora_init: failed to apply lora adapter: LoRA tensor 'blk.0.x' does not exist in base model (hint: maybe wrong base model?)"
  ],
  [
    'adapter_unusable',
    "gguf_init_from_file: failed to open GGUF file '/m/lora.gguf' (No such file or directory)",
    'llama_adapter_lora_init: failed to apply lora adapter: failed to load lora adapter from file',
    "common_init_from_params: failed to load lora adapter '/m/lora.gguf'"
  ],
  ['draft_unusable', "srv load_model: the draft model '/m/d.gguf' is not compatible with the target model '/m/t.gguf'"],
  [
    'draft_unusable',
    'E srv load_model: failed to initialize speculative decoding context: draft model vocab type must match target model to use speculation'
  ],
  [
    'draft_unusable',
    "gguf_init_from_file: failed to open GGUF file '/m/d.gguf' (No such file or directory)",
    "srv load_model: failed to load draft model, '/m/d.gguf'"
  ],
  [
    'draft_unusable',
    "llama_model_load: error loading model: unknown model architecture: 'eagle9'",
    "srv    load_model: failed to load draft model, '/m/d.gguf'"
  ],

  [
    'draft_unusable',
    "I srv load_model: loading draft model 'd.gguf'",
    'E llama_model_load: error loading model: invalid vector subscript',
    "E srv load_model: failed to load draft model, 'd.gguf'"
  ],

  // How it was called.
  ['unknown_flag', 'error: invalid argument: --frobnicate'],
  ['unknown_flag', 'error: unknown argument: -zz'],
  [
    'unknown_flag',
    'error while handling argument "--mlock": the argument has been removed. use --load-mode mlock',
    '',
    'usage:'
  ],
  ['bad_flag_value', 'error while handling argument "-c": stoi', '', 'usage:'],
  ['bad_flag_value', 'error while handling argument "--split-mode": invalid value'],
  ['bad_flag_value', 'error while handling argument "--lora": error: failed to open file \'/x\''],
  ['bad_flag_value', 'E llama_model_load_from_file_impl: invalid value for main_gpu: 3 (available devices: 1)'],
  ['bad_flag_value', 'error while handling argument "--rpc": failed to find RPC backend'],
  ['bad_cache_type', 'error while handling argument "--cache-type-k": Unsupported cache type: q9_9'],
  ['bad_cache_type', 'E llama_init_from_model: V cache type q4_0 with block size 32 does not divide n_embd_head_v=80'],
  ['bad_cache_type', 'llama_init_from_model: model does not support different K (f16) and V (q8_0) cache types'],
  [
    'flash_attention_required',
    'llama_init_from_model: failed to initialize the context: quantized V cache was requested, but this requires Flash Attention'
  ],
  ['flash_attention_required', 'llama_new_context_with_model: V cache quantization requires flash_attn'],
  ['bad_chat_template', 'error: the supplied chat template is not supported: {{ bad'],
  [
    'bad_chat_template',
    'E srv load_model: init: chat template parsing error: Expected value expression',
    'E srv load_model: init: please consider disabling jinja via --no-jinja'
  ],
  ['cannot_listen', "E srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080"],
  ['cannot_listen', "main: couldn't bind to server socket: hostname=127.0.0.1 port=8080"],
  ['cannot_listen', 'bind: Address already in use'],
  ['rpc_unreachable', 'Failed to connect to 192.168.1.5:50052'],
  ['rpc_unreachable', '/x/ggml-rpc.cpp:600: Remote RPC server crashed or returned malformed response'],
  [
    'system_limit',
    "terminate called after throwing an instance of 'std::system_error'",
    '  what():  Resource temporarily unavailable'
  ],
  ['system_limit', 'libgomp: Thread creation failed: Resource temporarily unavailable'],
  ['context_failed', 'E llama_init_from_model: failed to initialize the context: n_seq_max must be <= 256'],
  ['assertion_failed', '/src/ggml/src/ggml.c:123: GGML_ASSERT(a == b) failed', '[New LWP 1]'],
  ['crashed', 'Segmentation fault (core dumped)'],
  ['killed', 'bash: line 1: 4242 Killed                  llama-server -m x.gguf']
]

/** What is printed where nothing is wrong, or where llama-server goes on. */
export const HARMLESS_LINES: string[] = [
  'E llama_init_from_model: failed to initialize the context: Gemma4Assistant requires ctx_other to be set (this warning is normal during memory fitting)',
  'W srv    load_model: [spec] failed to measure draft model memory: failed to create llama_context from model',
  'ggml_cuda_host_malloc: failed to allocate 512.00 MiB of pinned memory: out of memory',
  'W common_fit_params: failed to fit params to free device memory: n_gpu_layers already set by user to 20, abort',
  'common_chat_templates_init: failed to parse chat template (defaulting to chatml): x',
  'W llama_file: Falling back to buffered IO due to Invalid argument',
  'warning: posix_madvise(.., POSIX_MADV_WILLNEED) failed: Bad address',
  'model has unused tensor mtp.0.weight (size = 100 bytes) -- ignoring',
  'warn: LLAMA_ARG_HOST environment variable is set, but will be overwritten by command line argument --host',
  'load_tensors: loading model tensors, this can take a while... (mmap = true)',
  'srv  log_server_r: request: POST /v1/chat/completions 127.0.0.1 200',
  "common_init_from_params: failed to load model '/m/x.gguf', try reducing --n-gpu-layers if you're running out of VRAM"
]
