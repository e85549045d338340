import type { FailureRule } from './rule.ts'

/** What is left where nothing else tells. */
export const LEFTOVER_RULES: FailureRule[] = [
  {
    cause: 'context_failed',
    weak: true,
    pattern: /failed to initialize the context: (?!failed to allocate)(.+)/,
    sentence: 'llama.cpp cannot make this context: $1. Ask for other load options (num_ctx, num_parallel, cache types).'
  },
  {
    cause: 'bad_flag_value',
    weak: true,
    pattern: /(failed to parse grammar)/,
    sentence: 'llama-server refuses the grammar it was given ($1). Correct it in the settings.'
  },
  {
    cause: 'assertion_failed',
    weak: true,
    pattern: /GGML_ASSERT|ggml_abort|Assertion .* failed|: fatal error$|terminate called/,
    sentence: `llama.cpp stopped itself after a fault of its own. Choose another llama.cpp build (corral doctor shows which there are).`
  },
  {
    cause: 'killed',
    weak: true,
    pattern:
      /signal: killed|\bKilled\b(?: +\S*llama|: 9|$)|terminated by signal SIGKILL|exit(?:ed)?(?: with)?(?: code| status)? 137\b/,
    sentence:
      'llama-server was killed (SIGKILL), which systems do when memory runs out. Use a smaller num_ctx or num_parallel, a smaller quantization, or close other programs.'
  },
  {
    cause: 'crashed',
    weak: true,
    pattern:
      /(0xc0000005|0xc0000409|Segmentation fault|signal arrived during external code execution|Bus error|Aborted|Floating point exception|access violation|Trace\/breakpoint trap|stack smashing detected|double free or corruption)/i,
    sentence: 'llama-server crashed ($1). Load the model again; if it crashes again, try another llama.cpp build.'
  }
]
