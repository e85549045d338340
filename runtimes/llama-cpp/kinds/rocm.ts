import type { Fit, RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Gpu } from '../../../core/contracts/hardware.ts'
import {
  archivesOf,
  cardsFor,
  fitFor,
  hasLibrary,
  listNames,
  relevantVendorGpus,
  SCORES,
  unfit,
  visibleDevices
} from './scores.ts'

/** The architectures of the official archives (`gpu_targets` in llama.cpp's release workflow). */
const CDNA = 'gfx908 gfx90a gfx942 gfx950'
const RDNA =
  'gfx1010 gfx1011 gfx1012 gfx1030 gfx1031 gfx1032 gfx1033 gfx1034 gfx1035 gfx1036 gfx1100 gfx1101 gfx1102 gfx1103 ' +
  'gfx1150 gfx1151 gfx1152 gfx1200 gfx1201'
const COMPILED_FOR: Record<string, string> = { linux: `${CDNA} ${RDNA}`, win32: `${RDNA} gfx1153` }

/** The architectures that AMD's own libraries support. The archives do not contain these libraries. */
const SUPPORTED_BY_AMD = `${CDNA} gfx1030 gfx1100 gfx1101 gfx1102 gfx1151 gfx1200 gfx1201`

/** Names that only early drivers used. */
const EARLY_NAMES: Record<string, string> = { gfx940: 'gfx942', gfx941: 'gfx942' }

const INSTALL =
  'Install ROCm: https://rocm.docs.amd.com/projects/install-on-linux (Linux) or the HIP SDK of ' +
  'https://www.amd.com/en/developer/resources/rocm-hub/hip-sdk.html (Windows)'

const USE_VULKAN = 'Vulkan supports such cards and is chosen automatically'

/** Returns a value for HSA_OVERRIDE_GFX_VERSION with which a card runs the code of a close relative. */
function overrideVersion(architecture: string): string | undefined {
  if (/^gfx103[1-6]$/.test(architecture)) return '10.3.0'
  return architecture === 'gfx1103' ? '11.0.0' : undefined
}

/** `foreign`: the archives have no code for the card. `unsupported`: AMD's libraries have none. */
type Grade = 'supported' | 'unknown' | 'unsupported' | 'foreign'

function getGrade({ architecture }: Gpu, platform: string): Grade {
  if (architecture === undefined) return 'unknown'
  const name = EARLY_NAMES[architecture] ?? architecture
  if (!COMPILED_FOR[platform]?.split(' ').includes(name)) return 'foreign'
  return SUPPORTED_BY_AMD.split(' ').includes(name) ? 'supported' : 'unsupported'
}

function getScore(gpu: Gpu, platform: string): number {
  const grade = getGrade(gpu, platform)
  if (grade === 'supported') return SCORES.rocm
  if (gpu.type === 'integrated') return SCORES.rocmUnsupportedIntegrated
  return grade === 'unknown' ? SCORES.rocmUnknown : SCORES.rocmUnsupported
}

function findShortcoming(gpu: Gpu, platform: string): Fit['missing'] {
  const { name, architecture = '' } = gpu
  if (EARLY_NAMES[architecture]) {
    return [{ what: `The driver reports ${name} as ${architecture}, an old name of gfx942.`, fix: INSTALL }]
  }
  const version = platform === 'linux' ? overrideVersion(architecture) : undefined
  const override = `; to use ROCm anyway, set HSA_OVERRIDE_GFX_VERSION=${version} in corral's environment`
  const shortcomings: Record<Grade, Fit['missing']> = {
    supported: [],
    unknown: [{ what: `The architecture (gfx…) of ${name} is unknown.`, fix: 'Install rocminfo, which reports it' }],
    foreign: [{ what: `The ROCm archives of llama.cpp have no code for ${architecture} (${name}).`, fix: USE_VULKAN }],
    unsupported: [
      {
        what: `AMD's libraries mostly have no code for ${architecture} (${name}).`,
        fix: version ? USE_VULKAN + override : USE_VULKAN
      }
    ]
  }
  return shortcomings[getGrade(gpu, platform)]
}

export const rocm: RuntimeDescriptor = {
  name: 'rocm',
  kind: 'rocm',
  title: 'ROCm (AMD)',
  fit(hardware) {
    const { platform } = hardware
    const found = cardsFor({ vendor: 'amd', brand: 'AMD', title: 'ROCm' }, hardware)
    if ('unfit' in found) return found.unfit
    const { cards, problems } = found
    const missing = [...problems, ...cards.flatMap(gpu => findShortcoming(gpu, platform))]
    const used = cards.filter(gpu => getGrade(gpu, platform) !== 'foreign')
    if (used.length === 0) return unfit(`ROCm cannot use ${listNames(cards)}.`, missing)
    const library = hasLibrary(hardware, 'hip') !== false || used.some(({ apis }) => apis.includes('rocm'))
    if (!library) missing.push({ what: 'ROCm, whose libraries are not in the archive, was not found.', fix: INSTALL })
    const base = Math.max(...used.map(gpu => getScore(gpu, platform)))
    const detail = [...new Set(used.flatMap(({ architecture }) => architecture ?? []))].join(', ')
    const reasons = base === SCORES.rocm ? [] : ['Vulkan is the safer choice for this card.']
    return fitFor(used, hardware, { base, library, missing, detail, reasons })
  },
  archives: archivesOf('rocm'),
  environment(hardware): Record<string, string> {
    const used = relevantVendorGpus('amd', hardware).filter(gpu => getGrade(gpu, hardware.platform) !== 'foreign')
    const visible = visibleDevices('amd', used, hardware)
    // A card without code in the build (mostly integrated graphics) would crash the process.
    return visible === undefined ? {} : { HIP_VISIBLE_DEVICES: visible }
  },
  usesDevice: ({ id }) => /^(?:ROCm|HIP)\d+$/i.test(id)
}
