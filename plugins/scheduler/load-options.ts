import type { LoadOptions } from '../../core/models/options.ts'

/** Options of which more satisfies less. */
const SIZES = ['num_ctx', 'num_parallel'] as const

/** Whether an engine started with `loaded` can serve a request that gives `asked`. */
export function satisfies(loaded: LoadOptions, asked: Partial<LoadOptions>): boolean {
  return Object.entries(asked).every(([name, value]) => {
    if (value === undefined) return true
    const has = loaded[name as keyof LoadOptions]
    return (SIZES as readonly string[]).includes(name) ? Number(value) <= Number(has) : value === has
  })
}

/** The options of a reload: what runs together with what is asked, the larger sizes of both. */
export function union(loaded: LoadOptions, asked: Partial<LoadOptions>): LoadOptions {
  const merged = { ...loaded, ...asked }
  for (const size of SIZES) merged[size] = Math.max(loaded[size], asked[size] ?? 0)
  return merged
}

/** The options of a first load for requests that wait together: the first one's word, then the union with the others. */
export function firstLoad(defaults: LoadOptions, asked: Partial<LoadOptions>[]): LoadOptions {
  const [first = {}, ...others] = asked
  return others.reduce<LoadOptions>((options, ask) => (satisfies(options, ask) ? options : union(options, ask)), {
    ...defaults,
    ...first
  })
}

/** `num_ctx` no larger than the context the model was trained for, where that is known. */
export function capContext<Options extends Partial<LoadOptions>>(
  options: Options,
  trained: number | undefined
): Options {
  if (trained === undefined || options.num_ctx === undefined || options.num_ctx <= trained) return options
  return { ...options, num_ctx: trained }
}
