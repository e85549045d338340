import type { ReleaseAsset } from './release-download.ts'

/*
 * The archives of one release, as they were listed when this version of corral was made: what the ranking goes by where
 * the live list cannot be had. Without digests, so nothing is ever downloaded by it. Sizes are rounded.
 */

const TAG = 'b11347'

const MEGABYTES: Record<string, number> = {
  [`llama-${TAG}-bin-macos-arm64.tar.gz`]: 12,
  [`llama-${TAG}-bin-macos-x64.tar.gz`]: 11,
  [`llama-${TAG}-bin-ubuntu-x64.tar.gz`]: 18,
  [`llama-${TAG}-bin-ubuntu-arm64.tar.gz`]: 14,
  [`llama-${TAG}-bin-ubuntu-s390x.tar.gz`]: 16,
  [`llama-${TAG}-bin-ubuntu-vulkan-x64.tar.gz`]: 31,
  [`llama-${TAG}-bin-ubuntu-vulkan-arm64.tar.gz`]: 25,
  [`llama-${TAG}-bin-ubuntu-cuda-12.8-x64.tar.gz`]: 171,
  [`llama-${TAG}-bin-ubuntu-cuda-13.4-x64.tar.gz`]: 152,
  [`llama-${TAG}-bin-ubuntu-cuda-13.4-arm64.tar.gz`]: 147,
  [`cudart-llama-${TAG}-bin-ubuntu-cuda-12.8-x64.tar.gz`]: 594,
  [`cudart-llama-${TAG}-bin-ubuntu-cuda-13.4-x64.tar.gz`]: 440,
  [`cudart-llama-${TAG}-bin-ubuntu-cuda-13.4-arm64.tar.gz`]: 553,
  [`llama-${TAG}-bin-ubuntu-rocm-10.0-x64.tar.gz`]: 243,
  [`llama-${TAG}-bin-ubuntu-sycl-fp16-x64.tar.gz`]: 54,
  [`llama-${TAG}-bin-ubuntu-sycl-fp32-x64.tar.gz`]: 54,
  [`llama-${TAG}-bin-ubuntu-openvino-2026.4-x64.tar.gz`]: 109,
  [`llama-${TAG}-bin-linux-arm64-snapdragon.tar.gz`]: 19,
  [`llama-${TAG}-bin-win-cpu-x64.zip`]: 19,
  [`llama-${TAG}-bin-win-cpu-arm64.zip`]: 12,
  [`llama-${TAG}-bin-win-cuda-12.4-x64.zip`]: 263,
  [`llama-${TAG}-bin-win-cuda-13.4-x64.zip`]: 153,
  [`llama-${TAG}-bin-win-cuda-13.4-arm64.zip`]: 145,
  'cudart-llama-bin-win-cuda-12.4-x64.zip': 391,
  'cudart-llama-bin-win-cuda-13.4-x64.zip': 424,
  'cudart-llama-bin-win-cuda-13.4-arm64.zip': 153,
  [`llama-${TAG}-bin-win-vulkan-x64.zip`]: 33,
  [`llama-${TAG}-bin-win-rocm-10.0-x64.zip`]: 256,
  [`llama-${TAG}-bin-win-sycl-x64.zip`]: 148,
  [`llama-${TAG}-bin-win-openvino-2026.4-x64.zip`]: 88,
  [`llama-${TAG}-bin-win-opencl-adreno-arm64.zip`]: 13
}

export const snapshot: { tag: string; assets: ReleaseAsset[] } = {
  tag: TAG,
  assets: Object.entries(MEGABYTES).map(([name, megabytes]) => ({
    name,
    browser_download_url: `https://github.com/ggml-org/llama.cpp/releases/download/${TAG}/${name}`,
    size: megabytes * 1_000_000
  }))
}
