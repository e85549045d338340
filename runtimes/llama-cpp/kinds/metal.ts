import type { RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import { archiveNamed, listNames, SCORES, unfit } from './scores.ts'

/** For Macs with Apple silicon. The archive for Intel Macs is built without Metal. */
export const metal: RuntimeDescriptor = {
  name: 'metal',
  kind: 'metal',
  title: 'Metal (Apple)',
  fit({ platform, arch, gpus, cpu }) {
    if (platform !== 'darwin') return unfit('Metal is for Macs only.')
    if (arch === 'arm64') {
      // Every such Mac supports Metal, even if its GPU was not detected.
      const own = gpus.filter(gpu => gpu.vendor === 'apple')
      return {
        score: SCORES.metal,
        reasons: [`It uses ${listNames(own) || cpu.model} and its unified memory.`],
        missing: [],
        gpus: own.map(({ id }) => id)
      }
    }
    return {
      score: SCORES.byChoice,
      reasons: [
        'On Intel Macs Metal is often slower than the processor and wrong on some cards; it is used only if chosen.'
      ],
      missing: [],
      gpus: gpus.filter(gpu => gpu.usable).map(({ id }) => id)
    }
  },
  archives: [archiveNamed('darwin', 'arm64', 'macos-arm64')],
  usesDevice: ({ id }) => /^(?:MTL|Metal)\d*$/i.test(id)
}
