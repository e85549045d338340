import type { FailureRule } from './rule.ts'

const CORRECT = 'Correct it in the settings (engine arguments of config.yaml).'

/** How llama-server was called, and what it was asked for. */
export const CALL_RULES: FailureRule[] = [
  {
    cause: 'bad_cache_type',
    pattern: /Unsupported cache type: (\S+)/i,
    sentence: 'llama.cpp has no cache type $1. Use f16 or q8_0 (cache_type_k, cache_type_v).'
  },
  {
    cause: 'bad_chat_template',
    pattern:
      /the supplied chat template is not supported|chat template parsing error|failed to initialize chat template|please consider disabling jinja/i,
    sentence: 'The chat template cannot be used. Correct it, or leave it out to use the one of the model.'
  },
  {
    cause: 'unknown_flag',
    pattern: /while handling argument "([^"]+)": (?:error: )?the argument has been removed\.?\s*(.*)/i,
    sentence:
      'This llama.cpp build does not know the flag $1 any more. $2 Correct it in the settings, or use another build.'
  },
  {
    cause: 'unknown_flag',
    pattern: /(?:invalid|unknown|unrecognized) (?:argument|option)s?: '?(-[^\s']*)/i,
    sentence: 'This llama.cpp build does not know the flag $1. Remove it from the settings, or use another build.'
  },
  {
    cause: 'bad_flag_value',
    pattern: /while handling argument "([^"]+)": (?:std::)?(?:stoi|stof|stol|stoul|stoull|stod)\b/,
    sentence: `llama-server refuses the flag $1: its value is no number, or too large a one. ${CORRECT}`
  },
  {
    cause: 'bad_flag_value',
    pattern: /while handling (?:argument|environment variable) "([^"]+)": (?:error: )?(.+)/i,
    sentence: `llama-server refuses the flag $1 ($2). ${CORRECT}`
  },
  {
    cause: 'bad_flag_value',
    pattern:
      /(?:invalid|missing) (?:parameter|value) for (?:argument:? ?)?'?(-{1,2}[\w-]+|main_gpu: .*|n_parallel)|error: (--\w[\w-]* requires .*|--\w[\w-]* is required|either --embeddings? or --rerank\w* .*)|(LLAMA_SPLIT_MODE_TENSOR needs .*)|(?:invalid|unknown) (split mode|value for --[\w-]+.*)|(DSpark draft has no confidence head.*)/i,
    sentence: `llama-server refuses what it was told ($1). ${CORRECT}`
  },
  {
    cause: 'cannot_listen',
    pattern:
      /couldn'?t bind (?:HTTP |to )?(?:HTTP )?server socket|Address already in use|EADDRINUSE|Only one usage of each socket address|failed to bind (?:to|socket|address)|error while attempting to bind|unable to (?:bind|listen)|failed to listen on/i,
    sentence: 'llama-server could not listen on its address. Try again; check the temporary folder if it goes on.'
  },
  {
    cause: 'rpc_unreachable',
    pattern:
      /Failed to connect to (\S+:\d+)|RPC handshake failed for (\S+)|Remote RPC server (crashed or returned malformed response)|RPC (server version mismatch.*|transport initialization failed)|Cannot resolve host '([^']+)'|Failed to parse endpoint: (\S+)/i,
    sentence:
      'A machine that was to take part over RPC does not answer ($1). Start ggml-rpc-server there, of the same llama.cpp version, or leave it out of the settings.'
  },
  {
    cause: 'flash_attention_required',
    pattern:
      /quantized V cache .*requires? (?:flash_attn|Flash Attention)|V cache quantization requires (?:flash_attn|Flash Attention)|SPLIT_MODE_TENSOR requires flash_attn/i,
    sentence:
      'A quantized cache_type_v needs flash attention, which is off or not possible here. Use cache_type_v f16, or allow flash attention.'
  },
  {
    cause: 'bad_cache_type',
    pattern: /([KV]) cache type (\S+) with block size \d+ does not divide/i,
    sentence: 'The $1 cache type $2 does not fit this model. Use f16 or q8_0 (cache_type_k, cache_type_v).'
  },
  {
    cause: 'bad_cache_type',
    pattern: /does not support different K \((\S+)\) and V \((\S+)\) cache types/,
    sentence: 'This model takes no cache types that differ ($1 and $2). Use the same for cache_type_k and cache_type_v.'
  },
  {
    cause: 'draft_unusable',
    pattern:
      /draft model .*(?:is not compatible|must match|must closely|incompatible)|(?:target|draft)(?: model)? vocab\w* .*(?:mismatch|incompatible|differ)|draft model is not eagle3|vocab type must match target/i,
    sentence:
      'The draft model does not go with this model (their vocabularies or kinds differ). Choose another draft model in the settings.'
  },
  {
    cause: 'draft_unusable',
    weak: true,
    pattern:
      /failed to load draft model|failed to (?:create|initialize) (?:MTP|draft|speculative decoding) context|requires ctx_other|doesn't contain MTP layers/i,
    sentence: 'The draft model cannot be used. Choose another one in the settings, or leave it out.'
  },
  {
    cause: 'adapter_unusable',
    pattern:
      /(model arch and LoRA arch mismatch|LoRA tensor '[^']+' .*|tensor '[^']+' has incorrect shape \(hint: maybe wrong base model\?\)|expect (?:general|adapter)\.type to be .*|lora_a tensor is not transposed|control vector n_embd does not match model|no valid control vector files passed)/i,
    sentence: 'A LoRA adapter or control vector cannot be used ($1). Choose one that was made for this very model.'
  },
  {
    cause: 'adapter_unusable',
    weak: true,
    pattern: /failed to (?:load|apply) (?:lora|control vector)/i,
    sentence:
      'A LoRA adapter or control vector cannot be used. Check its file, and that it was made for this very model.'
  },
  {
    cause: 'system_limit',
    pattern:
      /(Too many open files|Thread creation failed|pthread_create failed|Resource temporarily unavailable|failed to create thread|can't start new thread)/i,
    sentence: 'A limit of the system was reached ($1). Raise it (ulimit -n, ulimit -u), or load fewer models at once.'
  }
]
