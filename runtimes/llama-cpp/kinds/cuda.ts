import type { ArchivePattern, Fit, RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Gpu, Hardware } from '../../../core/contracts/hardware.ts'
import {
  archiveNamed,
  BUILT_ON,
  compareVersions,
  deviceNumbersOf,
  idleCards,
  majorOf,
  namesOf,
  SCORES,
  scoreByCoverage,
  unfit,
  vendorProblems
} from './fit.ts'

interface CudaKind {
  /** Major version of the toolkit. */
  major: number
  /** Score on a machine that has everything it needs. */
  base: number
  /** Oldest driver for this toolkit by platform. */
  drivers: { linux: string; win32: string }
  /** Lowest compute capability that the toolkit compiles for. */
  capability: string
  /** Platforms and architectures with release archives. */
  platforms: ['linux' | 'win32', string][]
}

/** Drivers after 580 support no cards below this compute capability. */
const NEW_DRIVERS_SINCE = '7.5'

/** How to fix a driver that does not support a card, or is too old. */
function driverFix({ architecture }: Gpu): string {
  const old = architecture !== undefined && compareVersions(architecture, NEW_DRIVERS_SINCE) < 0
  return (
    `Install driver 580${old ? ', the last one for such cards,' : ' or newer'} and restart: sudo ubuntu-drivers install ` +
    '(Ubuntu), sudo apt install nvidia-driver (Debian), or https://www.nvidia.com/drivers; for a container, WSL or a ' +
    'virtual machine, on the host'
  )
}

/** A kind of build for one major version of NVIDIA's CUDA toolkit. */
function cudaKind({ major, base, drivers, capability, platforms }: CudaKind): RuntimeDescriptor {
  const title = `CUDA ${major}`

  /** What a card itself lacks, if anything. */
  function weaknessOf({ name, architecture }: Gpu): Fit['missing'][number] | undefined {
    if (architecture === undefined || compareVersions(architecture, capability) >= 0) return undefined
    return { what: `${name} has compute capability ${architecture}; ${title} needs ${capability} or higher.` }
  }

  /** Why a card's driver does not support this toolkit, if so. */
  function driverFault(gpu: Gpu, platform: string): Fit['missing'][number] | undefined {
    const { name, driver, usable } = gpu
    const fix = driverFix(gpu)
    if (!usable) return { what: `${name} has no working driver.`, fix }
    if (driver?.name && /nouveau|nvk|mesa/i.test(driver.name)) {
      return { what: `${name} uses the driver ${driver.name}, which does not support CUDA.`, fix }
    }
    const floor = platform === 'win32' ? drivers.win32 : drivers.linux
    // The CUDA version that the driver reports is more reliable than its own: compatibility libraries may be installed.
    const served = driver?.cuda
      ? majorOf(driver.cuda) >= major
      : !driver?.version || compareVersions(driver.version, floor) >= 0
    if (served) return undefined
    const has = [
      driver?.version && `${driver.version} is installed`,
      driver?.cuda && `it supports CUDA up to ${driver.cuda}`
    ]
    return {
      what: `${title} needs the NVIDIA driver ${floor} or newer; ${has.filter(Boolean).join(' and ')}.`,
      fix
    }
  }

  const servedBy = ({ gpus, platform }: Hardware) =>
    gpus.filter(gpu => gpu.vendor === 'nvidia' && !weaknessOf(gpu) && !driverFault(gpu, platform))

  return {
    name: `cuda-${major}`,
    kind: 'cuda',
    title: `${title} (NVIDIA)`,
    fit(hardware) {
      const cards = hardware.gpus.filter(gpu => gpu.vendor === 'nvidia')
      const problems = vendorProblems('nvidia', hardware)
      if (cards.length === 0) return unfit('No NVIDIA GPU was found.', problems)
      const served = servedBy(hardware)
      const missing = [
        ...problems,
        ...cards.flatMap(gpu => weaknessOf(gpu) ?? []),
        // A hardware problem explains better why a card does not work.
        ...cards
          .filter(gpu => gpu.usable || problems.length === 0)
          .flatMap(gpu => driverFault(gpu, hardware.platform) ?? [])
      ].filter(({ what }, index, all) => all.findIndex(other => other.what === what) === index)
      if (served.length === 0) return unfit(`${title} cannot use ${namesOf(cards)}.`, missing)
      const { driver } = served[0]!
      const runs = [driver?.version && `driver ${driver.version}`, driver?.cuda && `CUDA up to ${driver.cuda}`]
      const on = runs.filter(Boolean).join(', ')
      return {
        score: scoreByCoverage(base, served, hardware),
        reasons: [`It uses ${namesOf(served)}${on && ` (${on})`}.`, ...idleCards(served, hardware)],
        missing,
        gpus: served.map(({ id }) => id)
      }
    },
    archives: platforms.map(([platform, arch]) => cudaArchives(major, platform, arch)),
    accepts([, versionMajor, versionMinor], hardware) {
      const highest = servedBy(hardware).find(({ driver }) => driver?.cuda)?.driver?.cuda
      return highest === undefined || compareVersions(`${versionMajor}.${versionMinor}`, highest) <= 0
    },
    environment(hardware): Record<string, string> {
      const working = hardware.gpus.filter(gpu => gpu.vendor === 'nvidia' && gpu.usable)
      const served = servedBy(hardware)
      if (served.length === 0 || served.length === working.length) return {}
      // A card without code in the toolkit would be listed and fail at its first computation. nvidia-smi, which lists the
      // cards, counts them in PCI order; CUDA does so only with CUDA_DEVICE_ORDER.
      return {
        CUDA_DEVICE_ORDER: 'PCI_BUS_ID',
        CUDA_VISIBLE_DEVICES: deviceNumbersOf(served, working)
      }
    },
    usesDevice: ({ id }) => /^CUDA\d+$/i.test(id)
  }
}

/** The archives of one version, each with a companion archive of the toolkit's libraries, whose name may lack the tag. */
function cudaArchives(major: number, platform: 'linux' | 'win32', arch: string): ArchivePattern {
  const system = platform === 'linux' ? 'ubuntu' : 'win'
  return archiveNamed(platform, arch, `${system}-cuda-(${major})\\.(\\d+)-${arch}`, {
    companion: ([, , minor]) =>
      new RegExp(`^cudart-llama-(?:b\\d+-)?bin-${system}-cuda-${major}\\.${minor}-${arch}\\.(?:tar\\.gz|zip)$`),
    ...(platform === 'linux' && { glibc: BUILT_ON.ubuntu2404 })
  })
}

/** For cards since Turing with driver 580 or newer. */
export const cuda13 = cudaKind({
  major: 13,
  base: SCORES.cuda13,
  drivers: { linux: '580', win32: '580' },
  capability: '7.5',
  platforms: [
    ['linux', 'x64'],
    ['linux', 'arm64'],
    ['win32', 'x64'],
    ['win32', 'arm64']
  ]
})

/** For older drivers, and for cards from Maxwell to Volta, which CUDA 13 no longer supports. */
export const cuda12 = cudaKind({
  major: 12,
  base: SCORES.cuda12,
  drivers: { linux: '525.60.13', win32: '527.41' },
  capability: '5.0',
  platforms: [
    ['linux', 'x64'],
    ['linux', 'arm64'],
    ['win32', 'x64']
  ]
})
