import type { Fit, RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Gpu, Hardware } from '../../../core/contracts/hardware.ts'
import {
  BUILT_ON,
  hasLibrary,
  idleCards,
  namesOf,
  numbersOf,
  relevantGpus,
  SCORES,
  scoreByReach,
  unfit,
  vendorProblems,
  withoutLibrary
} from './fit.ts'

/** What the official archives are compiled for, as llama.cpp's release workflow says (`gpu_targets`). */
const COMPILED_FOR: Record<string, readonly string[]> = {
  linux: [
    ...['gfx908', 'gfx90a', 'gfx942', 'gfx950'],
    ...['gfx1010', 'gfx1011', 'gfx1012'],
    ...['gfx1030', 'gfx1031', 'gfx1032', 'gfx1033', 'gfx1034', 'gfx1035', 'gfx1036'],
    ...['gfx1100', 'gfx1101', 'gfx1102', 'gfx1103'],
    ...['gfx1150', 'gfx1151', 'gfx1152'],
    ...['gfx1200', 'gfx1201']
  ],
  win32: [
    ...['gfx1010', 'gfx1011', 'gfx1012'],
    ...['gfx1030', 'gfx1031', 'gfx1032', 'gfx1033', 'gfx1034', 'gfx1035', 'gfx1036'],
    ...['gfx1100', 'gfx1101', 'gfx1102', 'gfx1103'],
    ...['gfx1150', 'gfx1151', 'gfx1152', 'gfx1153'],
    ...['gfx1200', 'gfx1201']
  ]
}

/** Of those, what AMD's own libraries (rocBLAS, hipBLASLt), which the archives do not hold, have kernels for. */
const SUPPORTED_BY_AMD = [
  ...['gfx908', 'gfx90a', 'gfx942', 'gfx950'],
  ...['gfx1030', 'gfx1100', 'gfx1101', 'gfx1102', 'gfx1151', 'gfx1200', 'gfx1201']
]

/** Near relatives whose code runs on a card when it is told to pass for one, by the card's architecture. */
function passesFor(architecture: string): string | undefined {
  if (/^gfx103[1-6]$/.test(architecture)) return '10.3.0'
  return architecture === 'gfx1103' ? '11.0.0' : undefined
}

/** What an early driver called it by a number that later ones do not use. */
const EARLY_NAMES: Record<string, string> = { gfx940: 'gfx942', gfx941: 'gfx942' }

const INSTALL =
  'Install ROCm: https://rocm.docs.amd.com/projects/install-on-linux (Linux) or the HIP SDK of ' +
  'https://www.amd.com/en/developer/resources/rocm-hub/hip-sdk.html (Windows)'

const SERVED_BY_VULKAN = 'Vulkan serves such cards, and is taken by itself'

type Grade = 'supported' | 'unknown' | 'unsupported' | 'foreign'

function gradeOf({ architecture }: Gpu, platform: string): Grade {
  if (architecture === undefined) return 'unknown'
  const name = EARLY_NAMES[architecture] ?? architecture
  if (!COMPILED_FOR[platform]?.includes(name)) return 'foreign'
  return SUPPORTED_BY_AMD.includes(name) ? 'supported' : 'unsupported'
}

/** The cards it is for: without the processor's own graphics where a card stands beside them. */
function cardsOf(hardware: Hardware): Gpu[] {
  return relevantGpus({ ...hardware, gpus: hardware.gpus.filter(gpu => gpu.vendor === 'amd') })
}

/** What the best of the cards that it can use lets it score. */
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
    return [
      { what: `The driver calls ${name} ${architecture}, as early ones did; newer ones say gfx942.`, fix: INSTALL }
    ]
  }
  if (grade === 'unknown') {
    return [{ what: `The architecture (gfx…) of ${name} is not known.`, fix: 'Install rocminfo, which tells it' }]
  }
  if (grade === 'foreign') {
    return [
      { what: `The ROCm archives of llama.cpp have no code for ${architecture} (${name}).`, fix: SERVED_BY_VULKAN }
    ]
  }
  if (grade === 'unsupported') {
    const version = platform === 'linux' ? passesFor(architecture) : undefined
    return [
      {
        what: `AMD's libraries mostly have no code for ${architecture} (${name}).`,
        fix: version
          ? `${SERVED_BY_VULKAN}; to use ROCm all the same, set HSA_OVERRIDE_GFX_VERSION=${version} in the environment of corral`
          : SERVED_BY_VULKAN
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
    const cards = cardsOf(hardware)
    if (cards.length === 0) return unfit(`No driver serves ${namesOf(all)} now.`, problems)
    const missing = [...problems, ...cards.flatMap(gpu => shortcomingOf(gpu, platform))]
    const served = cards.filter(gpu => gradeOf(gpu, platform) !== 'foreign')
    if (served.length === 0) return unfit(`ROCm cannot use ${namesOf(cards)}.`, missing)
    const installed = hasLibrary(hardware, 'hip') !== false || served.some(({ apis }) => apis.includes('rocm'))
    if (!installed)
      missing.push({ what: 'ROCm, whose libraries the archive does not hold, was not found.', fix: INSTALL })
    const base = baseOf(served, platform)
    const architectures = [...new Set(served.flatMap(({ architecture }) => architecture ?? []))].join(', ')
    return {
      score: scoreByReach(installed ? base : withoutLibrary(base), served, hardware),
      reasons: [
        `It uses ${namesOf(served)}${architectures && ` (${architectures})`}.`,
        ...(base === SCORES.rocm ? [] : ['Vulkan is the safer choice for such a card.']),
        ...idleCards(served, hardware)
      ],
      missing,
      gpus: served.map(({ id }) => id)
    }
  },
  archives: [
    {
      platform: 'linux',
      arch: 'x64',
      archive: /^llama-b\d+-bin-ubuntu-rocm-(\d+)\.(\d+)-x64\.(?:tar\.gz|zip)$/,
      glibc: BUILT_ON.ubuntu2404
    },
    { platform: 'win32', arch: 'x64', archive: /^llama-b\d+-bin-win-rocm-(\d+)\.(\d+)-x64\.(?:tar\.gz|zip)$/ },
    // Its name until the middle of 2026.
    { platform: 'win32', arch: 'x64', archive: /^llama-b\d+-bin-win-hip-radeon-x64\.(?:tar\.gz|zip)$/ }
  ],
  environment(hardware): Record<string, string> {
    const working = hardware.gpus.filter(gpu => gpu.vendor === 'amd' && gpu.usable)
    const served = cardsOf(hardware).filter(gpu => gradeOf(gpu, hardware.platform) !== 'foreign')
    if (served.length === 0 || served.length === working.length) return {}
    // HIP counts all of them; one without code in the build (mostly the processor's) would end the whole process.
    return { HIP_VISIBLE_DEVICES: numbersOf(served, working) }
  },
  usesDevice: ({ id }) => /^(?:ROCm|HIP)\d+$/i.test(id)
}
