import { type Static, Type } from 'typebox'
import type { ModelLimits } from '../contracts/answers.ts'
import type { Model } from '../contracts/models.ts'
import { Loose } from '../http/request-fields.ts'
import UNSUPPORTED from './anthropic-unsupported.json' with { type: 'json' }

const Support = Loose({ supported: Type.Boolean() })
const support = (supported: boolean): Static<typeof Support> => ({ supported })

/** The fields of a model's record that Anthropic's clients validate, in every API where they list models. */
export const anthropicFields = {
  type: Type.Literal('model'),
  display_name: Type.String(),
  description: Type.Optional(Type.String({ description: 'The model that an alias refers to' })),
  created_at: Type.String({ format: 'date-time' }),
  max_input_tokens: Type.Integer({ description: 'Tokens that prompt and answer may have together' }),
  max_tokens: Type.Integer({ description: 'Maximum tokens of an answer' }),
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

/** The values of those fields for a model (https://docs.claude.com/en/api/models). */
export function anthropicRecord(
  { modifiedAt, publicName, metadata: { capabilities } }: Model,
  shown: string,
  { window, answer }: Pick<ModelLimits, 'window' | 'answer'>
) {
  const record = {
    type: 'model' as const,
    display_name: shown,
    created_at: modifiedAt,
    max_input_tokens: window,
    max_tokens: answer,
    lifecycle: 'active' as const,
    deprecated_at: null,
    retires_at: null,
    line: null,
    capabilities:
      KINDS[
        Number(capabilities.includes('vision')) +
          2 * Number(capabilities.includes('completion')) +
          4 * Number(capabilities.includes('thinking'))
      ]!
  }
  // Claude Code shows it beside the name.
  return shown === publicName ? record : Object.assign(record, { description: publicName })
}

/** The same objects for all models with the same abilities, of which there are thousands. */
const KINDS = Array.from({ length: 8 }, (_, flags) => {
  const thinking = support((flags & 4) !== 0)
  return {
    ...UNSUPPORTED,
    image_input: support((flags & 1) !== 0),
    pdf_input: support((flags & 2) !== 0),
    structured_outputs: support((flags & 2) !== 0),
    thinking: {
      ...thinking,
      types: { enabled: thinking, disabled: thinking, adaptive: support(false), between_tools: support(false) }
    }
  }
})
