import type { Capability, Model } from '../../../core/contracts/models.ts'

/** The capability that an example needs, and the model name it uses if no such model is here. */
const STAND_INS = {
  completion: 'corral/tiny-chat',
  embedding: 'ggml-org/embeddinggemma-300M-GGUF',
  rerank: 'ggml-org/Qwen3-Reranker-0.6B-GGUF',
  audio: 'ggml-org/ultravox-v0_5-llama-3_2-1b-GGUF'
} as const satisfies Partial<Record<Capability, string>>

const model = STAND_INS.completion
const messages = [{ role: 'user', content: 'What is the capital of France?' }]
const question = { model, messages, max_tokens: 100 }
const embedding = STAND_INS.embedding
const pulled = 'Qwen/Qwen3-0.6B-GGUF'
const ranking = {
  model: STAND_INS.rerank,
  query: 'What floats on water?',
  documents: ['Bread is baked in an oven.', 'A boat sails on the sea.']
}
/** A short silence. */
const sound = {
  model: STAND_INS.audio,
  file: `data:audio/wav;base64,UklGRkQDAABXQVZFZm10IBAAAAABAAEAgD4AAAB9AAACABAAZGF0YSADAAA${'A'.repeat(1068)}`
}

/** An example body for each operation id. Ollama's routes use those of the native API. */
const BODIES: Record<string, object> = {
  chat: { model, messages, stream: false },
  generate: { model, prompt: 'What is 7 + 8?', stream: false },
  embed: { model: embedding, input: ['A boat sails on the sea.'] },
  embeddings: { model: embedding, prompt: 'A boat sails on the sea.' },
  showModel: { model },
  loadModel: { model, stream: false },
  stopModel: { model },
  copyModel: { source: model, destination: 'me/copy' },
  createModel: { model: 'me/leo', from: model, system: 'You are Leo.', stream: false },
  setDefaultVariant: { model: 'me/leo' },
  deleteModel: { model: 'me/leo' },
  pushModel: { model },
  pullModel: { model: pulled, dry_run: true },
  pausePull: { model: pulled },
  resumePull: { model: pulled },
  cancelPull: { model: pulled },
  importModel: { model: 'me/model', path: '/srv/models/model.gguf', stream: false },
  convertModel: { model: 'Qwen/Qwen3-0.6B', dtype: 'q8_0', stream: false },
  deleteConversion: { model: 'Qwen/Qwen3-0.6B', dtype: 'q8_0' },
  installConversionRuntime: { stream: false },
  installRuntime: { runtime: 'cpu', stream: false },
  upgradeRuntime: { stream: false },
  useRuntime: { runtime: 'auto', stream: false },
  createKey: { name: 'alice', role: 'user' },
  putConversation: { title: 'The capital of France', text: 'Paris', document: { messages } },
  createSession: { token: 'p1VK5cLqkhjoWkqHkXn5dJw0Yq3Vt2bqkQzXo3sN8mE' },
  createSessionLink: {},
  setModelSettings: { model, settings: { options: { num_ctx: 8192 } }, revision: '44136fa355b3678a' },
  setLogLevel: { part: 'scheduler', level: 'debug' },
  askForFront: { model, call: 'chat', request: { messages, max_tokens: 100 } },
  describeModels: { models: [model] },
  pullAtMember: { member: 'node-1', model: pulled },
  issueTicket: { model },
  redeemTicket: { ticket: 'dJw0Yq3Vt2bqkQzXo3sN8mEp1VK5cLqkhjoWkqHkXn5' },
  copyFromMember: {
    source: 'node-1',
    url: 'http://10.0.0.11:11435',
    ticket: 'dJw0Yq3Vt2bqkQzXo3sN8mEp1VK5cLqkhjoWkqHkXn5',
    digest: '4c3b1d5a0f2e6978877665544332211000112233445566778899aabbccddeeff'
  },
  drainMember: { member: 'node-1' },
  undrainMember: { member: 'node-1' },
  startCapture: { model, for: '1m' },
  createChatCompletion: question,
  createCompletion: { model, prompt: 'What is 7 + 8?', max_tokens: 20 },
  createEmbedding: { model: embedding, input: 'A boat sails on the sea.' },
  rerank: ranking,
  rerankToo: ranking,
  rerankV2: ranking,
  tryModel: { model, session: 'docs', settings: { options: { num_parallel: 2 } } },
  listTunables: { model },
  llamaCompletion: { model, prompt: 'What is 7 + 8?', n_predict: 20 },
  llamaCompletions: { model, prompt: 'What is 7 + 8?', n_predict: 20 },
  llamaEmbedding: { model: embedding, content: 'A boat sails on the sea.' },
  llamaEmbeddings: { model: embedding, content: 'A boat sails on the sea.' },
  llamaInfill: { model, input_prefix: 'The capital of France is ', input_suffix: '.' },
  llamaLoad: { model },
  llamaDownload: { model: pulled },
  llamaUnload: { model },
  llamaLookUpStreams: { conversation_ids: ['a-name-of-the-client'] },
  controlChatCompletion: { action: 'reasoning_end', id: 'chatcmpl-0123456789abcdef0123456789abcdef', model },
  countChatTokens: { model, messages },
  showPrompt: { model, messages },
  tokenize: { model, content: 'A boat sails on the sea.' },
  detokenize: { model, tokens: [101, 102] },
  createBatch: {
    input_file_id: 'file-0123456789abcdef0123456789abcdef',
    endpoint: '/v1/chat/completions',
    completion_window: '24h'
  },
  createResponse: { model, input: 'What is the capital of France?' },
  countResponseInputTokens: { model, input: 'What is the capital of France?' },
  createTranscription: sound,
  createTranslation: sound,
  createSpeech: { model, input: 'Hello', voice: 'alloy' },
  createImage: { model, prompt: 'A boat' },
  createImageEdit: { model, prompt: 'A boat' },
  createImageVariation: { model },
  anthropicCreateMessage: question,
  anthropicCountTokens: { model, messages }
}

/** Example values of path and query parameters. */
const PARAMETERS: Record<string, string> = { owner: 'corral', from: 'ollama', since: '1h' }

/** Returns an example body for an operation. */
export function exampleBody(operationId: string): object | undefined {
  const plain = operationId.replace(/^anthropicMounted/, 'anthropic').replace(/^ollama(?=[A-Z])/, '')
  return BODIES[operationId] ?? BODIES[plain] ?? BODIES[plain[0]!.toLowerCase() + plain.slice(1)]
}

/** Returns an example value of a parameter. */
export function exampleParameter(name: string, place: string): string | undefined {
  return name === 'model' && place === 'path' ? model : PARAMETERS[name]
}

/**
 * Replaces the model names in a document's examples with models that are here: the demo model if present, otherwise the
 * first model with the same capability.
 */
export function withModelsHere(text: string, models: readonly Model[]): string {
  let named = text
  for (const [capability, standIn] of Object.entries(STAND_INS) as [Capability, string][]) {
    const able = models.filter(({ metadata }) => metadata.capabilities.includes(capability))
    const chosen = able.find(({ publicName }) => publicName === standIn) ?? able[0]
    if (chosen) named = named.replaceAll(JSON.stringify(standIn), JSON.stringify(chosen.publicName))
  }
  return named
}
