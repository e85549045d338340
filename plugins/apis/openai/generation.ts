import type { TSchema } from 'typebox'
import { callArguments } from '../../../core/answers/call-arguments.ts'
import { passedFields, withModelDefaults } from '../../../core/answers/engine-fields.ts'
import { toolRequest } from '../../../core/answers/hosted-calls.ts'
import { withUsableMedia } from '../../../core/answers/media-parts.ts'
import type { ModelRequest } from '../../../core/answers/model-request.ts'
import type { Question } from '../../../core/answers/question.ts'
import type { Model } from '../../../core/contracts/models.ts'
import { CorralError, invalidRequest } from '../../../core/errors.ts'
import { merged } from '../../../core/system/collections.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { chatTools, withoutNulls } from './chat-tools.ts'
import { freeformArguments } from './freeform-tools.ts'
import { type AnswerHead, logprobFields } from './openai-answer.ts'
import { checkAgainst } from './request-validation.ts'
import { type ChatMessage, ChatRequest, CompletionRequest, type ContentPart } from './schemas.ts'

export type Fields = Record<string, unknown>
export type Prompt = string | number[]

export interface Generation {
  body: Fields
  stream: boolean
  head: Omit<AnswerHead, 'id' | 'echo'> & { echo?: readonly Prompt[] }
  /** Whether the engine's stream can be passed on unchanged, except for names. */
  passesBytes: boolean
  ignoredTools?: readonly string[]
  tools?: Question['tools']
}

export type Planner = (body: Fields, request: ModelRequest) => Generation

/** Fields that are not passed to the engine. `n_cmpl` is llama-server's alias of `n`. */
const OWN = ['model', 'name', 'options', 'keep_alive', 'n_cmpl']

/** Returns the engine's fields of a request. @param schema validates them again, merged with `options` */
export function engineFields(body: Fields, { options }: ModelRequest, schema?: TSchema): Fields {
  // `stream` must be set in the request itself, not in its options.
  const fields = passedFields(body, options, body.stream === undefined ? [...OWN, 'stream'] : OWN)
  if (schema && body.options) checkAgainst(schema, fields)
  return fields
}

/** Drops empty stop texts, which would end every answer immediately. */
export function stopField(stop: string | string[] | null | undefined): Fields {
  return stop === undefined || stop === null ? {} : { stop: [stop].flat().filter(text => text !== '') }
}

function generation(
  { requested, settings }: ModelRequest,
  fields: Fields,
  head: Omit<Generation['head'], 'model' | 'usage'>
): Generation {
  const stream = fields.stream === true
  const options = fields.stream_options as { include_usage?: boolean | null } | undefined
  const usage = !stream || options?.include_usage === true
  const { operation, choices, logprobs, legacyFunctions, freeform, nothing, echo } = head
  const several = choices > 1 || (Array.isArray(fields.prompt) && typeof fields.prompt[0] !== 'number')
  const change =
    logprobs !== undefined || legacyFunctions || freeform || nothing || echo || several || fields.suffix !== undefined
  // Engines count the tokens of each choice separately, and count completions differently from OpenAI.
  const useOpenAiFormat = !usage || operation === 'chat'
  return {
    stream,
    body: merged(merged(settings.sampling, fields), {
      model: requested,
      stream: true,
      ...(usage && { stream_options: { include_usage: true } })
    }),
    head: merged(head, { model: requested, usage }),
    passesBytes: !change && useOpenAiFormat
  }
}

export const chatGeneration: Planner = (body, request) => {
  const { variant, settings } = request
  const chat = engineFields(body, request, ChatRequest) as ChatRequest & Fields
  const { messages: sent, tools: _, tool_choice, functions, function_call, logprobs, top_logprobs, mcp, ...rest } = chat
  if (rest.modalities?.some(kind => kind !== 'text')) {
    const message = 'Only text can be generated. Remove everything except "text" from "modalities".'
    throw new CorralError('unsupported_capability', message, { param: 'modalities' })
  }
  if (rest.response_format?.type === 'json_schema' && !rest.response_format.json_schema) {
    const param = 'response_format.json_schema'
    throw invalidRequest(param, `"${param}" is missing. It must be an object with "schema".`)
  }
  if (top_logprobs && !logprobs) throw invalidRequest('top_logprobs', '"top_logprobs" requires "logprobs": true.')
  const converted = engineMessages(sent)
  const messages = withUsableMedia(converted, variant, settings.engine, (message, part) => {
    const { type } = (converted[message]!.content as { type: string }[])[part]!
    return `messages[${message}].content[${part}].${type}`
  })
  const tools = chatTools(chat)
  const fields = merged(rest, {
    messages: withModelDefaults(messages, variant.defaults),
    ...stopField(rest.stop),
    ...formatField(rest.response_format),
    ...tools.fields,
    // Older clients expect at most one call.
    ...(tools.isLegacy && { parallel_tool_calls: false }),
    ...(logprobs && logprobFields(top_logprobs ?? 0))
  })
  const head = {
    operation: 'chat' as const,
    choices: rest.n ?? 1,
    legacyFunctions: tools.isLegacy,
    ...(mcp && { hosted: true }),
    ...(tools.freeform.size > 0 && { freeform: tools.freeform }),
    ...(logprobs && { logprobs: top_logprobs ?? 0 })
  }
  return merged(generation(request, fields, head), { ignoredTools: tools.ignored, tools: toolRequest({ mcp }) })
}

/** Hugging Face's clients call the schema of a JSON object `value`, which engines ignore. */
function formatField(format: ChatRequest['response_format']): Fields {
  const { value, ...rest } = { value: undefined, ...format } as Fields
  if (rest.type !== 'json_object' || !isObject(value) || rest.schema) return {}
  return { response_format: { ...rest, schema: value } }
}

/** Answers in audio are only named by an id, which means something to the service that made them. */
const SPOKEN = '[There was a spoken answer here.]'

const PARTS = ['text', 'image_url', 'input_audio', 'input_video', 'video_url', 'file']

/**
 * Converts messages for the engine. A message without a role is the user's, a refusal becomes text, and old function
 * calls become tool calls.
 * @throws CorralError `invalid_request` naming the place
 */
export function engineMessages(messages: readonly ChatMessage[]): Fields[] {
  let calls = 0
  return messages.map((message, index) => {
    const at = `messages[${index}].content`
    const { function_call, tool_calls, refusal, reasoning, audio, ...rest } = message
    const converted: Fields = withoutNulls(rest)
    // Some clients return the thinking under another name.
    if (typeof reasoning === 'string' && reasoning !== '') converted.reasoning_content ??= reasoning
    converted.role ??= 'user'
    const made = toolCalls(message, `messages[${index}]`, () => `call_${++calls}`)
    if (made.length > 0) converted.tool_calls = made
    const content = message.content ?? refusal ?? (audio ? (audio.transcript ?? SPOKEN) : undefined)
    const isResult = message.content === null && (converted.role === 'tool' || converted.role === 'function')
    if (typeof content === 'string') converted.content = content
    else if (content) converted.content = content.map((part, number) => enginePart(part, `${at}[${number}]`))
    else if (isResult) converted.content = ''
    else if (converted.role !== 'assistant' || (made.length === 0 && message.content === undefined)) {
      throw invalidRequest(at, `"${at}" must be text or a list of parts.`)
    } else converted.content = null
    if (converted.role === 'function') {
      // The message answers the preceding call.
      converted.role = 'tool'
      converted.tool_call_id = `call_${calls}`
    }
    return converted
  })
}

function toolCalls({ tool_calls, function_call }: ChatMessage, at: string, newId: () => string): Fields[] {
  const made = tool_calls?.length ? tool_calls : function_call ? [{ function: function_call }] : []
  return made.map(({ custom, ...call }: NonNullable<ChatMessage['tool_calls']>[number], index) => {
    const called = custom ? { name: custom.name, arguments: freeformArguments(custom.input) } : call.function
    const param = `${at}.tool_calls[${index}].function`
    if (!called) throw invalidRequest(param, `"${param}" is missing. It must be an object with "name" and "arguments".`)
    return {
      ...call,
      id: call.id || newId(),
      type: 'function',
      function: { ...called, arguments: callArguments(called.arguments) }
    }
  })
}

function enginePart(part: ContentPart, at: string): Fields {
  const { type, text, refusal, image_url } = part
  if (type === 'refusal') return { type: 'text', text: refusal ?? '' }
  if (!PARTS.includes(type))
    throw invalidRequest(`${at}.type`, `"${at}.type" must be "text", "image_url", "input_audio" or "file".`)
  if (type === 'text' && typeof text !== 'string') throw invalidRequest(`${at}.text`, `"${at}.text" must be text.`)
  // Some clients send the URL without the object around it.
  return type === 'image_url' && typeof image_url === 'string' ? { type, image_url: { url: image_url } } : part
}

export const completionGeneration: Planner = (body, request) => {
  const completion = engineFields(body, request, CompletionRequest) as CompletionRequest & Fields
  const { prompt, suffix, echo, best_of, logprobs, n, ...rest } = completion
  const prompts = toPrompts(prompt)
  const kept = n ?? 1
  const choices = Math.max(kept, best_of ?? kept)
  const wanted = logprobs === true ? 1 : logprobs === false || logprobs === null ? undefined : logprobs
  if (best_of && best_of < kept) throw invalidRequest('best_of', `"best_of" must be at least "n", which is ${kept}.`)
  if (choices > kept && rest.stream) {
    throw invalidRequest('best_of', 'Answers chosen by "best_of" cannot be streamed. Remove "best_of" or "stream".')
  }
  if (echo && wanted !== undefined) {
    const message = 'Engines do not report log probabilities of the prompt. Remove "echo" or "logprobs".'
    throw new CorralError('unsupported_capability', message, { param: 'logprobs' })
  }
  // The best answers are chosen by their log probabilities.
  const top = choices > kept ? (wanted ?? 0) : wanted
  // A single prompt is not sent as a list, because an engine with a projector does not accept lists.
  const whole = prompts.length === 1 ? prompts[0] : prompts
  const fields = merged(rest, {
    prompt: suffix ? fillable(prompts, request.variant) : whole,
    ...(suffix && { suffix }),
    ...stopField(rest.stop),
    ...(choices > 1 && { n: choices }),
    ...(top !== undefined && logprobFields(top))
  })
  return generation(request, fields, {
    operation: 'completion',
    choices,
    nothing: rest.max_tokens === 0,
    ...(wanted !== undefined && { logprobs: wanted }),
    ...(echo && { echo: prompts }),
    ...(choices > kept && { bestOf: kept })
  })
}

function toPrompts(prompt: CompletionRequest['prompt']): Prompt[] {
  if (typeof prompt === 'string') return [prompt]
  if (!prompt) return ['']
  return typeof prompt[0] === 'number' ? [prompt as number[]] : (prompt as Prompt[])
}

function fillable(prompts: Prompt[], { metadata, publicName }: Model): string {
  if (!metadata.capabilities.includes('insert')) {
    const message = `Model "${publicName}" cannot fill in text before a "suffix". Remove the suffix, or use a model that can, such as a code model.`
    throw new CorralError('unsupported_capability', message, { param: 'suffix' })
  }
  const [prompt] = prompts
  if (prompts.length === 1 && typeof prompt === 'string') return prompt
  throw invalidRequest('prompt', '"prompt" must be a single text if there is a "suffix".')
}
