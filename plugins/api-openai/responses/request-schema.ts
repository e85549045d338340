import { type Static, Type } from 'typebox'
import { Given, keep_alive, loose, named, options } from '../../../core/http/request-fields.ts'
import { SamplingOptionsSchema } from '../../../core/models/options.ts'

const { temperature, top_p } = SamplingOptionsSchema.properties

/** The body of `POST /v1/responses`, and of `/v1/responses/input_tokens`, where only some of it counts. */
export const ResponseRequestSchema = Type.Object(
  {
    ...named,
    input: Given(
      Type.Union([Type.String(), Type.Array(Type.Object({}, loose))], {
        description:
          'Text of the user, or items: messages, function calls and their outputs, reasoning, references to items'
      })
    ),
    instructions: Given(Type.String({ description: 'System message; not carried over by previous_response_id' })),
    previous_response_id: Given(Type.String({ description: 'The stored response whose conversation goes on' })),
    tools: Given(
      Type.Array(Type.Object({}, loose), {
        description:
          'Functions: {type: "function", name, description, parameters}; or groups of them: {type: "namespace", name, description, tools}. Others are left out'
      })
    ),
    tool_choice: Given(
      Type.Union([Type.String(), Type.Object({}, loose)], {
        description: 'auto, none, required, {type: "function", name} or {type: "allowed_tools", mode, tools}'
      })
    ),
    parallel_tool_calls: Given(Type.Boolean()),
    text: Given(
      Type.Object(
        {
          format: Given(
            Type.Object({}, { ...loose, description: '{type: "text" | "json_object" | "json_schema", …}' })
          ),
          verbosity: Given(Type.String())
        },
        loose
      )
    ),
    reasoning: Given(Type.Object({ effort: Given(Type.String()), summary: Given(Type.String()) }, loose)),
    options,
    keep_alive,
    stream: Given(Type.Boolean({ default: false })),
    store: Given(Type.Boolean({ default: true, description: 'Kept in memory for previous_response_id' })),
    max_output_tokens: Given(Type.Integer({ minimum: 1, maximum: 2 ** 31 - 1 })),
    temperature: Given(temperature),
    top_p: Given(top_p),
    stop: Given(Type.Union([Type.String(), Type.Array(Type.String())], { description: 'Texts that end the answer' })),
    top_logprobs: Given(Type.Integer({ minimum: 0, maximum: 20 })),
    include: Given(Type.Array(Type.String())),
    truncation: Given(Type.Enum(['auto', 'disabled'], { description: 'auto: the oldest turns may be left out' })),
    metadata: Given(
      Type.Object({}, { additionalProperties: Type.String(), description: 'Texts, which the response repeats' })
    ),
    user: Given(Type.String()),
    background: Given(Type.Boolean({ description: 'Only false' })),
    service_tier: Given(Type.String({ description: 'Of no effect' })),
    safety_identifier: Given(Type.String({ description: 'Of no effect' })),
    prompt_cache_key: Given(Type.String({ description: 'Of no effect: prompts are always cached' }))
  },
  { ...loose, title: 'ResponseRequest' }
)
export type ResponseRequest = Static<typeof ResponseRequestSchema>
