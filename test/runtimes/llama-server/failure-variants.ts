import { OF_MACHINES, type Variant } from './failure-variants-machine.ts'
import { OF_MODELS } from './failure-variants-model.ts'

/** Lines from llama-server, libraries, drivers and kernels of several years, with their cause. */
export const VARIANTS: Variant[] = [...OF_MACHINES, ...OF_MODELS]

/** Lines that are printed when nothing is wrong, or when llama-server continues. */
export const HARMLESS_LINES: string[] = [
  'E llama_init_from_model: failed to initialize the context: Gemma4Assistant requires ctx_other to be set (this warning is normal during memory fitting)',
  'W srv    load_model: [spec] failed to measure draft model memory: failed to create llama_context from model',
  'ggml_cuda_host_malloc: failed to allocate 512.00 MiB of pinned memory: out of memory',
  'W common_fit_params: failed to fit params to free device memory: n_gpu_layers already set by user to 20, abort',
  'common_chat_templates_init: failed to parse chat template (defaulting to chatml): x',
  'W llama_file: Falling back to buffered IO due to Invalid argument',
  'warning: posix_madvise(.., POSIX_MADV_WILLNEED) failed: Bad address',
  'model has unused tensor mtp.0.weight (size = 100 bytes) -- ignoring',
  'warn: LLAMA_ARG_HOST environment variable is set, but will be overwritten by command line argument --host',
  'load_tensors: loading model tensors, this can take a while... (mmap = true)',
  'srv  log_server_r: request: POST /v1/chat/completions 127.0.0.1 200',
  "common_init_from_params: failed to load model '/m/x.gguf', try reducing --n-gpu-layers if you're running out of VRAM"
]
