import { cudaKind, cudaLibraries } from './cuda.ts'
import { SCORES } from './scores.ts'
import { BUILT_ON } from './systems.ts'

/** For cards since Turing with a driver of 580 or newer. */
export const cuda13 = cudaKind({
  major: 13,
  base: SCORES.cuda13,
  drivers: { linux: '580', win32: '580' },
  capability: '7.5',
  archives: [
    ...(['x64', 'arm64'] as const).map(arch => ({
      platform: 'linux' as const,
      arch,
      archive: new RegExp(`^llama-b\\d+-bin-ubuntu-cuda-(13)\\.(\\d+)-${arch}\\.(?:tar\\.gz|zip)$`),
      companion: cudaLibraries('ubuntu', arch),
      glibc: BUILT_ON.ubuntu2404
    })),
    ...(['x64', 'arm64'] as const).map(arch => ({
      platform: 'win32' as const,
      arch,
      archive: new RegExp(`^llama-b\\d+-bin-win-cuda-(13)\\.(\\d+)-${arch}\\.(?:tar\\.gz|zip)$`),
      companion: cudaLibraries('win', arch)
    }))
  ]
})
