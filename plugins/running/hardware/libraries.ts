import LIBRARIES from './libraries.json' with { type: 'json' }
import { type Findings, type Machine, optionalOutput, type Probe, ProbeFailure } from './probe.ts'

export function librariesAmong(fileNames: Iterable<string>): string[] {
  const names = [...fileNames]
  const patterns = Object.entries(LIBRARIES.files).map(([library, pattern]) => ({
    library,
    pattern: new RegExp(pattern, 'i')
  }))
  return patterns.filter(({ pattern }) => names.some(name => pattern.test(name))).map(({ library }) => library)
}

const LDCONFIG_ARCH: Record<string, RegExp> = { x64: /x86-64/, arm64: /AArch64/i }

/** Parses `ldconfig -p` into file names of libraries for this architecture, without 32-bit libraries. */
export function parseLdconfig(text: string, arch: string): string[] {
  return text.split(/\r?\n/).flatMap(line => {
    const match = /^\s+(\S+) \(([^)]*)\) => /.exec(line)
    return match && (LDCONFIG_ARCH[arch]?.test(match[2]!) ?? true) ? [match[1]!] : []
  })
}

/** Lists library folders. The folders of ROCm, oneAPI, WSL and NixOS are often missing from ldconfig's list. */
function listFolders({ platform, arch }: Machine): string[] {
  const triplet = arch === 'arm64' ? 'aarch64-linux-gnu' : 'x86_64-linux-gnu'
  const folders = (LIBRARIES.folders as Record<string, string[]>)[platform] ?? LIBRARIES.folders.linux
  return folders.map(folder => folder.replace('{triplet}', triplet))
}

export const libraries: Probe = {
  name: 'libraries',
  async find(machine): Promise<Findings> {
    const { files, platform, root, arch } = machine
    // A recording has a cache file of its own.
    const cache = root === '' ? [] : ['-C', `${root}/etc/ld.so.cache`]
    const printed = platform === 'linux' ? await optionalOutput(machine, 'ldconfig', '-p', ...cache) : ''
    const listed = parseLdconfig(printed, arch)
    const inFolders = (await Promise.all(listFolders(machine).map(folder => files.names(folder)))).flat()
    if (listed.length === 0 && inFolders.length === 0) throw new ProbeFailure('absent', 'no library folders')
    const found = librariesAmong([...listed, ...inFolders])
    return {
      libraries: found,
      detail: found.length === 0 ? 'none of the libraries that builds need' : found.join(', ')
    }
  }
}

export function glibcVersion(text: string): string | undefined {
  return /GNU C Library \([^)]*\) (?:stable|development) release version (\d{1,2}\.\d{1,3})/.exec(text)?.[1]
}

/** Reads the glibc version that Node.js runs on from its diagnostic report. */
function ownVersion(): string | undefined {
  const report = process.report as NodeJS.ProcessReport & { excludeNetwork?: boolean }
  // Otherwise the report looks up the names of all network addresses.
  report.excludeNetwork = true
  return (report.getReport() as { header?: { glibcVersionRuntime?: string } }).header?.glibcVersionRuntime
}

async function recordedVersion(machine: Machine): Promise<string | undefined> {
  for (const folder of listFolders(machine)) {
    const version = glibcVersion((await machine.files.text(`${folder}/libc.so.6`)) ?? '')
    if (version !== undefined) return version
  }
  return undefined
}

/** Finds the version of the C library. Release builds need a recent glibc. */
export const cLibrary: Probe = {
  name: 'c-library',
  platforms: ['linux'],
  async find(machine): Promise<Findings> {
    const glibc = machine.root === '' ? ownVersion() : await recordedVersion(machine)
    if (glibc === undefined) throw new ProbeFailure('absent', 'no glibc; llama.cpp has no releases for musl')
    return { glibc, detail: `glibc ${glibc}` }
  }
}
