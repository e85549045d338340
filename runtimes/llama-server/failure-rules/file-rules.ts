import { type FailureRule, FETCH_AGAIN, NEWER_BUILD } from './rule.ts'

/** Architectures of files that make images, videos or sound: llama-server will not serve them. */
const MEDIA =
  'sd\\d\\w*|sdxl\\w*|stable-?diffusion\\w*|flux\\w*|wan\\w*|hunyuan[-_]?video\\w*|hyvid\\w*|ltxv?\\w*|qwen[-_]?image\\w*|lumina\\w*|aura(?:flow)?|cosmos\\w*|hidream\\w*|pixart\\w*|chroma\\w*|z[-_]?image\\w*|kolors|mochi|cogvideo\\w*|omnigen\\w*|pig|minimax[-_]h\\w*'

/** The model's files. */
export const FILE_RULES: FailureRule[] = [
  // Getting at them.
  {
    cause: 'file_unreadable',
    pattern:
      /failed to open (?:GGUF file )?'?([^']+?)'?[ :(].*(?:Permission denied|Operation not permitted|Access is denied)/i,
    sentence: 'The model file $1 may not be read. Give the user that runs corral the right to read it.'
  },
  {
    cause: 'file_unreadable',
    pattern: /(Is a directory)|mmap failed: (Permission denied|Operation not permitted)/i,
    sentence: 'The model file may not be read ($1). Give the user that runs corral the right to read it.'
  },
  {
    cause: 'read_failed',
    pattern:
      /(Input\/output error|Stale (?:NFS )?file handle|Transport endpoint is not connected|device is not ready|semaphore timeout|cyclic redundancy check|in-page|No such device or address|I\/O error)|(?:read|seek|lseek|ftell) error: (.+)|mmap failed: (No such device)/i,
    sentence: 'A file of the model could not be read ($1). Check the disk or network drive that it lies on.'
  },
  {
    cause: 'missing_shard',
    pattern:
      /failed to open (?:GGUF file )?'(?:[^']*[\\/])?([^'\\/]+-(?!0*1-of-)\d{5}-of-\d{5}\.gguf)'|failed to open (?:\S*[\\/])?([^\s'\\/]+-(?!0*1-of-)\d{5}-of-\d{5}\.gguf): /,
    sentence: `A part of the model is missing ($1). ${FETCH_AGAIN}`
  },
  {
    cause: 'system_limit',
    pattern: /failed to open .*(Too many open files)/,
    sentence: 'A limit of the system was reached ($1). Raise it (ulimit -n), or load fewer models at once.'
  },
  {
    cause: 'file_missing',
    pattern:
      /failed to open (?:GGUF file )?'(.+)'|failed to open (\S+\.gguf): |failed to load CLIP model from (\S+)\. Does this file exist|(?:could not|cannot|can't|unable to) open (?:model )?file '?([^\s']+\.gguf)/i,
    sentence: `The model file $1 is missing or cannot be opened. ${FETCH_AGAIN}`
  },
  {
    cause: 'missing_shard',
    weak: true,
    pattern: /failed to load GGUF split from (.+)/,
    sentence: `A part of the model is missing or cannot be used ($1). ${FETCH_AGAIN}`
  },
  {
    cause: 'bad_split',
    pattern:
      /(?:invalid|illegal) split (?:file|count)|missing key \S+ in GGUF split|model must be loaded with the first split/,
    sentence: `The parts of the model do not belong together, or were joined by hand. ${FETCH_AGAIN}`
  },

  // The projector; its lines name other faults too, so they go before those.
  {
    cause: 'projector_unsupported',
    pattern:
      /unknown (?:vision |audio )?projector type:?\s*(\S*)|unsupported (minicpmv version: \d+)|unexpected (?:vision|audio) projector type (\d+)/,
    sentence:
      'This llama.cpp build does not know the type of the projector ($1). Use a newer llama.cpp, or load the model without its projector, for text alone.'
  },
  {
    cause: 'projector_mismatch',
    pattern:
      /mismatch between (?:text model|vision and audio mmproj|.* and .*mmproj)|(?:you may be using|maybe) (?:the )?wrong mmproj|unsupported decoder rope type|multimodal .* not supported|does not support (?:vision|multimodal)/i,
    sentence: 'The projector does not belong to this model. Fetch the one that was made for it.'
  },
  {
    cause: 'projector_damaged',
    pattern:
      /clip_(?:init|model_load\w*): failed to load model '.+': (?!.*(?:allocat|memory|initialize|open|Does this file exist|failed to load CLIP))(.+)/,
    sentence: 'The projector file is incomplete or damaged ($1). Fetch the model and its projector again.'
  },
  {
    cause: 'projector_mismatch',
    weak: true,
    pattern: /Failed to load CLIP model|failed to load multimodal model|failed to load mmproj/i,
    sentence: 'The file that was given as projector cannot be used as one. Fetch the one that belongs to this model.'
  },

  // What they hold.
  {
    cause: 'unsupported_file_version',
    pattern:
      /(GGUFv\d+ is no longer supported|this GGUF file is version \d+ but this software only supports up to version \d+|bad GGUF version: \d+|mismatch between the host and model endianness|unsupported (?:GGUF|file) version.*|byte ?swap.*)/i,
    sentence: `This llama.cpp build does not read this version of the file format ($1). ${NEWER_BUILD}`
  },
  {
    cause: 'not_gguf',
    pattern:
      /invalid magic (?:characters|number)|bad magic|unknown \(magic, version\) combination|not a (?:valid )?GGUF/i,
    sentence: `The model file is not a GGUF file. ${FETCH_AGAIN}`
  },
  {
    cause: 'unsupported_tensor_type',
    pattern:
      /has invalid ggml type (-?\d+)|(\w+) REMOVED, use|unknown (?:ggml|tensor|quantization) type:? '?(\S+?)'?$/i,
    sentence: `This llama.cpp build does not know the quantization of the file (type $1). ${NEWER_BUILD}`
  },
  {
    cause: 'file_damaged',
    pattern:
      /(?:not|out of|outside) (?:within )?(?:the )?file bounds|corrupted or incomplete|corrupted model|(?:file|model) is corrupt|failed to read (?:magic|header|key-value pairs|tensor info|tensor data)|gguf_init_from_\w+: failed to (?:read|seek)|unexpectedly reached end of file|(?:data|file) is too short|string length \d+ exceeds|has invalid GGUF type|duplicate (?:key|tensor name)|is duplicated|(?:has|with) invalid data|encountered (?:length_error|bad_alloc) error while reading|tensor name \d+ is too long|invalid number of (?:dimensions|elements)|has offset \d+, expected|not a multiple of block size|number of (?:tensors|key value pairs) is -?\d+ but must|key \d+ is empty|is not a power of 2|size overflow|total number of elements in tensor|is not \d+ byte aligned/i,
    sentence: `The model file is cut short or damaged. ${FETCH_AGAIN}`
  },
  {
    cause: 'unsupported_architecture',
    pattern: /unknown (?:model )?architecture: (?:''|""|$)/i,
    sentence:
      'The file names no architecture: it is not a language model that llama.cpp can serve. Choose another model.'
  },
  {
    cause: 'unsupported_architecture',
    pattern: new RegExp(`(?:unknown|unsupported) (?:model )?architecture:? ['"]?(${MEDIA})['"]?(?:$|[^\\w-])`, 'i'),
    sentence:
      'The file holds a model for images, video or sound ("$1"), which llama-server does not serve. Choose a language model.'
  },
  {
    cause: 'unsupported_architecture',
    pattern: /(CLIP) cannot be used as main model/,
    sentence: 'The file holds a projector ($1), not a model. Import the model, with this file beside it.'
  },
  {
    cause: 'unsupported_architecture',
    pattern: /(?:unknown|unsupported) (?:model )?architecture:? ['"]?([\w.-]+)/i,
    sentence: `This llama.cpp build does not know the architecture "$1". ${NEWER_BUILD}`
  },
  {
    cause: 'unsupported_tokenizer',
    pattern: /unknown pre-tokenizer type: '([^']*)'|(?:unknown|unsupported) tokenizer:? '([^']*)'/i,
    sentence: `This llama.cpp build does not know the model's tokenizer "$1". ${NEWER_BUILD}`
  },
  {
    cause: 'unsupported_tokenizer',
    pattern:
      /cannot find (tokenizer \w+) in model file|error loading model vocabulary: (.+)|(failed to load (?:model )?vocab\w*)/i,
    sentence: `The model's tokenizer cannot be used ($1). ${NEWER_BUILD}`
  },
  {
    cause: 'missing_tensor',
    pattern: /missing tensor (?:info mapping for )?'?([\w.]+)|tensor '([^']+)' not found/i,
    sentence: `The file lacks the tensor "$1" that this llama.cpp build expects. ${NEWER_BUILD}`
  },
  {
    cause: 'missing_tensor',
    pattern:
      /tensor '([^']+)' has wrong shape|((?:wrong number of|too many) tensors(?: created)?; expected \d+, got \d+)/i,
    sentence: `The tensors of the file are not those that this llama.cpp build expects ($1). ${NEWER_BUILD}`
  },
  {
    cause: 'bad_metadata',
    pattern:
      /((?:array )?key not found in model: \S+)|error loading model hyperparameters: (.+)|(key \S+ has wrong (?:type|array)[^;]*)|(invalid n_rot[^,;]*)|(array length \d+ for key \S+ exceeds)|(expected scalar, found array for key: \S+)|(model has expert layers but no expert layers are used)/i,
    sentence: `The metadata of the file is not what this llama.cpp build expects ($1). ${NEWER_BUILD}`
  },
  {
    cause: 'bad_metadata',
    weak: true,
    pattern:
      /error loading model: (invalid vector subscript|vector::\S+.*|map::at|_Map_base::at|invalid (?:string position|character|argument)|basic_string\S*.*|bad optional access|stoi)/i,
    sentence: `The file holds what this llama.cpp build does not expect ($1). ${NEWER_BUILD}`
  },
  {
    cause: 'file_unreadable',
    weak: true,
    pattern: /Permission denied|Access is denied/i,
    sentence: 'A file may not be read. Give the user that runs corral the right to read the model and its folder.'
  },
  {
    cause: 'file_missing',
    weak: true,
    pattern: /No such file or directory|The system cannot find the (?:file|path) specified/i,
    sentence: `A file is missing. ${FETCH_AGAIN}`
  }
]
