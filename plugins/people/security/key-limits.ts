import { type Static, Type } from 'typebox'
import { BudgetsSchema, RequestBoundsSchema } from '../../../core/config/core-schema.ts'
import type { BudgetKind, Budgets, RequestBounds } from '../../../core/contracts/callers.ts'
import { parseMoment } from '../../../core/system/duration.ts'
import { faultSentence, findFault } from '../../../core/system/schema-check.ts'

/** Budgets and request limits of one key. They replace those in `limits`. */
export const KeyLimitsSchema = Type.Object(
  {
    ...BudgetsSchema.properties,
    ...RequestBoundsSchema.properties,
    keep_alive: Type.Optional(
      Type.Union([Type.Number(), Type.String()], {
        description: 'Longest keep_alive, such as 5m; negative means for ever'
      })
    )
  },
  { title: 'KeyLimits', additionalProperties: false }
)
export type KeyLimits = Static<typeof KeyLimitsSchema>

/** A limit or expiry that cannot be parsed. The message says why. */
export class LimitMistake extends Error {}

/** Parses `60/min,100000tok/day,20000tok-in/min,max_tokens=4096`. @throws LimitMistake */
export function parseKeyLimits(text: string): KeyLimits {
  const limits: Record<string, unknown> = {}
  for (const part of text.split(',').map(each => each.trim())) {
    const [name, value] = parseLimit(part)
    if (name in limits) throw new LimitMistake(`"${part}": ${name} is given twice.`)
    limits[name] = value
  }
  const fault = findFault(KeyLimitsSchema, limits)
  if (fault) throw new LimitMistake(faultSentence(fault, 'The limit'))
  return limits
}

const KINDS: Record<string, BudgetKind> = {
  '': 'requests',
  req: 'requests',
  tok: 'tokens',
  'tok-in': 'tokens_in',
  'tok-out': 'tokens_out'
}

function parseLimit(text: string): [name: string, value: unknown] {
  const rate = /^(\d+) *(?:(req|tok)(?:uest|en)?s?(-in|-out)?)? *\/ *(min|day)(?:ute)?$/.exec(text)
  if (rate) {
    const [, count, unit = '', direction = '', span] = rate
    const kind = KINDS[unit + direction]
    if (kind) return [`${kind}_per_${span === 'day' ? 'day' : 'minute'}`, Number(count)]
  }
  const [, name, value] = /^([a-z_]+) *= *(\S+)$/.exec(text) ?? []
  if (name !== undefined && name in KeyLimitsSchema.properties) {
    return [name, /^\d+$/.test(value!) ? Number(value) : value]
  }
  throw new LimitMistake(
    `"${text}" is not a limit. Write 60/min or 1000/day (requests), 100000tok/day, 20000tok-in/min or 5000tok-out/min ` +
      `(tokens in total, input tokens, output tokens), or one of ` +
      `${Object.keys(RequestBoundsSchema.properties).join(', ')} with a value such as max_tokens=4096.`
  )
}

/** Splits a key's limits into the limits of one request and the budgets over time. */
export function partsOf(limits: KeyLimits): { bounds: Partial<RequestBounds>; budgets: Budgets } {
  const part = (schema: { properties: object }) =>
    Object.fromEntries(Object.entries(limits).filter(([name]) => name in schema.properties))
  return { bounds: part(RequestBoundsSchema), budgets: part(BudgetsSchema) }
}

/** Parses how long a key is valid, such as `90d` or 2026-12-31, into an ISO 8601 time. @throws LimitMistake */
export function parseExpiry(text: string, now: Date): string {
  const end = parseMoment(text, now.getTime(), 'future')
  if (end === undefined) {
    throw new LimitMistake(`"${text}" is not a duration or date. Write 90d, 12h, 30m or a date such as 2030-12-31.`)
  }
  if (end <= now.getTime()) throw new LimitMistake(`"${text}" is already over. Choose a future time.`)
  return new Date(end).toISOString()
}
