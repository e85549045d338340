import type { RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import { namesOf, SCORES, unfit } from './fit.ts'

/** For Macs with Apple silicon. The archive for Intel Macs is built without Metal. */
export const metal: RuntimeDescriptor = {
  name: 'metal',
  kind: 'metal',
  title: 'Metal (Apple)',
  fit({ platform, arch, gpus, cpu }) {
    if (platform !== 'darwin') return unfit('Metal is for Macs only.')
    if (arch === 'arm64') {
      // Every such Mac has it, whether or not its graphics could be asked.
      const own = gpus.filter(gpu => gpu.vendor === 'apple')
      return {
        score: SCORES.metal,
        reasons: [`It uses ${namesOf(own) || cpu.model} and its unified memory.`],
        missing: [],
        gpus: own.map(({ id }) => id)
      }
    }
    return {
      score: SCORES.byChoice,
      reasons: [
        'On Intel Macs Metal is often slower than the processor, and wrong on some cards; it is used by choice only.'
      ],
      missing: [],
      gpus: gpus.filter(gpu => gpu.usable).map(({ id }) => id)
    }
  },
  archives: [{ platform: 'darwin', arch: 'arm64', archive: /^llama-b\d+-bin-macos-arm64\.(?:tar\.gz|zip)$/ }],
  usesDevice: ({ id }) => /^(?:MTL|Metal)\d*$/i.test(id)
}
