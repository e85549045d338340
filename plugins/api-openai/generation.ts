import { checkMedia } from '../../core/answers/media-parts.ts'
import { withModelDefaults } from '../../core/answers/model-defaults.ts'
import type { EffectiveSettings } from '../../core/config/model-settings.ts'
import type { StoredVariant } from '../../core/contracts/storage.ts'
import { chatFields } from './chat-fields.ts'
import type { Wording } from './chunk-wording.ts'
import { completionFields, type Prompt } from './completion-fields.ts'
import type { EngineCall, Fields } from './engine-call.ts'
import type { ChatRequest, CompletionRequest } from './request-schemas.ts'

/** What is asked of the engine, and how its answer is worded. */
export interface Generation {
  /** The engine's own path. */
  path: string
  body: Fields
  stream: boolean
  /** Answers are begun with them. */
  echo?: readonly Prompt[]
  /** Choices to keep of each prompt, where more are made to choose from. */
  bestOf?: number
  /** Choices of all prompts. */
  answers: number
  wording: Omit<Wording, 'id' | 'echo'>
  /** Whether the engine's stream can be passed on as it is, but for names. */
  passedOn: boolean
}

type GenerationOf = (call: EngineCall, variant: StoredVariant, settings: EffectiveSettings) => Generation

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
    path: '/v1/chat/completions',
    fields: { ...fields, messages: withModelDefaults(messages, variant.defaults) },
    answers: choices,
    wording: { choices, ...extras },
    likeHosted: true
  })
}

/** @throws CorralError with the field at fault, before a model is loaded for it */
export const completionGeneration: GenerationOf = (call, variant, settings) => {
  const { path, fields, choices, prompts, extras } = completionFields(
    call.fields as CompletionRequest & Fields,
    variant
  )
  const { echo, bestOf, ...extra } = extras
  return {
    ...generation(call, settings, {
      path,
      fields,
      answers: choices * prompts,
      wording: { choices, ...extra },
      likeHosted: false
    }),
    ...(echo && { echo, passedOn: false }),
    ...(bestOf !== undefined && { bestOf })
  }
}

function generation(
  call: EngineCall,
  settings: EffectiveSettings,
  asked: {
    path: string
    fields: Fields
    answers: number
    wording: Omit<Wording, 'id' | 'model' | 'usage' | 'echo'>
    /** The counts come as hosted services send them, as long as there is one choice. */
    likeHosted: boolean
  }
): Generation {
  const { path, fields, answers, wording, likeHosted } = asked
  const stream = fields.stream === true
  const options = fields.stream_options as { include_usage?: boolean | null } | undefined
  const usage = !stream || options?.include_usage === true
  const { logprobs, legacyFunctions, nothing } = wording
  return {
    path,
    stream,
    answers,
    body: {
      ...settings.sampling,
      ...fields,
      model: call.asked,
      stream: true,
      ...(usage && { stream_options: { include_usage: true } })
    },
    wording: { ...wording, model: call.asked, usage },
    passedOn:
      path !== '/infill' &&
      logprobs === undefined &&
      !legacyFunctions &&
      !nothing &&
      (!usage || (likeHosted && answers === 1))
  }
}
