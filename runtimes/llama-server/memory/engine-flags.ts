import type { LoadOptions } from '../../../core/models/options.ts'

/** What a model's own flags for llama-server change about its memory. */
export interface EngineFlags {
  /** Tokens of all slots together. */
  context?: number
  slots?: number
  batch?: number
  gpuLayers?: number
  cacheTypes: Partial<Pick<LoadOptions, 'cache_type_k' | 'cache_type_v'>>
  flashAttention: boolean
  unified: boolean
  fullWindow: boolean
  /** Bytes. */
  promptCache?: number
  checkpoints?: number
  /** No device is used. */
  hostOnly: boolean
  /** Caches stay in the machine's memory. */
  hostCache: boolean
}

/** Flags with a value, by all their spellings in llama-server's `--help`. */
const VALUES: Record<string, string> = {
  '-c': 'context',
  '--ctx-size': 'context',
  '-np': 'slots',
  '--parallel': 'slots',
  '-ub': 'batch',
  '--ubatch-size': 'batch',
  '-ngl': 'gpuLayers',
  '--gpu-layers': 'gpuLayers',
  '--n-gpu-layers': 'gpuLayers',
  '-cram': 'promptCache',
  '--cache-ram': 'promptCache',
  '-ctxcp': 'checkpoints',
  '--ctx-checkpoints': 'checkpoints',
  '--swa-checkpoints': 'checkpoints'
}
const TYPES: Record<string, 'cache_type_k' | 'cache_type_v'> = {
  '-ctk': 'cache_type_k',
  '--cache-type-k': 'cache_type_k',
  '-ctv': 'cache_type_v',
  '--cache-type-v': 'cache_type_v'
}
const MANY = 1e6

/** Reads the flags that matter; others, and values that are none, are the engine's to judge. */
export function engineFlags(list: readonly string[]): EngineFlags {
  const flags: EngineFlags = {
    cacheTypes: {},
    flashAttention: true,
    unified: false,
    fullWindow: false,
    hostOnly: false,
    hostCache: false
  }
  const numbers: Record<string, number> = {}
  for (const [at, flag] of list.entries()) {
    const value = list[at + 1] ?? ''
    const name = VALUES[flag]
    const type = TYPES[flag]
    if (name) {
      const number = value === 'all' ? MANY : Number(value)
      if (value.trim() !== '' && Number.isInteger(number)) numbers[name] = number
    } else if (type) flags.cacheTypes[type] = value as LoadOptions['cache_type_k']
    else if (flag === '-fa' || flag === '--flash-attn') flags.flashAttention = !/^(off|false|0|disabled)$/.test(value)
    else if (flag === '-kvu' || flag === '--kv-unified') flags.unified = true
    else if (flag === '--swa-full') flags.fullWindow = true
    else if (flag === '-dev' || flag === '--device') flags.hostOnly = value === 'none'
    else if (flag === '-nkvo' || flag === '--no-kv-offload') flags.hostCache = true
  }
  const { promptCache, ...others } = numbers
  if (promptCache !== undefined) flags.promptCache = promptCache < 0 ? MANY * 2 ** 20 : promptCache * 2 ** 20
  return Object.assign(flags, others)
}
