import { type Static, Type } from 'typebox'
import { hostedFields, ToolApprovals } from '../../../core/answers/hosted-calls.ts'
import { PageOf } from '../../../core/http/list-page.ts'
import {
  each,
  Given,
  ignored,
  keep_alive,
  ListOf,
  Loose,
  named,
  OrNull,
  Titled
} from '../../../core/http/request-fields.ts'
import { anthropicFields } from '../../../core/models/anthropic-record.ts'
import { requestOptions } from '../../../core/models/options.ts'
import { CodexModel } from './codex-catalog.ts'

const text = Given(Type.String())
const Anything = (description: string) => Loose({}, { description })

const generating = {
  stop: Given(Type.Union([Type.String(), Type.Array(Type.String())])),
  frequency_penalty: Given(Type.Number()),
  presence_penalty: Given(Type.Number()),
  logit_bias: Given(
    Type.Union([
      Type.Object({}, { additionalProperties: Type.Union([Type.Number(), Type.Boolean()]) }),
      Type.Array(Type.Array(Type.Union([Type.Number(), Type.String(), Type.Boolean()])))
    ])
  )
}

const options = Given(Titled('FurtherOptions', { ...requestOptions, ...generating }))

const generationRequest = {
  ...named,
  ...requestOptions,
  ...generating,
  options,
  keep_alive,
  stream: Given(Type.Boolean({ default: false })),
  stream_options: Given(Loose({ include_usage: Given(Type.Boolean()) })),
  n: Given(Type.Integer({ minimum: 1, default: 1 }))
}

const ContentPart = Loose({
  type: Type.String(),
  text,
  refusal: text,
  image_url: Given(Type.Union([Loose({ url: Type.String() }), Type.String()])),
  input_audio: Given(Loose({ data: Given(Type.String()), format: text })),
  file: Given(Loose({ file_data: Given(Type.String()), file_id: Given(Type.String()), filename: text }))
})
export type ContentPart = Static<typeof ContentPart>

const Called = Loose({ name: Type.String(), arguments: Type.Optional(Type.Unknown()) })

const ChatMessage = Loose({
  role: Given(Type.Enum(['system', 'developer', 'user', 'assistant', 'tool', 'function'])),
  content: Given(Type.Union([Type.String(), Type.Array(ContentPart)])),
  name: text,
  reasoning_content: text,
  reasoning: Given(Type.Unknown()),
  refusal: text,
  audio: Given(Loose({ transcript: text })),
  tool_calls: Given(
    ListOf({
      id: text,
      type: text,
      function: Given(Called),
      custom: Given(Loose({ name: Type.String(), input: Given(Type.String()) }))
    })
  ),
  tool_call_id: text,
  function_call: Given(Called)
})
export type ChatMessage = Static<typeof ChatMessage>

const FunctionTool = Loose({
  name: Type.String({ minLength: 1 }),
  description: text,
  parameters: Given(Anything('JSON schema of the arguments'))
})

const CustomTool = Loose({
  name: Type.String({ minLength: 1 }),
  description: text,
  format: Given(
    Anything(
      '{type: "text"}, or {type: "grammar", grammar: {syntax, definition}}; a recursive "lark" grammar is only described'
    )
  )
})

const AllowedTools = Loose({
  mode: Type.Enum(['auto', 'required']),
  tools: Type.Array(Anything('A tool, named by its function'), { minItems: 1 })
})

export const ChatRequest = Titled('ChatCompletionRequest', {
  ...generationRequest,
  messages: Type.Array(ChatMessage, { minItems: 1 }),
  max_completion_tokens: requestOptions.max_tokens,
  logprobs: Given(Type.Boolean({ default: false })),
  top_logprobs: Given(Type.Integer({ minimum: 0, maximum: 100 })),
  response_format: Given(
    Loose({
      type: Given(Type.Enum(['text', 'json_object', 'json_schema'])),
      json_schema: Given(Loose({ name: text, schema: Given(Anything('JSON schema')) })),
      schema: Given(Anything('JSON schema for the type json_object'))
    })
  ),
  tools: Given(
    ListOf({
      type: Type.String({ minLength: 1 }),
      function: Given(FunctionTool),
      custom: Given(CustomTool)
    })
  ),
  tool_choice: Given(
    Type.Union([
      Type.Enum(['none', 'auto', 'required']),
      Loose({
        type: Type.String(),
        function: Given(Loose({ name: Type.String() })),
        custom: Given(Loose({ name: Type.String() })),
        allowed_tools: Given(AllowedTools)
      })
    ])
  ),
  parallel_tool_calls: Given(Type.Boolean()),
  functions: Given(Type.Array(FunctionTool)),
  function_call: Given(Type.Union([Type.Enum(['none', 'auto']), Loose({ name: Type.String() })])),
  reasoning_effort: Given(Type.String()),
  modalities: Given(Type.Array(Type.String())),
  ...ignored('audio', 'metadata', 'moderation', 'prediction', 'safety_identifier', 'service_tier', 'store', 'user'),
  ...ignored('prompt_cache_key', 'prompt_cache_options', 'prompt_cache_retention', 'verbosity'),
  web_search_options: Type.Optional(Type.Unknown()),
  mcp: ToolApprovals
})
export type ChatRequest = Static<typeof ChatRequest>

const Token = Type.Integer({ minimum: 0, maximum: 2 ** 31 - 1 })
const Tokens = Type.Array(Token, { minItems: 1 })

export const CompletionRequest = Titled('CompletionRequest', {
  ...generationRequest,
  prompt: Type.Union([
    Type.String(),
    Tokens,
    Type.Array(Type.Union([Type.String(), Tokens]), { minItems: 1 }),
    Type.Null()
  ]),
  suffix: Given(Type.String()),
  echo: Given(Type.Boolean({ default: false })),
  best_of: Given(Type.Integer({ minimum: 1 })),
  logprobs: Given(Type.Union([Type.Integer({ minimum: 0, maximum: 100 }), Type.Boolean()])),
  ...ignored('user')
})
export type CompletionRequest = Static<typeof CompletionRequest>

export const EmbeddingRequest = Titled('EmbeddingRequest', {
  ...named,
  input: Type.Union([
    Type.String(),
    Type.Array(Type.String(), { minItems: 1 }),
    Tokens,
    Type.Array(Tokens, { minItems: 1 })
  ]),
  encoding_format: Given(Type.Enum(['float', 'base64'], { default: 'float' })),
  dimensions: Given(Type.Integer({ minimum: 1 })),
  options,
  keep_alive,
  ...ignored('user')
})
export type EmbeddingRequest = Static<typeof EmbeddingRequest>

export const RerankRequest = Titled('RerankRequest', {
  ...named,
  query: Type.String(),
  documents: Given(Type.Array(Type.Union([Type.String(), Loose({ text: Type.String() })]), { minItems: 1 })),
  texts: Given(Type.Array(Type.String(), { minItems: 1 })),
  top_n: Given(Type.Integer({ minimum: 1 })),
  return_documents: Given(Type.Boolean({ default: false })),
  return_text: Given(Type.Boolean({ default: false })),
  options,
  keep_alive,
  ...ignored(
    'max_chunks_per_doc',
    'max_tokens_per_doc',
    'priority',
    'rank_fields',
    'raw_scores',
    'return_embeddings',
    'truncate',
    'truncation'
  )
})
export type RerankRequest = Static<typeof RerankRequest>

export const ControlRequest = Titled('ControlRequest', {
  action: Type.Literal('reasoning_end'),
  id: Type.String({ minLength: 1 }),
  ...named
})
export const ControlReply = Titled('ControlReply', {
  success: Type.Boolean(),
  message: Type.Optional(Type.String())
})

export const TokenizeRequest = Titled('TokenizeRequest', {
  ...named,
  content: Type.Union([Type.String(), Type.Array(Type.Union([Type.String(), Token]))]),
  add_special: Given(Type.Boolean({ default: false })),
  parse_special: Given(Type.Boolean({ default: true })),
  with_pieces: Given(Type.Boolean({ default: false })),
  keep_alive
})

export const Prompt = Loose({ prompt: Type.String() })
export const PromptTokens = Loose({ object: Type.Literal('response.input_tokens'), input_tokens: Type.Integer() })

export const DetokenizeRequest = Loose({ ...named, tokens: Type.Array(Token), keep_alive })

/** Pages of a list, as Anthropic's clients request them. The whole list by default. */
export const ModelListQuery = Loose({
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 1000 })),
  after_id: Type.Optional(Type.String()),
  before_id: Type.Optional(Type.String())
})
export type ModelListQuery = Static<typeof ModelListQuery>

const Count = Type.Integer({ minimum: 0 })

const Usage = Titled('Usage', {
  prompt_tokens: Type.Integer({ minimum: 0 }),
  completion_tokens: Count,
  total_tokens: Count,
  prompt_tokens_details: Type.Optional(Loose({ cached_tokens: Count }))
})
export type Usage = Static<typeof Usage>

const generated = {
  id: Type.String(),
  created: Type.Integer({ description: 'Seconds since the epoch' }),
  model: Type.String({ description: 'The name in the request' }),
  system_fingerprint: Type.Optional(Type.String({ description: 'The build of llama.cpp' })),
  usage: Type.Optional(Usage),
  timings: Type.Optional(Anything('Speed of prompt processing and generation, from llama-server'))
}

const tokenFields = { token: Type.String(), bytes: Type.Array(Count), logprob: Type.Number() }

const ChatLogprobs = Loose({
  content: ListOf({ ...tokenFields, top_logprobs: ListOf(tokenFields) }),
  refusal: Type.Null()
})

const Call = Loose({ name: Type.String(), arguments: Type.String() })
const FreeformCall = Loose({ name: Type.String(), input: Type.String() })
const FreeformPiece = Loose({ name: Type.Optional(Type.String()), input: Type.String() })
const CallPiece = Loose({ name: Type.Optional(Type.String()), arguments: Type.Optional(Type.String()) })

const ChatFinish = OrNull(Type.Enum(['stop', 'length', 'tool_calls', 'function_call']))

export const ChatCompletion = Titled('ChatCompletion', {
  ...generated,
  ...hostedFields,
  object: Type.Literal('chat.completion'),
  choices: ListOf({
    index: Count,
    message: Loose({
      role: Type.Literal('assistant'),
      content: OrNull(Type.String()),
      refusal: Type.Null(),
      reasoning_content: Type.Optional(Type.String()),
      tool_calls: Type.Optional(
        ListOf({
          id: Type.String(),
          type: Type.Enum(['function', 'custom']),
          function: Type.Optional(Call),
          custom: Type.Optional(FreeformCall)
        })
      ),
      function_call: Type.Optional(Call)
    }),
    logprobs: OrNull(ChatLogprobs),
    finish_reason: ChatFinish
  })
})

export const ChatChunk = Titled('ChatChunk', {
  ...generated,
  ...hostedFields,
  usage: Given(Usage),
  object: Type.Literal('chat.completion.chunk'),
  choices: ListOf({
    index: Count,
    delta: Loose({
      role: Type.Optional(Type.Literal('assistant')),
      content: text,
      reasoning_content: text,
      tool_calls: Type.Optional(
        ListOf({
          index: Count,
          id: Type.Optional(Type.String()),
          function: Type.Optional(CallPiece),
          custom: Type.Optional(FreeformPiece)
        })
      ),
      function_call: Type.Optional(CallPiece)
    }),
    logprobs: Given(ChatLogprobs),
    finish_reason: ChatFinish
  })
})

const CompletionLogprobs = Loose({
  tokens: Type.Array(Type.String()),
  token_logprobs: Type.Array(Type.Number()),
  top_logprobs: OrNull(Type.Array(Type.Object({}, { additionalProperties: Type.Number() }))),
  text_offset: Type.Array(Count)
})

export const Completion = Titled('Completion', {
  ...generated,
  object: Type.Literal('text_completion'),
  choices: ListOf({
    index: Count,
    text: Type.String(),
    logprobs: OrNull(CompletionLogprobs),
    finish_reason: OrNull(Type.Enum(['stop', 'length']))
  })
})

const usage = Loose({ prompt_tokens: Count, total_tokens: Count })
const vector = [Type.Array(Type.Number()), Type.String()]

export const Embeddings = Titled('Embeddings', {
  object: Type.Literal('list'),
  model: Type.String(),
  data: ListOf({ object: Type.Literal('embedding'), index: Count, embedding: Type.Union(vector) }),
  usage
})

export const Ranking = Titled('Ranking', {
  object: Type.Literal('list'),
  model: Type.String(),
  results: ListOf({
    index: Type.Integer({ minimum: 0 }),
    relevance_score: Type.Number(),
    document: Type.Optional(Loose({ text: Type.String() }))
  }),
  usage
})

export const TextRanking = ListOf(
  {
    index: Type.Integer({ minimum: 0 }),
    score: Type.Number(),
    text: Type.Optional(Type.String())
  },
  { title: 'TextRanking' }
)

const TokenPiece = Loose({ id: Count, piece: Type.Union([Type.String(), Type.Array(Count)]) })
export const TokenList = Loose({ tokens: Type.Array(Type.Union([Count, TokenPiece])) })

export const Text = Loose({ content: Type.String() })

export const Model = Titled('Model', {
  id: Type.String(),
  object: Type.Literal('model'),
  created: Type.Integer(),
  owned_by: Type.String(),
  ...anthropicFields,
  status: Loose({
    value: Type.Enum(['unloaded', 'loading', 'loaded']),
    progress: Type.Optional(Type.Number()),
    failed: Type.Optional(Type.Literal(true)),
    exit_code: Type.Optional(Type.Integer()),
    reason: Type.Optional(Type.String())
  }),
  architecture: Loose({
    input_modalities: Type.Array(Type.Enum(['text', 'image', 'audio'])),
    output_modalities: Type.Array(Type.Literal('text'))
  }),
  source: Type.Enum(['cache', 'preset']),
  can_remove: Type.Boolean(),
  meta: Loose({
    n_ctx: Type.Integer(),
    ...each(Type.Optional(Type.Integer()), 'n_ctx_train', 'n_embd', 'n_params'),
    size: Type.Integer()
  }),
  aliases: Type.Array(Type.String()),
  tags: Type.Array(Type.String()),
  root: Type.Optional(Type.String())
})

export const ModelList = Type.Intersect([PageOf(Model), Loose({ models: Type.Optional(Type.Array(CodexModel)) })], {
  title: 'ModelList'
})
