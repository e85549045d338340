import type { Fit, RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Gpu, Hardware } from '../../../core/contracts/hardware.ts'
import { cuda12, cuda13 } from './cuda.ts'
import { rocm } from './rocm.ts'
import {
  archivesOf,
  cardsFor,
  fitAt,
  fitFor,
  hasLibrary,
  installPackage,
  listNames,
  relevantGpus,
  SCORES,
  unfit
} from './scores.ts'

/** For Macs with Apple silicon. The archive for Intel Macs is built without Metal. */
const metal: RuntimeDescriptor = {
  name: 'metal',
  kind: 'metal',
  title: 'Metal (Apple)',
  fit({ platform, arch, gpus, cpu }) {
    if (platform !== 'darwin') return unfit('Metal is for Macs only.')
    if (arch === 'arm64') {
      // Every such Mac supports Metal, even if its GPU was not detected.
      const own = gpus.filter(gpu => gpu.vendor === 'apple')
      return fitAt(SCORES.metal, [`It uses ${listNames(own) || cpu.model} and its unified memory.`], own)
    }
    const why =
      'On Intel Macs Metal is often slower than the processor and wrong on some cards; it is used only if chosen.'
    const usable = gpus.filter(gpu => gpu.usable)
    return fitAt(SCORES.byChoice, [why], usable)
  },
  archives: archivesOf('metal'),
  usesDevice: ({ id }) => /^(?:MTL|Metal)\d*$/i.test(id)
}

export const sycl: RuntimeDescriptor = {
  name: 'sycl',
  kind: 'sycl',
  title: 'SYCL (Intel)',
  fit(hardware) {
    const found = cardsFor({ vendor: 'intel', brand: 'Intel', title: 'SYCL' }, hardware)
    if ('unfit' in found) return found.unfit
    const { cards, problems } = found
    // The archives for Windows include oneAPI's libraries. The archives for Linux do not.
    const library =
      hardware.platform === 'win32' ||
      cards.some(({ apis }) => apis.includes('sycl')) ||
      (hasLibrary(hardware, 'sycl') === true && hasLibrary(hardware, 'level-zero') !== false)
    const oneApi = {
      what: "Intel's oneAPI and Level Zero, whose libraries are not in the archive, were not found.",
      fix:
        'Install intel-oneapi-runtime-libs (https://www.intel.com/oneapi) and libze-intel-gpu1 ' +
        '(https://dgpu-docs.intel.com)'
    }
    const base = cards.some(({ type }) => type !== 'integrated') ? SCORES.sycl : SCORES.syclIntegrated
    return fitFor(cards, hardware, { base, library, missing: library ? problems : [...problems, oneApi] })
  },
  // According to llama.cpp's documentation, half precision, which comes first, is mostly faster.
  archives: archivesOf('sycl'),
  usesDevice: ({ id }) => /^SYCL\d+$/i.test(id)
}

/** AMD's data center cards, which have no Vulkan driver. */
const COMPUTE_ONLY = /^gfx(?:908|90a|94\d|950)$/

const SOFTWARE_RENDERERS = /llvmpipe|lavapipe|swiftshader|softpipe|basic render/i

const DRIVER_FIX = `Install the Vulkan driver: ${installPackage('mesa-vulkan-drivers', 'mesa-vulkan-drivers', 'vulkan-radeon or vulkan-intel')}; NVIDIA's comes with its driver`

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
  archives: archivesOf('vulkan'),
  usesDevice: ({ id, description }) => /^Vulkan\d+$/i.test(id) && !SOFTWARE_RENDERERS.test(description)
}

/** Works everywhere: an archive has code for all generations of processors and selects it at startup. */
export const cpu: RuntimeDescriptor = {
  name: 'cpu',
  kind: 'cpu',
  title: 'Processor only',
  fit({ arch, cpu: { model, features } }) {
    const slow = arch === 'x64' && features.length > 0 && !features.includes('avx2')
    const reasons = [`It works on every machine, here on ${model}.`]
    return fitAt(SCORES.cpu, slow ? [...reasons, 'This processor has no AVX2, so answers will be slow.'] : reasons)
  },
  archives: archivesOf('cpu'),
  environment: ({ platform, arch }): Record<string, string> =>
    // The archive for Apple silicon includes Metal.
    platform === 'darwin' && arch === 'arm64' ? { GGML_METAL_DEVICES: '0' } : {},
  usesDevice: () => false
}

/** The built-in kinds of builds. If two have the same score, the earlier one is tried first. */
export const builtInKinds: RuntimeDescriptor[] = [metal, cuda13, cuda12, rocm, sycl, vulkan, cpu]

/** Leaves the choice of GPUs to the user if the environment has any of the kind's variables. Pure. */
export function respectingEnvironment(kind: RuntimeDescriptor, env: NodeJS.ProcessEnv): RuntimeDescriptor {
  const { environment } = kind
  if (!environment) return kind
  return {
    ...kind,
    environment(hardware) {
      const variables = environment(hardware)
      return Object.keys(variables).some(name => env[name] !== undefined) ? {} : variables
    }
  }
}
