import type { BudgetKind, BudgetName } from '../contracts/callers.ts'

/** The state of a rate limit. */
export interface BudgetState {
  readonly name: BudgetName
  readonly kind: BudgetKind
  /** Its period in seconds. */
  readonly window: number
  /** The model, if it is for one model. */
  readonly model?: string | undefined
  readonly limit: number
  /** May exceed the limit, because answers that began within it are completed. */
  readonly used: number
  /** Milliseconds until it is refilled. */
  readonly reset: number
}

const COMMON = { requests: ['requests'], tokens: ['tokens', 'tokens_in', 'tokens_out'] } as const

/** The headers for one kind of budgets. They show the most pressing budget of that kind. */
const headersFor = (kinds: Record<string, readonly BudgetKind[]>, name: (kind: string, part: string) => string) =>
  Object.entries(kinds).map(([kind, counted]) => ({
    counted,
    limit: name(kind, 'limit'),
    remaining: name(kind, 'remaining'),
    reset: name(kind, 'reset')
  }))

const DIALECTS = {
  openai: headersFor(COMMON, (kind, part) => `x-ratelimit-${part}-${kind}`),
  anthropic: headersFor(
    { ...COMMON, 'input-tokens': ['tokens', 'tokens_in'], 'output-tokens': ['tokens', 'tokens_out'] },
    (kind, part) => `anthropic-ratelimit-${kind}-${part}`
  )
}

/** All headers that `rateLimitHeaders` may set. */
export const RATE_LIMIT_HEADERS: readonly string[] = [
  'ratelimit',
  'ratelimit-policy',
  ...Object.values(DIALECTS).flatMap(kinds => kinds.flatMap(({ limit, remaining, reset }) => [limit, remaining, reset]))
]

/**
 * The headers for the budgets of a request: `RateLimit` and `RateLimit-Policy`
 * (draft-ietf-httpapi-ratelimit-headers-10), and the headers of hosted services.
 * @param now milliseconds since the epoch
 */
export function rateLimitHeaders(states: readonly BudgetState[], dialect: keyof typeof DIALECTS, now: number) {
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

/** The budget of these kinds with the least left. Ties go to the budget that takes longest to refill. */
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

/** `6m0s`, as OpenAI writes durations. */
function goDuration(seconds: number): string {
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60]
  if (hours > 0) return `${hours}h${minutes}m${seconds % 60}s`
  return minutes > 0 ? `${minutes}m${seconds % 60}s` : `${seconds}s`
}

/** RFC 3339, in whole seconds. */
export function moment(time: number): string {
  return `${new Date(Math.ceil(time / 1000) * 1000).toISOString().slice(0, 19)}Z`
}
