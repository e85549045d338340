import type { Fit, RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Gpu } from '../../../core/contracts/hardware.ts'
import cards from './amd-cards.json' with { type: 'json' }
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

/**
 * By platform: the architectures of the official archives (`gpu_targets` in llama.cpp's release workflow). AMD's own
 * libraries, which are not in the archives, support fewer. `early` names are those that only early drivers used.
 */
const CARDS: { compiled: Record<string, string>; supported: string; early: Record<string, string> } = cards

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
  const name = CARDS.early[architecture] ?? architecture
  if (!CARDS.compiled[platform]?.split(' ').includes(name)) return 'foreign'
  return CARDS.supported.split(' ').includes(name) ? 'supported' : 'unsupported'
}

function getScore(gpu: Gpu, platform: string): number {
  const grade = getGrade(gpu, platform)
  if (grade === 'supported') return SCORES.rocm
  if (gpu.type === 'integrated') return SCORES.rocmUnsupportedIntegrated
  return grade === 'unknown' ? SCORES.rocmUnknown : SCORES.rocmUnsupported
}

function findShortcoming(gpu: Gpu, platform: string): Fit['missing'] {
  const { name, architecture = '' } = gpu
  if (CARDS.early[architecture]) {
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
