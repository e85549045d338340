import type { MemoryUse } from '../../../core/contracts/builds.ts'
import type { LoadOptions } from '../../../core/models/options.ts'
import { formatMemory } from '../../../core/system/bytes.ts'
import type { LaunchSpec } from '../launch-spec.ts'
import type { MemoryNeed } from './memory-book.ts'

/** Contexts that are worth a proposal, largest first. */
const CONTEXTS = [131072, 65536, 32768, 16384, 8192, 4096, 2048]
const WIDE = new Set(['f32', 'f16', 'bf16'])

/** What an engine with other options would need. */
export type NeedFor = (options: LoadOptions) => MemoryUse

function fits(use: MemoryUse, budget: MemoryUse): boolean {
  return Object.entries(use).every(([pool, bytes]) => budget[pool] === undefined || bytes <= budget[pool])
}

/** The changes of options that make it fit, the mildest of each kind; none where nothing does. */
function changes(spec: LaunchSpec, needFor: NeedFor, budget: MemoryUse): string[] {
  const { options } = spec
  const { num_ctx, num_parallel } = options
  const quantized: LoadOptions = { ...options, cache_type_k: 'q8_0', cache_type_v: 'q8_0' }
  const wide = WIDE.has(options.cache_type_k) && WIDE.has(options.cache_type_v)
  const good = (given: LoadOptions) => fits(needFor(given), budget)
  const smaller = (base: LoadOptions) => {
    const found = CONTEXTS.find(context => context < num_ctx && good({ ...base, num_ctx: context }))
    return found
  }
  const found: string[] = []
  const context = smaller(options)
  if (context) found.push(`num_ctx ${context} (now ${num_ctx})`)
  if (wide && good(quantized)) found.push('cache_type_k and cache_type_v q8_0')
  for (let slots = num_parallel - 1; slots > 0; slots--) {
    if (!good({ ...options, num_parallel: slots })) continue
    found.push(`num_parallel ${slots} (now ${num_parallel})`)
    break
  }
  if (found.length > 1 || (context ?? 0) >= num_ctx / 4) return found
  // Little or nothing helps by itself.
  const all = { ...(wide ? quantized : options), num_parallel: 1 }
  const last = good(all) ? num_ctx : smaller(all)
  if (last === undefined || last <= (context ?? 0)) return found
  const together = [`num_ctx ${last}`, ...(wide ? ['cache_type_k and cache_type_v q8_0'] : []), 'num_parallel 1']
  return [...found, `${together.slice(0, -1).join(', ')} and ${together.at(-1)} together`]
}

function either(list: string[]): string {
  return list.length < 2 ? (list[0] ?? '') : `${list.slice(0, -1).join(', ')} or ${list.at(-1)}`
}

function inPools(use: MemoryUse): string {
  const named = Object.entries(use).map(([pool, bytes]) =>
    pool === 'host' ? `${formatMemory(bytes)} of memory` : `${formatMemory(bytes)} on ${pool}`
  )
  return named.length < 2 ? (named[0] ?? '') : `${named.slice(0, -1).join(', ')} and ${named.at(-1)}`
}

/**
 * Why a model finds no room, with the numbers, and what would make it fit: sentences for people.
 * @param needFor undefined where nothing is known of what other options would need
 */
export function explainNeed(
  spec: LaunchSpec,
  need: Pick<MemoryNeed, 'use' | 'parts'>,
  budget: MemoryUse,
  needFor: NeedFor | undefined
): string {
  const { weights, cache, compute } = need.parts
  const { num_ctx, num_parallel } = spec.options
  const limits = Object.fromEntries(
    Object.keys(need.use).flatMap(pool => (pool in budget ? [[pool, budget[pool]!]] : []))
  )
  const conversations = num_parallel === 1 ? 'a conversation' : `${num_parallel} conversations`
  const what =
    `It needs about ${inPools(need.use)} (weights ${formatMemory(weights)}, cache for ${conversations} of ` +
    `${num_ctx} tokens ${formatMemory(cache)}, computing ${formatMemory(compute)})`
  if (fits(need.use, budget)) {
    return `${what}; ${inPools(limits)} can be used by all models together. It fits when other models are stopped.`
  }
  const short = `${what}, but only ${inPools(limits)} can be used.`
  const options = needFor ? changes(spec, needFor, budget) : []
  if (options.length > 0) return `${short} It would fit with ${either(options)}.`
  const room = Object.values(limits).reduce((sum, bytes) => sum + bytes, 0)
  const left = room - compute
  const smaller =
    left > 0
      ? `Take a smaller quantization or a smaller model: its weights should be below ${formatMemory(left)}.`
      : 'End other programs, or raise scheduler.memory and scheduler.gpu_memory in config.yaml where they are set.'
  return `${short} No smaller context makes it fit. ${smaller}`
}
