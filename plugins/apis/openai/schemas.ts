import { type Static, Type } from 'typebox'
import { Given, ignored, keep_alive, ListOf, Loose, named, OrNull, Titled } from '../../../core/http/request-fields.ts'
import { anthropicFields } from '../../../core/models/anthropic-record.ts'
import { requestOptions } from '../../../core/models/options.ts'

const text = Given(Type.String())
const Anything = (description: string) => Loose({}, { description })

// ---- requests ------------------------------------------------------------------------------------------------------

/** What the engine reads of chat completions and completions. */
const generating = {
  stop: Given(
    Type.Union([Type.String(), Type.Array(Type.String())], { description: 'Texts that end the answer; any number' })
  ),
  frequency_penalty: Given(Type.Number()),
  presence_penalty: Given(Type.Number()),
  logit_bias: Given(
    Type.Union(
      [
        Type.Object({}, { additionalProperties: Type.Union([Type.Number(), Type.Boolean()]) }),
        Type.Array(Type.Array(Type.Union([Type.Number(), Type.String(), Type.Boolean()])))
      ],
      { description: 'Token numbers, or texts, and what is added to their logits; false bans one' }
    )
  )
}

const description = 'The same options, and others of llama-server; the top level takes precedence'
const options = Given(Loose({ ...requestOptions, ...generating }, { description }))

const generationRequest = {
  ...named,
  ...requestOptions,
  ...generating,
  options,
  keep_alive,
  stream: Given(Type.Boolean({ default: false })),
  stream_options: Given(Loose({ include_usage: Given(Type.Boolean()) })),
  n: Given(
    Type.Integer({ minimum: 1, maximum: 256, default: 1, description: "Choices; no more than the engine's slots" })
  )
}

const ContentPart = Loose({
  type: Type.String({ description: 'text, image_url, input_audio or refusal' }),
  text,
  refusal: text,
  image_url: Given(
    Type.Union([Loose({ url: Type.String({ description: 'A data URL; addresses are not fetched' }) }), Type.String()])
  ),
  input_audio: Given(Loose({ data: Given(Type.String({ description: 'Base64' })), format: text }))
})
export type ContentPart = Static<typeof ContentPart>

const Called = Loose({
  name: Type.String(),
  arguments: Type.Optional(Type.Unknown({ description: 'JSON text; anything else is wrapped in an object' }))
})

const ChatMessage = Loose({
  role: Given(
    Type.Enum(['system', 'developer', 'user', 'assistant', 'tool', 'function'], { description: 'user where absent' })
  ),
  content: Given(Type.Union([Type.String(), Type.Array(ContentPart)])),
  name: text,
  reasoning_content: text,
  refusal: text,
  tool_calls: Given(ListOf({ id: text, type: text, function: Called })),
  tool_call_id: text,
  function_call: Given(Called)
})
export type ChatMessage = Static<typeof ChatMessage>

const FunctionTool = Loose({
  name: Type.String({ minLength: 1 }),
  description: text,
  parameters: Given(Anything('JSON schema of the arguments'))
})

const AllowedTools = Loose({
  mode: Type.Enum(['auto', 'required']),
  tools: Type.Array(Anything('A tool, by its name'), { minItems: 1 })
})

export const ChatRequest = Loose(
  {
    ...generationRequest,
    messages: Type.Array(ChatMessage, { minItems: 1 }),
    max_completion_tokens: requestOptions.max_tokens,
    logprobs: Given(Type.Boolean({ default: false })),
    top_logprobs: Given(Type.Integer({ minimum: 0, maximum: 100 })),
    response_format: Given(
      Loose({
        type: Given(Type.Enum(['text', 'json_object', 'json_schema'])),
        json_schema: Given(Loose({ name: text, schema: Given(Anything('JSON schema')) })),
        schema: Given(Anything('JSON schema of a json_object'))
      })
    ),
    tools: Given(ListOf({ type: Type.Enum(['function']), function: FunctionTool })),
    tool_choice: Given(
      Type.Union([
        Type.Enum(['none', 'auto', 'required']),
        Loose({
          type: Type.String(),
          function: Given(Loose({ name: Type.String() })),
          allowed_tools: Given(AllowedTools)
        })
      ])
    ),
    parallel_tool_calls: Given(Type.Boolean()),
    functions: Given(Type.Array(FunctionTool, { description: 'The older form of tools' })),
    function_call: Given(
      Type.Union([Type.Enum(['none', 'auto']), Loose({ name: Type.String() })], {
        description: 'The older form of tool_choice'
      })
    ),
    reasoning_effort: Given(Type.String({ description: 'none, low, medium, high, …: what the chat template knows' })),
    modalities: Given(Type.Array(Type.String(), { description: 'Answers are text' })),
    ...ignored('audio', 'metadata', 'moderation', 'prediction', 'safety_identifier', 'service_tier', 'store', 'user'),
    ...ignored('prompt_cache_key', 'prompt_cache_options', 'prompt_cache_retention', 'verbosity', 'web_search_options')
  },
  { title: 'ChatCompletionRequest', description: 'What else llama-server knows, such as min_p, is passed on' }
)
export type ChatRequest = Static<typeof ChatRequest>

const Token = Type.Integer({ minimum: 0, maximum: 2 ** 31 - 1 })
const Tokens = Type.Array(Token, { minItems: 1 })

export const CompletionRequest = Loose({
  ...generationRequest,
  prompt: Type.Union(
    [Type.String(), Tokens, Type.Array(Type.Union([Type.String(), Tokens]), { minItems: 1 }), Type.Null()],
    { description: 'A text or a list of tokens, or several of them; null is an empty text' }
  ),
  suffix: Given(Type.String({ description: 'What follows: the model fills in the middle' })),
  echo: Given(Type.Boolean({ default: false })),
  best_of: Given(Type.Integer({ minimum: 1, maximum: 256 })),
  logprobs: Given(
    Type.Union([Type.Integer({ minimum: 0, maximum: 100 }), Type.Boolean()], {
      description: 'How many of the likeliest tokens are listed at each position'
    })
  ),
  ...ignored('user')
})
export type CompletionRequest = Static<typeof CompletionRequest>

export const EmbeddingRequest = Loose({
  ...named,
  input: Type.Union([
    Type.String(),
    Type.Array(Type.String(), { minItems: 1 }),
    Tokens,
    Type.Array(Tokens, { minItems: 1 })
  ]),
  encoding_format: Given(Type.Enum(['float', 'base64'], { default: 'float' })),
  dimensions: Given(Type.Integer({ minimum: 1, description: 'Vectors are cut to this length and normalised again' })),
  options,
  keep_alive,
  ...ignored('user')
})
export type EmbeddingRequest = Static<typeof EmbeddingRequest>

export const RerankRequest = Loose({
  ...named,
  query: Type.String(),
  documents: Given(Type.Array(Type.Union([Type.String(), Loose({ text: Type.String() })]), { minItems: 1 })),
  texts: Given(
    Type.Array(Type.String(), {
      minItems: 1,
      description: "Instead of documents: the reply is then a list as that of Hugging Face's Text Embeddings Inference"
    })
  ),
  top_n: Given(Type.Integer({ minimum: 1, description: 'How many of the best are returned; all by default' })),
  return_documents: Given(Type.Boolean({ default: false })),
  return_text: Given(Type.Boolean({ default: false, description: 'The same beside "texts"' })),
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
  action: Type.Literal('reasoning_end', { description: 'The only one that there is' }),
  id: Type.String({ minLength: 1, description: 'The `id` in the events of the answer' }),
  ...named
})
export type ControlRequest = Static<typeof ControlRequest>
export const ControlReply = Titled('ControlReply', {
  success: Type.Boolean(),
  message: Type.Optional(Type.String({ description: 'Why it could not be done' }))
})

export const TokenizeRequest = Loose({
  ...named,
  content: Type.Union([Type.String(), Type.Array(Type.Union([Type.String(), Token]))]),
  add_special: Given(Type.Boolean({ default: false, description: 'Begin as a prompt begins' })),
  parse_special: Given(
    Type.Boolean({ default: true, description: 'Read the texts of special tokens as these tokens' })
  ),
  with_pieces: Given(Type.Boolean({ default: false, description: 'Return the text of each token too' })),
  keep_alive
})

/** A prompt as the chat template writes it, and how many tokens it has. */
export const Prompt = Loose({ prompt: Type.String() })
export const PromptTokens = Loose({ object: Type.Literal('response.input_tokens'), input_tokens: Type.Integer() })

export const DetokenizeRequest = Loose({ ...named, tokens: Type.Array(Token), keep_alive })

/** Pages of a list, as Anthropic's clients request them. All of it where nothing is given. */
export const ModelListQuery = Loose({
  limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 1000 })),
  after_id: Type.Optional(Type.String()),
  before_id: Type.Optional(Type.String())
})
export type ModelListQuery = Static<typeof ModelListQuery>

// ---- replies -------------------------------------------------------------------------------------------------------

const Count = Type.Integer({ minimum: 0 })

const Usage = Titled('Usage', {
  prompt_tokens: Type.Integer({ minimum: 0, description: 'Including those found in the cache' }),
  completion_tokens: Count,
  total_tokens: Count,
  prompt_tokens_details: Type.Optional(Loose({ cached_tokens: Count }))
})
export type Usage = Static<typeof Usage>

const generated = {
  id: Type.String(),
  created: Type.Integer({ description: 'Seconds since the epoch' }),
  model: Type.String({ description: 'As in the request' }),
  system_fingerprint: Type.Optional(Type.String({ description: 'The build of llama.cpp' })),
  usage: Type.Optional(Usage),
  timings: Type.Optional(Anything('How fast llama-server read and wrote'))
}

const likely = { token: Type.String(), bytes: Type.Array(Count), logprob: Type.Number() }

const ChatLogprobs = Loose({
  content: ListOf({ ...likely, top_logprobs: ListOf(likely) }),
  refusal: Type.Null()
})

const Call = Loose({ name: Type.String(), arguments: Type.String({ description: 'JSON text' }) })
const CallPiece = Loose({ name: Type.Optional(Type.String()), arguments: Type.Optional(Type.String()) })

const ChatFinish = OrNull(Type.Enum(['stop', 'length', 'tool_calls', 'function_call']))

export const ChatCompletion = Titled('ChatCompletion', {
  ...generated,
  object: Type.Literal('chat.completion'),
  choices: ListOf({
    index: Count,
    message: Loose({
      role: Type.Literal('assistant'),
      content: OrNull(Type.String()),
      refusal: Type.Null(),
      reasoning_content: Type.Optional(Type.String({ description: 'What the model thought before it answered' })),
      tool_calls: Type.Optional(ListOf({ id: Type.String(), type: Type.Literal('function'), function: Call })),
      function_call: Type.Optional(Call)
    }),
    logprobs: OrNull(ChatLogprobs),
    finish_reason: ChatFinish
  })
})

/** One event of an answer that is streamed. */
export const ChatChunk = Titled('ChatChunk', {
  ...generated,
  usage: Given(Usage),
  object: Type.Literal('chat.completion.chunk'),
  choices: ListOf({
    index: Count,
    delta: Loose({
      role: Type.Optional(Type.Literal('assistant')),
      content: text,
      reasoning_content: text,
      tool_calls: Type.Optional(
        ListOf({ index: Count, id: Type.Optional(Type.String()), function: Type.Optional(CallPiece) })
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
  text_offset: Type.Array(Count, { description: 'Where each token begins in the text, in characters' })
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
const vector = [Type.Array(Type.Number()), Type.String({ description: 'Base64 of 32-bit numbers, little-endian' })]

export const Embeddings = Titled('Embeddings', {
  object: Type.Literal('list'),
  model: Type.String(),
  data: ListOf({ object: Type.Literal('embedding'), index: Count, embedding: Type.Union(vector) }),
  usage
})

export const Ranking = Titled('Ranking', {
  object: Type.Literal('list'),
  model: Type.String(),
  results: ListOf(
    {
      index: Type.Integer({ minimum: 0, description: 'Index of the document in the request' }),
      relevance_score: Type.Number(),
      document: Type.Optional(Loose({ text: Type.String() }))
    },
    { description: 'The best first' }
  ),
  usage
})

/** A ranking as Text Embeddings Inference gives it. */
export const TextRanking = ListOf(
  {
    index: Type.Integer({ minimum: 0, description: 'Index of the text in the request' }),
    score: Type.Number(),
    text: Type.Optional(Type.String())
  },
  { description: 'The best first, where "texts" were sent' }
)

const TokenPiece = Loose({
  id: Count,
  piece: Type.Union([Type.String(), Type.Array(Count)], { description: 'Bytes where it is only part of a character' })
})
export const TokenList = Loose({ tokens: Type.Array(Type.Union([Count, TokenPiece])) })

export const Text = Loose({ content: Type.String() })

export const Model = Titled('Model', {
  id: Type.String(),
  object: Type.Literal('model'),
  created: Type.Integer({ description: 'Seconds since the epoch' }),
  owned_by: Type.String(),
  ...anthropicFields,
  status: Loose(
    {
      value: Type.Enum(['unloaded', 'loading', 'loaded']),
      progress: Type.Optional(Type.Number({ description: '0 to 1, while it is loaded into memory' })),
      failed: Type.Optional(Type.Literal(true, { description: 'The last try to load it failed' })),
      exit_code: Type.Optional(Type.Integer()),
      reason: Type.Optional(Type.String({ description: 'Why it failed' }))
    },
    { description: "As llama-server's router has it" }
  ),
  architecture: Loose({
    input_modalities: Type.Array(Type.Enum(['text', 'image', 'audio'])),
    output_modalities: Type.Array(Type.Literal('text'))
  }),
  source: Type.Enum(['cache', 'preset'], {
    description: "llama-server's words: whether its files are here, or the configuration names it"
  }),
  can_remove: Type.Boolean({ description: 'Whether `DELETE /models` can delete it' }),
  meta: Loose({
    n_ctx: Type.Integer({ description: 'The same as max_input_tokens' }),
    n_ctx_train: Type.Optional(Type.Integer({ description: 'The context that it was trained for' })),
    n_embd: Type.Optional(Type.Integer({ description: 'Length of its vectors' })),
    n_params: Type.Optional(Type.Integer({ description: 'How many weights it has' })),
    size: Type.Integer({ description: 'Bytes of its files' })
  }),
  aliases: Type.Array(Type.String()),
  tags: Type.Array(Type.String()),
  root: Type.Optional(Type.String({ description: 'Of an alias: the model that it stands for' }))
})

export const ModelList = Titled('ModelList', {
  object: Type.Literal('list'),
  data: Type.Array(Model),
  first_id: OrNull(Type.String()),
  last_id: OrNull(Type.String()),
  has_more: Type.Boolean()
})
