/**
 * All failures that a client or an admin can meet, with their stable codes. The HTTP status depends on the code, so
 * that it is the same in all APIs. Each API renders a CorralError in its own format.
 */
export const ERROR_STATUS = {
  invalid_json: 400,
  missing_body: 400,
  invalid_request: 400,
  invalid_model_name: 400,
  invalid_option: 400,
  context_exceeded: 400,
  unsupported_capability: 400,
  over_limit: 400,
  input_blocked: 400,
  unauthorized: 401,
  origin_not_allowed: 403,
  host_not_allowed: 403,
  forbidden_role: 403,
  forbidden_model: 403,
  address_not_allowed: 403,
  path_not_allowed: 403,
  link_refused: 403,
  hub_forbidden: 403,
  model_not_found: 404,
  model_not_loaded: 404,
  repo_not_found: 404,
  runtime_not_found: 404,
  response_not_found: 404,
  file_not_found: 404,
  batch_not_found: 404,
  stream_not_found: 404,
  key_not_found: 404,
  capture_not_found: 404,
  session_not_found: 404,
  conversation_not_found: 404,
  member_not_found: 404,
  conversations_off: 404,
  route_not_found: 404,
  method_not_allowed: 405,
  reader_stalled: 408,
  model_exists: 409,
  pull_cancelled: 409,
  stream_cancelled: 409,
  runtime_in_use: 409,
  key_exists: 409,
  trial_running: 409,
  file_in_use: 409,
  batch_ended: 409,
  invalid_config: 409,
  conversation_changed: 409,
  config_not_editable: 409,
  settings_changed: 409,
  link_ended: 410,
  body_too_large: 413,
  unsupported_encoding: 415,
  rate_limited: 429,
  load_failed: 500,
  engine_crashed: 500,
  conversion_failed: 500,
  reload_failed: 500,
  hook_timeout: 500,
  internal: 500,
  not_implemented: 501,
  hub_unreachable: 502,
  checksum_mismatch: 502,
  member_unreachable: 502,
  copy_failed: 502,
  queue_full: 503,
  too_busy: 503,
  hub_rate_limited: 503,
  runtime_missing: 503,
  conversion_not_installed: 503,
  insufficient_memory: 503,
  model_stopped: 503,
  model_deleted: 503,
  shutting_down: 503,
  draining: 503,
  load_timeout: 504,
  insufficient_storage: 507,
  storage_not_writable: 507
} as const

export type ErrorCode = keyof typeof ERROR_STATUS

/** 5xx codes for which sending the same request again may help; all others get `x-should-retry: false`. */
const RETRYABLE = new Set<ErrorCode>([
  'queue_full',
  'too_busy',
  'hub_rate_limited',
  'engine_crashed',
  'hub_unreachable',
  'copy_failed',
  'draining'
])

export interface ErrorOptions {
  cause?: unknown
  /** Facts for programs, such as both numbers of `context_exceeded`. Never prompts or keys. */
  details?: Record<string, unknown>
  /** Seconds after which a retry makes sense. */
  retryAfter?: number
  /** The invalid request field. */
  param?: string
  /** Whether sending the same request again may help, if this failure differs from others of its code. */
  retryable?: boolean
}

/** A failure with a stable code and a sentence that says what happened, to what, and what the reader can do next. */
export class CorralError extends Error {
  override readonly name = 'CorralError'
  readonly code: ErrorCode
  readonly details: Record<string, unknown> | undefined
  readonly retryAfter: number | undefined
  readonly param: string | undefined
  readonly #retryable: boolean | undefined

  constructor(code: ErrorCode, message: string, options: ErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause })
    this.code = code
    this.details = options.details
    this.retryAfter = options.retryAfter
    this.param = options.param
    this.#retryable = options.retryable
  }

  get status(): number {
    return ERROR_STATUS[this.code]
  }

  get retryable(): boolean {
    return this.status >= 500 && (this.#retryable ?? RETRYABLE.has(this.code))
  }
}

/** Whether a system call failed with one of these codes (`ENOENT`, `EEXIST`, …). */
export function isSystemError(error: unknown, ...codes: string[]): error is NodeJS.ErrnoException {
  return error instanceof Error && 'code' in error && codes.includes(String(error.code))
}

/** The system's reason in words, as in "permission denied", without its code and path. */
export function reasonOf(error: unknown): string {
  return errorMessage(error).replace(/^E[A-Z0-9]+: (.*?), \w+(?: '.*')?$/s, '$1')
}

/** The message of anything thrown, without its stack. */
export function errorMessage(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
