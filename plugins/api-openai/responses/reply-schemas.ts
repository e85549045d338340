import { type TSchema, Type } from 'typebox'

const loose = { additionalProperties: true }
const Null = Type.Null()
const OrNull = <Schema extends TSchema>(schema: Schema) => Type.Union([schema, Null])
const Status = (...states: string[]) => Type.Enum(states)

const Logprob = {
  token: Type.String(),
  bytes: Type.Array(Type.Integer()),
  logprob: Type.Number()
}
const OutputText = Type.Object(
  {
    type: Type.Literal('output_text'),
    text: Type.String(),
    annotations: Type.Array(Type.Unknown()),
    logprobs: Type.Array(Type.Object({ ...Logprob, top_logprobs: Type.Array(Type.Object(Logprob, loose)) }, loose))
  },
  loose
)
const stored = { id: Type.String(), status: Status('completed', 'incomplete') }

const OutputMessage = Type.Object(
  { type: Type.Literal('message'), ...stored, role: Type.Literal('assistant'), content: Type.Array(OutputText) },
  loose
)
const Reasoning = Type.Object(
  {
    type: Type.Literal('reasoning'),
    ...stored,
    summary: Type.Array(Type.Object({ type: Type.Literal('summary_text'), text: Type.String() }, loose)),
    content: Type.Array(Type.Object({ type: Type.Literal('reasoning_text'), text: Type.String() }, loose))
  },
  loose
)
const FunctionCall = Type.Object(
  {
    type: Type.Literal('function_call'),
    ...stored,
    call_id: Type.String(),
    name: Type.String(),
    namespace: Type.Optional(Type.String({ description: 'The group that the function belongs to' })),
    arguments: Type.String({ description: 'JSON text' })
  },
  loose
)
const Parts = Type.Array(Type.Object({ type: Type.String() }, loose))
const InputMessage = Type.Object(
  { type: Type.Literal('message'), ...stored, role: Type.Enum(['user', 'system', 'developer']), content: Parts },
  loose
)
const FunctionCallOutput = Type.Object(
  {
    type: Type.Literal('function_call_output'),
    ...stored,
    call_id: Type.String(),
    output: Type.Union([Type.String(), Parts])
  },
  loose
)

/** A response that has ended. */
export const ResponseSchema = Type.Object(
  {
    id: Type.String({ description: 'resp_…' }),
    object: Type.Literal('response'),
    created_at: Type.Integer({ description: 'Seconds since the epoch' }),
    completed_at: OrNull(Type.Integer()),
    status: Status('completed', 'incomplete'),
    background: Type.Literal(false),
    error: Null,
    incomplete_details: OrNull(Type.Object({ reason: Type.Literal('max_output_tokens') }, loose)),
    instructions: OrNull(Type.String()),
    max_output_tokens: OrNull(Type.Integer()),
    metadata: Type.Record(Type.String(), Type.String()),
    model: Type.String({ description: 'As it was asked for' }),
    output: Type.Array(Type.Union([OutputMessage, Reasoning, FunctionCall])),
    parallel_tool_calls: Type.Boolean(),
    previous_response_id: OrNull(Type.String()),
    reasoning: Type.Object({ effort: OrNull(Type.String()), summary: OrNull(Type.String()) }, loose),
    store: Type.Boolean(),
    temperature: OrNull(Type.Number()),
    text: Type.Object({ format: Type.Object({}, loose), verbosity: Type.String() }, loose),
    tool_choice: Type.Union([Type.String(), Type.Object({}, loose)]),
    tools: Type.Array(Type.Object({ type: Type.Enum(['function', 'namespace']), name: Type.String() }, loose)),
    top_logprobs: Type.Integer(),
    top_p: OrNull(Type.Number()),
    truncation: Type.Enum(['auto', 'disabled']),
    usage: Type.Object(
      {
        input_tokens: Type.Integer(),
        input_tokens_details: Type.Object({ cached_tokens: Type.Integer() }, loose),
        output_tokens: Type.Integer(),
        output_tokens_details: Type.Object({ reasoning_tokens: Type.Integer() }, loose),
        total_tokens: Type.Integer()
      },
      loose
    )
  },
  { ...loose, title: 'Response' }
)

/** A page of a response's input. */
export const ItemListSchema = Type.Object(
  {
    object: Type.Literal('list'),
    data: Type.Array(Type.Union([InputMessage, FunctionCallOutput, OutputMessage, Reasoning, FunctionCall])),
    first_id: OrNull(Type.String()),
    last_id: OrNull(Type.String()),
    has_more: Type.Boolean()
  },
  loose
)

export const DeletedSchema = Type.Object(
  { id: Type.String(), object: Type.Literal('response'), deleted: Type.Literal(true) },
  loose
)

export const CountSchema = Type.Object(
  { object: Type.Literal('response.input_tokens'), input_tokens: Type.Integer() },
  loose
)
