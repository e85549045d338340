import type { ArchivePattern, Fit, RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Gpu, Hardware } from '../../../core/contracts/hardware.ts'
import {
  BUILT_ON,
  compareVersions,
  idleCards,
  majorOf,
  namesOf,
  numbersOf,
  SCORES,
  scoreByReach,
  unfit,
  vendorProblems
} from './fit.ts'

export interface CudaKind {
  /** First number of the toolkit's version. */
  major: number
  /** What it scores on a machine that has all it wants. */
  base: number
  /** Oldest driver that serves this toolkit, by platform. */
  drivers: { linux: string; win32: string }
  /** Lowest compute capability that the toolkit compiles for. */
  capability: string
  archives: readonly ArchivePattern[]
}

/** Cards below this compute capability are served by no driver after 580. */
const SERVED_BY_NEW_DRIVERS = '7.5'

/** How a driver is mended that does not serve a card, or too old a toolkit only. */
function driverFix({ architecture }: Gpu): string {
  const old = architecture !== undefined && compareVersions(architecture, SERVED_BY_NEW_DRIVERS) < 0
  return (
    `Install driver 580${old ? ', the last one for such cards,' : ' or newer'} and restart: sudo ubuntu-drivers install ` +
    '(Ubuntu), sudo apt install nvidia-driver (Debian), or https://www.nvidia.com/drivers; in a container, on WSL or in ' +
    "a virtual machine it is the host's"
  )
}

/** A kind of build for one major version of NVIDIA's CUDA toolkit. */
export function cudaKind({ major, base, drivers, capability, archives }: CudaKind): RuntimeDescriptor {
  const title = `CUDA ${major}`

  /** What a card lacks for good; undefined where nothing is known to be lacking. */
  function weaknessOf({ name, architecture }: Gpu): Fit['missing'][number] | undefined {
    if (architecture === undefined || compareVersions(architecture, capability) >= 0) return undefined
    return { what: `${name} has compute capability ${architecture}; ${title} needs ${capability} or higher.` }
  }

  /** What keeps a card's driver from serving this toolkit; undefined when nothing does. */
  function driverFault(gpu: Gpu, platform: string): Fit['missing'][number] | undefined {
    const { name, driver, usable } = gpu
    const fix = driverFix(gpu)
    if (!usable) return { what: `${name} does not work now: no driver serves it.`, fix }
    if (driver?.name && /nouveau|nvk|mesa/i.test(driver.name)) {
      return { what: `${name} runs on the driver ${driver.name}, which has no CUDA.`, fix }
    }
    const floor = platform === 'win32' ? drivers.win32 : drivers.linux
    // What the driver itself announces is surer than its number: libraries for newer toolkits can be put beside it.
    const served = driver?.cuda
      ? majorOf(driver.cuda) >= major
      : !driver?.version || compareVersions(driver.version, floor) >= 0
    if (served) return undefined
    const has = [
      driver?.version && `${driver.version} is installed`,
      driver?.cuda && `it serves CUDA ${driver.cuda} at most`
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
        // A problem that the hardware tells says better why a card does not work.
        ...cards
          .filter(gpu => gpu.usable || problems.length === 0)
          .flatMap(gpu => driverFault(gpu, hardware.platform) ?? [])
      ].filter(({ what }, index, all) => all.findIndex(other => other.what === what) === index)
      if (served.length === 0) return unfit(`${title} cannot use ${namesOf(cards)} now.`, missing)
      const { driver } = served[0]!
      const runs = [driver?.version && `driver ${driver.version}`, driver?.cuda && `CUDA up to ${driver.cuda}`]
      const on = runs.filter(Boolean).join(', ')
      return {
        score: scoreByReach(base, served, hardware),
        reasons: [`It uses ${namesOf(served)}${on && ` (${on})`}.`, ...idleCards(served, hardware)],
        missing,
        gpus: served.map(({ id }) => id)
      }
    },
    archives,
    accepts([, versionMajor, versionMinor], hardware) {
      const highest = servedBy(hardware).find(({ driver }) => driver?.cuda)?.driver?.cuda
      return highest === undefined || compareVersions(`${versionMajor}.${versionMinor}`, highest) <= 0
    },
    environment(hardware): Record<string, string> {
      const working = hardware.gpus.filter(gpu => gpu.vendor === 'nvidia' && gpu.usable)
      const served = servedBy(hardware)
      if (served.length === 0 || served.length === working.length) return {}
      // A card that the toolkit has no code for would be listed and fail at its first computation. nvidia-smi, where the
      // cards come from, counts them in the order of the bus; CUDA itself does so only when asked.
      return {
        CUDA_DEVICE_ORDER: 'PCI_BUS_ID',
        CUDA_VISIBLE_DEVICES: numbersOf(served, working)
      }
    },
    usesDevice: ({ id }) => /^CUDA\d+$/i.test(id)
  }
}

/** The archive with the toolkit's own libraries for the same version and platform; only Linux has the tag in its name. */
export function cudaLibraries(system: string, arch: string): (match: RegExpExecArray) => RegExp {
  return ([, major, minor]) =>
    new RegExp(`^cudart-llama-(?:b\\d+-)?bin-${system}-cuda-${major}\\.${minor}-${arch}\\.(?:tar\\.gz|zip)$`)
}

/** For cards since Turing with a driver of 580 or newer. */
export const cuda13 = cudaKind({
  major: 13,
  base: SCORES.cuda13,
  drivers: { linux: '580', win32: '580' },
  capability: '7.5',
  archives: [
    ...(['x64', 'arm64'] as const).map(arch => ({
      platform: 'linux' as const,
      arch,
      archive: new RegExp(`^llama-b\\d+-bin-ubuntu-cuda-(13)\\.(\\d+)-${arch}\\.(?:tar\\.gz|zip)$`),
      companion: cudaLibraries('ubuntu', arch),
      glibc: BUILT_ON.ubuntu2404
    })),
    ...(['x64', 'arm64'] as const).map(arch => ({
      platform: 'win32' as const,
      arch,
      archive: new RegExp(`^llama-b\\d+-bin-win-cuda-(13)\\.(\\d+)-${arch}\\.(?:tar\\.gz|zip)$`),
      companion: cudaLibraries('win', arch)
    }))
  ]
})

/** For drivers before 580 and for cards from Maxwell to Volta, which CUDA 13 no longer knows. */
export const cuda12 = cudaKind({
  major: 12,
  base: SCORES.cuda12,
  drivers: { linux: '525.60.13', win32: '527.41' },
  capability: '5.0',
  archives: [
    {
      platform: 'linux',
      arch: 'x64',
      archive: /^llama-b\d+-bin-ubuntu-cuda-(12)\.(\d+)-x64\.(?:tar\.gz|zip)$/,
      companion: cudaLibraries('ubuntu', 'x64'),
      glibc: BUILT_ON.ubuntu2404
    },
    {
      platform: 'linux',
      arch: 'arm64',
      archive: /^llama-b\d+-bin-ubuntu-cuda-(12)\.(\d+)-arm64\.(?:tar\.gz|zip)$/,
      companion: cudaLibraries('ubuntu', 'arm64'),
      glibc: BUILT_ON.ubuntu2404
    },
    {
      platform: 'win32',
      arch: 'x64',
      archive: /^llama-b\d+-bin-win-cuda-(12)\.(\d+)-x64\.(?:tar\.gz|zip)$/,
      companion: cudaLibraries('win', 'x64')
    }
  ]
})
