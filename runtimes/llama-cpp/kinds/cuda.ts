import type { Fit, RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Gpu, Hardware } from '../../../core/contracts/hardware.ts'
import {
  archivesOf,
  compareVersions,
  fitFor,
  listNames,
  SCORES,
  unfit,
  vendorProblems,
  visibleDevices
} from './scores.ts'

interface CudaKind {
  major: 12 | 13
  /** Score on a machine that has everything this kind needs. */
  base: number
  /** Oldest driver for this toolkit. */
  drivers: { linux: string; win32: string }
  /** Lowest compute capability that the toolkit compiles for. */
  capability: string
}

/** Drivers after 580 do not support cards below this compute capability. */
const NEW_DRIVERS_SINCE = '7.5'

function driverFix({ architecture }: Gpu): string {
  const old = architecture !== undefined && compareVersions(architecture, NEW_DRIVERS_SINCE) < 0
  return (
    `Install driver 580${old ? ', the last one for such cards,' : ' or newer'} and restart: sudo ubuntu-drivers install ` +
    '(Ubuntu), sudo apt install nvidia-driver (Debian), or https://www.nvidia.com/drivers; for a container, WSL or a ' +
    'virtual machine, on the host'
  )
}

function cudaKind({ major, base, drivers, capability }: CudaKind): RuntimeDescriptor {
  const title = `CUDA ${major}`

  function findFault(gpu: Gpu, platform: string): Fit['missing'][number] | undefined {
    const { name, driver, usable, architecture } = gpu
    if (architecture !== undefined && compareVersions(architecture, capability) < 0) {
      return { what: `${name} has compute capability ${architecture}; ${title} needs ${capability} or higher.` }
    }
    const fix = driverFix(gpu)
    if (!usable) return { what: `${name} has no working driver.`, fix }
    if (driver?.name && /nouveau|nvk|mesa/i.test(driver.name)) {
      return { what: `${name} uses the driver ${driver.name}, which does not support CUDA.`, fix }
    }
    const floor = platform === 'win32' ? drivers.win32 : drivers.linux
    // The CUDA version that the driver reports is more reliable than the driver's own version, because compatibility
    // libraries may be installed.
    const supported = driver?.cuda
      ? compareVersions(driver.cuda, String(major)) >= 0
      : !driver?.version || compareVersions(driver.version, floor) >= 0
    if (supported) return undefined
    const found = [
      driver?.version && `${driver.version} is installed`,
      driver?.cuda && `it supports CUDA up to ${driver.cuda}`
    ]
    return { what: `${title} needs the NVIDIA driver ${floor} or newer; ${found.filter(Boolean).join(' and ')}.`, fix }
  }

  const getUsed = ({ gpus, platform }: Hardware) =>
    gpus.filter(gpu => gpu.vendor === 'nvidia' && !findFault(gpu, platform))

  return {
    name: `cuda-${major}`,
    kind: 'cuda',
    title: `${title} (NVIDIA)`,
    fit(hardware) {
      const cards = hardware.gpus.filter(gpu => gpu.vendor === 'nvidia')
      const problems = vendorProblems('nvidia', hardware)
      if (cards.length === 0) return unfit('No NVIDIA GPU was found.', problems)
      // A hardware problem is the better explanation for a card that does not work.
      const explained = cards.filter(gpu => gpu.usable || problems.length === 0)
      const missing = [...problems, ...explained.flatMap(gpu => findFault(gpu, hardware.platform) ?? [])].filter(
        ({ what }, index, all) => all.findIndex(other => other.what === what) === index
      )
      const used = getUsed(hardware)
      if (used.length === 0) return unfit(`${title} cannot use ${listNames(cards)}.`, missing)
      const { driver } = used[0]!
      const details = [driver?.version && `driver ${driver.version}`, driver?.cuda && `CUDA up to ${driver.cuda}`]
      return fitFor(used, hardware, { base, missing, detail: details.filter(Boolean).join(', ') })
    },
    archives: archivesOf(`cuda-${major}`),
    accepts([, versionMajor, versionMinor], hardware) {
      const highest = getUsed(hardware).find(({ driver }) => driver?.cuda)?.driver?.cuda
      return highest === undefined || compareVersions(`${versionMajor}.${versionMinor}`, highest) <= 0
    },
    environment(hardware): Record<string, string> {
      const visible = visibleDevices('nvidia', getUsed(hardware), hardware)
      // A card without code in the toolkit would be listed and fail at its first computation. nvidia-smi, which lists
      // the cards, numbers them in PCI order. CUDA does so only with CUDA_DEVICE_ORDER.
      return visible === undefined ? {} : { CUDA_DEVICE_ORDER: 'PCI_BUS_ID', CUDA_VISIBLE_DEVICES: visible }
    },
    usesDevice: ({ id }) => /^CUDA\d+$/i.test(id)
  }
}

/** For cards since Turing with driver 580 or newer. */
export const cuda13 = cudaKind({
  major: 13,
  base: SCORES.cuda13,
  drivers: { linux: '580', win32: '580' },
  capability: '7.5'
})

/** For older drivers, and for cards from Maxwell to Volta, which CUDA 13 no longer supports. */
export const cuda12 = cudaKind({
  major: 12,
  base: SCORES.cuda12,
  drivers: { linux: '525.60.13', win32: '527.41' },
  capability: '5.0'
})
