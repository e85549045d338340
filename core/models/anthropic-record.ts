import { type Static, Type } from 'typebox'
import type { Model } from '../contracts/models.ts'
import { Loose } from '../http/request-fields.ts'

const Support = Loose({ supported: Type.Boolean() })
const support = (supported: boolean): Static<typeof Support> => ({ supported })

/** The fields of a model's record that Anthropic's clients validate, in every API where they list models. */
export const anthropicFields = {
  type: Type.Literal('model'),
  display_name: Type.String(),
  created_at: Type.String({ format: 'date-time' }),
  max_input_tokens: Type.Integer({ description: 'The context that it is loaded with, or would be' }),
  max_tokens: Type.Integer({ description: 'Maximum tokens of an answer: the size of the context' }),
  lifecycle: Type.Literal('active'),
  deprecated_at: Type.Null(),
  retires_at: Type.Null(),
  line: Type.Null(),
  capabilities: Loose(
    { image_input: Support, structured_outputs: Support, thinking: Support },
    {
      description: "As in Anthropic's API; features of the hosted service are not supported"
    }
  )
}

/** The values of those fields for a model (https://docs.claude.com/en/api/models). `context` is in tokens. */
export function anthropicRecord({ modifiedAt, metadata: { capabilities } }: Model, shown: string, context: number) {
  return {
    type: 'model' as const,
    display_name: shown,
    created_at: modifiedAt,
    max_input_tokens: context,
    max_tokens: context,
    lifecycle: 'active' as const,
    deprecated_at: null,
    retires_at: null,
    line: null,
    capabilities: capabilitiesOf(
      capabilities.includes('vision'),
      capabilities.includes('completion'),
      capabilities.includes('thinking')
    )
  }
}

const no = support(false)
type Capabilities = ReturnType<typeof makeCapabilities>
/** By flags. */
const made = new Map<number, Capabilities>()

/** Returns the same object for all models with the same abilities, of which there are thousands. */
function capabilitiesOf(vision: boolean, completion: boolean, canThink: boolean): Capabilities {
  const kind = Number(vision) + 2 * Number(completion) + 4 * Number(canThink)
  let capabilities = made.get(kind)
  if (!capabilities) {
    capabilities = makeCapabilities(vision, completion, support(canThink))
    made.set(kind, capabilities)
  }
  return capabilities
}

function makeCapabilities(vision: boolean, completion: boolean, thinking: Static<typeof Support>) {
  return {
    batch: no,
    citations: no,
    code_execution: no,
    context_management: {
      ...no,
      clear_thinking_20251015: null,
      clear_tool_uses_20250919: null,
      compact_20260112: null
    },
    effort: { ...no, low: no, medium: no, high: no, xhigh: null, max: no },
    image_input: support(vision),
    pdf_input: no,
    server_tools: { ...no, code_execution: no, web_search: no },
    structured_outputs: support(completion),
    thinking: { ...thinking, types: { enabled: thinking, disabled: thinking, adaptive: no, between_tools: no } }
  }
}
