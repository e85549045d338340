import { type FailureRule, OTHER_BUILD } from './rule.ts'

const LIBRARY = 'Install it, or choose another llama.cpp build (corral doctor shows which there are).'
const DRIVER_TOO_OLD =
  'The GPU driver is older than this llama.cpp build needs. Update the driver, or choose another build.'
const NO_CODE = `This llama.cpp build has no code for this GPU. ${OTHER_BUILD}`
const LOST =
  'The GPU stopped answering ($1). Load the model again; if it goes on, check the driver, its power and its temperature, or restart the machine.'
const FAILED = 'The GPU failed ($1). Check its driver; try fewer GPU layers (n_gpu_layers) or another llama.cpp build.'

/** The build, the libraries and drivers around it, and the GPU. */
export const BUILD_RULES: FailureRule[] = [
  {
    cause: 'executable_missing',
    pattern:
      /failed to execute (?:\S+): (.+)|(Exec format error|cannot execute binary file|bad CPU type in executable)/i,
    sentence: `llama-server could not be started ($1). ${OTHER_BUILD}`
  },
  {
    cause: 'system_too_old',
    pattern: /version [`']((?:GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+)' not found/,
    sentence:
      'This llama.cpp build needs a newer system ($1). Use a build made for this system, such as one from source.'
  },
  {
    cause: 'system_too_old',
    pattern: /built for (macOS [\d.]+) which is newer than running OS|requires a newer version of (Windows|macOS)/i,
    sentence:
      'This llama.cpp build needs a newer system ($1). Use a build made for this system, such as one from source.'
  },
  {
    cause: 'library_missing',
    pattern:
      /error while loading shared libraries: ([^\s:]+)|Library not loaded: '?([^\s:']+)|because (\S+\.dll) was not found|(?:unable|failed) to load (?:dynamic library|DLL) '?"?([^\s'":]+)|Could not find module '([^']+)'|(\S+\.dll)(?: is)? (?:missing|not found)/i,
    sentence: `The library $1 that llama-server needs is missing. ${LIBRARY}`
  },
  {
    cause: 'library_missing',
    pattern:
      /symbol lookup error: .*undefined symbol: (\S+)|dyld(?:\[\d+\])?: (?:missing symbol called|Symbol not found: (\S+))|entry point (\S+) could not be located|procedure entry point/i,
    sentence: `A library that llama-server uses is of another version ($1). Reinstall this build, or choose another one (corral doctor shows which there are).`
  },
  {
    cause: 'library_missing',
    pattern: /no backends are loaded|no CPU backend found|failed to initialize CPU backend/,
    sentence: `This llama.cpp build is incomplete: its back ends cannot be loaded. ${OTHER_BUILD}`
  },
  {
    cause: 'illegal_instruction',
    pattern: /illegal instruction|trap invalid opcode|\bSIGILL\b|STATUS_ILLEGAL_INSTRUCTION|0xc000001d/i,
    sentence: `This llama.cpp build uses instructions that this processor does not have. ${OTHER_BUILD}`
  },
  {
    cause: 'gpu_not_supported_by_build',
    pattern:
      /no kernel image is available|invalid device function|device kernel image is invalid|invalid kernel file|shared object initialization failed|hipErrorNoBinaryForGpu|Unable to find code object|has no device code compatible|not compiled with any CUDA arch|TensileLibrary\S*: .*GPU arch|Cannot read .*TensileLibrary|No Tensile library|CUBLAS_STATUS_ARCH_MISMATCH|hipErrorInvalidDeviceFunction/i,
    sentence: NO_CODE
  },
  {
    cause: 'gpu_not_supported_by_build',
    pattern:
      /does not support 16-bit storage|Vulkan 1\.\d required|ErrorFeatureNotPresent|ErrorExtensionNotPresent|Required aspect fp\d+ is not supported|Double type is not supported|UR_RESULT_ERROR_(?:INVALID_BINARY|PROGRAM_BUILD_FAILURE|UNSUPPORTED_FEATURE)|PI_ERROR_(?:BUILD_PROGRAM_FAILURE|INVALID_BINARY)|No kernel named \S+ was found|failed to initialize the Metal library|kernel not found in any metal library|error compiling (?:Metal )?source|ggml_opencl: kernel compile error/i,
    sentence: NO_CODE
  },
  {
    cause: 'driver_too_old',
    pattern:
      /(?:CUDA|ROCm|HIP|MUSA) error: .*(?:driver version is insufficient|unsupported toolchain|driver is too old)/i,
    sentence: DRIVER_TOO_OLD
  },
  {
    cause: 'driver_unavailable',
    pattern:
      /(?:CUDA|ROCm|HIP|MUSA) error: .*(no \S*-capable device|no ROCm-capable device|busy or unavailable|system not yet initialized|unsupported display driver|forward compatibility|initialization error|driver shutting down|invalid device ordinal)/i,
    sentence: `The GPU's driver does not serve llama-server ($1). Check it (nvidia-smi, rocminfo; restart after an update of the driver), or choose another build.`
  },
  {
    cause: 'gpu_lost',
    pattern:
      /(Error_?DeviceLost|DeviceLostError|VK_ERROR_DEVICE_LOST|device lost|(?:UR_RESULT|ZE_RESULT|PI)_ERROR_DEVICE_LOST)/i,
    sentence: LOST
  },
  {
    cause: 'gpu_lost',
    pattern:
      /\b(Xid \(?[\w:. ]+\)?: \d+)|(fallen off the bus)|(?:CUDA|ROCm|HIP|MUSA) error: .*(unspecified launch failure|launch timed out|uncorrectable ECC error|hardware stack error|GPU is lost|device reset|unknown error)|(HW Exception by GPU|GPU Hang|GPU reset|ring \S+ timeout|amdgpu: .*(?:hang|reset))|(kIOGPUCommandBufferCallbackError(?:Timeout|Hang|InnocentVictim|SubmissionsIgnored|PageFault|ImpactingInteractivity))/i,
    sentence: LOST
  },
  {
    cause: 'gpu_failed',
    pattern:
      /(?:CUDA|ROCm|HIP|MUSA|SYCL) error: (.+)|(Memory access fault by GPU)|(CUBLAS_STATUS_\w+|HIPBLAS_STATUS_\w+|HSA_STATUS_ERROR\w*|UR_RESULT_ERROR_\w+|ZE_RESULT_ERROR_\w+|PI_ERROR_\w+)|ggml_vulkan: .*(Error[A-Z]\w+)/,
    sentence: FAILED
  },

  // Printed also where llama-server goes on without the GPU.
  {
    cause: 'driver_too_old',
    weak: true,
    pattern: /driver version is insufficient|driver is too old|ErrorIncompatibleDriver/i,
    sentence: DRIVER_TOO_OLD
  },
  {
    cause: 'driver_unavailable',
    weak: true,
    pattern:
      /(Driver\/library version mismatch|(?:failed|unable) to initialize (?:CUDA|ROCm|HIP|MUSA|NVML|SYCL)[^\n]*|NVML: [^\n]*|couldn't communicate with the NVIDIA driver|no \S+-capable device is detected|hsa_init failed|ErrorInitializationFailed|No device of requested type available)/i,
    sentence: `The GPU's driver does not serve llama-server ($1). Check it (nvidia-smi, rocminfo; restart after an update of the driver), or choose another build.`
  },
  {
    cause: 'library_missing',
    weak: true,
    pattern:
      /0xc0000135|0xc0000139|STATUS_DLL_NOT_FOUND|STATUS_ENTRYPOINT_NOT_FOUND|exit(?:ed)?(?: with)?(?: code| status)? 127\b/i,
    sentence: `A library that llama-server needs is missing. ${LIBRARY}`
  },
  {
    cause: 'library_missing',
    weak: true,
    pattern: /failed to load \S*ggml-\S+: (\S+?): cannot open shared object file/,
    sentence: `The library $1 that llama-server needs for the GPU is missing. ${LIBRARY}`
  },
  {
    cause: 'gpu_failed',
    weak: true,
    pattern:
      /(Compute pipeline creation failed)|(command buffer \d+ failed with status \d+)|(backend is in error state)|failed to initialize (\S+ backend)|failed to (create command queue)/,
    sentence: FAILED
  }
]
