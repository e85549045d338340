import type { FailureCause } from '../../../runtimes/llama-server/failure-causes.ts'

export type Variant = [cause: FailureCause, line: string, ...more: string[]]

/** Output when memory, libraries, drivers or a GPU are to blame. */
export const OF_MACHINES: Variant[] = [
  // GPU memory.
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

  // Machine memory.
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

  // The running GPU.
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
  ]
]
