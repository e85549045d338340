import { type FailureRule, LESS_GPU, LESS_MEMORY } from './rule.ts'

const GPU = `The GPU's memory is too small for it. ${LESS_GPU}`
const HOST = `The memory of this machine is too small for it. ${LESS_MEMORY}`

/** Memory that could not be had. */
export const MEMORY_RULES: FailureRule[] = [
  {
    cause: 'oom_killed',
    pattern:
      /OOM killer|oom-kill|oom_reaper|OOMKilled|Out of memory: Kill(?:ed)? process|Memory cgroup out of memory|out of memory \(oom\)|low memory killer|jetsam/i,
    sentence: `The system ended llama-server because memory had run out. ${LESS_MEMORY}`
  },

  // CUDA, and what is made of the same source: ROCm, MUSA.
  {
    cause: 'out_of_gpu_memory',
    pattern: /(?:cuda|hip|musa)Malloc\w* failed: .*out of memory/i,
    sentence: GPU
  },
  {
    cause: 'out_of_gpu_memory',
    pattern:
      /(?:CUDA|ROCm|HIP|MUSA|SYCL|cuBLAS|hipBLAS|rocBLAS) error(?: \d+)?:? .*(?:out of memory|memory allocation|resource allocation failed)|(?:cuda|hip|musa)Error(?:OutOfMemory|MemoryAllocation)|(?:CUDA|HIP)_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|HIPBLAS_STATUS_ALLOC_FAILED|rocblas_status_memory_error|cuMem\w+.*out of memory|HSA_STATUS_ERROR_OUT_OF_RESOURCES/i,
    sentence: GPU
  },
  // Vulkan.
  {
    cause: 'out_of_gpu_memory',
    pattern:
      /Error_?OutOfDeviceMemory|OutOfDeviceMemoryError|VK_ERROR_OUT_OF_(?:DEVICE|POOL)_MEMORY|ErrorOutOfPoolMemory|ErrorFragmentedPool|Requested (?:buffer|preallocation) size (?:exceeds device|is too large)|No suitable memory type found/i,
    sentence: GPU
  },
  {
    cause: 'out_of_memory',
    pattern: /Error_?OutOfHostMemory|OutOfHostMemoryError|VK_ERROR_OUT_OF_HOST_MEMORY/i,
    sentence: HOST
  },
  // Metal.
  {
    cause: 'out_of_gpu_memory',
    pattern:
      /kIOGPUCommandBufferCallbackErrorOutOfMemory|error: Insufficient Memory|ggml_(?:backend_)?metal\w*: .*failed to allocate .*buffer|failed to allocate Metal buffer/i,
    sentence: GPU
  },
  // SYCL, OpenCL, CANN.
  {
    cause: 'out_of_gpu_memory',
    pattern:
      /(?:UR_RESULT|ZE_RESULT|PI)_ERROR_(?:OUT_OF_DEVICE_MEMORY|OUT_OF_RESOURCES|MEM_OBJECT_ALLOCATION_FAILURE)|can't allocate \d+ Bytes of memory on device|CL_OUT_OF_RESOURCES|CL_MEM_OBJECT_ALLOCATION_FAILURE|CL_INVALID_BUFFER_SIZE|ggml_opencl: .* error (?:-4|-5|-61)\b|aclrtMalloc.*(?:failed|out of memory)/i,
    sentence: GPU
  },
  {
    cause: 'out_of_memory',
    pattern:
      /(?:UR_RESULT|ZE_RESULT|PI)_ERROR_OUT_OF_HOST_MEMORY|can't allocate \d+ Bytes of memory on host|CL_OUT_OF_HOST_MEMORY/i,
    sentence: HOST
  },

  // Any back end: buffers by their names. Those that end in _Host lie in the machine's memory.
  {
    cause: 'out_of_gpu_memory',
    pattern:
      /(?:failed to|unable to|can't|cannot) allocate (?:backend )?(?:CUDA|ROCm|HIP|MUSA|Vulkan|Metal|MTL|SYCL|OpenCL|GPUOpenCL|CANN|Kompute|WebGPU|HTP|RPC)(?!\w*_Host)[\w[\]:.]* buffer/i,
    sentence: GPU
  },
  {
    cause: 'out_of_memory',
    pattern:
      /(?:failed to|unable to|can't|cannot) allocate (?:\w+_Host|CPU\w*|AMX|HBM|host|BLAS) buffer|cpu_\w+: failed to allocate|failed to allocate buffer of size/i,
    sentence: HOST
  },
  {
    cause: 'out_of_memory',
    pattern:
      /std::bad_alloc|posix_memalign failed|mmap failed: (?:Cannot allocate memory|Not enough)|(?:MapViewOfFile|CreateFileMappingA?) failed: .*(?:not enough|insufficient|paging file)|(?:aligned_malloc|ggml_(?:m|c)alloc|aligned_alloc)\w*: .*(?:insufficient memory|failed to allocate)|insufficient memory \(attempted to allocate|(?:malloc|calloc|realloc|new) failed|not enough space in the context's memory pool|error creating backtrace: mmap: 12|virtual memory exhausted|error: out of memory$|paging file is too small|Not enough memory resources/i,
    sentence: HOST
  },

  // What follows from one of the above, or is got over.
  {
    cause: 'out_of_gpu_memory',
    weak: true,
    pattern:
      /ggml_vulkan: (?:Device )?memory allocation of size \d+ failed|insufficient VRAM|not enough (?:VRAM|GPU memory|video memory)/i,
    sentence: GPU
  },
  {
    cause: 'out_of_memory',
    weak: true,
    pattern:
      /failed to allocate (?:compute|buffer for|graph|output|memory|context)|unable to allocate (?:backend )?buffer|failed to reserve (?:graph buffers|initial output buffer)|graph allocation: failed to reserve|failed to allocate \d[\d.]* (?:bytes|MB|MiB)|Cannot allocate memory|not enough memory|ENOMEM/i,
    sentence: HOST
  },
  {
    cause: 'out_of_memory',
    weak: true,
    pattern: /failed to (?:mlock|VirtualLock)/i,
    sentence:
      'The model could not be kept in memory. Raise the limit on locked memory (ulimit -l), or leave mlock out of the settings.'
  }
]
