import { type Static, Type } from 'typebox'
import { Flag, Group, Integer, Text, Texts } from '../http/request-fields.ts'

/* The hardware of a machine. Sizes are bytes. Unknown values are absent, never 0. */

export const HardwareProblemSchema = Group(
  'Why a device that is present cannot be used, or is slower than it could be',
  {
    code: Type.Enum(
      [
        'driver_mismatch',
        'driver_not_loaded',
        'driver_too_old',
        'no_device',
        'no_permission',
        'partitioned',
        'probe_failed'
      ],
      { description: 'Stable' }
    ),
    subject: Text('The device or program concerned'),
    message: Text('What is wrong'),
    advice: Type.Optional(Text('How to fix it, with the command if there is one'))
  }
)
export type HardwareProblem = Static<typeof HardwareProblemSchema>

export const GpuSchema = Type.Object({
  id: Text('Unique on this machine, such as nvidia:0'),
  vendor: Type.Enum(['nvidia', 'amd', 'intel', 'apple', 'qualcomm', 'other'], { description: 'Manufacturer' }),
  name: Text('Human-readable name'),
  type: Type.Enum(['discrete', 'integrated', 'virtual', 'unknown'], {
    description: 'discrete: a separate card; integrated: part of the processor; virtual: passed through by a hypervisor'
  }),
  pciId: Type.Optional(Text('PCI device id, such as 0x73df')),
  pciBus: Type.Optional(Text('PCI address such as 0000:01:00.0, in lower case')),
  architecture: Type.Optional(
    Text('Compute capability such as 8.9 (NVIDIA), gfx1100 (AMD; without feature suffixes), metal4 (Apple)')
  ),
  unifiedMemory: Flag('Whether it shares the main memory of the machine'),
  totalMemory: Type.Optional(Integer('Bytes available to models when nothing else uses the GPU')),
  freeMemory: Type.Optional(Integer('Bytes that were free when it was detected')),
  driver: Type.Optional(
    Group('The driver that is bound to it', {
      name: Type.Optional(Text('Such as nvidia or amdgpu')),
      version: Type.Optional(Text('Such as 580.95.05')),
      cuda: Type.Optional(Text('Highest CUDA version that it supports, such as 13.0'))
    })
  ),
  apis: Type.Array(Type.Enum(['cuda', 'rocm', 'vulkan', 'metal', 'sycl']), {
    description: 'APIs through which it was reachable'
  }),
  usable: Flag('Whether it has a working driver now')
})
export type Gpu = Static<typeof GpuSchema>

export const ProbeReportSchema = Type.Object({
  probe: Text('Name of the source, such as nvidia-smi'),
  outcome: Type.Enum(['ok', 'absent', 'failed', 'timed_out', 'unreadable'], {
    description: 'absent: no such program or file; unreadable: its output could not be parsed'
  }),
  detail: Type.Optional(Text('The reason, in one line')),
  duration: Type.Number({ description: 'Milliseconds' })
})
export type ProbeReport = Static<typeof ProbeReportSchema>

export const HardwareSchema = Group('The hardware of this machine', {
  platform: Text('linux, darwin or win32'),
  arch: Text('As Node.js names it: x64, arm64, …'),
  glibc: Type.Optional(Text('Version of the C library if it is glibc')),
  cpu: Group('The processor', {
    model: Text('Model name'),
    cores: Type.Optional(Integer('Number of physical cores')),
    threads: Integer('Number of hardware threads'),
    features: Texts(
      'Instruction sets that llama.cpp can use: sse42, avx, avx2, fma, f16c, bmi2, avx_vnni, avx512f, asimddp, …'
    )
  }),
  memory: Group('Main memory', {
    total: Integer('Bytes of the machine'),
    available: Integer('Bytes that programs can allocate now without swapping'),
    limit: Type.Optional(Integer('Limit of the container or control group, if any'))
  }),
  gpus: Type.Array(GpuSchema, { description: 'Without software renderers' }),
  libraries: Texts('Installed libraries that builds need: vulkan, level-zero, hip, libgomp, openssl3, …'),
  problems: Type.Array(HardwareProblemSchema),
  probes: Type.Array(ProbeReportSchema, { description: 'The sources of this report, including failed ones' })
})
export type Hardware = Static<typeof HardwareSchema>

/** Current memory in bytes. */
export interface MemoryNow {
  /** Main memory, within a container's limit. */
  host: { total: number; available: number }
  /** By `Gpu.id`; only GPUs whose dedicated memory is known. */
  gpus: Record<string, { total: number; free: number }>
}

/** Readings of a GPU's sensors; absent if a sensor is missing. */
export interface GpuReading {
  /** As `Gpu.id`. */
  id: string
  name: string
  /** Degrees Celsius. */
  temperature?: number
  /** The share of time in which it computed, from 0 to 1. */
  utilization?: number
}

export interface HardwareService {
  /** Detects the hardware once, within time limits. Never rejects: `probes` say what failed. */
  detect(options?: { refresh?: boolean }): Promise<Hardware>
  /** The result of the last detection, if one has finished. */
  known(): Hardware | undefined
  /** Reads the current memory; cheap enough to call before each load. Never rejects. */
  memory(): Promise<MemoryNow>
  /** Reads the sensors of the GPUs. GPUs without sensors are left out. May take a second. Never rejects. */
  readings(): Promise<GpuReading[]>
}
