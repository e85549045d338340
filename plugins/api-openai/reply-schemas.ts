import { type TSchema, Type } from 'typebox'

const loose = { additionalProperties: true }
const OrNull = <Schema extends TSchema>(schema: Schema) => Type.Union([schema, Type.Null()])
const Maybe = <Schema extends TSchema>(schema: Schema) => Type.Optional(OrNull(schema))

const Count = Type.Integer({ minimum: 0 })

const Usage = Type.Object(
  {
    prompt_tokens: Type.Integer({ minimum: 0, description: 'Those found in the cache included' }),
    completion_tokens: Count,
    total_tokens: Count,
    prompt_tokens_details: Type.Optional(Type.Object({ cached_tokens: Count }, loose))
  },
  { ...loose, title: 'Usage' }
)

const TokenUsage = Type.Object({ prompt_tokens: Count, total_tokens: Count }, loose)

/** What all answers with generated text have. */
const generated = {
  id: Type.String(),
  created: Type.Integer({ description: 'Seconds since the epoch' }),
  model: Type.String({ description: 'The name that was asked for' }),
  system_fingerprint: Type.Optional(Type.String({ description: 'The build of llama.cpp' })),
  usage: Type.Optional(Usage),
  timings: Type.Optional(Type.Object({}, { ...loose, description: 'How fast llama-server read and wrote' }))
}

const Likely = Type.Object({ token: Type.String(), bytes: Type.Array(Count), logprob: Type.Number() }, loose)

const ChatLogprobs = Type.Object(
  {
    content: Type.Array(
      Type.Object(
        { token: Type.String(), bytes: Type.Array(Count), logprob: Type.Number(), top_logprobs: Type.Array(Likely) },
        loose
      )
    ),
    refusal: Type.Null()
  },
  loose
)

const Called = Type.Object({ name: Type.String(), arguments: Type.String({ description: 'JSON text' }) }, loose)

const Finish = (...reasons: string[]) => OrNull(Type.Enum(reasons))

export const ChatCompletion = Type.Object(
  {
    ...generated,
    object: Type.Literal('chat.completion'),
    choices: Type.Array(
      Type.Object(
        {
          index: Count,
          message: Type.Object(
            {
              role: Type.Literal('assistant'),
              content: OrNull(Type.String()),
              refusal: Type.Null(),
              reasoning_content: Type.Optional(
                Type.String({ description: 'What the model thought before it answered' })
              ),
              tool_calls: Type.Optional(
                Type.Array(Type.Object({ id: Type.String(), type: Type.Literal('function'), function: Called }, loose))
              ),
              function_call: Type.Optional(Called)
            },
            loose
          ),
          logprobs: OrNull(ChatLogprobs),
          finish_reason: Finish('stop', 'length', 'tool_calls', 'function_call')
        },
        loose
      )
    )
  },
  { ...loose, title: 'ChatCompletion' }
)

const CalledPiece = Type.Object({ name: Type.Optional(Type.String()), arguments: Type.Optional(Type.String()) }, loose)

/** One event of an answer that is streamed. */
export const ChatChunk = Type.Object(
  {
    ...generated,
    usage: Maybe(Usage),
    object: Type.Literal('chat.completion.chunk'),
    choices: Type.Array(
      Type.Object(
        {
          index: Count,
          delta: Type.Object(
            {
              role: Type.Optional(Type.Literal('assistant')),
              content: Maybe(Type.String()),
              reasoning_content: Maybe(Type.String()),
              tool_calls: Type.Optional(
                Type.Array(
                  Type.Object(
                    { index: Count, id: Type.Optional(Type.String()), function: Type.Optional(CalledPiece) },
                    loose
                  )
                )
              ),
              function_call: Type.Optional(CalledPiece)
            },
            loose
          ),
          logprobs: Maybe(ChatLogprobs),
          finish_reason: Finish('stop', 'length', 'tool_calls', 'function_call')
        },
        loose
      )
    )
  },
  { ...loose, title: 'ChatChunk' }
)

const CompletionLogprobs = Type.Object(
  {
    tokens: Type.Array(Type.String()),
    token_logprobs: Type.Array(Type.Number()),
    top_logprobs: OrNull(Type.Array(Type.Object({}, { additionalProperties: Type.Number() }))),
    text_offset: Type.Array(Count)
  },
  loose
)

export const Completion = Type.Object(
  {
    ...generated,
    object: Type.Literal('text_completion'),
    choices: Type.Array(
      Type.Object(
        {
          index: Count,
          text: Type.String(),
          logprobs: OrNull(CompletionLogprobs),
          finish_reason: Finish('stop', 'length')
        },
        loose
      )
    )
  },
  { ...loose, title: 'Completion' }
)

export const Embeddings = Type.Object(
  {
    object: Type.Literal('list'),
    model: Type.String(),
    data: Type.Array(
      Type.Object(
        {
          object: Type.Literal('embedding'),
          index: Count,
          embedding: Type.Union([
            Type.Array(Type.Number()),
            Type.String({ description: 'Base64 of numbers of 32 bits, little-endian' })
          ])
        },
        loose
      )
    ),
    usage: TokenUsage
  },
  { ...loose, title: 'Embeddings' }
)

export const Ranking = Type.Object(
  {
    object: Type.Literal('list'),
    model: Type.String(),
    results: Type.Array(
      Type.Object(
        {
          index: Type.Integer({ minimum: 0, description: 'Place among the documents of the request' }),
          relevance_score: Type.Number(),
          document: Type.Optional(Type.Object({ text: Type.String() }, loose))
        },
        loose
      ),
      { description: 'The best first' }
    ),
    usage: TokenUsage
  },
  { ...loose, title: 'Ranking' }
)

export const Tokens = Type.Object(
  {
    tokens: Type.Array(
      Type.Union([
        Count,
        Type.Object(
          {
            id: Count,
            piece: Type.Union([Type.String(), Type.Array(Count)], { description: 'Bytes where it is no whole text' })
          },
          loose
        )
      ])
    )
  },
  loose
)

export const Text = Type.Object({ content: Type.String() }, loose)

export const Model = Type.Object(
  {
    id: Type.String(),
    object: Type.Literal('model'),
    created: Type.Integer({ description: 'Seconds since the epoch' }),
    owned_by: Type.String(),
    type: Type.Literal('model'),
    display_name: Type.String(),
    created_at: Type.String({ format: 'date-time' }),
    max_input_tokens: Type.Integer({
      description: 'The context in force; the one that it would be loaded with where it is not'
    })
  },
  { ...loose, title: 'Model' }
)

export const ModelList = Type.Object(
  {
    object: Type.Literal('list'),
    data: Type.Array(Model),
    first_id: OrNull(Type.String()),
    last_id: OrNull(Type.String()),
    has_more: Type.Boolean()
  },
  { ...loose, title: 'ModelList' }
)
