import type { Gpu, Hardware } from '../../../../core/contracts/hardware.ts'

const GIB = 1024 ** 3

export type Given = Partial<Omit<Gpu, 'driver'>> & {
  cuda?: string
  version?: string
  gib?: number
  driverName?: string
}

const OF_VENDOR: Partial<Record<Gpu['vendor'], Given>> = {
  nvidia: { apis: ['cuda'] },
  apple: { type: 'integrated', unifiedMemory: true, architecture: 'metal4', apis: ['metal'] }
}

/** Describes a card, with its driver's version and highest CUDA version if they are known. */
export function gpu(vendor: Gpu['vendor'], name: string, given: Given = {}): Omit<Gpu, 'id'> {
  const { cuda, version, gib, driverName, ...rest } = { ...OF_VENDOR[vendor], ...given }
  return {
    vendor,
    name,
    type: 'discrete',
    unifiedMemory: false,
    apis: [],
    usable: true,
    ...(gib === undefined ? {} : { totalMemory: gib * GIB }),
    ...(cuda || version || driverName
      ? { driver: { ...(driverName && { name: driverName }), ...(version && { version }), ...(cuda && { cuda }) } }
      : {}),
    ...rest
  }
}

/** Describes an NVIDIA card with its compute capability and the driver's version and highest CUDA version. */
export const nvidia = (name: string, architecture: string, version: string, cuda?: string, more: Given = {}) =>
  gpu('nvidia', name, { architecture, version, ...(cuda && { cuda }), ...more })

export const amd = (name: string, architecture: string | undefined, more: Given = {}) =>
  gpu('amd', name, { ...(architecture && { architecture }), ...more })

/** Describes a machine, by default a current Linux machine with all libraries. */
export function machine(gpus: Omit<Gpu, 'id'>[], more: Partial<Hardware> = {}): Hardware {
  const counts: Record<string, number> = {}
  return {
    platform: 'linux',
    arch: 'x64',
    ...(more.platform === undefined || more.platform === 'linux' ? { glibc: '2.41' } : {}),
    cpu: { model: 'A processor', cores: 8, threads: 16, features: ['sse42', 'avx', 'avx2', 'fma', 'f16c', 'bmi2'] },
    memory: { total: 64 * GIB, available: 48 * GIB },
    gpus: gpus.map(given => {
      const index = counts[given.vendor] ?? 0
      counts[given.vendor] = index + 1
      return { id: `${given.vendor}:${index}`, ...given }
    }),
    libraries: ['vulkan', 'hip', 'libgomp', 'openssl3'],
    problems: [],
    probes: [],
    ...more
  }
}

export const INTEGRATED = { type: 'integrated', unifiedMemory: true } as const

/** A machine whose installed libraries are unknown. */
export const UNKNOWN_SYSTEM: Partial<Hardware> = {
  glibc: undefined,
  libraries: [],
  probes: [{ probe: 'libraries', outcome: 'absent', duration: 1 }]
}

/** A problem that was found with the hardware. */
export const problem = (code: Hardware['problems'][number]['code'], subject: string, advice?: string) => ({
  problems: [{ code, subject, message: `${subject}: ${code}`, ...(advice && { advice }) }]
})
