import { type Static, Type } from 'typebox'
import { RequestBoundsSchema } from '../../core/config/core-schema.ts'
import { faultSentence, findFault } from '../../core/system/schema-check.ts'

/** Most requests a minute that a key's limit can say: each is remembered for a minute. */
const MOST_REQUESTS = 100_000

/** What a key may take: rates, and what one request may ask for in the place of what `limits` says. */
export const KeyLimitsSchema = Type.Object(
  {
    requests_per_minute: Type.Optional(
      Type.Integer({ minimum: 1, maximum: MOST_REQUESTS, description: 'Requests in any 60 seconds' })
    ),
    tokens_per_day: Type.Optional(Type.Integer({ minimum: 1, description: 'Kept with the key; not enforced yet' })),
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

/** What was asked for a key cannot be: a limit or an end that cannot be read. The message says why. */
export class LimitMistake extends Error {}

/**
 * Reads `60/min,100000tok/day,max_tokens=4096`.
 * @throws LimitMistake
 */
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

function parseLimit(text: string): [name: string, value: unknown] {
  const [, count, unit, span] = /^(\d+) *(tok|tokens?|req|requests?)?\/ *(min|minute|day)$/.exec(text) ?? []
  if (count !== undefined) {
    const isTokens = unit?.startsWith('tok') ?? false
    if (!isTokens && span !== 'day') return ['requests_per_minute', Number(count)]
    if (isTokens && span === 'day') return ['tokens_per_day', Number(count)]
  }
  const [, name, value] = /^([a-z_]+) *= *(\S+)$/.exec(text) ?? []
  if (name !== undefined && name in RequestBoundsSchema.properties) {
    return [name, /^\d+$/.test(value!) ? Number(value) : value]
  }
  throw new LimitMistake(
    `"${text}" is not a limit. Write 60/min (requests), 100000tok/day (tokens), or one of ` +
      `${Object.keys(RequestBoundsSchema.properties).join(', ')} with a value such as max_tokens=4096.`
  )
}

/** The part of a key's limits that each request is held to. */
export function boundsOf({ requests_per_minute: _, tokens_per_day: __, ...bounds }: KeyLimits) {
  return bounds
}

/** Counts the requests of one key in the last minute, exactly: no 60 seconds ever have more than the limit. */
export class RequestWindow {
  readonly limit: number
  /** When the last requests came, in a ring; milliseconds. */
  readonly #times: Float64Array
  #next = 0

  constructor(limit: number) {
    this.limit = limit
    this.#times = new Float64Array(limit).fill(Number.NEGATIVE_INFINITY)
  }

  /** Takes note of a request. @returns 0, or the milliseconds until one more is allowed */
  take(now: number): number {
    const oldest = this.#times[this.#next]!
    const wait = oldest + 60_000 - now
    if (wait > 0) return wait
    this.#times[this.#next] = now
    this.#next = (this.#next + 1) % this.limit
    return 0
  }
}

/**
 * Reads how long a key is to live: `90d`, `12h`, `30m`, `2w`, or a date such as 2026-12-31.
 * @returns when it ends, as ISO 8601
 * @throws LimitMistake
 */
export function parseExpiry(text: string, now: Date): string {
  const [, count, unit] = /^(\d+)([smhdw])$/.exec(text) ?? []
  const seconds: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86_400, w: 604_800 }
  const isDate = /^\d{4}-\d\d-\d\d(T[\d:.]+(Z|[+-]\d\d:\d\d))?$/.test(text)
  const end =
    count === undefined
      ? isDate
        ? Date.parse(text)
        : Number.NaN
      : now.getTime() + Number(count) * seconds[unit!]! * 1000
  // Later moments have no ISO 8601 form of four digits.
  if (!(end < Date.UTC(9999, 0))) {
    throw new LimitMistake(`"${text}" is no length of time or date. Write 90d, 12h, 30m or a date such as 2030-12-31.`)
  }
  if (end <= now.getTime()) throw new LimitMistake(`"${text}" is over already. Choose a moment to come.`)
  return new Date(end).toISOString()
}
