/**
 * What a kind of build scores on a machine that has all it wants. What a vendor's own interface does fastest comes first,
 * then Vulkan, which reaches nearly everything, then the processor.
 */
export const SCORES = {
  metal: 100,
  cuda13: 100,
  cuda12: 95,
  rocm: 90,
  sycl: 75,
  /** ROCm with a card that it was probably made for, although nobody says which one it is. */
  rocmUnknown: 65,
  vulkan: 60,
  /** ROCm with a card that llama.cpp is compiled for but that AMD's own libraries mostly leave out. */
  rocmUnsupported: 50,
  vulkanIntegrated: 40,
  vulkanVirtual: 35,
  rocmUnsupportedIntegrated: 30,
  /** SYCL on the graphics of a processor, where Vulkan is as fast and needs less. */
  syclIntegrated: 30,
  cpu: 10,
  /** Possible, but only for those who choose it. */
  byChoice: 5
} as const

/**
 * The score of a kind that lacks a library which one command installs. It keeps its place among others of that sort and
 * stays above the processor alone, since a library may lie where nobody looked: the proof will tell.
 */
export function withoutLibrary(base: number): number {
  return Math.min(base, SCORES.cpu + Math.round(base / 5))
}
