import { type Static, Type } from 'typebox'
import { PageOf } from '../../../core/http/list-page.ts'
import { Given, ignored, keep_alive, ListOf, Loose, named, OrNull, Titled } from '../../../core/http/request-fields.ts'
import { anthropicFields } from '../../../core/models/anthropic-record.ts'
import { requestOptions } from '../../../core/models/options.ts'
import { CodexModel } from './codex-catalog.ts'

const text = Given(Type.String())
const Anything = (description: string) => Loose({}, { description })

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
      { description: 'Token numbers or texts, and the bias added to their logits; false bans a token' }
    )
  )
}

const description = 'The same options, and further ones of llama-server; fields of the request take precedence'
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
    Type.Integer({
      minimum: 1,
      maximum: 256,
      default: 1,
      description: "Number of choices; at most the engine's number of slots"
    })
  )
}

const ContentPart = Loose({
  type: Type.String({ description: 'text, image_url, input_audio, file or refusal' }),
  text,
  refusal: text,
  image_url: Given(
    Type.Union([Loose({ url: Type.String({ description: 'A data URL; other URLs are not fetched' }) }), Type.String()])
  ),
  input_audio: Given(Loose({ data: Given(Type.String({ description: 'Base64' })), format: text })),
  file: Given(
    Loose({
      file_data: Given(Type.String({ description: 'A PDF or text file, as a data URL or base64' })),
      file_id: Given(Type.String({ description: 'A file that was sent to POST /v1/files' })),
      filename: text
    })
  )
})
export type ContentPart = Static<typeof ContentPart>

const Called = Loose({
  name: Type.String(),
  arguments: Type.Optional(Type.Unknown({ description: 'JSON text; any other value is wrapped in an object' }))
})

const ChatMessage = Loose({
  role: Given(
    Type.Enum(['system', 'developer', 'user', 'assistant', 'tool', 'function'], { description: 'user if absent' })
  ),
  content: Given(Type.Union([Type.String(), Type.Array(ContentPart)])),
  name: text,
  reasoning_content: text,
  reasoning: Given(Type.Unknown({ description: 'Text: another name of reasoning_content' })),
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
    Anything('{type: "text"}, or {type: "grammar", grammar: {syntax, definition}}; syntax "lark" is only described')
  )
})

const AllowedTools = Loose({
  mode: Type.Enum(['auto', 'required']),
  tools: Type.Array(Anything('A tool, named by its function'), { minItems: 1 })
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
        schema: Given(Anything('JSON schema for the type json_object'))
      })
    ),
    tools: Given(
      ListOf({
        type: Type.String({
          minLength: 1,
          description: 'function, or custom for any text as input. The header X-Corral-Ignored-Tools names other tools'
        }),
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
    functions: Given(Type.Array(FunctionTool, { description: 'The older form of tools' })),
    function_call: Given(
      Type.Union([Type.Enum(['none', 'auto']), Loose({ name: Type.String() })], {
        description: 'The older form of tool_choice'
      })
    ),
    reasoning_effort: Given(
      Type.String({
        description: 'none, minimal, low, medium, high, xhigh or max; the nearest level of the chat template'
      })
    ),
    modalities: Given(Type.Array(Type.String(), { description: 'Only text is supported' })),
    ...ignored('audio', 'metadata', 'moderation', 'prediction', 'safety_identifier', 'service_tier', 'store', 'user'),
    ...ignored('prompt_cache_key', 'prompt_cache_options', 'prompt_cache_retention', 'verbosity'),
    web_search_options: Type.Optional(Type.Unknown({ description: 'Not supported: named in X-Corral-Ignored-Tools' }))
  },
  { title: 'ChatCompletionRequest', description: 'Further fields of llama-server, such as min_p, are passed on' }
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
  suffix: Given(Type.String({ description: 'The text that follows: the model fills in the middle' })),
  echo: Given(Type.Boolean({ default: false })),
  best_of: Given(Type.Integer({ minimum: 1, maximum: 256 })),
  logprobs: Given(
    Type.Union([Type.Integer({ minimum: 0, maximum: 100 }), Type.Boolean()], {
      description: 'Number of alternatives listed for each token'
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
  dimensions: Given(
    Type.Integer({ minimum: 1, description: 'Length to which embeddings are shortened and normalized again' })
  ),
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
      description:
        "Instead of documents: the reply is then a list like that of Hugging Face's Text Embeddings Inference"
    })
  ),
  top_n: Given(Type.Integer({ minimum: 1, description: 'Number of best results to return; all by default' })),
  return_documents: Given(Type.Boolean({ default: false })),
  return_text: Given(Type.Boolean({ default: false, description: 'return_documents for "texts"' })),
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
  action: Type.Literal('reasoning_end', { description: 'The only supported action' }),
  id: Type.String({ minLength: 1, description: 'The `id` in the events of the answer' }),
  ...named
})
export type ControlRequest = Static<typeof ControlRequest>
export const ControlReply = Titled('ControlReply', {
  success: Type.Boolean(),
  message: Type.Optional(Type.String({ description: 'Why the action failed' }))
})

export const TokenizeRequest = Loose({
  ...named,
  content: Type.Union([Type.String(), Type.Array(Type.Union([Type.String(), Token]))]),
  add_special: Given(Type.Boolean({ default: false, description: 'Add the special tokens that a prompt starts with' })),
  parse_special: Given(
    Type.Boolean({ default: true, description: 'Parse the texts of special tokens as these tokens' })
  ),
  with_pieces: Given(Type.Boolean({ default: false, description: 'Also return the text of each token' })),
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
  prompt_tokens: Type.Integer({ minimum: 0, description: 'Including tokens found in the cache' }),
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

const Call = Loose({ name: Type.String(), arguments: Type.String({ description: 'JSON text' }) })
const FreeformCall = Loose({ name: Type.String(), input: Type.String({ description: 'Any text' }) })
const FreeformPiece = Loose({ name: Type.Optional(Type.String()), input: Type.String() })
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
      reasoning_content: Type.Optional(Type.String({ description: "The model's thinking before the answer" })),
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
  text_offset: Type.Array(Count, { description: 'Position of each token in the text, in characters' })
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
    { description: 'Best first' }
  ),
  usage
})

export const TextRanking = ListOf(
  {
    index: Type.Integer({ minimum: 0, description: 'Index of the text in the request' }),
    score: Type.Number(),
    text: Type.Optional(Type.String())
  },
  { description: 'Best first, if "texts" were sent' }
)

const TokenPiece = Loose({
  id: Count,
  piece: Type.Union([Type.String(), Type.Array(Count)], {
    description: 'Bytes if the token is only part of a character'
  })
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
      progress: Type.Optional(Type.Number({ description: '0 to 1, while the model is being loaded' })),
      failed: Type.Optional(Type.Literal(true, { description: 'The last load failed' })),
      exit_code: Type.Optional(Type.Integer()),
      reason: Type.Optional(Type.String({ description: 'Why the last load failed' }))
    },
    { description: "As in llama-server's router" }
  ),
  architecture: Loose({
    input_modalities: Type.Array(Type.Enum(['text', 'image', 'audio'])),
    output_modalities: Type.Array(Type.Literal('text'))
  }),
  source: Type.Enum(['cache', 'preset'], {
    description: "llama-server's terms: cache if the files are here, preset if the configuration names the model"
  }),
  can_remove: Type.Boolean({ description: 'Whether `DELETE /models` can delete it' }),
  meta: Loose({
    n_ctx: Type.Integer({ description: 'Context of the loaded model; as max_input_tokens if it is not loaded' }),
    n_ctx_train: Type.Optional(Type.Integer({ description: 'The context size it was trained with' })),
    n_embd: Type.Optional(Type.Integer({ description: 'Length of its embeddings' })),
    n_params: Type.Optional(Type.Integer({ description: 'Number of parameters' })),
    size: Type.Integer({ description: 'Total size of its files in bytes' })
  }),
  aliases: Type.Array(Type.String()),
  tags: Type.Array(Type.String()),
  root: Type.Optional(Type.String({ description: 'The model that an alias refers to' }))
})

export const ModelList = Type.Intersect([PageOf(Model), Loose({ models: Type.Optional(Type.Array(CodexModel)) })], {
  title: 'ModelList'
})
