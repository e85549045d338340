import type { EngineFields } from '../contracts/engines.ts'
import { isObject } from '../system/json-object.ts'

/** What a request says about thinking. Absent fields leave the choice to the model. */
export interface Thinking {
  enabled?: boolean | undefined
  /** One of `EFFORTS`, or a level of the model's own. */
  effort?: string | undefined
  budget?: number | undefined
}

/** The levels of effort in all APIs, in ascending order. */
export const EFFORTS: readonly string[] = ['minimal', 'low', 'medium', 'high', 'xhigh', 'max']

const SWITCHES: Record<string, boolean> = {
  ...{ none: false, off: false, disabled: false },
  ...{ on: true, enabled: true, adaptive: true, auto: true, between_tools: true }
}

/** The fields of all APIs about thinking, as paths. Fields that come first take precedence. */
const FIELDS: readonly (readonly [field: string, inner?: string])[] = [
  ['think'], // native, Ollama
  ['thinking', 'type'], // Messages, and chat completions of several vendors
  ['enable_thinking'],
  ['chat_template_kwargs', 'enable_thinking'],
  ['chat_template_kwargs', 'thinking'],
  ['reasoning', 'enabled'],
  ['reasoning', 'effort'], // Responses
  ['reasoning'], // LM Studio
  ['reasoning_effort'], // chat completions
  ['chat_template_kwargs', 'reasoning_effort'],
  ['output_config', 'effort'] // Messages
]
const BUDGETS: typeof FIELDS = [
  ['thinking', 'budget_tokens'],
  ['thinking_budget_tokens'],
  ['reasoning_budget_tokens'],
  ['reasoning_budget'],
  ['thinking_budget'],
  ['reasoning', 'max_tokens']
]

/** The fields of requests that say nothing but that. */
export const THINKING_FIELDS: ReadonlySet<string> = new Set(
  [...FIELDS, ...BUDGETS].map(([field]) => field).filter(field => !/template|output/.test(field))
)

/** Reads what a request says about thinking, in the words of any API. Values of other types are ignored. */
export function readThinking(request: EngineFields): Thinking {
  const values = (fields: typeof FIELDS) =>
    fields.flatMap(([field, inner]) => {
      const value = request[field]
      return inner === undefined ? [value] : isObject(value) ? [value[inner]] : []
    })
  const said = values(FIELDS).map(value =>
    typeof value === 'string' && Object.hasOwn(SWITCHES, value) ? SWITCHES[value] : value
  )
  const enabled = said.find(value => typeof value === 'boolean')
  const effort = said.find(value => typeof value === 'string')
  const budget = values(BUDGETS).find((value): value is number => Number.isInteger(value) && Number(value) >= 0)
  return {
    ...((enabled ?? effort) !== undefined && { enabled: enabled ?? true }),
    ...(effort && enabled !== false && { effort }),
    ...(budget !== undefined && { budget })
  }
}

/** Writes it in the OpenAI chat format, with fields that most engines know. @param template other template variables */
export function thinkingFields({ enabled, effort, budget }: Thinking, template: EngineFields = {}): EngineFields {
  return {
    ...(enabled !== undefined && { chat_template_kwargs: { ...template, enable_thinking: enabled } }),
    ...(effort && { reasoning_effort: effort }),
    ...(budget !== undefined && enabled !== false && { thinking_budget_tokens: budget })
  }
}
