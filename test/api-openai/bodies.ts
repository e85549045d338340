import type { EffectiveSettings } from '../../core/config/model-settings.ts'
import type { Capability } from '../../core/contracts/models.ts'
import { CorralError } from '../../core/errors.ts'
import { checkAgainst } from '../../plugins/api-openai/check-body.ts'
import { type Fields, readCall } from '../../plugins/api-openai/engine-call.ts'
import { chatGeneration, completionGeneration, type Generation } from '../../plugins/api-openai/generation.ts'
import { ChatRequest, CompletionRequest } from '../../plugins/api-openai/request-schemas.ts'
import { variantOf } from './support.ts'

export const messages = [{ role: 'user', content: 'hi' }]
export const base = { model: 'a/b', messages }
export const defaults = { temperature: 0.7, top_p: 0.9, top_k: 40, max_tokens: 2048, seed: -1 }
const settings = { sampling: defaults, engine: {} } as unknown as EffectiveSettings
export const able = (...capabilities: Capability[]) => variantOf('a', 'b', { capabilities })

/** What a chat asks of an engine. */
export function chat(body: Fields, variant = able('completion', 'tools')): Generation {
  checkAgainst(ChatRequest, body)
  return chatGeneration(readCall(body, ChatRequest), variant, settings)
}

/** What a completion asks of an engine. */
export function complete(body: Fields, variant = able('completion')): Generation {
  const whole = { model: 'a/b', prompt: 'x', ...body }
  checkAgainst(CompletionRequest, whole)
  return completionGeneration(readCall(whole, CompletionRequest), variant, settings)
}

/** Why a request is refused; it never quotes it. */
export function refusal(read: () => unknown): CorralError | undefined {
  try {
    read()
    return undefined
  } catch (error) {
    if (!(error instanceof CorralError) || error.message.includes('secret')) throw error
    return error
  }
}
