import type { FailureCause } from '../failure-causes.ts'

/** What a line of llama-server's output, or of the system around it, says about a failure. */
export interface FailureRule {
  cause: FailureCause
  pattern: RegExp
  /** What happened and what to do; `$1` and so on stand for the pattern's groups. */
  sentence: string
  /** The line is printed too where llama-server goes on, or after a failure that has its own line: others go before it. */
  weak?: boolean
}

export const OTHER_BUILD = 'Choose another llama.cpp build (corral doctor shows which there are).'
export const LESS_GPU =
  'Use a smaller num_ctx or num_parallel, a smaller quantization, or fewer GPU layers (n_gpu_layers).'
export const LESS_MEMORY = 'Use a smaller num_ctx or num_parallel, a smaller quantization, or close other programs.'
export const FETCH_AGAIN = 'Delete the model and fetch or import it again.'
export const NEWER_BUILD = 'A newer llama.cpp may know it; else choose another file of the model.'
