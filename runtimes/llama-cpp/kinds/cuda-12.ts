import { cudaKind, cudaLibraries } from './cuda.ts'
import { SCORES } from './scores.ts'
import { BUILT_ON } from './systems.ts'

/** For drivers before 580 and for cards from Maxwell to Volta, which CUDA 13 no longer knows. */
export const cuda12 = cudaKind({
  major: 12,
  base: SCORES.cuda12,
  drivers: { linux: '525.60.13', win32: '527.41' },
  capability: '5.0',
  archives: [
    {
      platform: 'linux',
      arch: 'x64',
      archive: /^llama-b\d+-bin-ubuntu-cuda-(12)\.(\d+)-x64\.(?:tar\.gz|zip)$/,
      companion: cudaLibraries('ubuntu', 'x64'),
      glibc: BUILT_ON.ubuntu2404
    },
    {
      platform: 'linux',
      arch: 'arm64',
      archive: /^llama-b\d+-bin-ubuntu-cuda-(12)\.(\d+)-arm64\.(?:tar\.gz|zip)$/,
      companion: cudaLibraries('ubuntu', 'arm64'),
      glibc: BUILT_ON.ubuntu2404
    },
    {
      platform: 'win32',
      arch: 'x64',
      archive: /^llama-b\d+-bin-win-cuda-(12)\.(\d+)-x64\.(?:tar\.gz|zip)$/,
      companion: cudaLibraries('win', 'x64')
    }
  ]
})
