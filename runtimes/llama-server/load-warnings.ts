interface LoadWarning {
  pattern: RegExp
  sentence: string
  /** Whoever asks for no layer on a GPU gets what they asked for. */
  unlessAsked?: boolean
}

/** Lines of a load that succeeds, but not as well as it could. `$1` and so on stand for the pattern's groups. */
const WARNINGS: LoadWarning[] = [
  {
    pattern: /retrying without pipeline parallelism/,
    sentence:
      'The GPUs have too little memory for pipeline parallelism, which is off now: long prompts are read more slowly. A smaller num_ctx or fewer GPU layers would allow it.'
  },
  {
    pattern: /failed to parse chat template \(defaulting to chatml\)/,
    sentence:
      "llama.cpp cannot use the model's chat template and takes another one (chatml): answers may be badly formed. Give one with --chat-template-file."
  },
  {
    unlessAsked: true,
    pattern: /offloaded 0\/(\d+) layers to GPU/,
    sentence:
      'None of the $1 layers is on a GPU although this llama.cpp build can use one: answers come from the processor. Check n_gpu_layers and the free memory of the GPU (corral doctor).'
  },
  {
    pattern: /ggml_\w+_init: failed to initialize (?:CUDA|ROCm|HIP|MUSA|SYCL)[:,] (.+)/,
    sentence: 'The GPU cannot be used ($1): answers come from the processor. Check its driver (corral doctor).'
  },
  {
    pattern: /warning: failed to mlock/,
    sentence:
      'The model could not be kept in memory (mlock) and may be swapped out. Raise the limit on locked memory (ulimit -l).'
  }
]

/** What a load that succeeded should be told of, each thing once. */
export function loadWarnings(lines: readonly string[], options: { gpuLayers: number }): string[] {
  return WARNINGS.flatMap(({ pattern, sentence, unlessAsked }) => {
    const match = lines.map(line => pattern.exec(line)).find(found => found !== null)
    if (!match || (unlessAsked && options.gpuLayers === 0)) return []
    return [sentence.replace(/\$(\d)/g, (_, number) => match[Number(number)] ?? '')]
  })
}
