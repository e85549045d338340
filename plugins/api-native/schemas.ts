import { type Static, Type } from 'typebox'
import { Given, keep_alive, loose, named, options } from '../../core/http/request-fields.ts'

const answering = {
  ...named,
  stream: Given(Type.Boolean({ default: true })),
  options,
  format: Given(Type.Union([Type.String(), Type.Object({}, loose)], { description: '"json" or a JSON schema' })),
  think: Given(Type.Union([Type.Boolean(), Type.String()])),
  keep_alive,
  truncate: Given(
    Type.Boolean({ description: 'Whether the oldest turns of a conversation that is too long are left out' })
  ),
  logprobs: Given(Type.Boolean({ description: 'Tell the log probabilities of the tokens' })),
  top_logprobs: Given(
    Type.Integer({ minimum: 0, maximum: 20, description: 'Of how many other tokens at each place too' })
  )
}

const ToolCallSchema = Type.Object(
  {
    id: Given(Type.String()),
    function: Type.Object(
      {
        name: Type.String(),
        arguments: Given(Type.Union([Type.Object({}, loose), Type.String()]))
      },
      loose
    )
  },
  loose
)

export const MessageSchema = Type.Object(
  {
    role: Given(Type.Enum(['system', 'user', 'assistant', 'tool', 'developer'])),
    content: Given(Type.String()),
    thinking: Given(Type.String()),
    images: Given(Type.Array(Type.String({ minLength: 1 }))),
    tool_calls: Given(Type.Array(ToolCallSchema)),
    tool_name: Given(Type.String()),
    tool_call_id: Given(Type.String())
  },
  { ...loose, title: 'Message' }
)
export type Message = Static<typeof MessageSchema>

export const ChatRequestSchema = Type.Object(
  {
    ...answering,
    messages: Given(Type.Array(MessageSchema)),
    tools: Given(Type.Array(Type.Object({}, loose)))
  },
  { ...loose, title: 'ChatRequest' }
)
export type ChatRequest = Static<typeof ChatRequestSchema>

export const GenerateRequestSchema = Type.Object(
  {
    ...answering,
    prompt: Given(Type.String()),
    system: Given(Type.String()),
    suffix: Given(Type.String()),
    context: Type.Optional(Type.Unknown({ description: "Not heeded: another server's numbers mean nothing here" })),
    images: Given(Type.Array(Type.String({ minLength: 1 }))),
    raw: Given(Type.Boolean())
  },
  { ...loose, title: 'GenerateRequest' }
)
export type GenerateRequest = Static<typeof GenerateRequestSchema>

export const EmbedRequestSchema = Type.Object(
  {
    ...named,
    input: Given(Type.Union([Type.String(), Type.Array(Type.String())], { description: 'Texts; none only loads' })),
    truncate: Given(
      Type.Boolean({ default: false, description: 'Whether texts that are longer than the context are cut' })
    ),
    dimensions: Given(Type.Integer({ minimum: 1, description: 'Numbers of each embedding, if fewer than it has' })),
    options,
    keep_alive
  },
  loose
)
export type EmbedRequest = Static<typeof EmbedRequestSchema>

export const EmbeddingsRequestSchema = Type.Object(
  {
    ...named,
    prompt: Given(Type.String({ description: 'A text; none only loads' })),
    options,
    keep_alive
  },
  loose
)
export type EmbeddingsRequest = Static<typeof EmbeddingsRequestSchema>

export const NamedRequestSchema = Type.Object(named, { ...loose, title: 'NamedRequest' })

export const PullRequestSchema = Type.Object(
  {
    model: Given(
      Type.String({ description: '[hf:|csghub:|modelscope:]<owner>/<name>[:<variant>][@<revision>], or an address' })
    ),
    name: named.name,
    as: Given(Type.String({ description: 'Name to store it under' })),
    stream: answering.stream,
    detach: Given(Type.Boolean({ default: false, description: 'Go on without anybody watching; the answer is a 202' })),
    dry_run: Given(Type.Boolean({ default: false, description: 'Only say what would be fetched' }))
  },
  { ...loose, title: 'PullRequest' }
)

export const PullsRequestSchema = Type.Object(
  { ...named, id: Given(Type.String({ description: "A pull's id; its model does too" })) },
  { ...loose, title: 'PullsRequest' }
)

export const LoadRequestSchema = Type.Object(
  {
    ...named,
    stream: Given(Type.Boolean({ default: false })),
    options,
    keep_alive
  },
  { ...loose, title: 'LoadRequest' }
)

export const ConvertRequestSchema = Type.Object(
  {
    ...named,
    dtype: Given(Type.String({ minLength: 1, description: 'f32, f16, bf16, q8_0, q4_k_m, …' })),
    stream: answering.stream
  },
  { ...loose, title: 'ConvertRequest' }
)

export const ImportRequestSchema = Type.Object(
  {
    ...named,
    path: Given(
      Type.String({ minLength: 1, description: 'Absolute path of a GGUF file or a model folder on the server' })
    ),
    from: Given(Type.String({ minLength: 1, description: 'Instead of a path: the tool that has the model' })),
    found: Given(Type.String({ minLength: 1, description: 'With from: what GET /api/import/found names the model' })),
    stream: Given(Type.Boolean({ default: false }))
  },
  { ...loose, title: 'ImportRequest' }
)

export const InstallRequestSchema = Type.Object(
  {
    runtime: Given(
      Type.String({ minLength: 1, description: 'Kind of build, such as cuda-13; the best one by default' })
    ),
    version: Given(
      Type.String({ pattern: '^[\\w.-]+$', description: 'Release such as b11347; the newest by default' })
    ),
    archive: Given(
      Type.String({ minLength: 1, description: 'Absolute path of a release archive on the server instead' })
    ),
    companions: Given(
      Type.Array(Type.String({ minLength: 1 }), { description: 'With archive: those with its libraries' })
    ),
    sha256: Given(Type.String({ minLength: 1, description: 'With archive: 64 hex digits that it must have' })),
    stream: answering.stream
  },
  { ...loose, title: 'InstallRequest' }
)

export const UseRequestSchema = Type.Object(
  {
    runtime: Type.String({ minLength: 1, description: 'Id of an installed build, a kind of build, or auto' }),
    stream: Given(Type.Boolean({ default: false }))
  },
  { ...loose, title: 'UseRequest' }
)

export const UpgradeRequestSchema = Type.Object({ stream: answering.stream }, loose)
