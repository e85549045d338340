import type { ErrorCode } from '../../core/errors.ts'

/** What a tool that failed left behind. */
export interface ToolOutcome {
  /** Its last lines, both streams as they came. */
  lines: readonly string[]
  /** The signal that ended it, such as `SIGKILL`. */
  signal?: string
}

export interface FailureCause {
  /** Names the cause for programs and tests. */
  cause:
    | 'unsupported-architecture'
    | 'unsupported-quantization'
    | 'remote-code'
    | 'tokenizer'
    | 'incomplete-model'
    | 'disk-full'
    | 'out-of-memory'
    | 'python-packages'
    | 'imatrix'
    | 'unknown'
  code: ErrorCode
  /** A sentence that says what is wrong, and one on what to do. */
  sentence: string
}

interface Rule extends Omit<FailureCause, 'sentence'> {
  pattern: RegExp
  /** Looked for in the code of a Python traceback, where the message itself says too little. */
  inCode?: boolean
  sentence: (match: RegExpExecArray) => string
}

const NO_TOKENIZER =
  "The model's tokenizer is missing or cannot be read (tokenizer.json or tokenizer.model with tokenizer_config.json). " +
  'Get the whole folder of the model and import it again.'

/** The first rule that fits counts: what is more exact stands first. */
const RULES: Rule[] = [
  {
    cause: 'disk-full',
    code: 'insufficient_storage',
    pattern: /No space left on device|Errno 28\b|Disk quota exceeded|\d+ requested and \d+ written|iostream error/,
    sentence: () => 'The disk is full. Remove models that are not needed, then try again.'
  },
  {
    cause: 'out-of-memory',
    code: 'conversion_failed',
    pattern:
      /MemoryError|Cannot allocate memory|Unable to allocate [\d.]+ \w+|bad_alloc|DefaultCPUAllocator: (not enough|can't)/,
    sentence: () =>
      'The memory of this machine does not suffice. Stop loaded models or other programs, or import a GGUF that was made elsewhere.'
  },
  {
    cause: 'unsupported-architecture',
    code: 'conversion_failed',
    pattern: /Model (\S+) is not supported|Architecture '([^']+)' not supported/,
    sentence: match =>
      `This version of llama.cpp cannot convert the architecture ${match[1] ?? match[2]}. ` +
      'Look for a GGUF of the model, or try a newer llama.cpp.'
  },
  {
    cause: 'unsupported-architecture',
    code: 'conversion_failed',
    pattern: /BPE pre-tokenizer was not recognized/,
    sentence: () =>
      'This version of llama.cpp does not know how the tokenizer of this model splits text. ' +
      'Look for a GGUF of the model, or try a newer llama.cpp.'
  },
  {
    cause: 'unsupported-quantization',
    code: 'conversion_failed',
    pattern: /Quant method is not yet supported: '([^']+)'|Quant format '([^']+)' for method/,
    sentence: match =>
      `The weights are quantized already (${match[1] ?? match[2]}), in a way that llama.cpp cannot convert. ` +
      "Use the model's original, unquantized files."
  },
  {
    cause: 'unsupported-quantization',
    code: 'conversion_failed',
    pattern: /3-bit gptq dequantization|multiple config groups for compressed-tensors/,
    sentence: () =>
      'The weights are quantized already, in a way that llama.cpp cannot convert. ' +
      "Use the model's original, unquantized files."
  },
  {
    cause: 'remote-code',
    code: 'conversion_failed',
    pattern:
      /trust_remote_code|does not appear to have a file named (\S+\.py)|contains custom code|requires you to execute the .* file/,
    sentence: () =>
      "The model brings Python code of its own, and corral does not run a model's code. Look for a GGUF of the model."
  },
  {
    cause: 'incomplete-model',
    code: 'conversion_failed',
    pattern: /Missing or incomplete model files: (\[[^\]]*\])/,
    sentence: match => `Files of the model are missing or cut off: ${match[1]}. Delete the model and get it again.`
  },
  {
    cause: 'incomplete-model',
    code: 'conversion_failed',
    pattern:
      /mmap length is greater than file size|No such file or directory: '.*?([^/\\']+\.safetensors)'|SafetensorError|HeaderTooLarge|Mismatch between weight map|Missing tensors: |Can't load 'weight_map'/,
    sentence: match =>
      `The weights of the model are damaged or not all there${match[1] ? ` (${match[1]})` : ''}. Delete the model and get it again.`
  },
  {
    cause: 'tokenizer',
    code: 'conversion_failed',
    pattern:
      /File not found: .*tokenizer|tokenizer file not found|Can't load tokenizer|unknown tokenizer|Couldn't instantiate the backend tokenizer|Tokenizer class (\S+) does not exist|Error while attempting to unpickle Tokenizer/,
    sentence: () => NO_TOKENIZER
  },
  {
    cause: 'tokenizer',
    code: 'conversion_failed',
    pattern: /get_spm_processor|load_vocab|self\.vocab_file/,
    inCode: true,
    sentence: () => NO_TOKENIZER
  },
  {
    cause: 'python-packages',
    code: 'conversion_failed',
    pattern: /ModuleNotFoundError: No module named '([^']+)'|(?:^|\s)ImportError: (.+)/,
    sentence: match => `The Python packages of the converter do not work (${match[1] ?? match[2]}).`
  },
  {
    cause: 'incomplete-model',
    code: 'conversion_failed',
    pattern: /No such file or directory: '.*?config\.json'|Failed to detect model architecture/,
    sentence: () =>
      'config.json of the model is missing or does not name its architecture. Get the whole folder and import it again.'
  },
  {
    cause: 'incomplete-model',
    code: 'conversion_failed',
    pattern: /Can not map tensor '([^']+)'/,
    sentence: match =>
      `This version of llama.cpp does not know the tensor ${match[1]}: the model is of a newer or changed kind. ` +
      'Look for a GGUF of it, or try a newer llama.cpp.'
  },
  {
    cause: 'imatrix',
    code: 'conversion_failed',
    pattern: /requires an? (?:imatrix|importance matrix)|Missing importance matrix/,
    sentence: () =>
      'A type this coarse needs an importance matrix for this model, which no conversion has. Choose a larger type, such as q4_k_m.'
  }
]

/** What a tool's failure means. Pure. */
export function causeOf({ lines, signal }: ToolOutcome): FailureCause {
  // Before the failure itself the converter warns of much that it then gets along with.
  const start = lines.findIndex(line => line.startsWith('Traceback'))
  const relevant = start === -1 ? lines.filter(line => !line.startsWith('WARNING:')) : lines.slice(start)
  for (const rule of RULES) {
    for (const line of relevant) {
      if (line.startsWith('  ') !== (rule.inCode ?? false)) continue
      const match = rule.pattern.exec(line)
      if (match) return { cause: rule.cause, code: rule.code, sentence: rule.sentence(match) }
    }
  }
  if (signal === 'SIGKILL') {
    return {
      cause: 'out-of-memory',
      code: 'conversion_failed',
      sentence:
        'It was killed, most likely because the memory of this machine did not suffice. ' +
        'Stop loaded models or other programs, or import a GGUF that was made elsewhere.'
    }
  }
  const last = lines.filter(line => line.trim() !== '' && !/^\s*(Writing|File ")|^[\s^~]+$/.test(line)).slice(-3)
  return {
    cause: 'unknown',
    code: 'conversion_failed',
    sentence: last.length > 0 ? `It last said: ${last.join(' / ').slice(0, 600)}` : 'It said nothing.'
  }
}
