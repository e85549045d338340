import { type Findings, type Machine, optionalOutput, type Probe, ProbeFailure } from './probe.ts'

const LIBRARIES: Record<string, RegExp> = {
  vulkan: /^(libvulkan\.so\.1|vulkan-1\.dll)$/i,
  'level-zero': /^(libze_loader\.so\.1|ze_loader\.dll)$/i,
  sycl: /^(libsycl\.so\.\d+|sycl\d+\.dll)$/i,
  hip: /^(libamdhip64\.so(\.\d+)?|amdhip64(_\d+)?\.dll)$/i,
  rocblas: /^(librocblas\.so(\.\d+)?|rocblas\.dll)$/i,
  hipblas: /^(libhipblas\.so(\.\d+)?|(lib)?hipblas\.dll)$/i,
  cuda: /^(libcuda\.so\.1|nvcuda\.dll)$/i,
  'cudart-12': /^(libcudart\.so\.12|cudart64_12\.dll)$/i,
  'cudart-13': /^(libcudart\.so\.13|cudart64_13\.dll)$/i,
  'cublas-12': /^(libcublas\.so\.12|cublas64_12\.dll)$/i,
  'cublas-13': /^(libcublas\.so\.13|cublas64_13\.dll)$/i,
  libgomp: /^libgomp\.so\.1$/,
  openssl3: /^(libssl\.so\.3|libssl-3(-x64|-arm64)?\.dll)$/i
}

export function librariesAmong(fileNames: Iterable<string>): string[] {
  const names = [...fileNames]
  return Object.keys(LIBRARIES).filter(library => names.some(name => LIBRARIES[library]!.test(name)))
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
  if (platform === 'win32') return ['/Windows/System32']
  if (platform === 'darwin') return ['/usr/local/lib', '/opt/homebrew/lib']
  const triplet = arch === 'arm64' ? 'aarch64-linux-gnu' : 'x86_64-linux-gnu'
  const common = '/usr/lib64 /lib64 /usr/lib /lib /usr/local/lib /usr/local/lib64'
  const vendors =
    '/opt/rocm/lib /opt/intel/oneapi/redist/lib /opt/intel/oneapi/compiler/latest/lib /usr/local/cuda/lib64'
  const others = '/usr/lib/wsl/lib /run/opengl-driver/lib'
  return [`/usr/lib/${triplet}`, `/lib/${triplet}`, ...`${common} ${vendors} ${others}`.split(' ')]
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
