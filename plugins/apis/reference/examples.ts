import type { Capability, Model } from '../../../core/contracts/models.ts'
import bodies from './examples.json' with { type: 'json' }

/** The capability that an example needs, and the model name it uses if no such model is here. */
const STAND_INS = {
  completion: 'corral/tiny-chat',
  embedding: 'ggml-org/embeddinggemma-300M-GGUF',
  rerank: 'ggml-org/Qwen3-Reranker-0.6B-GGUF',
  audio: 'ggml-org/ultravox-v0_5-llama-3_2-1b-GGUF'
} as const satisfies Partial<Record<Capability, string>>

/** A short silence. */
const sound = {
  model: STAND_INS.audio,
  file: `data:audio/wav;base64,UklGRkQDAABXQVZFZm10IBAAAAABAAEAgD4AAAB9AAACABAAZGF0YSADAAA${'A'.repeat(1068)}`
}

/** An example body for each operation id. Ollama's routes use those of the native API. */
const BODIES: Record<string, object> = { ...bodies, createTranscription: sound, createTranslation: sound }

const PARAMETERS: Record<string, string> = { owner: 'corral', from: 'ollama', since: '1h' }

export function exampleBody(operationId: string): object | undefined {
  return ofOperation(operationId, BODIES)
}

/** Looks up an operation, or the one that it is another address of. */
export function ofOperation<T>(operationId: string, table: Record<string, T>): T | undefined {
  const plain = operationId.replace(/^anthropicMounted/, 'anthropic').replace(/^ollama(?=[A-Z])/, '')
  return table[operationId] ?? table[plain[0]!.toLowerCase() + plain.slice(1)]
}

export function exampleParameter(name: string, place: string): string | undefined {
  return name === 'model' && place === 'path' ? STAND_INS.completion : PARAMETERS[name]
}

/** Replaces the models in a document's examples by models that are here: the demo model, or the first able one. */
export function withModelsHere(text: string, models: readonly Model[]): string {
  let named = text
  for (const [capability, standIn] of Object.entries(STAND_INS) as [Capability, string][]) {
    const able = models.filter(({ metadata }) => metadata.capabilities.includes(capability))
    const chosen = able.find(({ publicName }) => publicName === standIn) ?? able[0]
    if (chosen) named = named.replaceAll(JSON.stringify(standIn), JSON.stringify(chosen.publicName))
  }
  return named
}
