import type { RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import { archiveNamed, BUILT_ON, SCORES } from './scores.ts'

/** Works everywhere: an archive has code for all generations of processors and selects it at startup. */
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
        ...(slow ? ['This processor has no AVX2, so answers will be slow.'] : [])
      ],
      missing: [],
      gpus: []
    }
  },
  archives: [
    archiveNamed('linux', 'x64', 'ubuntu-x64', { glibc: BUILT_ON.ubuntu2204 }),
    archiveNamed('linux', 'arm64', 'ubuntu-arm64', { glibc: BUILT_ON.ubuntu2404 }),
    archiveNamed('linux', 's390x', 'ubuntu-s390x', { glibc: BUILT_ON.ubuntu2404 }),
    archiveNamed('darwin', 'x64', 'macos-x64'),
    archiveNamed('darwin', 'arm64', 'macos-arm64'),
    archiveNamed('win32', 'x64', 'win-cpu-x64'),
    archiveNamed('win32', 'arm64', 'win-cpu-arm64')
  ],
  environment: ({ platform, arch }): Record<string, string> =>
    // The archive for Apple silicon includes Metal.
    platform === 'darwin' && arch === 'arm64' ? { GGML_METAL_DEVICES: '0' } : {},
  usesDevice: () => false
}
