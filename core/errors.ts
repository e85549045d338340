/**
 * All failures that a client or an admin can see, with their stable codes. The HTTP status depends only on the code, so
 * it is the same in all APIs. Each API renders a CorralError in its own format.
 */
const CODES = [
  [400, 'invalid_json missing_body invalid_request invalid_model_name invalid_option context_exceeded'],
  [400, 'unsupported_capability over_limit input_blocked'],
  [401, 'unauthorized'],
  [403, 'origin_not_allowed host_not_allowed forbidden_role forbidden_model address_not_allowed'],
  [403, 'path_not_allowed link_refused hub_forbidden pairing_code_wrong'],
  [404, 'model_not_found model_not_loaded repo_not_found runtime_not_found response_not_found'],
  [404, 'file_not_found batch_not_found stream_not_found key_not_found capture_not_found session_not_found'],
  [
    404,
    'conversation_not_found member_not_found machine_not_found rollout_not_found conversations_off route_not_found'
  ],
  [405, 'method_not_allowed'],
  [408, 'reader_stalled'],
  [409, 'model_exists pull_cancelled stream_cancelled runtime_in_use key_exists trial_running file_in_use'],
  [409, 'batch_ended invalid_config conversation_changed config_not_editable settings_changed rollout_running'],
  [410, 'link_ended'],
  [413, 'body_too_large'],
  [415, 'unsupported_encoding'],
  [426, 'websocket_refused'],
  [429, 'rate_limited'],
  [500, 'load_failed engine_crashed conversion_failed reload_failed hook_timeout internal'],
  [501, 'not_implemented'],
  [502, 'hub_unreachable checksum_mismatch member_unreachable machine_unreachable copy_failed'],
  [
    503,
    'queue_full too_busy engine_unreachable hub_rate_limited runtime_missing conversion_not_installed insufficient_memory'
  ],
  [503, 'model_stopped model_deleted shutting_down draining tools_unavailable'],
  [504, 'load_timeout'],
  [507, 'insufficient_storage storage_not_writable']
] as const

type Words<Text extends string> = Text extends `${infer Word} ${infer Others}` ? Word | Words<Others> : Text
export type ErrorCode = Words<(typeof CODES)[number][1]>

/** Returns the codes in these texts. Others do not compile. */
export const errorCodes = <Text extends string>(...texts: (Words<Text> extends ErrorCode ? Text : never)[]) =>
  texts.flatMap(text => text.split(' ')) as ErrorCode[]

export const ERROR_STATUS = Object.fromEntries(
  CODES.flatMap(([status, codes]) => codes.split(' ').map(code => [code, status]))
) as Record<ErrorCode, number>

/** 5xx codes for which a retry of the same request may help. All others get `x-should-retry: false`. */
const RETRYABLE = new Set(
  errorCodes(
    'queue_full too_busy engine_unreachable hub_rate_limited engine_crashed hub_unreachable copy_failed draining tools_unavailable'
  )
)

export interface ErrorOptions {
  cause?: unknown
  /** Facts for programs, such as both numbers of `context_exceeded`. Never prompts or keys. */
  details?: Record<string, unknown> | undefined
  /** Seconds after which a retry makes sense. */
  retryAfter?: number | undefined
  param?: string | undefined
  /** Whether a retry of the same request may help, if this failure differs from others with its code. */
  retryable?: boolean | undefined
}

/** A failure with a stable code and a sentence: what happened, to what, and what the reader can do next. */
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

  /** Returns the same failure with another message. */
  reworded(message: string, details = this.details): CorralError {
    const { code, retryAfter, param } = this
    return toError(code, message, { cause: this, details, retryAfter, param, retryable: this.#retryable })
  }

  get status(): number {
    return ERROR_STATUS[this.code]
  }

  get retryable(): boolean {
    return this.status >= 500 && (this.#retryable ?? RETRYABLE.has(this.code))
  }
}

// Bundlers rename a class that names itself.
const toError = (...given: ConstructorParameters<typeof CorralError>) => new CorralError(...given)

/** Returns the error for a field of a request. */
export const invalidRequest = (param: string, message: string) => new CorralError('invalid_request', message, { param })

/** Whether a system call failed with one of these codes (`ENOENT`, `EEXIST`, …). */
export function isSystemError(error: unknown, ...codes: string[]): error is NodeJS.ErrnoException {
  return error instanceof Error && 'code' in error && codes.includes(String(error.code))
}

/** Returns undefined for the error of a missing file or folder, as a handler of `catch`. @throws every other error */
export function whenMissing(error: unknown): undefined {
  if (!isSystemError(error, 'ENOENT', 'ENOTDIR')) throw error
}

/** The system's reason in words, as in "permission denied", without its code and path. */
export function reasonOf(error: unknown): string {
  return errorMessage(error).replace(/^E[A-Z0-9]+: (.*?), \w+(?: '.*')?$/s, '$1')
}

/** The message of anything thrown, without its stack. */
export function errorMessage(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
