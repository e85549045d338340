import { type Static, Type } from 'typebox'
import { Given, keep_alive, loose, named } from '../../core/http/request-fields.ts'
import { requestOptions } from '../../core/models/options.ts'

const Loose = (description: string) => Type.Object({}, { ...loose, description })

/** What chat completions and completions take of the engine. */
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

const generated = {
  ...named,
  ...requestOptions,
  ...generating,
  options: Given(
    Type.Object(
      { ...requestOptions, ...generating },
      {
        ...loose,
        description: 'The same options, and others of llama-server; what is given at the top level counts more'
      }
    )
  ),
  keep_alive,
  stream: Given(Type.Boolean({ default: false })),
  stream_options: Given(Type.Object({ include_usage: Given(Type.Boolean()) }, loose)),
  n: Given(
    Type.Integer({ minimum: 1, maximum: 256, default: 1, description: "Choices; no more than the engine's slots" })
  )
}

const ContentPart = Type.Object(
  {
    type: Type.String({ description: 'text, image_url, input_audio or refusal' }),
    text: Given(Type.String()),
    refusal: Given(Type.String()),
    image_url: Given(
      Type.Union([
        Type.Object({ url: Type.String({ description: 'A data URL; addresses are not fetched' }) }, loose),
        Type.String()
      ])
    ),
    input_audio: Given(
      Type.Object({ data: Given(Type.String({ description: 'Base64' })), format: Given(Type.String()) }, loose)
    )
  },
  loose
)
export type ContentPart = Static<typeof ContentPart>

const Called = Type.Object(
  {
    name: Type.String(),
    arguments: Given(Type.Union([Type.String(), Type.Object({}, loose)], { description: 'JSON text' }))
  },
  loose
)

const ChatMessage = Type.Object(
  {
    role: Given(
      Type.Enum(['system', 'developer', 'user', 'assistant', 'tool', 'function'], { description: 'user where absent' })
    ),
    content: Given(Type.Union([Type.String(), Type.Array(ContentPart)])),
    name: Given(Type.String()),
    reasoning_content: Given(Type.String()),
    refusal: Given(Type.String()),
    tool_calls: Given(
      Type.Array(Type.Object({ id: Given(Type.String()), type: Given(Type.String()), function: Called }, loose))
    ),
    tool_call_id: Given(Type.String()),
    function_call: Given(Called)
  },
  loose
)
export type ChatMessage = Static<typeof ChatMessage>

const FunctionTool = Type.Object(
  {
    name: Type.String({ minLength: 1 }),
    description: Given(Type.String()),
    parameters: Given(Loose('JSON schema of the arguments'))
  },
  loose
)

export const ChatRequest = Type.Object(
  {
    ...generated,
    messages: Type.Array(ChatMessage, { minItems: 1 }),
    max_completion_tokens: requestOptions.max_tokens,
    logprobs: Given(Type.Boolean({ default: false })),
    top_logprobs: Given(Type.Integer({ minimum: 0, maximum: 100 })),
    response_format: Given(
      Type.Object(
        {
          type: Given(Type.Enum(['text', 'json_object', 'json_schema'])),
          json_schema: Given(Type.Object({ name: Given(Type.String()), schema: Given(Loose('JSON schema')) }, loose)),
          schema: Given(Loose('JSON schema of a json_object'))
        },
        loose
      )
    ),
    tools: Given(Type.Array(Type.Object({ type: Type.Enum(['function']), function: FunctionTool }, loose))),
    tool_choice: Given(
      Type.Union([
        Type.Enum(['none', 'auto', 'required']),
        Type.Object(
          {
            type: Type.String(),
            function: Given(Type.Object({ name: Type.String() }, loose)),
            allowed_tools: Given(
              Type.Object(
                { mode: Type.Enum(['auto', 'required']), tools: Type.Array(Loose('A tool, by its name')) },
                loose
              )
            )
          },
          loose
        )
      ])
    ),
    parallel_tool_calls: Given(Type.Boolean()),
    functions: Given(Type.Array(FunctionTool, { description: 'The older form of tools' })),
    function_call: Given(
      Type.Union([Type.Enum(['none', 'auto']), Type.Object({ name: Type.String() }, loose)], {
        description: 'The older form of tool_choice'
      })
    ),
    reasoning_effort: Given(Type.String({ description: 'none, low, medium, high, …: what the chat template knows' })),
    modalities: Given(Type.Array(Type.String(), { description: 'Answers are text' }))
  },
  {
    ...loose,
    title: 'ChatCompletionRequest',
    description: 'What llama-server knows beyond this, such as min_p, is passed on'
  }
)
export type ChatRequest = Static<typeof ChatRequest>

const Token = Type.Integer({ minimum: 0, maximum: 2 ** 31 - 1 })

export const CompletionRequest = Type.Object(
  {
    ...generated,
    prompt: Type.Union(
      [
        Type.String(),
        Type.Array(Token, { minItems: 1 }),
        Type.Array(Type.Union([Type.String(), Type.Array(Token, { minItems: 1 })]), { minItems: 1 }),
        Type.Null()
      ],
      { description: 'A text or a list of tokens, or several of them; null is an empty text' }
    ),
    suffix: Given(Type.String({ description: 'What follows: the model fills in the middle' })),
    echo: Given(Type.Boolean({ default: false })),
    best_of: Given(Type.Integer({ minimum: 1, maximum: 256 })),
    logprobs: Given(
      Type.Union([Type.Integer({ minimum: 0, maximum: 100 }), Type.Boolean()], {
        description: 'How many of the likeliest tokens are told at each place'
      })
    )
  },
  loose
)
export type CompletionRequest = Static<typeof CompletionRequest>

export const EmbeddingRequest = Type.Object(
  {
    ...named,
    input: Type.Union([
      Type.String(),
      Type.Array(Type.String(), { minItems: 1 }),
      Type.Array(Token, { minItems: 1 }),
      Type.Array(Type.Array(Token, { minItems: 1 }), { minItems: 1 })
    ]),
    encoding_format: Given(Type.Enum(['float', 'base64'], { default: 'float' })),
    dimensions: Given(Type.Integer({ minimum: 1, description: 'Vectors are cut to so many and normalised anew' })),
    options: generated.options,
    keep_alive
  },
  loose
)
export type EmbeddingRequest = Static<typeof EmbeddingRequest>

export const RerankRequest = Type.Object(
  {
    ...named,
    query: Type.String(),
    documents: Type.Array(Type.Union([Type.String(), Type.Object({ text: Type.String() }, loose)]), { minItems: 1 }),
    top_n: Given(Type.Integer({ minimum: 1, description: 'How many of the best are told; all by default' })),
    return_documents: Given(Type.Boolean({ default: false })),
    options: generated.options,
    keep_alive
  },
  loose
)
export type RerankRequest = Static<typeof RerankRequest>

export const TokenizeRequest = Type.Object(
  {
    ...named,
    content: Type.Union([Type.String(), Type.Array(Type.Union([Type.String(), Token]))]),
    add_special: Given(Type.Boolean({ default: false, description: 'Begin as a prompt begins' })),
    parse_special: Given(Type.Boolean({ default: true, description: 'Take what looks like a special token for one' })),
    with_pieces: Given(Type.Boolean({ default: false, description: 'Tell the text of each token' })),
    keep_alive
  },
  loose
)

export const DetokenizeRequest = Type.Object({ ...named, tokens: Type.Array(Token), keep_alive }, loose)

/** Pages of a list, as Anthropic's clients ask for them. All of it where nothing is given. */
export const ModelListQuery = Type.Object(
  {
    limit: Type.Optional(Type.Integer({ minimum: 1, maximum: 1000 })),
    after_id: Type.Optional(Type.String()),
    before_id: Type.Optional(Type.String())
  },
  loose
)
export type ModelListQuery = Static<typeof ModelListQuery>
