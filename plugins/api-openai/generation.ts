import { checkMedia } from '../../core/answers/media-parts.ts'
import { withModelDefaults } from '../../core/answers/model-defaults.ts'
import type { EffectiveSettings } from '../../core/config/model-settings.ts'
import type { Model } from '../../core/contracts/catalog.ts'
import { chatFields } from './chat-fields.ts'
import type { ChunkHead } from './chunks.ts'
import { completionFields, type Prompt } from './completion-fields.ts'
import type { EngineCall, Fields } from './engine-call.ts'
import type { ChatRequest, CompletionRequest } from './request-schemas.ts'

/** What is asked of the engine, and how its answer is written. */
export interface Generation {
  operation: 'chat' | 'completion'
  body: Fields
  stream: boolean
  /** Answers are begun with them. */
  echo?: readonly Prompt[]
  /** Choices to keep of each prompt, where more are made to choose from. */
  bestOf?: number
  head: Omit<ChunkHead, 'object' | 'id' | 'echo'>
  /** Whether an engine's hosted-chat stream can be passed on as it is, but for names. */
  passesBytes: boolean
}

type GenerationOf = (call: EngineCall, variant: Model, settings: EffectiveSettings) => Generation

/** @throws CorralError with the field at fault, before a model is loaded for it */
export const chatGeneration: GenerationOf = (call, variant, settings) => {
  const request = call.fields as ChatRequest & Fields
  const { fields, extras } = chatFields(request)
  const messages = fields.messages as Fields[]
  checkMedia(messages, variant, settings.engine, (message, part) => {
    const { type } = (messages[message]!.content as { type: string }[])[part]!
    return `messages[${message}].content[${part}].${type}`
  })
  const choices = request.n ?? 1
  return generation(call, settings, {
    operation: 'chat',
    fields: { ...fields, messages: withModelDefaults(messages, variant.defaults) },
    answers: choices,
    head: { choices, ...extras },
    likeHosted: true
  })
}

/** @throws CorralError with the field at fault, before a model is loaded for it */
export const completionGeneration: GenerationOf = (call, variant, settings) => {
  const { fields, choices, prompts, extras } = completionFields(call.fields as CompletionRequest & Fields, variant)
  const { echo, bestOf, ...extra } = extras
  return {
    ...generation(call, settings, {
      operation: 'completion',
      fields,
      answers: choices * prompts,
      head: { choices, ...extra },
      likeHosted: false
    }),
    ...(echo && { echo, passesBytes: false }),
    ...(bestOf !== undefined && { bestOf })
  }
}

function generation(
  call: EngineCall,
  settings: EffectiveSettings,
  asked: {
    operation: Generation['operation']
    fields: Fields
    /** Choices of all prompts. */
    answers: number
    head: Omit<ChunkHead, 'object' | 'id' | 'model' | 'usage' | 'echo'>
    /** The counts come as hosted services send them, as long as there is one choice. */
    likeHosted: boolean
  }
): Generation {
  const { operation, fields, answers, head, likeHosted } = asked
  const stream = fields.stream === true
  const options = fields.stream_options as { include_usage?: boolean | null } | undefined
  const usage = !stream || options?.include_usage === true
  const { logprobs, legacyFunctions, nothing } = head
  return {
    operation,
    stream,
    body: {
      ...settings.sampling,
      ...fields,
      model: call.asked,
      stream: true,
      ...(usage && { stream_options: { include_usage: true } })
    },
    head: { ...head, model: call.asked, usage },
    passesBytes:
      fields.suffix === undefined &&
      logprobs === undefined &&
      !legacyFunctions &&
      !nothing &&
      (!usage || (likeHosted && answers === 1))
  }
}
