import type { Outcomes } from './ollama-outcomes.ts'

/** Why some tests fail on corral. */
export interface Explanation {
  /** Tests, by what their names begin with. */
  tests: string[]
  /** Whether Ollama itself fails too where it is given the same models. */
  onOllama: boolean
  why: string
}

export const EXPLAINED: readonly Explanation[] = [
  {
    tests: ['TestAllMiniLMEmbeddings', 'TestAllMiniLMEmbed', 'TestAllMiniLMBatchEmbed', 'TestModelsEmbed/'],
    onOllama: true,
    why: 'They compare with the vectors of the real models, whose weights are not here.'
  },
  {
    tests: ['TestEmbedCosineDistanceCorrelation/qwen3-embedding'],
    onOllama: true,
    why: 'It asks whether a cat is more like a kitten than like a dog, of a model with random weights.'
  },
  {
    tests: ['TestImageGeneration/'],
    onOllama: true,
    why: 'It pulls a model that makes images. corral has none: llama.cpp makes text.'
  },
  {
    tests: ['TestAllMiniLMEmbedTruncate/truncate_error', 'TestAllMiniLMEmbedTruncate/input_after_truncate_error'],
    onOllama: false,
    why:
      "They want the error to be Ollama's sentence and nothing else. corral's begins with that sentence, and goes on with " +
      'the numbers and what can be done; for `num_ctx: 0` it says that this is no size of a context.'
  },
  {
    tests: ['qwen2.5-coder:latest', 'qwen3:0.6b', 'qwen3:1.7b', 'gemma3:1b', 'phi3:latest'].map(
      name => `TestModelsChat/${name}`
    ),
    onOllama: false,
    why:
      "They look in `/api/ps` for the name that was pulled. corral listed its publisher's, such as `Qwen/Qwen3-0.6B-GGUF`, " +
      'when they were run; since then the name that was pulled is listed (`test/plugins/models/download/library-names.test.ts`), and ' +
      'these are to be run again.'
  }
]

/** The names of tests that have no parts: what they say is what a test with parts says as a whole. Pure. */
export function wholeTests(outcomes: Outcomes): string[] {
  const names = [...outcomes.keys()]
  return names.filter(name => !names.some(other => other.startsWith(`${name}/`)))
}

/** The explanation of a test that fails, if there is one. */
export function explanationOf(test: string): Explanation | undefined {
  return EXPLAINED.find(({ tests }) =>
    tests.some(start => test === start || (/[/_]/.test(start) && test.startsWith(start)))
  )
}

/** Whether a test is short, and tells more than others do: those of whole libraries do the same once for each name. */
export function isShort(test: string): boolean {
  return !/Library|Perf/.test(test)
}
