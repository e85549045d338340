/** Which layers of a model keep a window of the conversation only. */
interface Pattern {
  /** Of so many layers one sees all. */
  period: number
  /** Whether that is the first of them; the last one otherwise. */
  denseFirst?: boolean
  /** Tokens where the file does not say; without it, a file that says nothing has no window. */
  window?: number
  /** The file's number is not heeded. */
  fixed?: boolean
  /** Only models of so many layers have one. */
  layers?: number
}

/**
 * The architectures that llama.cpp gives a window cache (`load_swa_pattern` in src/models/*.cpp of v0.5.0). Others are
 * taken to keep everything, though their files may name a window: Phi and Mistral do, and llama.cpp ignores it.
 */
const PATTERNS: Record<string, Pattern> = {
  afmoe: { period: 4 },
  cohere2: { period: 4 },
  cohere2moe: { period: 4, denseFirst: true },
  'exaone-moe': { period: 4, window: 128 },
  exaone4: { period: 4, window: 4096, layers: 64 },
  gemma2: { period: 2, window: 4096 },
  gemma3: { period: 6 },
  gemma3n: { period: 5 },
  'gpt-oss': { period: 2 },
  laguna: { period: 4, denseFirst: true },
  llama4: { period: 4, window: 8192, fixed: true },
  mellum: { period: 4 },
  'muse-glimmer': { period: 4 },
  olmo2: { period: 4 },
  plamo3: { period: 8 },
  smallthinker: { period: 4, denseFirst: true, window: 4096, fixed: true }
}
/** These name each layer in a list. */
const LISTED = new Set(['gemma4', 'granite_swa', 'maple', 'mimo2', 'spark2_5', 'step35'])

/** Tokens of the window, and by layer whether it has one. */
export interface SlidingWindow {
  tokens: number
  has(layer: number): boolean
}

/**
 * The window of a model, by the keys of its file; `list` and `period` are what it has under `sliding_window_pattern`.
 * `layers` counts all of them.
 */
export function slidingWindow(
  architecture: string,
  layers: number,
  named: { window: number | undefined; list: readonly unknown[] | undefined; period: number | undefined }
): SlidingWindow | undefined {
  const pattern = PATTERNS[architecture]
  if (!pattern && !LISTED.has(architecture)) return undefined
  if (pattern?.layers !== undefined && pattern.layers !== layers) return undefined
  const tokens = (pattern?.fixed && named.window !== 0 ? pattern.window : named.window) ?? pattern?.window
  if (!tokens) return undefined
  const { list } = named
  if (list) return { tokens, has: layer => Boolean(list[layer]) }
  const period = named.period ?? pattern?.period
  if (period === undefined) return undefined
  // llama_hparams::set_swa_pattern
  return {
    tokens,
    has: layer => period === 0 || (pattern?.denseFirst ? layer % period !== 0 : layer % period < period - 1)
  }
}
