import type { Fit, RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Gpu, Hardware } from '../../../core/contracts/hardware.ts'
import {
  BUILT_ON,
  hasLibrary,
  idleCards,
  installPackage,
  namesOf,
  relevantGpus,
  SCORES,
  scoreByReach,
  unfit,
  withoutLibrary
} from './fit.ts'

/** AMD's computing cards, which no Vulkan driver serves. */
const COMPUTE_ONLY = /^gfx(?:908|90a|94\d|950)$/

const SOFTWARE_RENDERERS = /llvmpipe|lavapipe|swiftshader|softpipe|basic render/i

const DRIVER_FIX = `Install the Vulkan driver: ${installPackage('mesa-vulkan-drivers', 'mesa-vulkan-drivers', 'vulkan-radeon or vulkan-intel')}; NVIDIA's comes with its driver`

/** Whether Vulkan reaches a GPU, as far as anybody can tell. */
function reaches(gpu: Gpu, { probes, problems }: Hardware): boolean {
  if (gpu.apis.includes('vulkan')) return true
  if (!gpu.usable || (gpu.vendor === 'amd' && COMPUTE_ONLY.test(gpu.architecture ?? ''))) return false
  if (problems.some(({ code, subject }) => code === 'partitioned' && [gpu.id, gpu.name].includes(subject))) return false
  // vulkaninfo saw others, or none: this one has no driver for it.
  if (probes.some(({ probe, outcome }) => probe.startsWith('vulkaninfo') && outcome === 'ok')) return false
  return gpu.vendor === 'nvidia' || gpu.vendor === 'amd' || gpu.vendor === 'intel'
}

function baseOf(gpus: readonly Gpu[]): number {
  // Its drivers for Adreno are known to be slow or wrong.
  if (gpus.every(({ vendor }) => vendor === 'qualcomm')) return SCORES.byChoice
  if (gpus.some(({ type }) => type === 'discrete' || type === 'unknown')) return SCORES.vulkan
  return gpus.some(({ type }) => type === 'integrated') ? SCORES.vulkanIntegrated : SCORES.vulkanVirtual
}

/** For nearly all GPUs: what other kinds do not know, and several vendors' cards at once. */
export const vulkan: RuntimeDescriptor = {
  name: 'vulkan',
  kind: 'vulkan',
  title: 'Vulkan (any GPU)',
  fit(hardware) {
    const { platform, gpus } = hardware
    if (platform !== 'linux' && platform !== 'win32') return unfit('On Macs Vulkan is only to be had through Metal.')
    if (gpus.length === 0) return unfit('No GPU was found.')
    const candidates = relevantGpus(hardware)
    const used = candidates.filter(gpu => reaches(gpu, hardware))
    const missing: Fit['missing'] = candidates
      .filter(gpu => !used.includes(gpu) && !COMPUTE_ONLY.test(gpu.architecture ?? ''))
      .map(({ name }) => ({ what: `No Vulkan driver serves ${name}.`, fix: DRIVER_FIX }))
    if (candidates.length === 0) return unfit(`No driver serves ${namesOf(gpus)} now.`)
    if (used.length === 0) return unfit(`Vulkan does not reach ${namesOf(candidates)}.`, missing)
    // On Windows it comes with each graphics driver.
    const loader =
      platform === 'win32' ||
      hasLibrary(hardware, 'vulkan') !== false ||
      used.some(({ apis }) => apis.includes('vulkan'))
    if (!loader) {
      missing.push({
        what: 'libvulkan.so.1, which passes calls on to the driver, was not found.',
        fix: `Install it: ${installPackage('libvulkan1 mesa-vulkan-drivers', 'vulkan-loader mesa-vulkan-drivers', 'vulkan-icd-loader')}`
      })
    }
    const base = baseOf(used)
    return {
      score: scoreByReach(loader ? base : withoutLibrary(base), used, hardware),
      reasons: [
        `It uses ${namesOf(used)}.`,
        ...(used.every(({ vendor }) => vendor === 'qualcomm')
          ? ['Vulkan on Adreno is often slower than the processor, and sometimes wrong; it is used by choice only.']
          : []),
        ...idleCards(used, hardware)
      ],
      missing,
      gpus: used.map(({ id }) => id)
    }
  },
  archives: [
    {
      platform: 'linux',
      arch: 'x64',
      archive: /^llama-b\d+-bin-ubuntu-vulkan-x64\.(?:tar\.gz|zip)$/,
      glibc: BUILT_ON.ubuntu2204
    },
    {
      platform: 'linux',
      arch: 'arm64',
      archive: /^llama-b\d+-bin-ubuntu-vulkan-arm64\.(?:tar\.gz|zip)$/,
      glibc: BUILT_ON.ubuntu2404
    },
    { platform: 'win32', arch: 'x64', archive: /^llama-b\d+-bin-win-vulkan-x64\.(?:tar\.gz|zip)$/ },
    { platform: 'win32', arch: 'arm64', archive: /^llama-b\d+-bin-win-vulkan-arm64\.(?:tar\.gz|zip)$/ }
  ],
  usesDevice: ({ id, description }) => /^Vulkan\d+$/i.test(id) && !SOFTWARE_RENDERERS.test(description)
}
