import type { RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import { BUILT_ON, SCORES } from './fit.ts'

const ARCHIVES: [platform: NodeJS.Platform, arch: string, archive: RegExp, glibc?: string][] = [
  ['linux', 'x64', /^llama-b\d+-bin-ubuntu-x64\.(?:tar\.gz|zip)$/, BUILT_ON.ubuntu2204],
  ['linux', 'arm64', /^llama-b\d+-bin-ubuntu-arm64\.(?:tar\.gz|zip)$/, BUILT_ON.ubuntu2404],
  ['linux', 's390x', /^llama-b\d+-bin-ubuntu-s390x\.(?:tar\.gz|zip)$/, BUILT_ON.ubuntu2404],
  ['darwin', 'x64', /^llama-b\d+-bin-macos-x64\.(?:tar\.gz|zip)$/],
  ['darwin', 'arm64', /^llama-b\d+-bin-macos-arm64\.(?:tar\.gz|zip)$/],
  ['win32', 'x64', /^llama-b\d+-bin-win-cpu-x64\.(?:tar\.gz|zip)$/],
  ['win32', 'arm64', /^llama-b\d+-bin-win-cpu-arm64\.(?:tar\.gz|zip)$/]
]

/** Works everywhere: an archive holds the same code for all generations of processors and chooses among it at its start. */
export const cpu: RuntimeDescriptor = {
  name: 'cpu',
  kind: 'cpu',
  title: 'Processor only',
  fit({ arch, cpu: { model, features } }) {
    const slow = arch === 'x64' && features.length > 0 && !features.includes('avx2')
    return {
      score: SCORES.cpu,
      reasons: [
        `It works on every machine, here on ${model}.`,
        ...(slow ? ['This processor has no AVX2: answers will be slow.'] : [])
      ],
      missing: [],
      gpus: []
    }
  },
  archives: ARCHIVES.map(([platform, arch, archive, glibc]) => ({ platform, arch, archive, ...(glibc && { glibc }) })),
  environment: ({ platform, arch }): Record<string, string> =>
    // The archive for Apple silicon is the one with Metal.
    platform === 'darwin' && arch === 'arm64' ? { GGML_METAL_DEVICES: '0' } : {},
  usesDevice: () => false
}
