import { checkMedia } from '../../core/answers/media-parts.ts'
import { withModelDefaults } from '../../core/answers/model-defaults.ts'
import type { EffectiveSettings } from '../../core/config/model-settings.ts'
import type { Model } from '../../core/contracts/models.ts'
import { CorralError } from '../../core/errors.ts'
import type { ChunkHead } from './chunks.ts'
import { askLogprobs } from './chunks.ts'
import type { EngineCall, Fields } from './engine-call.ts'
import { engineMessages } from './engine-messages.ts'
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

type Tool = NonNullable<ChatRequest['tools']>[number]

/** What a chat asks that engines do not do by themselves. */
interface ChatExtras {
  /** How many of the likeliest tokens are given at each place; undefined where no probabilities are requested. */
  logprobs?: number
  /** The request speaks of functions in the place of tools, and so does the answer. */
  legacyFunctions: boolean
}

/**
 * A hosted-chat body as engines take it.
 * @param fields the body that was checked, its options already in it
 * @throws CorralError with the field at fault as `param`
 */
function chatFields(fields: ChatRequest & Fields): { fields: Fields; extras: ChatExtras } {
  const { messages, tools, tool_choice, functions, function_call, logprobs, top_logprobs, ...rest } = fields
  if (rest.modalities?.some(kind => kind !== 'text')) {
    throw new CorralError('unsupported_capability', 'Answers are text: "modalities" may ask for nothing else.', {
      param: 'modalities'
    })
  }
  if (rest.response_format?.type === 'json_schema' && !rest.response_format.json_schema) {
    const param = 'response_format.json_schema'
    throw new CorralError('invalid_request', `"${param}" is missing. It must be an object with "schema".`, { param })
  }
  if (top_logprobs && !logprobs) {
    throw new CorralError('invalid_request', '"top_logprobs" needs "logprobs": true beside it.', {
      param: 'top_logprobs'
    })
  }
  const legacyFunctions = Boolean(functions?.length) && !tools?.length
  const given = legacyFunctions ? functions!.map(called => ({ type: 'function' as const, function: called })) : tools
  const choice = legacyFunctions ? olderChoice(function_call) : tool_choice
  return {
    fields: {
      ...rest,
      ...withStops(rest.stop),
      ...chosenTools((given ?? []).map(plainTool), choice),
      // Older clients expect one call at most.
      ...(legacyFunctions && { parallel_tool_calls: false }),
      ...(logprobs && askLogprobs(top_logprobs ?? 0)),
      messages: engineMessages(messages)
    },
    extras: { legacyFunctions, ...(logprobs && { logprobs: top_logprobs ?? 0 }) }
  }
}

/** An empty stop text would end every answer at once. */
export function withStops(stop: string | string[] | null | undefined): Fields {
  return stop === undefined || stop === null ? {} : { stop: [stop].flat().filter(text => text !== '') }
}

/** Without what is null: engines may take it for a value. */
function plainTool({ type, function: called }: Tool): Tool {
  return {
    type,
    function: Object.fromEntries(Object.entries(called).filter(([, value]) => value !== null)) as Tool['function']
  }
}

function olderChoice(choice: ChatRequest['function_call']): ChatRequest['tool_choice'] {
  return typeof choice === 'object' && choice ? { type: 'function', function: { name: choice.name } } : choice
}

/**
 * The tools that may be called, and whether one must be. Not every engine takes a choice but by a word: where one is
 * named, it gets no other tool to choose.
 */
function chosenTools(tools: readonly Tool[], choice: ChatRequest['tool_choice']): Fields {
  const need = (names: (string | undefined)[], param: string, mode: string): Fields => {
    const chosen = tools.filter(tool => names.includes(tool.function.name))
    if (chosen.length > 0 && names.every(name => chosen.some(tool => tool.function.name === name))) {
      return { tools: chosen, tool_choice: mode }
    }
    throw new CorralError('invalid_request', `"${param}" must name a function that is among the tools.`, { param })
  }
  if (typeof choice === 'object' && choice) {
    if (choice.type === 'function') return need([choice.function?.name], 'tool_choice.function.name', 'required')
    if (choice.type === 'allowed_tools' && choice.allowed_tools) {
      const { mode, tools: allowed } = choice.allowed_tools
      const names = allowed.map(tool => (tool as Partial<Tool>).function?.name)
      return need(names, 'tool_choice.allowed_tools.tools', mode)
    }
    throw new CorralError('invalid_request', '"tool_choice.type" must be "function" or "allowed_tools".', {
      param: 'tool_choice.type'
    })
  }
  if (choice === 'required' && tools.length === 0) {
    throw new CorralError('invalid_request', '"tool_choice" requires a call, but there are no "tools".', {
      param: 'tool_choice'
    })
  }
  // A model that knows of tools might call one all the same.
  if (tools.length === 0 || choice === 'none') return {}
  return { tools, ...(choice && { tool_choice: choice }) }
}

export type Prompt = string | number[]

/** What a completion asks that engines do not do by themselves. */
interface CompletionExtras {
  /** How many of the likeliest tokens are given at each place; undefined where no probabilities are requested. */
  logprobs?: number
  /** The prompts, where answers are to begin with them. */
  echo?: Prompt[]
  /** Choices to keep of each prompt, where more are made to choose from. */
  bestOf?: number
  /** Nothing is to be generated; engines make one token all the same. */
  nothing: boolean
}

export interface Completion {
  fields: Fields
  /** Choices of each prompt that the engine makes. */
  choices: number
  prompts: number
  extras: CompletionExtras
}

/**
 * A body of the older completions as engines take it.
 * @param fields the body that was checked, its options already in it
 * @throws CorralError with the field at fault as `param`
 */
function completionFields(fields: CompletionRequest & Fields, variant: Model): Completion {
  const { prompt, suffix, echo, best_of, logprobs, n, ...rest } = fields
  const prompts = promptsOf(prompt)
  const kept = n ?? 1
  const choices = Math.max(kept, best_of ?? kept)
  const wanted = logprobs === true ? 1 : logprobs === false || logprobs === null ? undefined : logprobs
  if (best_of && best_of < kept) {
    throw new CorralError('invalid_request', `"best_of" must be at least "n", which is ${kept}.`, { param: 'best_of' })
  }
  if (choices > kept && rest.stream) {
    throw new CorralError('invalid_request', 'What is chosen by "best_of" cannot be streamed: leave one of them out.', {
      param: 'best_of'
    })
  }
  if (echo && wanted !== undefined) {
    throw new CorralError(
      'unsupported_capability',
      'The engine tells no probabilities of the prompt: leave out "echo" or "logprobs".',
      { param: 'logprobs' }
    )
  }
  // Probabilities are what the best answers are chosen by.
  const top = choices > kept ? (wanted ?? 0) : wanted
  const common = {
    ...rest,
    ...withStops(rest.stop),
    ...(choices > 1 && { n: choices }),
    ...(top !== undefined && askLogprobs(top))
  }
  const extras: CompletionExtras = {
    ...(wanted !== undefined && { logprobs: wanted }),
    ...(echo && { echo: prompts }),
    ...(choices > kept && { bestOf: kept }),
    nothing: rest.max_tokens === 0
  }
  if (suffix) {
    return {
      fields: { ...common, prompt: fillable(prompts, variant), suffix },
      choices,
      prompts: 1,
      extras
    }
  }
  // One prompt goes as it is: an engine with a projector takes no lists.
  const asked = prompts.length === 1 ? prompts[0] : prompts
  return { fields: { ...common, prompt: asked }, choices, prompts: prompts.length, extras }
}

function promptsOf(prompt: CompletionRequest['prompt']): Prompt[] {
  if (typeof prompt === 'string') return [prompt]
  if (!prompt) return ['']
  return typeof prompt[0] === 'number' ? [prompt as number[]] : (prompt as Prompt[])
}

function fillable(prompts: Prompt[], variant: Model): string {
  if (!variant.metadata.capabilities.includes('insert')) {
    throw new CorralError(
      'unsupported_capability',
      `Model "${variant.publicName}" cannot fill in before a "suffix". Leave it out, or use a model that can, as many for code do.`,
      { param: 'suffix' }
    )
  }
  const [prompt] = prompts
  if (prompts.length === 1 && typeof prompt === 'string') return prompt
  throw new CorralError('invalid_request', '"prompt" must be one text where there is a "suffix".', { param: 'prompt' })
}

/**
 * The choices that are kept of each prompt: those whose tokens are likeliest on average, as hosted services choose them.
 * @param means mean log probability of each choice's tokens, by the index of the choice
 */
export function bestChoices(means: readonly number[], made: number, kept: number): number[] {
  const chosen: number[] = []
  for (let first = 0; first < means.length; first += made) {
    const group = Array.from({ length: made }, (_, place) => first + place)
    chosen.push(...group.sort((a, b) => means[b]! - means[a]!).slice(0, kept))
  }
  return chosen
}
