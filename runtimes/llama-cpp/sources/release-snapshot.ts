/*
 * The file names of one release, as listed when this version of corral was made: the ranking uses them if the current
 * list is not available. Nothing is ever downloaded by them.
 */

const TAG = 'b11347'

const UNIX = [
  ...['macos-arm64', 'macos-x64', 'ubuntu-x64', 'ubuntu-arm64', 'ubuntu-s390x', 'ubuntu-vulkan-x64'],
  ...['ubuntu-vulkan-arm64', 'ubuntu-cuda-12.8-x64', 'ubuntu-cuda-13.4-x64', 'ubuntu-cuda-13.4-arm64'],
  ...['ubuntu-rocm-10.0-x64', 'ubuntu-sycl-fp16-x64', 'ubuntu-sycl-fp32-x64', 'ubuntu-openvino-2026.4-x64'],
  ...['linux-arm64-snapdragon']
]
const UNIX_CUDA_LIBRARIES = ['ubuntu-cuda-12.8-x64', 'ubuntu-cuda-13.4-x64', 'ubuntu-cuda-13.4-arm64']
const WINDOWS = [
  ...['win-cpu-x64', 'win-cpu-arm64', 'win-cuda-12.4-x64', 'win-cuda-13.4-x64', 'win-cuda-13.4-arm64'],
  ...['win-vulkan-x64', 'win-rocm-10.0-x64', 'win-sycl-x64', 'win-openvino-2026.4-x64'],
  ...['win-opencl-adreno-arm64']
]
const WINDOWS_CUDA_LIBRARIES = ['win-cuda-12.4-x64', 'win-cuda-13.4-x64', 'win-cuda-13.4-arm64']

export const snapshot: { tag: string; names: readonly string[] } = {
  tag: TAG,
  names: [
    ...UNIX.map(name => `llama-${TAG}-bin-${name}.tar.gz`),
    ...UNIX_CUDA_LIBRARIES.map(name => `cudart-llama-${TAG}-bin-${name}.tar.gz`),
    ...WINDOWS.map(name => `llama-${TAG}-bin-${name}.zip`),
    ...WINDOWS_CUDA_LIBRARIES.map(name => `cudart-llama-bin-${name}.zip`)
  ]
}
