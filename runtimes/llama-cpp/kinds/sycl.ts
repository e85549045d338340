import type { RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import {
  archiveNamed,
  BUILT_ON,
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

/** For Intel's cards with oneAPI installed. */
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
    const cards = relevantGpusOf('intel', hardware)
    if (cards.length === 0) return unfit(`${namesOf(all)}: no working driver.`, problems)
    const missing = [...problems]
    // The archives for Windows include oneAPI's libraries; those for Linux do not.
    const installed =
      platform === 'win32' ||
      cards.some(({ apis }) => apis.includes('sycl')) ||
      (hasLibrary(hardware, 'sycl') === true && hasLibrary(hardware, 'level-zero') !== false)
    if (!installed) {
      missing.push({
        what: "Intel's oneAPI and Level Zero, whose libraries are not in the archive, were not found.",
        fix:
          'Install intel-oneapi-runtime-libs (https://www.intel.com/oneapi) and libze-intel-gpu1 ' +
          '(https://dgpu-docs.intel.com)'
      })
    }
    const base = cards.some(({ type }) => type !== 'integrated') ? SCORES.sycl : SCORES.syclIntegrated
    return {
      score: scoreByCoverage(installed ? base : withoutLibrary(base), cards, hardware),
      reasons: [`It uses ${namesOf(cards)}.`, ...idleCards(cards, hardware)],
      missing,
      gpus: cards.map(({ id }) => id)
    }
  },
  // According to llama.cpp's documentation, half precision is mostly faster.
  archives: [
    archiveNamed('linux', 'x64', 'ubuntu-sycl-fp16-x64', { glibc: BUILT_ON.ubuntu2404 }),
    archiveNamed('linux', 'x64', 'ubuntu-sycl-fp32-x64', { glibc: BUILT_ON.ubuntu2404 }),
    archiveNamed('win32', 'x64', 'win-sycl-x64')
  ],
  usesDevice: ({ id }) => /^SYCL\d+$/i.test(id)
}
