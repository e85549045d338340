import type { RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Gpu, Hardware } from '../../../core/contracts/hardware.ts'
import {
  BUILT_ON,
  hasLibrary,
  idleCards,
  namesOf,
  relevantGpus,
  SCORES,
  scoreByReach,
  unfit,
  vendorProblems,
  withoutLibrary
} from './fit.ts'

function cardsOf(hardware: Hardware): Gpu[] {
  return relevantGpus({ ...hardware, gpus: hardware.gpus.filter(gpu => gpu.vendor === 'intel') })
}

/** For Intel's cards where oneAPI is installed. */
export const sycl: RuntimeDescriptor = {
  name: 'sycl',
  kind: 'sycl',
  title: 'SYCL (Intel)',
  fit(hardware) {
    const { platform, gpus } = hardware
    const all = gpus.filter(gpu => gpu.vendor === 'intel')
    const problems = vendorProblems('intel', hardware)
    if (all.length === 0) return unfit('No Intel GPU was found.', problems)
    if (platform !== 'linux' && platform !== 'win32') return unfit('SYCL is for Linux and Windows only.')
    const cards = cardsOf(hardware)
    if (cards.length === 0) return unfit(`No driver serves ${namesOf(all)} now.`, problems)
    const missing = [...problems]
    // The archives for Windows hold oneAPI's libraries; those for Linux do not.
    const installed =
      platform === 'win32' ||
      cards.some(({ apis }) => apis.includes('sycl')) ||
      (hasLibrary(hardware, 'sycl') === true && hasLibrary(hardware, 'level-zero') !== false)
    if (!installed) {
      missing.push({
        what: "Intel's oneAPI and Level Zero, whose libraries the archive does not hold, were not found.",
        fix:
          'Install intel-oneapi-runtime-libs (https://www.intel.com/oneapi) and libze-intel-gpu1 ' +
          '(https://dgpu-docs.intel.com)'
      })
    }
    const base = cards.some(({ type }) => type !== 'integrated') ? SCORES.sycl : SCORES.syclIntegrated
    return {
      score: scoreByReach(installed ? base : withoutLibrary(base), cards, hardware),
      reasons: [`It uses ${namesOf(cards)}.`, ...idleCards(cards, hardware)],
      missing,
      gpus: cards.map(({ id }) => id)
    }
  },
  // llama.cpp's documentation says that half precision is faster in most cases.
  archives: [
    ...['fp16', 'fp32'].map(precision => ({
      platform: 'linux' as const,
      arch: 'x64',
      archive: new RegExp(`^llama-b\\d+-bin-ubuntu-sycl-${precision}-x64\\.(?:tar\\.gz|zip)$`),
      glibc: BUILT_ON.ubuntu2404
    })),
    { platform: 'win32', arch: 'x64', archive: /^llama-b\d+-bin-win-sycl-x64\.(?:tar\.gz|zip)$/ }
  ],
  usesDevice: ({ id }) => /^SYCL\d+$/i.test(id)
}
