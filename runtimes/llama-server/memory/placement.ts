import type { MemoryUse } from '../../../core/contracts/builds.ts'

/** A device that layers can be put on. */
export interface Device {
  /** Whose bytes they are: the device's own, or `host` where it has the machine's memory. */
  pool: string
  /** Bytes that engines may take of it. */
  budget: number
  /** Bytes that a process takes of it by using it at all. */
  overhead: number
}

/** Bytes of an engine's parts that have a place. */
export interface Parts {
  /** What turns tokens into numbers: always in the machine's memory. */
  input: number
  /** Weights and cache of each layer. */
  layers: { weights: number; cache: number }[]
  /** The output and what else follows the layers; `copied` is what of it lies in `input` too when it is not on a device. */
  output: number
  copied: number
  compute: { layers: number; io: number }
}

export interface Placement {
  /** Bytes by pool, without the devices' overhead. */
  use: MemoryUse
  /** Layers on devices, the output counted as one. */
  layers: number
  /** The devices that it uses. */
  devices: readonly Device[]
}

const sum = (list: readonly number[]) => list.reduce((total, bytes) => total + bytes, 0)

/**
 * Which layers lie where, as llama.cpp puts them (`llama_model_base::load_tensors`, `common_params_fit_impl`): the last
 * ones and the output on the devices, in shares by what they have free, the rest in the machine's memory. Of their own
 * accord all layers go to the devices if they fit there, else as many as do. Layers are taken to be whole: llama.cpp
 * may split the first one, or keep only the experts of several in the machine's memory, which comes to the same sum.
 * @param asked layers on devices; negative is automatic
 * @param hostCache caches stay in the machine's memory
 */
export function place(parts: Parts, devices: readonly Device[], asked: number, hostCache = false): Placement {
  const { layers, compute } = parts
  const all = layers.length + 1
  const layerBytes = layers.map(({ weights, cache }) => weights + (hostCache ? 0 : cache))
  const onDevices = (count: number) =>
    count === 0 ? 0 : parts.output + sum(layerBytes.slice(layers.length - (count - 1)))
  const room = sum(devices.map(({ budget, overhead }) => Math.max(0, budget - overhead - compute.layers)))

  let count = devices.length === 0 ? 0 : Math.min(asked, all)
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
  // Without layers, the first one still computes long prompts.
  const used = count === 0 ? devices.slice(0, 1) : devices
  for (const { pool, budget } of used) add(pool, moved * (budget / budgets) + compute.layers)
  const rest = layers.slice(0, layers.length - Math.max(0, count - 1))
  add('host', sum(rest.map(({ weights }) => weights)))
  add('host', sum((hostCache ? layers : rest).map(({ cache }) => cache)))
  if (count === 0) add('host', parts.output - parts.copied)
  add('host', count === all ? compute.io : compute.layers)
  return { use, layers: count, devices: used }
}
