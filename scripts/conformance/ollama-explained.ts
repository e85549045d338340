import type { Outcomes } from './ollama-outcomes.ts'

export interface Explanation {
  /** Prefixes of test names. */
  tests: string[]
  /** Whether Ollama also fails with the same models. */
  onOllama: boolean
  why: string
}

export const EXPLAINED: readonly Explanation[] = [
  {
    tests: ['TestAllMiniLMEmbeddings', 'TestAllMiniLMEmbed', 'TestAllMiniLMBatchEmbed', 'TestModelsEmbed/'],
    onOllama: true,
    why: 'These tests compare with vectors of the real models, whose weights are not available here.'
  },
  {
    tests: ['TestEmbedCosineDistanceCorrelation/qwen3-embedding'],
    onOllama: true,
    why: 'The test asks a model with random weights whether a cat is more similar to a kitten than to a dog.'
  },
  {
    tests: ['TestImageGeneration/'],
    onOllama: true,
    why: 'The test pulls a model that generates images. corral does not support these, because llama.cpp generates text.'
  },
  {
    tests: ['TestAllMiniLMEmbedTruncate/truncate_error', 'TestAllMiniLMEmbedTruncate/input_after_truncate_error'],
    onOllama: false,
    why:
      "These tests expect exactly Ollama's error message. corral's message starts with it and adds the numbers and a " +
      'remedy. For `num_ctx: 0` it says that this is not a valid context size.'
  },
  {
    tests: ['qwen2.5-coder:latest', 'qwen3:0.6b', 'qwen3:1.7b', 'gemma3:1b', 'phi3:latest'].map(
      name => `TestModelsChat/${name}`
    ),
    onOllama: false,
    why:
      "These tests look in `/api/ps` for the pulled name. When they ran, corral listed the publisher's name, such as " +
      '`Qwen/Qwen3-0.6B-GGUF`. It now lists the pulled name (`test/plugins/models/download/library-names.test.ts`), so ' +
      'the tests need another run.'
  }
]

/** Names of tests without subtests. A test with subtests only summarizes them. */
export function wholeTests(outcomes: Outcomes): string[] {
  const names = [...outcomes.keys()]
  return names.filter(name => !names.some(other => other.startsWith(`${name}/`)))
}

export function findExplanation(test: string): Explanation | undefined {
  return EXPLAINED.find(({ tests }) =>
    tests.some(start => test === start || (/[/_]/.test(start) && test.startsWith(start)))
  )
}

/** Whether a test is short and adds information. Tests of whole model libraries repeat the same for each name. */
export function isShort(test: string): boolean {
  return !/Library|Perf/.test(test)
}
