import type { BudgetKind, BudgetName } from '../contracts/callers.ts'

/** What is left of a budget in time. */
export interface BudgetState {
  readonly name: BudgetName
  readonly kind: BudgetKind
  /** Seconds that it is for. */
  readonly window: number
  /** The model, where it is for one. */
  readonly model?: string | undefined
  readonly limit: number
  /** May be more than the limit: answers that were begun within it are completed. */
  readonly used: number
  /** Milliseconds until it is refilled. */
  readonly reset: number
}

/** The headers of one kind of counts. They have the most pressing of the budgets that count these. */
interface Headers {
  readonly counted: readonly BudgetKind[]
  readonly limit: string
  readonly remaining: string
  readonly reset: string
}

const ofTokens: readonly BudgetKind[] = ['tokens', 'tokens_in', 'tokens_out']
const DIALECTS = {
  openai: Object.entries({ requests: ['requests'], tokens: ofTokens } as const).map(
    ([what, counted]): Headers => ({
      counted,
      limit: `x-ratelimit-limit-${what}`,
      remaining: `x-ratelimit-remaining-${what}`,
      reset: `x-ratelimit-reset-${what}`
    })
  ),
  anthropic: Object.entries({
    requests: ['requests'],
    tokens: ofTokens,
    'input-tokens': ['tokens', 'tokens_in'],
    'output-tokens': ['tokens', 'tokens_out']
  } as const).map(
    ([what, counted]): Headers => ({
      counted,
      limit: `anthropic-ratelimit-${what}-limit`,
      remaining: `anthropic-ratelimit-${what}-remaining`,
      reset: `anthropic-ratelimit-${what}-reset`
    })
  )
}

/** All headers that `rateLimitHeaders` may set. */
export const RATE_LIMIT_HEADERS: readonly string[] = [
  'ratelimit',
  'ratelimit-policy',
  ...Object.values(DIALECTS).flatMap(kinds => kinds.flatMap(({ limit, remaining, reset }) => [limit, remaining, reset]))
]

/**
 * What a reply says of the budgets that its request took from: `RateLimit` and `RateLimit-Policy`
 * (draft-ietf-httpapi-ratelimit-headers-10), and the headers of hosted services.
 * @param now milliseconds since the epoch
 */
export function rateLimitHeaders(
  states: readonly BudgetState[],
  dialect: 'openai' | 'anthropic',
  now: number
): Record<string, string> {
  let policies = ''
  let left = ''
  for (const state of states) {
    const separator = left === '' ? '' : ', '
    const policy = policyOf(state)
    policies += `${separator}"${policy}";q=${state.limit};w=${state.window}${unitOf(state)}`
    left += `${separator}"${policy}";r=${remaining(state)};t=${seconds(state)}`
  }
  const headers: Record<string, string> = { 'ratelimit-policy': policies, ratelimit: left }
  for (const names of DIALECTS[dialect]) {
    const pressing = mostPressing(states, names.counted)
    if (!pressing) continue
    headers[names.limit] = `${pressing.limit}`
    headers[names.remaining] = `${remaining(pressing)}`
    headers[names.reset] = dialect === 'openai' ? goDuration(seconds(pressing)) : moment(now + pressing.reset)
  }
  return headers
}

/** Of the budgets that count these the one with the least left; of equals the one that takes longest to be refilled. */
function mostPressing(states: readonly BudgetState[], kinds: readonly BudgetKind[]): BudgetState | undefined {
  let found: BudgetState | undefined
  for (const state of states) {
    if (!kinds.includes(state.kind)) continue
    const less = found ? remaining(found) - remaining(state) || state.reset - found.reset : 1
    if (less > 0) found = state
  }
  return found
}

const policyOf = ({ name, model }: BudgetState) => (model === undefined ? name : `model_${name}`)
const unitOf = ({ kind }: BudgetState) => (kind === 'requests' ? '' : ';qu="tokens"')
const remaining = ({ limit, used }: BudgetState) => Math.max(0, limit - used)
const seconds = ({ reset }: BudgetState) => Math.ceil(reset / 1000)

/** `6m0s`, as OpenAI writes lengths of time. */
function goDuration(seconds: number): string {
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60]
  if (hours > 0) return `${hours}h${minutes}m${seconds % 60}s`
  return minutes > 0 ? `${minutes}m${seconds % 60}s` : `${seconds}s`
}

/** RFC 3339, of whole seconds. */
export function moment(time: number): string {
  return `${new Date(Math.ceil(time / 1000) * 1000).toISOString().slice(0, 19)}Z`
}
