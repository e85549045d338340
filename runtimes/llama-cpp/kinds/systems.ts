import type { Hardware } from '../../../core/contracts/hardware.ts'

/**
 * The lowest glibc that programs start with which the release builds on each system. They need no more than the
 * functions they call, so it may lie below the system's own version.
 */
export const BUILT_ON = { ubuntu2204: '2.34', ubuntu2404: '2.38' } as const

/** How a package is installed, by the package managers that are common. */
export function installPackage(debian: string, fedora: string, arch: string): string {
  return `sudo apt install ${debian} (Debian, Ubuntu), sudo dnf install ${fedora} (Fedora), sudo pacman -S ${arch} (Arch)`
}

/** Whether anybody could look which libraries there are: of recordings of other machines they are often missing. */
export function knowsLibraries({ probes }: Hardware): boolean {
  return probes.every(({ probe, outcome }) => probe !== 'libraries' || outcome === 'ok')
}

/** Whether this system has one of the libraries; undefined where nobody knows. */
export function hasLibrary(hardware: Hardware, ...names: string[]): boolean | undefined {
  if (names.some(name => hardware.libraries.includes(name))) return true
  return knowsLibraries(hardware) ? false : undefined
}
