import { type Findings, ProbeFailure } from './findings.ts'
import type { Machine } from './inspected-machine.ts'
import type { Probe } from './probe.ts'

/** Name of a library that builds need → the files that hold it. */
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

/** Which of the libraries are among these files. */
export function librariesAmong(fileNames: Iterable<string>): string[] {
  const names = [...fileNames]
  return Object.keys(LIBRARIES).filter(library => names.some(name => LIBRARIES[library]!.test(name)))
}

const LDCONFIG_ARCH: Record<string, RegExp> = { x64: /x86-64/, arm64: /AArch64/i }

/** File names in `ldconfig -p`, of libraries for this architecture: systems may hold those of 32 bits too. */
export function parseLdconfig(text: string, arch: string): string[] {
  return text.split(/\r?\n/).flatMap(line => {
    const match = /^\s+(\S+) \(([^)]*)\) => /.exec(line)
    return match && (LDCONFIG_ARCH[arch]?.test(match[2]!) ?? true) ? [match[1]!] : []
  })
}

/** Folders of libraries; those of ROCm, oneAPI, WSL and NixOS are often not in ldconfig's list. */
function foldersOf({ platform, arch }: Machine): string[] {
  if (platform === 'win32') return ['/Windows/System32']
  if (platform === 'darwin') return ['/usr/local/lib', '/opt/homebrew/lib']
  const triplet = arch === 'arm64' ? 'aarch64-linux-gnu' : 'x86_64-linux-gnu'
  return [
    `/usr/lib/${triplet}`,
    `/lib/${triplet}`,
    '/usr/lib64',
    '/lib64',
    '/usr/lib',
    '/lib',
    '/usr/local/lib',
    '/usr/local/lib64',
    '/opt/rocm/lib',
    '/opt/intel/oneapi/redist/lib',
    '/opt/intel/oneapi/compiler/latest/lib',
    '/usr/local/cuda/lib64',
    '/usr/lib/wsl/lib',
    '/run/opengl-driver/lib'
  ]
}

export const libraries: Probe = {
  name: 'libraries',
  async find(machine): Promise<Findings> {
    const { files, platform, root, arch } = machine
    // The programs of this machine know nothing of a recording, but may be given its list.
    const place = root === '' ? [] : ['-C', `${root}/etc/ld.so.cache`]
    const listed =
      platform !== 'linux'
        ? []
        : await machine.run('ldconfig', ['-p', ...place]).then(
            ({ stdout }) => parseLdconfig(stdout, arch),
            (error: unknown) => {
              if (error instanceof ProbeFailure) return []
              throw error
            }
          )
    const inFolders = (await Promise.all(foldersOf(machine).map(folder => files.names(folder)))).flat()
    if (listed.length === 0 && inFolders.length === 0) throw new ProbeFailure('absent', 'no folder with libraries')
    const found = librariesAmong([...listed, ...inFolders])
    return { libraries: found, detail: found.length === 0 ? 'none of those that builds need' : found.join(', ') }
  }
}

/** Version in the words that the GNU C library holds of itself. */
export function glibcVersion(text: string): string | undefined {
  return /GNU C Library \([^)]*\) (?:stable|development) release version (\d{1,2}\.\d{1,3})/.exec(text)?.[1]
}

const PLACES = [
  '/lib/x86_64-linux-gnu/libc.so.6',
  '/lib/aarch64-linux-gnu/libc.so.6',
  '/usr/lib/x86_64-linux-gnu/libc.so.6',
  '/usr/lib/aarch64-linux-gnu/libc.so.6',
  '/lib64/libc.so.6',
  '/usr/lib64/libc.so.6',
  '/usr/lib/libc.so.6'
]

/** The version that Node runs on; only its own report tells it. */
function ownVersion(): string | undefined {
  const report = process.report as NodeJS.ProcessReport & { excludeNetwork?: boolean }
  const before = report.excludeNetwork
  // Without this, the report asks for the names of all network addresses, one by one.
  report.excludeNetwork = true
  try {
    return (report.getReport() as { header?: { glibcVersionRuntime?: string } }).header?.glibcVersionRuntime
  } finally {
    if (before !== undefined) report.excludeNetwork = before
  }
}

async function recordedVersion({ files }: Machine): Promise<string | undefined> {
  for (const place of PLACES) {
    const version = glibcVersion((await files.text(place)) ?? '')
    if (version !== undefined) return version
  }
  return undefined
}

/** Which C library programs run on: release builds need one that is new enough. */
export const cLibrary: Probe = {
  name: 'c-library',
  platforms: ['linux'],
  async find(machine): Promise<Findings> {
    const glibc = machine.root === '' ? ownVersion() : await recordedVersion(machine)
    if (glibc === undefined) throw new ProbeFailure('absent', 'no glibc; musl has no builds among the releases')
    return { glibc, detail: `glibc ${glibc}` }
  }
}
