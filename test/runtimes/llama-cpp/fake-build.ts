import { chmodSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { BuildCandidate, BuildRequest, BuildSource, RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import type { Gpu, Hardware, HardwareService } from '../../../core/contracts/hardware.ts'
import { programsIn } from '../../../runtimes/llama-cpp/programs.ts'
import { createRuntimes, type RuntimesDeps } from '../../../runtimes/llama-cpp/runtimes-service.ts'
import { verifyBuild } from '../../../runtimes/llama-cpp/verify-build.ts'
import { machine, nvidia } from './ranking/machines.ts'

/** A device as a CUDA build lists it. */
export const CUDA_DEVICE = '  CUDA0: NVIDIA H100 80GB HBM3 (81079 MiB, 80000 MiB free)'
export const VULKAN_DEVICE = '  Vulkan0: NVIDIA H100 80GB HBM3 (81079 MiB, 80000 MiB free)'

/** Returns a shell script for a llama-server that only reports its version and devices. */
export function fakeServer({
  version = '0.5.0-dev (build 1, commit de3ff81)',
  devices = ['  (none)'],
  complaints = [] as string[]
} = {}): string {
  const lines = (list: readonly string[]) => list.map(line => `'${line}'`).join(' ')
  return `#!/bin/sh
case "$1" in
  --version) echo "0.00.000.262 I srv  llama_server: initializing ..."; echo "version: ${version}" >&2;;
  --list-devices) ${complaints.length > 0 ? `printf '%s\\n' ${lines(complaints)} >&2; ` : ''}echo "Available devices:"; printf '%s\\n' ${lines(devices)};;
  *) exit 1;;
esac
`
}

/** Writes executable programs into a folder. */
export function writePrograms(directory: string, programs: Record<string, string>): string {
  mkdirSync(directory, { recursive: true })
  for (const [name, text] of Object.entries(programs)) {
    writeFileSync(join(directory, name), text)
    chmodSync(join(directory, name), 0o755)
  }
  return directory
}

export function candidateIn(directory: string, more: Partial<BuildCandidate> = {}): BuildCandidate {
  const executables = programsIn(directory)!
  return { id: 'made-1', kind: 'cpu', source: 'made', directory, executables, origin: 'a test', ...more }
}

export function source(name: string, provide: BuildSource['provide'], more: Partial<BuildSource> = {}): BuildSource {
  return { name, description: `test source ${name}`, provide, ...more }
}

/** Working servers by kind. */
export const WORKS: Record<string, string> = {
  'cuda-13': fakeServer({ devices: [CUDA_DEVICE] }),
  'cuda-12': fakeServer({ devices: [CUDA_DEVICE] }),
  vulkan: fakeServer({ devices: [VULKAN_DEVICE] }),
  cpu: fakeServer()
}

/** Creates a source that makes a build for each kind that it has a server for, and records requests. */
export function maker(
  directory: string,
  servers: Record<string, string | Error> = WORKS,
  name = 'made',
  more: Partial<BuildSource> = {}
) {
  const asked: string[] = []
  const provide = async ({ runtime, explain }: BuildRequest) => {
    asked.push(runtime.name)
    const server = servers[runtime.name]
    if (server instanceof Error) throw server
    if (server === undefined) {
      explain(`no ${runtime.name} here`)
      return undefined
    }
    const id = `${name}-${runtime.name}`
    const folder = writePrograms(join(directory, id), { 'llama-server': server })
    return candidateIn(folder, { id, kind: runtime.kind, runtime: runtime.name, source: name })
  }
  return { asked, source: source(name, provide, more) }
}

/** For tests that never convert. */
export async function noConverter(): Promise<never> {
  throw new Error('there is no converter here')
}

/** Creates a log that stores its messages. */
export function memoryLog() {
  const lines: string[] = []
  const warnings: string[] = []
  const write = (_: object, message: string) => {
    lines.push(message)
  }
  return {
    lines,
    warnings,
    debug() {},
    info: write,
    warn(_: object, message: string) {
      lines.push(message)
      warnings.push(message)
    }
  }
}

/** A machine without GPUs. */
export const plainMachine = machine([], {
  glibc: '2.36',
  cpu: { model: 'Test CPU', threads: 8, features: ['avx2', 'fma'] },
  libraries: ['libgomp']
})

export const H100: Gpu = {
  id: 'nvidia:0',
  ...nvidia('NVIDIA H100 80GB HBM3', '9.0', '580.95.05', '13.0', {
    driverName: 'nvidia',
    gib: 80,
    apis: ['cuda', 'vulkan']
  })
}

export const gpuMachine: Hardware = { ...plainMachine, gpus: [H100], libraries: ['libgomp', 'vulkan'] }

export function hardwareService(machine: Hardware | (() => Hardware)): HardwareService {
  const now = typeof machine === 'function' ? machine : () => machine
  let known: Hardware | undefined
  return {
    async detect() {
      known = now()
      return known
    },
    known: () => known,
    memory: async () => ({ host: { total: 0, available: 0 }, gpus: {} }),
    readings: async () => []
  }
}

function gpuKind(name: string, title: string, score: number, prefix: RegExp): RuntimeDescriptor {
  return {
    name,
    kind: name === 'vulkan' ? 'vulkan' : 'cuda',
    title,
    archives: [],
    fit({ gpus }) {
      const usable = gpus.filter(gpu => gpu.usable)
      if (usable.length === 0) {
        return { score: 0, reasons: [], missing: [{ what: 'no such GPU', fix: 'buy one' }], gpus: [] }
      }
      return { score, reasons: [`${usable[0]!.name} is there`], missing: [], gpus: usable.map(({ id }) => id) }
    },
    environment: () => ({ GGML_TEST_KIND: name }),
    usesDevice: ({ id }) => prefix.test(id)
  }
}

/** Kinds of builds for tests of the search. Each needs a usable GPU, except the last. The first is the best. */
export const testKinds: RuntimeDescriptor[] = [
  gpuKind('cuda-13', 'CUDA 13', 90, /^CUDA/),
  gpuKind('cuda-12', 'CUDA 12', 80, /^CUDA/),
  gpuKind('vulkan', 'Vulkan', 50, /^Vulkan/),
  {
    name: 'cpu',
    kind: 'cpu',
    title: 'CPU',
    archives: [],
    fit: () => ({ score: 10, reasons: ['it always works'], missing: [], gpus: [] }),
    usesDevice: () => false
  }
]

/** For tests that never use a release server. */
export const noReleases: RuntimesDeps['releases'] = {
  followsLatest: true,
  listing: () => Promise.reject(new Error('these tests use no releases')),
  find: () => Promise.reject(new Error('these tests use no releases')),
  fetch: () => Promise.reject(new Error('these tests use no releases'))
}

/**
 * Creates the `runtimes` service on a machine without GPUs, with its log. Builds are verified only by their own
 * reports.
 */
export function runtimesWith(directory: string, sources: BuildSource[], more: Partial<RuntimesDeps> = {}) {
  const log = memoryLog()
  return {
    log,
    ...createRuntimes({
      sources,
      kinds: testKinds,
      hardware: hardwareService(plainMachine),
      releases: noReleases,
      directory,
      log,
      engineSettings: { extraArguments: [], loadTimeout: 0, hangTimeout: 0, runDirectory: '' },
      verifyBuild: (candidate, options) => verifyBuild(candidate, options),
      findConverter: noConverter,
      ...more
    })
  }
}
