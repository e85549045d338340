import type { EngineSpec } from '../../core/contracts/engines.ts'
import type { Model } from '../../core/contracts/models.ts'
import type { TrialSettings, Tunable } from '../../core/contracts/trials.ts'

/*
 * llama-server's settings that may make a model faster. Excluded are settings that only move memory (--mlock,
 * --no-mmap), take resources from other programs (--prio, --poll), or save work by changing answers (fewer experts,
 * caches smaller than q8_0).
 */

export interface TuningFacts {
  /** Physical cores of the processor, and its hardware threads. */
  cores: number
  threads: number
  /** Whether the build computes on a GPU of this machine. */
  hasGpu: boolean
  /** Flags of all engines, before those of the model. */
  shared: readonly string[]
  /** Flags that the build knows. All flags if unknown. */
  flags: ReadonlySet<string> | undefined
  models: readonly Model[]
}

/** A flag with its other spellings. */
const THREADS = ['--threads', '-t']
const PROMPT_THREADS = ['--threads-batch', '-tb']
const BATCH = ['--batch-size', '-b']
const UBATCH = ['--ubatch-size', '-ub']
const FLASH = ['--flash-attn', '-fa']

const DEFAULT = { batch: 2048, ubatch: 512 }
/** More layers than any model has. */
const ALL_LAYERS = 999
/** Maximum number of draft models to try, and the maximum share of the model's size for each. */
const MAX_DRAFTS = 2
const DRAFT_SHARE = 0.35

/** Returns the settings that a trial may change for this engine, the most important first. */
export function listTunables(spec: EngineSpec, given: TrialSettings, facts: TuningFacts): Tunable[] {
  const { mode, options, settings } = spec
  const own = settings?.arguments ?? []
  const all = [...facts.shared, ...own]
  const knows = ([flag]: string[]) => facts.flags === undefined || facts.flags.has(flag!)
  const withFlag = (flag: string[], value: string): TrialSettings => ({
    ...given,
    arguments: replaced(given.arguments ?? own, flag, value)
  })
  const found: Tunable[] = []
  const offer = (name: string, values: Tunable['values'], changes_answers?: string) => {
    if (values.length > 0) found.push({ name, values, ...(changes_answers && { changes_answers }) })
  }
  /** Offers other values of a flag that the build knows. */
  const offerFlag = (name: string, flag: string[], present: string, values: string[]) => {
    const others = knows(flag) ? [...new Set(values)].filter(value => value !== '0' && value !== present) : []
    offer(
      name,
      others.map(value => ({ label: value, settings: withFlag(flag, value) }))
    )
  }

  if (facts.hasGpu) {
    const layers = [ALL_LAYERS, 0].filter(count => count !== options.n_gpu_layers)
    offer(
      'layers on the GPU',
      layers.map(count => ({
        label: count === 0 ? 'none' : 'all',
        settings: { ...given, options: { ...given.options, n_gpu_layers: count } }
      }))
    )
  }
  const threads = numberOf(all, THREADS) ?? facts.cores
  const half = Math.ceil(facts.cores / 2)
  offerFlag('threads', THREADS, `${threads}`, [facts.cores, half, facts.cores - 1, facts.threads].map(String))
  const promptThreads = numberOf(all, PROMPT_THREADS) ?? threads
  offerFlag('threads for prompts', PROMPT_THREADS, `${promptThreads}`, [facts.threads, facts.cores].map(String))
  offerFlag('flash attention', FLASH, valueIn(all, FLASH) ?? 'auto', ['on', 'off'])
  // Embeddings are processed in one batch, whose size is fixed.
  if (mode !== 'chat') return found

  if (knows(UBATCH) && knows(BATCH)) {
    const present = numberOf(all, UBATCH) ?? DEFAULT.ubatch
    const sizes = [1024, 256, 2048, 128].filter(size => size !== present && size <= options.num_ctx)
    offer(
      'batch',
      sizes.map(size => {
        const batch = Math.max(size, numberOf(all, BATCH) ?? DEFAULT.batch)
        const { arguments: list } = withFlag(UBATCH, `${size}`)
        return { label: `${size}`, settings: { ...given, arguments: replaced(list!, BATCH, `${batch}`) } }
      })
    )
  }
  const { ngram = false, draft } = settings?.speculation ?? {}
  if (!draft) {
    offer('guessing ahead from the text', [{ label: ngram ? 'off' : 'on', settings: { ...given, ngram: !ngram } }])
    const drafts = draftsFor(spec.variant, facts.models)
    offer(
      'guessing ahead with a draft model',
      drafts.map(({ publicName }) => ({ label: publicName, settings: { ...given, draft: { model: publicName } } }))
    )
  }
  if (options.cache_type_k === 'f16' && options.cache_type_v === 'f16') {
    const types = { cache_type_k: 'q8_0', cache_type_v: 'q8_0' } as const
    offer(
      'KV cache',
      [{ label: 'q8_0', settings: { ...given, options: { ...given.options, ...types } } }],
      'The KV cache is rounded to 8 bits, so answers may differ a little.'
    )
  }
  return found
}

/** Returns the last value of a flag, which wins. */
function valueIn(list: readonly string[], flag: readonly string[]): string | undefined {
  const at = list.findLastIndex(word => flag.includes(word))
  return at < 0 ? undefined : list[at + 1]
}

function numberOf(list: readonly string[], flag: readonly string[]): number | undefined {
  const value = Number(valueIn(list, flag))
  return Number.isInteger(value) && value > 0 ? value : undefined
}

/** Returns the list with the flag once, at its end or at its first position. */
export function replaced(list: readonly string[], flag: readonly string[], value: string): string[] {
  const first = list.findIndex(word => flag.includes(word))
  const rest = list.filter((word, index) => !flag.includes(word) && !(index > 0 && flag.includes(list[index - 1]!)))
  const at = first < 0 ? rest.length : first
  return [...rest.slice(0, at), flag[0]!, value, ...rest.slice(at)]
}

/** Finds much smaller models with the same vocabulary, the largest first, because it guesses best. */
function draftsFor(model: Model, models: readonly Model[]): Model[] {
  const vocabulary = ({ metadata: { info, architecture } }: Model) =>
    [
      info['tokenizer.ggml.model'],
      info['tokenizer.ggml.pre'],
      info['tokenizer.ggml.bos_token_id'],
      info['tokenizer.ggml.eos_token_id'],
      info[`${architecture}.vocab_size`]
    ].join(' ')
  return models
    .filter(each => each.format === 'gguf' && each.key !== model.key && each.size <= model.size * DRAFT_SHARE)
    .filter(each => each.metadata.capabilities.includes('completion') && vocabulary(each) === vocabulary(model))
    .sort((a, b) => b.size - a.size)
    .slice(0, MAX_DRAFTS)
}
