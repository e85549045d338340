import type { ErrorCode } from '../../../core/errors.ts'
import type { ToolError } from '../../../core/system/child-process.ts'
import { DISK_FULL, type FailureRule, lastLines, sentenceOf } from '../../../core/system/python/install-failure.ts'

type Cause =
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

export interface FailureCause {
  cause: Cause
  code: ErrorCode
  sentence: string
}

interface Rule extends FailureRule {
  cause: Cause
  /** Match the code lines of a Python traceback, if the message itself is not specific enough. */
  inCode?: true
}

const LOOK_FOR_GGUF = 'Look for a GGUF of the model, or try a newer llama.cpp.'
const USE_ORIGINAL = "Use the model's original, unquantized files."
const STOP_OTHERS = 'Stop loaded models or other programs, or import a GGUF that was made elsewhere.'
const NO_TOKENIZER =
  "The model's tokenizer is missing or cannot be read (tokenizer.json or tokenizer.model with tokenizer_config.json). " +
  'Download the whole folder of the model and import it again.'

/** Failures of the converter and of llama-quantize. The first match wins, so specific rules come first. */
const CONVERSION_RULES: Rule[] = [
  {
    cause: 'disk-full',
    code: 'insufficient_storage',
    pattern: new RegExp(`${DISK_FULL.source}|\\d+ requested and \\d+ written|iostream error`),
    sentence: 'The disk is full. Remove models that are not needed, then try again.'
  },
  {
    cause: 'out-of-memory',
    pattern:
      /MemoryError|Cannot allocate memory|Unable to allocate [\d.]+ \w+|bad_alloc|DefaultCPUAllocator: (?:not enough|can't)/,
    sentence: `This machine does not have enough memory. ${STOP_OTHERS}`
  },
  {
    cause: 'unsupported-architecture',
    pattern: /Model (\S+) is not supported|Architecture '([^']+)' not supported/,
    sentence: name => `This version of llama.cpp cannot convert the architecture ${name}. ${LOOK_FOR_GGUF}`
  },
  {
    cause: 'unsupported-architecture',
    pattern: /BPE pre-tokenizer was not recognized/,
    sentence: `This version of llama.cpp does not know this model's tokenizer. ${LOOK_FOR_GGUF}`
  },
  {
    cause: 'unsupported-quantization',
    pattern:
      /Quant method is not yet supported: '([^']+)'|Quant format '([^']+)' for method|3-bit gptq dequantization|multiple config groups for compressed-tensors/,
    sentence: method =>
      `The weights are already quantized${method && ` (${method})`}, in a way that llama.cpp cannot convert. ${USE_ORIGINAL}`
  },
  {
    cause: 'remote-code',
    pattern:
      /trust_remote_code|does not appear to have a file named (\S+\.py)|contains custom code|requires you to execute the .* file/,
    sentence: "The model includes Python code, and corral does not run a model's code. Look for a GGUF of the model."
  },
  {
    cause: 'incomplete-model',
    pattern: /Missing or incomplete model files: (\[[^\]]*\])/,
    sentence: files => `Files of the model are missing or truncated: ${files}. Delete the model and download it again.`
  },
  {
    cause: 'incomplete-model',
    pattern:
      /mmap length is greater than file size|No such file or directory: '.*?([^/\\']+\.safetensors)'|SafetensorError|HeaderTooLarge|Mismatch between weight map|Missing tensors: |Can't load 'weight_map'/,
    sentence: file =>
      `The weights of the model are damaged or incomplete${file && ` (${file})`}. Delete the model and download it again.`
  },
  {
    cause: 'tokenizer',
    pattern:
      /File not found: .*tokenizer|tokenizer file not found|Can't load tokenizer|unknown tokenizer|Couldn't instantiate the backend tokenizer|Tokenizer class (\S+) does not exist|Error while attempting to unpickle Tokenizer/,
    sentence: NO_TOKENIZER
  },
  {
    cause: 'tokenizer',
    pattern: /get_spm_processor|load_vocab|self\.vocab_file/,
    inCode: true,
    sentence: NO_TOKENIZER
  },
  {
    cause: 'python-packages',
    pattern: /ModuleNotFoundError: No module named '([^']+)'|(?:^|\s)ImportError: (.+)/,
    sentence: what => `The Python packages of the converter do not work (${what}).`
  },
  {
    cause: 'incomplete-model',
    pattern: /No such file or directory: '.*?config\.json'|Failed to detect model architecture/,
    sentence:
      'config.json of the model is missing or does not name its architecture. Download the whole folder and import it again.'
  },
  {
    cause: 'incomplete-model',
    pattern: /Can not map tensor '([^']+)'/,
    sentence: tensor =>
      `This version of llama.cpp does not know the tensor ${tensor}: the model is newer or modified. ${LOOK_FOR_GGUF}`
  },
  {
    cause: 'imatrix',
    pattern: /requires an? (?:imatrix|importance matrix)|Missing importance matrix/,
    sentence:
      'A type this coarse needs an importance matrix for this model, and conversions have none. Choose a larger type, for example q4_k_m.'
  }
]

export function classifyFailure({ tail: lines, exitSignal }: Pick<ToolError, 'tail' | 'exitSignal'>): FailureCause {
  // The converter prints warnings that do not matter before the actual failure.
  const start = lines.findIndex(line => line.startsWith('Traceback'))
  const relevant = start === -1 ? lines.filter(line => !line.startsWith('WARNING:')) : lines.slice(start)
  for (const rule of CONVERSION_RULES) {
    const { cause, code = 'conversion_failed', inCode = false } = rule
    for (const line of relevant.filter(line => line.startsWith('  ') === inCode)) {
      const sentence = sentenceOf(rule, line)
      if (sentence !== undefined) return { cause, code, sentence }
    }
  }
  const code = 'conversion_failed'
  if (exitSignal === 'SIGKILL') {
    const sentence = `It was killed, most likely because this machine does not have enough memory. ${STOP_OTHERS}`
    return { cause: 'out-of-memory', code, sentence }
  }
  const output = lines.filter(line => !/^\s*(Writing|File ")|^[\s^~]+$/.test(line))
  return { cause: 'unknown', code, sentence: lastLines(output) ?? 'It printed nothing.' }
}
