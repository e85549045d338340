import { type Static, Type } from 'typebox'

/*
 * What a machine has, as the `hardware` plugin finds it. Schemas, since `corral doctor --json` and `GET /api/runtimes`
 * give it to programs. Sizes are bytes; what no source tells is absent, never 0.
 */

export const HardwareProblemSchema = Type.Object(
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
    subject: Type.String({ description: 'What it concerns: a device or a program' }),
    message: Type.String({ description: 'What is the matter' }),
    advice: Type.Optional(Type.String({ description: 'What mends it, with the command where there is one' }))
  },
  { description: 'Why a device that is there cannot be used, or is used worse than it could be' }
)
export type HardwareProblem = Static<typeof HardwareProblemSchema>

export const GpuSchema = Type.Object({
  id: Type.String({ description: 'Unique on this machine, such as nvidia:0' }),
  vendor: Type.Enum(['nvidia', 'amd', 'intel', 'apple', 'qualcomm', 'other'], { description: 'Its maker' }),
  name: Type.String({ description: 'For people' }),
  type: Type.Enum(['discrete', 'integrated', 'virtual', 'unknown'], {
    description:
      'discrete: a card of its own; integrated: part of the processor; virtual: passed on from another system'
  }),
  pciId: Type.Optional(Type.String({ description: 'PCI device id, such as 0x73df' })),
  pciBus: Type.Optional(Type.String({ description: 'Place on the bus, such as 0000:01:00.0, in lower case' })),
  architecture: Type.Optional(
    Type.String({
      description: 'Compute capability such as 8.9 (NVIDIA), gfx1100 (AMD; without feature suffixes), metal4 (Apple)'
    })
  ),
  unifiedMemory: Type.Boolean({ description: 'Whether its memory is that of the machine' }),
  totalMemory: Type.Optional(Type.Integer({ description: 'Bytes that models can have of it when nothing else runs' })),
  freeMemory: Type.Optional(Type.Integer({ description: 'Bytes that were free when it was looked at' })),
  driver: Type.Optional(
    Type.Object(
      {
        name: Type.Optional(Type.String({ description: 'Such as nvidia or amdgpu' })),
        version: Type.Optional(Type.String({ description: 'Such as 580.95.05' })),
        cuda: Type.Optional(Type.String({ description: 'Highest CUDA version that it serves, such as 13.0' }))
      },
      { description: 'What serves it, or holds it' }
    )
  ),
  apis: Type.Array(Type.Enum(['cuda', 'rocm', 'vulkan', 'metal', 'sycl']), {
    description: 'Through which it was seen to be reachable'
  }),
  usable: Type.Boolean({ description: 'Whether a driver serves it now' })
})
export type Gpu = Static<typeof GpuSchema>

export const ProbeReportSchema = Type.Object({
  probe: Type.String({ description: 'Name of the source, such as nvidia-smi' }),
  outcome: Type.Enum(['ok', 'absent', 'failed', 'timed_out', 'unreadable'], {
    description: 'absent: there is no such program or file; unreadable: it printed what nobody understands'
  }),
  detail: Type.Optional(Type.String({ description: 'One line on why' })),
  duration: Type.Number({ description: 'Milliseconds' })
})
export type ProbeReport = Static<typeof ProbeReportSchema>

export const HardwareSchema = Type.Object(
  {
    platform: Type.String({ description: 'linux, darwin or win32' }),
    arch: Type.String({ description: 'As Node says it: x64, arm64, …' }),
    glibc: Type.Optional(Type.String({ description: 'Version of the C library, where it is glibc' })),
    cpu: Type.Object(
      {
        model: Type.String({ description: 'Its name' }),
        cores: Type.Optional(Type.Integer({ description: 'Physical ones' })),
        threads: Type.Integer({ description: 'That run at once' }),
        features: Type.Array(Type.String(), {
          description:
            'Of those that matter to llama.cpp: sse42, avx, avx2, fma, f16c, bmi2, avx_vnni, avx512f, asimddp, …'
        })
      },
      { description: 'The processor' }
    ),
    memory: Type.Object(
      {
        total: Type.Integer({ description: 'Of the machine' }),
        available: Type.Integer({ description: 'That programs can have now without swapping, within the limit' }),
        limit: Type.Optional(Type.Integer({ description: 'Of the container or control group, where there is one' }))
      },
      { description: 'Main memory' }
    ),
    gpus: Type.Array(GpuSchema, { description: 'Software renderers are left out' }),
    libraries: Type.Array(Type.String(), {
      description: 'Of those that builds need and that are here: vulkan, level-zero, hip, libgomp, openssl3, …'
    }),
    problems: Type.Array(HardwareProblemSchema),
    probes: Type.Array(ProbeReportSchema, { description: 'Where this was learned, and what could not be asked' })
  },
  { description: 'What this machine has' }
)
export type Hardware = Static<typeof HardwareSchema>

/** Memory at this moment, bytes. */
export interface MemoryNow {
  /** Of the machine, within a container's limit. */
  host: { total: number; available: number }
  /** By `Gpu.id`; only those whose own memory is known. */
  gpus: Record<string, { total: number; free: number }>
}

export interface HardwareService {
  /**
   * What this machine has. Found once, shared by all who ask, and found anew with `refresh`. Never rejects: what cannot
   * be found out is absent, with the reason in `probes`. No probe takes longer than its limit.
   */
  detect(options?: { refresh?: boolean }): Promise<Hardware>
  /** What was found, once it has been. */
  known(): Hardware | undefined
  /** Memory as it is now; cheap enough to ask before each load. Never rejects. */
  memory(): Promise<MemoryNow>
}
