import type {
  LoadingRecord,
  LocalModel,
  PlanReply,
  PullReply,
  RunningRecord,
  ShownModel
} from '../../core/contracts/native-records.ts'
import { DEFAULT_LOAD_OPTIONS } from '../../core/models/load-options.ts'

/** A model record as servers send it. */
export function localModel(name: string): LocalModel {
  return {
    name,
    model: name,
    size: 4_100_000,
    format: 'gguf',
    modified_at: '2026-11-21T11:00:00.000Z',
    digest: 'da5b44900113c8d0',
    capabilities: ['completion'],
    details: {
      parent_model: '',
      format: 'gguf',
      family: 'llama',
      families: ['llama'],
      parameter_size: '2.03M',
      quantization_level: 'F16'
    }
  }
}

export function shownModel(name: string): ShownModel {
  const { details, ...record } = localModel(name)
  return {
    modelfile: '',
    details: { ...record, ...details },
    model_info: {},
    capabilities: record.capabilities,
    context_window: 32_768,
    template: '',
    parameters: '',
    license: '',
    modified_at: record.modified_at,
    origin: { kind: 'import', from: '/models/m.gguf' },
    files: []
  }
}

export function runningModel(name: string): RunningRecord {
  const { capabilities: _, modified_at: __, ...record } = localModel(name)
  return {
    ...record,
    expires_at: '2026-11-21T12:04:00.000Z',
    size_vram: 0,
    context_length: 4096,
    mode: 'chat',
    options: DEFAULT_LOAD_OPTIONS,
    running: 0,
    queued: 0,
    slots: 4,
    generated_tokens: 0,
    prompt_cache: {
      conversations: 2,
      tokens: 900,
      memory: 5_000_000,
      disk: 0,
      hits: 3,
      misses: 1,
      restored_tokens: 600,
      restore_ms: 20
    }
  }
}

export function loadingModel(name: string): LoadingRecord {
  return { name, model: name, format: 'gguf', mode: 'chat', state: 'loading', queued: 0 }
}

/** The plan of a pull that fits the disk and the memory. */
export function planReply(model: string): PlanReply {
  const room = { required: 6e8, available: 9e9, fits: true }
  return {
    model,
    label: 'Q8_0',
    format: 'gguf',
    repository: {
      hub: 'huggingface',
      id: model,
      revision: 'abc',
      address: `https://hub.example/${model}`,
      gated: false
    },
    files: [{ path: 'q8.gguf', role: 'model', size: 6e8 }],
    size: 6e8,
    reason: 'It is the best that fits.',
    choices: [],
    memory: room,
    disk: room,
    warnings: [],
    present: false
  }
}

/** A download at 10 MB/s. */
export function pullReply(model: string, more: Partial<PullReply>): PullReply {
  return {
    id: 'abc',
    model,
    state: 'downloading',
    detached: true,
    watchers: 0,
    origin: 'huggingface:a/b',
    created_at: '2026-11-21T12:00:00.000Z',
    completed: 3e8,
    total: 6e8,
    speed: 10e6,
    files: [],
    ...more
  }
}
