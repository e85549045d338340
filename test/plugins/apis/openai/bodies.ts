import { readModelRequest } from '../../../../core/answers/model-request.ts'
import type { CoreConfig } from '../../../../core/config/core-schema.ts'
import type { Capability, Catalog, Model } from '../../../../core/contracts/models.ts'
import { CorralError } from '../../../../core/errors.ts'
import { DEFAULT_LOAD_OPTIONS } from '../../../../core/models/load-options.ts'
import {
  chatGeneration,
  completionGeneration,
  type Fields,
  type Generation
} from '../../../../plugins/apis/openai/generation.ts'
import { checkAgainst } from '../../../../plugins/apis/openai/request-validation.ts'
import { ChatRequest, CompletionRequest } from '../../../../plugins/apis/openai/schemas.ts'
import { variantOf } from './support.ts'

export const messages = [{ role: 'user', content: 'hi' }]
export const base = { model: 'a/b', messages }
export const defaults = { temperature: 0.7, top_p: 0.9, top_k: 40, max_tokens: 2048, seed: -1 }
export const able = (...capabilities: Capability[]) => variantOf('a', 'b', { capabilities })

/** Parses the fields that requests of all APIs share. */
export function modelRequest(body: Fields, variant: Model = able('completion', 'tools')) {
  const catalog = { get: () => variant } as unknown as Catalog
  const config = { defaults: { ...DEFAULT_LOAD_OPTIONS, ...defaults }, models: {} } as unknown as CoreConfig
  return readModelRequest({ catalog, config }, body, {})
}

/** Builds the engine's request for a chat. */
export function chat(body: Fields, variant: Model = able('completion', 'tools')): Generation {
  checkAgainst(ChatRequest, body)
  return chatGeneration(body, modelRequest(body, variant))
}

/** Builds the engine's request for a completion. */
export function complete(body: Fields, variant: Model = able('completion')): Generation {
  const whole = { model: 'a/b', prompt: 'x', ...body }
  checkAgainst(CompletionRequest, whole)
  return completionGeneration(whole, modelRequest(whole, variant))
}

/** Returns the error of a refused request, and checks that it does not quote the request. */
export function refusal(read: () => unknown): CorralError | undefined {
  try {
    read()
    return undefined
  } catch (error) {
    if (!(error instanceof CorralError) || error.message.includes('secret')) throw error
    return error
  }
}
