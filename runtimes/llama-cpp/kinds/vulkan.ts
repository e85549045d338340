import type { Fit, RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Gpu, Hardware } from '../../../core/contracts/hardware.ts'
import {
  archiveNamed,
  BUILT_ON,
  fitFor,
  hasLibrary,
  installPackage,
  listNames,
  relevantGpus,
  SCORES,
  unfit
} from './scores.ts'

/** AMD's data center cards, which have no Vulkan driver. */
const COMPUTE_ONLY = /^gfx(?:908|90a|94\d|950)$/

const SOFTWARE_RENDERERS = /llvmpipe|lavapipe|swiftshader|softpipe|basic render/i

const DRIVER_FIX = `Install the Vulkan driver: ${installPackage('mesa-vulkan-drivers', 'mesa-vulkan-drivers', 'vulkan-radeon or vulkan-intel')}; NVIDIA's comes with its driver`

/** Whether Vulkan supports a GPU, as far as is known. */
function supports(gpu: Gpu, { probes, problems }: Hardware): boolean {
  if (gpu.apis.includes('vulkan')) return true
  if (!gpu.usable || (gpu.vendor === 'amd' && COMPUTE_ONLY.test(gpu.architecture ?? ''))) return false
  if (problems.some(({ code, subject }) => code === 'partitioned' && [gpu.id, gpu.name].includes(subject))) return false
  // vulkaninfo ran and did not list the GPU, so the GPU has no Vulkan driver.
  if (probes.some(({ probe, outcome }) => probe.startsWith('vulkaninfo') && outcome === 'ok')) return false
  return gpu.vendor === 'nvidia' || gpu.vendor === 'amd' || gpu.vendor === 'intel'
}

function baseOf(gpus: readonly Gpu[]): number {
  // Vulkan drivers for Adreno are known to be slow or wrong.
  if (gpus.every(({ vendor }) => vendor === 'qualcomm')) return SCORES.byChoice
  if (gpus.some(({ type }) => type === 'discrete' || type === 'unknown')) return SCORES.vulkan
  return gpus.some(({ type }) => type === 'integrated') ? SCORES.vulkanIntegrated : SCORES.vulkanVirtual
}

/** For nearly all GPUs, including GPUs that no other kind supports, and cards of several vendors at the same time. */
export const vulkan: RuntimeDescriptor = {
  name: 'vulkan',
  kind: 'vulkan',
  title: 'Vulkan (any GPU)',
  fit(hardware) {
    const { platform, gpus } = hardware
    if (platform !== 'linux' && platform !== 'win32') return unfit('On Macs Vulkan is only available through Metal.')
    if (gpus.length === 0) return unfit('No GPU was found.')
    const candidates = relevantGpus(hardware)
    const used = candidates.filter(gpu => supports(gpu, hardware))
    const missing: Fit['missing'] = candidates
      .filter(gpu => !used.includes(gpu) && !COMPUTE_ONLY.test(gpu.architecture ?? ''))
      .map(({ name }) => ({ what: `There is no Vulkan driver for ${name}.`, fix: DRIVER_FIX }))
    if (candidates.length === 0) return unfit(`${listNames(gpus)}: no working driver.`)
    if (used.length === 0) return unfit(`Vulkan does not support ${listNames(candidates)}.`, missing)
    // On Windows the loader comes with every graphics driver.
    const library =
      platform === 'win32' ||
      hasLibrary(hardware, 'vulkan') !== false ||
      used.some(({ apis }) => apis.includes('vulkan'))
    if (!library) {
      missing.push({
        what: 'libvulkan.so.1, the Vulkan loader, was not found.',
        fix: `Install it: ${installPackage('libvulkan1 mesa-vulkan-drivers', 'vulkan-loader mesa-vulkan-drivers', 'vulkan-icd-loader')}`
      })
    }
    const slow = 'Vulkan on Adreno is often slower than the processor and sometimes wrong; it is used only if chosen.'
    const reasons = used.every(({ vendor }) => vendor === 'qualcomm') ? [slow] : []
    return fitFor(used, hardware, { base: baseOf(used), library, missing, reasons })
  },
  archives: [
    archiveNamed('linux', 'x64', 'ubuntu-vulkan-x64', { glibc: BUILT_ON.ubuntu2204 }),
    archiveNamed('linux', 'arm64', 'ubuntu-vulkan-arm64', { glibc: BUILT_ON.ubuntu2404 }),
    archiveNamed('win32', 'x64', 'win-vulkan-x64'),
    archiveNamed('win32', 'arm64', 'win-vulkan-arm64')
  ],
  usesDevice: ({ id, description }) => /^Vulkan\d+$/i.test(id) && !SOFTWARE_RENDERERS.test(description)
}
