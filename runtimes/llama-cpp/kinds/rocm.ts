import type { Fit, RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Gpu } from '../../../core/contracts/hardware.ts'
import {
  archiveNamed,
  BUILT_ON,
  deviceNumbersOf,
  hasLibrary,
  idleCards,
  namesOf,
  relevantGpusOf,
  SCORES,
  scoreByCoverage,
  unfit,
  vendorProblems,
  withoutLibrary
} from './fit.ts'

/** The architectures of the official archives (`gpu_targets` in llama.cpp's release workflow). */
const RDNA = [
  ...['gfx1010', 'gfx1011', 'gfx1012', 'gfx1030', 'gfx1031', 'gfx1032', 'gfx1033', 'gfx1034', 'gfx1035', 'gfx1036'],
  ...['gfx1100', 'gfx1101', 'gfx1102', 'gfx1103', 'gfx1150', 'gfx1151', 'gfx1152', 'gfx1200', 'gfx1201']
]
const COMPILED_FOR: Record<string, readonly string[]> = {
  linux: ['gfx908', 'gfx90a', 'gfx942', 'gfx950', ...RDNA],
  win32: [...RDNA, 'gfx1153']
}

/** Those of them that AMD's own libraries (rocBLAS, hipBLASLt), which are not in the archives, have kernels for. */
const SUPPORTED_BY_AMD = [
  ...['gfx908', 'gfx90a', 'gfx942', 'gfx950'],
  ...['gfx1030', 'gfx1100', 'gfx1101', 'gfx1102', 'gfx1151', 'gfx1200', 'gfx1201']
]

/** The version to set in HSA_OVERRIDE_GFX_VERSION so that a card runs the code of a close relative. */
function overrideVersion(architecture: string): string | undefined {
  if (/^gfx103[1-6]$/.test(architecture)) return '10.3.0'
  return architecture === 'gfx1103' ? '11.0.0' : undefined
}

/** Names that only early drivers used. */
const EARLY_NAMES: Record<string, string> = { gfx940: 'gfx942', gfx941: 'gfx942' }

const INSTALL =
  'Install ROCm: https://rocm.docs.amd.com/projects/install-on-linux (Linux) or the HIP SDK of ' +
  'https://www.amd.com/en/developer/resources/rocm-hub/hip-sdk.html (Windows)'

const USE_VULKAN = 'Vulkan supports such cards and is chosen automatically'

type Grade = 'supported' | 'unknown' | 'unsupported' | 'foreign'

function gradeOf({ architecture }: Gpu, platform: string): Grade {
  if (architecture === undefined) return 'unknown'
  const name = EARLY_NAMES[architecture] ?? architecture
  if (!COMPILED_FOR[platform]?.includes(name)) return 'foreign'
  return SUPPORTED_BY_AMD.includes(name) ? 'supported' : 'unsupported'
}

/** The score of the best card. */
function baseOf(cards: readonly Gpu[], platform: string): number {
  return Math.max(
    ...cards.map(gpu => {
      const integrated = gpu.type === 'integrated'
      const grade = gradeOf(gpu, platform)
      if (grade === 'supported') return SCORES.rocm
      if (integrated) return SCORES.rocmUnsupportedIntegrated
      return grade === 'unknown' ? SCORES.rocmUnknown : SCORES.rocmUnsupported
    })
  )
}

function shortcomingOf(gpu: Gpu, platform: string): Fit['missing'] {
  const { name, architecture = '' } = gpu
  const grade = gradeOf(gpu, platform)
  if (EARLY_NAMES[architecture]) {
    return [{ what: `The driver reports ${name} as ${architecture}, an old name of gfx942.`, fix: INSTALL }]
  }
  if (grade === 'unknown') {
    return [{ what: `The architecture (gfx…) of ${name} is unknown.`, fix: 'Install rocminfo, which reports it' }]
  }
  if (grade === 'foreign') {
    return [{ what: `The ROCm archives of llama.cpp have no code for ${architecture} (${name}).`, fix: USE_VULKAN }]
  }
  if (grade === 'unsupported') {
    const version = platform === 'linux' ? overrideVersion(architecture) : undefined
    return [
      {
        what: `AMD's libraries mostly have no code for ${architecture} (${name}).`,
        fix: version
          ? `${USE_VULKAN}; to use ROCm anyway, set HSA_OVERRIDE_GFX_VERSION=${version} in corral's environment`
          : USE_VULKAN
      }
    ]
  }
  return []
}

/** For AMD's cards with ROCm installed. */
export const rocm: RuntimeDescriptor = {
  name: 'rocm',
  kind: 'rocm',
  title: 'ROCm (AMD)',
  fit(hardware) {
    const { platform, gpus } = hardware
    const all = gpus.filter(gpu => gpu.vendor === 'amd')
    const problems = vendorProblems('amd', hardware)
    if (all.length === 0) return unfit('No AMD GPU was found.', problems)
    if (platform !== 'linux' && platform !== 'win32') return unfit('ROCm is for Linux and Windows only.')
    const cards = relevantGpusOf('amd', hardware)
    if (cards.length === 0) return unfit(`${namesOf(all)}: no working driver.`, problems)
    const missing = [...problems, ...cards.flatMap(gpu => shortcomingOf(gpu, platform))]
    const served = cards.filter(gpu => gradeOf(gpu, platform) !== 'foreign')
    if (served.length === 0) return unfit(`ROCm cannot use ${namesOf(cards)}.`, missing)
    const installed = hasLibrary(hardware, 'hip') !== false || served.some(({ apis }) => apis.includes('rocm'))
    if (!installed) missing.push({ what: 'ROCm, whose libraries are not in the archive, was not found.', fix: INSTALL })
    const base = baseOf(served, platform)
    const architectures = [...new Set(served.flatMap(({ architecture }) => architecture ?? []))].join(', ')
    return {
      score: scoreByCoverage(installed ? base : withoutLibrary(base), served, hardware),
      reasons: [
        `It uses ${namesOf(served)}${architectures && ` (${architectures})`}.`,
        ...(base === SCORES.rocm ? [] : ['Vulkan is the safer choice for this card.']),
        ...idleCards(served, hardware)
      ],
      missing,
      gpus: served.map(({ id }) => id)
    }
  },
  archives: [
    archiveNamed('linux', 'x64', 'ubuntu-rocm-(\\d+)\\.(\\d+)-x64', { glibc: BUILT_ON.ubuntu2404 }),
    archiveNamed('win32', 'x64', 'win-rocm-(\\d+)\\.(\\d+)-x64'),
    // Its name until mid-2026.
    archiveNamed('win32', 'x64', 'win-hip-radeon-x64')
  ],
  environment(hardware): Record<string, string> {
    const working = hardware.gpus.filter(gpu => gpu.vendor === 'amd' && gpu.usable)
    const served = relevantGpusOf('amd', hardware).filter(gpu => gradeOf(gpu, hardware.platform) !== 'foreign')
    if (served.length === 0 || served.length === working.length) return {}
    // A card without code in the build (mostly integrated graphics) would crash the process.
    return { HIP_VISIBLE_DEVICES: deviceNumbersOf(served, working) }
  },
  usesDevice: ({ id }) => /^(?:ROCm|HIP)\d+$/i.test(id)
}
