import type { RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import { archiveNamed, BUILT_ON, cardsFor, fitFor, hasLibrary, SCORES } from './scores.ts'

/** For Intel's cards with oneAPI installed. */
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
  // According to llama.cpp's documentation, half precision is mostly faster.
  archives: [
    archiveNamed('linux', 'x64', 'ubuntu-sycl-fp16-x64', { glibc: BUILT_ON.ubuntu2404 }),
    archiveNamed('linux', 'x64', 'ubuntu-sycl-fp32-x64', { glibc: BUILT_ON.ubuntu2404 }),
    archiveNamed('win32', 'x64', 'win-sycl-x64')
  ],
  usesDevice: ({ id }) => /^SYCL\d+$/i.test(id)
}
