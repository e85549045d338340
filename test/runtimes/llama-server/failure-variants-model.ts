import type { Variant } from './failure-variants-machine.ts'

/** Output when files, companion files or the command line are to blame. */
export const OF_MODELS: Variant[] = [
  // Files.
  [
    'file_missing',
    "E gguf_init_from_file: failed to open GGUF file '/m/a.gguf' (No such file or directory)",
    'E llama_model_load: error loading model: llama_model_loader: failed to load model from /m/a.gguf'
  ],
  ['file_missing', "gguf_init_from_file: failed to open '/m/a.gguf': 'No such file or directory'"],
  ['file_missing', 'llama_model_load: error loading model: failed to open /m/a.gguf: No such file or directory'],
  ['file_unreadable', "E gguf_init_from_file: failed to open GGUF file '/m/a.gguf' (Permission denied)"],
  ['file_unreadable', 'llama_model_load: error loading model: failed to open /m/a.gguf: Permission denied'],
  ['file_unreadable', "gguf_init_from_file: failed to open 'C:\\m\\a.gguf' (Access is denied)"],
  ['file_unreadable', 'llama_model_load: error loading model: read error: Is a directory'],
  ['read_failed', 'llama_model_load: error loading model: read error: Input/output error'],
  ['read_failed', 'llama_model_load: error loading model: read error: Stale file handle'],
  ['read_failed', 'llama_model_load: error loading model: mmap failed: No such device'],
  [
    'missing_shard',
    "gguf_init_from_file: failed to open GGUF file '/m/big-00003-of-00009.gguf' (No such file or directory)",
    'llama_model_load: error loading model: llama_model_loader: failed to load GGUF split from /m/big-00003-of-00009.gguf'
  ],
  [
    'missing_shard',
    'llama_model_load: error loading model: llama_model_loader: failed to load GGUF split from C:\\m\\big-00002-of-00003.gguf'
  ],
  [
    'file_missing',
    "gguf_init_from_file: failed to open GGUF file '/m/big-00001-of-00009.gguf' (No such file or directory)"
  ],
  [
    'bad_split',
    'llama_model_load: error loading model: illegal split file idx: 1 (file: /m/b.gguf), model must be loaded with the first split'
  ],
  ['bad_split', 'llama_model_load: error loading model: invalid split file idx: 3 (file: /m/b.gguf), expected 2'],
  ['bad_split', 'llama_model_load: error loading model: invalid split count, given: 2 splits, but expected 3'],
  ['not_gguf', "E gguf_init_from_reader: invalid magic characters: '<!DO', expected 'GGUF'"],
  [
    'not_gguf',
    'llama_model_load: error loading model: unknown (magic, version) combination: 73726576, 206e6f69; is this really a GGML file?'
  ],
  ['not_gguf', 'gguf_init_from_file: invalid magic number 46554747'],
  [
    'unsupported_file_version',
    'gguf_init_from_file: GGUFv1 is no longer supported. please use a more up-to-date version'
  ],
  [
    'unsupported_file_version',
    'E gguf_init_from_reader: this GGUF file is version 4 but this software only supports up to version 3'
  ],
  [
    'unsupported_file_version',
    'E gguf_init_from_reader: failed to load model: this GGUF file version 50331648 is extremely large, is there a mismatch between the host and model endianness?'
  ],
  ['file_damaged', 'E gguf_init_from_reader: failed to read key-value pairs'],
  ['file_damaged', 'gguf_init_from_file_impl: failed to read tensor info'],
  ['file_damaged', 'E gguf_init_from_reader: failed to read magic', "E srv load_model: failed to load model, 'x'"],
  ['file_damaged', 'llama_model_load: error loading model: unexpectedly reached end of file'],
  [
    'file_damaged',
    "llama_model_load: error loading model: tensor 'output.weight' data is not within the file bounds, model is corrupted or incomplete"
  ],
  ['file_damaged', 'llama_model_load: error loading model: corrupted model: 1025 tensors expected but 843 found'],
  [
    'file_damaged',
    'E gguf_read: string length 1099511627776 exceeds remaining file size 1234 bytes',
    'E gguf_init_from_reader: failed to read key-value pairs'
  ],
  ['file_damaged', "llama_model_load: error loading model: invalid model: tensor 'blk.0.attn_q.weight' is duplicated"],
  ['file_damaged', 'llama_model_load: error loading model: found tensors with invalid data'],
  ['unsupported_architecture', "llama_model_load: error loading model: unknown model architecture: 'qwen9moe'"],
  ['unsupported_architecture', "E llama_model_load: error loading model: unsupported model architecture: 'newarch-2'"],
  ['unsupported_architecture', "error loading model: unknown model architecture: 'flux'"],
  ['unsupported_architecture', "llama_model_load: error loading model: unknown model architecture: 'wan'"],
  [
    'unsupported_architecture',
    'llama_model_load: error loading model: CLIP cannot be used as main model, use it with --mmproj instead'
  ],
  [
    'unsupported_tokenizer',
    "llama_model_load: error loading model: error loading model vocabulary: unknown pre-tokenizer type: 'kimi-k9'"
  ],
  [
    'unsupported_tokenizer',
    "llama_model_load: error loading model: error loading model vocabulary: unknown tokenizer: 'tekken2'"
  ],
  [
    'unsupported_tokenizer',
    'llama_model_load: error loading model: error loading model vocabulary: cannot find tokenizer merges in model file'
  ],
  [
    'unsupported_tensor_type',
    "gguf_init_from_reader: tensor 'blk.0.ffn_up.weight' has invalid ggml type 142. should be in [0, 41)",
    'gguf_init_from_reader: failed to read tensor info'
  ],
  ['unsupported_tensor_type', "gguf_init_from_file_impl: tensor 'token_embd.weight' has invalid ggml type 31 (NONE)"],
  ['unsupported_tensor_type', 'TYPE_Q4_0_4_4 REMOVED, use Q4_0 with runtime repacking'],
  [
    'unsupported_tensor_type',
    "gguf_init_from_file_impl: tensor 'a' of type 31 (TYPE_Q4_0_4_4 REMOVED, use Q4_0 with runtime repacking) has 4096 elements per row, not a multiple of block size (0)"
  ],
  ['missing_tensor', "llama_model_load: error loading model: missing tensor 'blk.0.attn_q.weight'"],
  [
    'missing_tensor',
    'llama_model_load: error loading model: done_getting_tensors: wrong number of tensors; expected 292, got 291'
  ],
  [
    'missing_tensor',
    "llama_model_load: error loading model: check_tensor_dims: tensor 'blk.0.attn_k.weight' has wrong shape; expected  8192,  8192, got  8192,  1024,     1,     1"
  ],
  [
    'bad_metadata',
    'llama_model_load: error loading model: error loading model hyperparameters: key not found in model: qwen3.context_length'
  ],
  [
    'bad_metadata',
    'llama_model_load: error loading model: error loading model hyperparameters: invalid n_rot: 128, expected 64'
  ],

  ['bad_metadata', 'E llama_model_load: error loading model: invalid vector subscript'],
  ['file_damaged', 'failed to load model: the file is corrupted'],
  ['read_failed', 'llama_model_load: error loading model: read error: Bad address'],

  // Companion files.
  [
    'projector_missing',
    "gguf_init_from_file: failed to open GGUF file '/m/mmproj-F16.gguf' (No such file or directory)",
    "clip_init: failed to load model '/m/mmproj-F16.gguf': clip_model_loader: failed to load CLIP model from /m/mmproj-F16.gguf. Does this file exist?",
    'mtmd_init_from_file: error: Failed to load CLIP model from /m/mmproj-F16.gguf'
  ],
  [
    'projector_damaged',
    'gguf_init_from_reader: failed to read tensor info',
    "clip_init: failed to load model 'mmproj.gguf': clip_model_loader: failed to load CLIP model from mmproj.gguf. Does this file exist?",
    "srv load_model: failed to load multimodal model, 'mmproj.gguf'"
  ],
  ['projector_damaged', "clip_init: failed to load model 'm.gguf': clip_model_loader: tensor mm.0.weight is empty"],
  [
    'projector_unsupported',
    "clip_model_load: failed to load model 'a.gguf': load_hparams: unknown projector type: gemma9v"
  ],
  [
    'projector_mismatch',
    'mtmd_init_from_file: error: mismatch between text model (n_embd = 2048) and mmproj (n_embd = 4096)',
    'hint: you may be using wrong mmproj'
  ],
  [
    'out_of_gpu_memory',
    'ggml_backend_cuda_buffer_type_alloc_buffer: allocating 900.00 MiB on device 0: cudaMalloc failed: out of memory',
    "clip_init: failed to load model 'm.gguf': failed to allocate buffer",
    'mtmd_init_from_file: error: Failed to load CLIP model from m.gguf'
  ],
  [
    'adapter_unusable',
    'llama_adapter_lora_init: failed to apply lora adapter: model arch and LoRA arch mismatch',
    "cmn common_init_: failed to load lora adapter '/m/l.gguf'"
  ],
  [
    'adapter_unusable',
    "llama_adapter_lora_init: failed to apply lora adapter: LoRA tensor 'blk.0.x' does not exist in base model (hint: maybe wrong base model?)"
  ],
  [
    'adapter_unusable',
    "gguf_init_from_file: failed to open GGUF file '/m/lora.gguf' (No such file or directory)",
    'llama_adapter_lora_init: failed to apply lora adapter: failed to load lora adapter from file',
    "common_init_from_params: failed to load lora adapter '/m/lora.gguf'"
  ],
  ['draft_unusable', "srv load_model: the draft model '/m/d.gguf' is not compatible with the target model '/m/t.gguf'"],
  [
    'draft_unusable',
    'E srv load_model: failed to initialize speculative decoding context: draft model vocab type must match target model to use speculation'
  ],
  [
    'draft_unusable',
    "gguf_init_from_file: failed to open GGUF file '/m/d.gguf' (No such file or directory)",
    "srv load_model: failed to load draft model, '/m/d.gguf'"
  ],
  [
    'draft_unusable',
    "llama_model_load: error loading model: unknown model architecture: 'eagle9'",
    "srv    load_model: failed to load draft model, '/m/d.gguf'"
  ],

  [
    'draft_unusable',
    "I srv load_model: loading draft model 'd.gguf'",
    'E llama_model_load: error loading model: invalid vector subscript',
    "E srv load_model: failed to load draft model, 'd.gguf'"
  ],

  // Command line.
  ['unknown_flag', 'error: invalid argument: --frobnicate'],
  ['unknown_flag', 'error: unknown argument: -zz'],
  [
    'unknown_flag',
    'error while handling argument "--mlock": the argument has been removed. use --load-mode mlock',
    '',
    'usage:'
  ],
  ['bad_flag_value', 'error while handling argument "-c": stoi', '', 'usage:'],
  ['bad_flag_value', 'error while handling argument "--split-mode": invalid value'],
  ['bad_flag_value', 'error while handling argument "--lora": error: failed to open file \'/x\''],
  ['bad_flag_value', 'E llama_model_load_from_file_impl: invalid value for main_gpu: 3 (available devices: 1)'],
  ['bad_flag_value', 'error while handling argument "--rpc": failed to find RPC backend'],
  ['bad_cache_type', 'error while handling argument "--cache-type-k": Unsupported cache type: q9_9'],
  ['bad_cache_type', 'E llama_init_from_model: V cache type q4_0 with block size 32 does not divide n_embd_head_v=80'],
  ['bad_cache_type', 'llama_init_from_model: model does not support different K (f16) and V (q8_0) cache types'],
  [
    'flash_attention_required',
    'llama_init_from_model: failed to initialize the context: quantized V cache was requested, but this requires Flash Attention'
  ],
  ['flash_attention_required', 'llama_new_context_with_model: V cache quantization requires flash_attn'],
  ['bad_chat_template', 'error: the supplied chat template is not supported: {{ bad'],
  [
    'bad_chat_template',
    'E srv load_model: init: chat template parsing error: Expected value expression',
    'E srv load_model: init: please consider disabling jinja via --no-jinja'
  ],
  ['cannot_listen', "E srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080"],
  ['cannot_listen', "main: couldn't bind to server socket: hostname=127.0.0.1 port=8080"],
  ['cannot_listen', 'bind: Address already in use'],
  ['rpc_unreachable', 'Failed to connect to 192.168.1.5:50052'],
  ['rpc_unreachable', '/x/ggml-rpc.cpp:600: Remote RPC server crashed or returned malformed response'],
  [
    'system_limit',
    "terminate called after throwing an instance of 'std::system_error'",
    '  what():  Resource temporarily unavailable'
  ],
  ['system_limit', 'libgomp: Thread creation failed: Resource temporarily unavailable'],
  ['context_failed', 'E llama_init_from_model: failed to initialize the context: n_seq_max must be <= 256'],
  ['assertion_failed', '/src/ggml/src/ggml.c:123: GGML_ASSERT(a == b) failed', '[New LWP 1]'],
  ['crashed', 'Segmentation fault (core dumped)'],
  ['killed', 'bash: line 1: 4242 Killed                  llama-server -m x.gguf']
]
