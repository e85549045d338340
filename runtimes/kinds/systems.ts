/**
 * The lowest glibc that programs start with which the release builds on each system. They need no more than the
 * functions they call, so it may lie below the system's own version.
 */
export const BUILT_ON = { ubuntu2204: '2.34', ubuntu2404: '2.38' } as const

/** How a package is installed, by the package managers that are common. */
export function installPackage(debian: string, fedora: string, arch: string): string {
  return `sudo apt install ${debian} (Debian, Ubuntu), sudo dnf install ${fedora} (Fedora), sudo pacman -S ${arch} (Arch)`
}
