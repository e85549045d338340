import type { Build, BuildDevice } from '../../../core/contracts/builds.ts'
import type { PoolsInUse } from '../../../core/contracts/built-in-services.ts'
import type { MemoryUse } from '../../../core/contracts/engines.ts'
import type { Gpu, MemoryNow } from '../../../core/contracts/hardware.ts'
import figures from './memory-figures.json' with { type: 'json' }

export interface Device {
  /** The pool of its memory: its own, or `host` if it shares the machine's memory. */
  pool: string
  /** Bytes of it that engines may use. */
  budget: number
  /** Bytes that a process uses merely by using the device. */
  overhead: number
}

export interface Parts {
  /** The token embeddings, which are always in the machine's memory. */
  input: number
  layers: { weights: number; cache: number }[]
  /** The parts after the layers. `copied` is shared with `input` if the output is not on a device. */
  output: number
  copied: number
  compute: { layers: number; io: number }
}

const sum = (list: readonly number[]) => list.reduce((total, bytes) => total + bytes, 0)

/**
 * Places layers as llama.cpp does (`llama_model_base::load_tensors`, `common_params_fit_impl`): the last layers and the
 * output go on the devices, in proportion to their free memory, and the rest into the machine's memory. Unless their
 * number is set, all layers go on the devices if they fit, otherwise as many as fit. Layers are treated as whole.
 * llama.cpp may split the first one, or leave only the experts of several layers in the machine's memory, which yields
 * the same sum.
 * @param gpuLayers layers on devices. Negative is automatic
 * @param hostCache caches stay in the machine's memory
 * @returns bytes by pool without the devices' overhead, the number of layers on devices (the output is one), and those
 * devices
 */
export function place(parts: Parts, devices: readonly Device[], gpuLayers: number, hostCache = false) {
  const { layers, compute } = parts
  const all = layers.length + 1
  const layerBytes = layers.map(({ weights, cache }) => weights + (hostCache ? 0 : cache))
  const onDevices = (count: number) =>
    count === 0 ? 0 : parts.output + sum(layerBytes.slice(layers.length - (count - 1)))
  const room = sum(devices.map(({ budget, overhead }) => Math.max(0, budget - overhead - compute.layers)))

  let count = devices.length === 0 ? 0 : Math.min(gpuLayers, all)
  if (count < 0) {
    count = all
    while (count > 0 && onDevices(count) > room) count--
  }
  const use: MemoryUse = { host: parts.input }
  const add = (pool: string, bytes: number) => {
    use[pool] = (use[pool] ?? 0) + bytes
  }
  const moved = onDevices(count)
  const budgets = sum(devices.map(({ budget }) => budget)) || 1
  // Without layers, the first device still computes long prompts.
  const used = count === 0 ? devices.slice(0, 1) : devices
  for (const { pool, budget } of used) add(pool, moved * (budget / budgets) + compute.layers)
  const rest = layers.slice(0, layers.length - Math.max(0, count - 1))
  add('host', sum(rest.map(({ weights }) => weights)))
  add('host', sum((hostCache ? layers : rest).map(({ cache }) => cache)))
  if (count === 0) add('host', parts.output - parts.copied)
  add('host', count === all ? compute.io : compute.layers)
  return { use, layers: count, devices: used }
}

const MIB = 2 ** 20
const GIB = 2 ** 30
/** llama-server's own default for `--fit-target`. */
const MARGIN = GIB

/** MiB that a process uses on a device for the driver's context and the kernels, as measured with llama-server. */
const OVERHEAD: Record<Build['kind'], number> = figures.deviceOverheadMiB

export type MatchedDevice = ReturnType<typeof matchDevices>[number]

/** Rates how likely both are the same device: common words of the names, and totals within a twentieth. */
function similarity(device: BuildDevice, gpu: Gpu): number {
  const wordsOf = (name: string) =>
    new Set(
      name
        .toLowerCase()
        .replace(/\((r|tm)\)/g, ' ')
        .match(/[a-z0-9]+/g)
    )
  const own = wordsOf(device.description)
  const theirs = wordsOf(gpu.name)
  const common = [...own].filter(word => theirs.has(word)).length
  const names = common / Math.max(1, Math.min(own.size, theirs.size))
  const close =
    device.totalMemory !== undefined &&
    gpu.totalMemory !== undefined &&
    Math.abs(device.totalMemory - gpu.totalMemory) < gpu.totalMemory / 20
  return names + (close ? 1 : 0)
}

/** Finds the GPU behind each device of a build: the most similar by name and size. Ties go to the next in order. */
export function matchDevices(devices: readonly BuildDevice[], gpus: readonly Gpu[]) {
  const free = [...gpus]
  return devices.map(device => {
    const best = free.reduce<Gpu | undefined>(
      (found, gpu) => (found === undefined || similarity(device, gpu) > similarity(device, found) ? gpu : found),
      undefined
    )
    if (best === undefined || (similarity(device, best) < 0.5 && devices.length > gpus.length)) {
      return { device, gpu: undefined }
    }
    free.splice(free.indexOf(best), 1)
    return { device, gpu: best }
  })
}

export type DevicePools = ReturnType<typeof devicePools>

/**
 * Returns the memory pools of a build's devices. A device that shares the machine's memory (Metal, integrated GPUs)
 * belongs to the pool `host`, because the bytes are the same. A GPU that another build names differently uses the pool
 * that `main` has for it.
 * @param limit bytes of each GPU that may be used. Undefined is everything except llama-server's margin
 */
export function devicePools(
  build: Build,
  gpus: readonly Gpu[],
  { limit, main }: { limit: number | undefined; main: readonly MatchedDevice[] }
) {
  const allowed = (total: number) => Math.min(limit ?? Number.POSITIVE_INFINITY, total - Math.min(MARGIN, total / 4))
  const all = matchDevices(build.devices, gpus).map(({ device, gpu }) => {
    const isShared = gpu?.unifiedMemory || (gpu === undefined && build.kind === 'metal')
    const same = gpu && main.find(other => other.gpu?.id === gpu.id)
    const pool = isShared ? 'host' : (same?.device.id ?? device.id)
    return { id: device.id, gpu, pool, total: gpu?.totalMemory ?? device.totalMemory }
  })
  const known = all.flatMap(({ total, ...device }) => (total === undefined ? [] : [{ ...device, total }]))
  return {
    /** Returns the pool of a device. An unknown device is its own pool. */
    getPool: (device: string) => all.find(({ id }) => id === device)?.pool ?? device,
    /** Returns the bytes that engines may use of each pool except the machine's memory, given what they use now. */
    budgets(now: MemoryNow | undefined, used: MemoryUse): MemoryUse {
      const budgets: MemoryUse = {}
      for (const { gpu, pool, total } of known) {
        if (pool === 'host') continue
        const seen = gpu && now?.gpus[gpu.id]
        const most = seen?.free === undefined ? Number.POSITIVE_INFINITY : seen.free + (used[pool] ?? 0)
        budgets[pool] = Math.max(0, Math.floor(Math.min(allowed(seen?.total ?? total), most)))
      }
      return budgets
    },
    /** Memory in use of each pool except the machine's memory, if the GPU reports it. */
    used(gpus: MemoryNow['gpus']): PoolsInUse {
      return Object.fromEntries(
        known.flatMap(({ gpu, pool }) => {
          const now = gpu && gpus[gpu.id]
          return pool === 'host' || !now ? [] : [[pool, { total: now.total, used: now.total - now.free }]]
        })
      )
    },
    /** The devices as they would be without other engines. */
    devices: known.map(({ pool, total }): Device => {
      return { pool, budget: allowed(total), overhead: OVERHEAD[build.kind] * MIB }
    }),
    /** Bytes of each device to be left free, if configured. */
    margins:
      limit === undefined || known.length < all.length
        ? undefined
        : known.map(({ total }) => Math.max(0, Math.floor(total - allowed(total))))
  }
}

/** Combines the pools of a build's devices (`count`) with those of workers, which come first. */
export function withWorkers(
  own: Pick<DevicePools, 'getPool' | 'devices' | 'margins'>,
  workers: readonly (Device & { total: number })[],
  count: number
) {
  const devices: Device[] = [
    ...workers.map(({ pool, budget, overhead }) => ({ pool, budget, overhead })),
    ...own.devices
  ]
  // If a device does not report its memory, its share of the layers is unknown.
  const known = own.devices.length === count
  const margins = own.margins ?? own.devices.map(() => MARGIN)
  return {
    getPool: own.getPool,
    devices,
    // A worker's processor reports all of its machine's memory as free.
    margins: known ? [...workers.map(({ total, budget }) => Math.max(0, total - budget)), ...margins] : undefined,
    shares: known ? devices.map(({ budget }) => budget) : undefined
  }
}
