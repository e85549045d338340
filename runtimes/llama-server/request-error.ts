import { CorralError } from '../../core/errors.ts'
import { isObject, parseAnyJson } from '../../core/system/json-object.ts'

/** Replaces the messages of C++ libraries about an index out of range, such as a token beyond the vocabulary. */
const OUT_OF_RANGE = 'a number in it is out of range'

/** Exceptions that llama-server answers with status 500, although the request is at fault and a retry would fail. */
const REQUEST_FAULTS = [
  new RegExp(`^${OUT_OF_RANGE}`),
  /json\.exception/,
  /^Failed to (parse|download image|tokenize prompt|format input)/,
  /^("prompt"|"json_schema")/,
  /^(Cannot (specify|use|have|set|continue)|Unknown (reasoning|chat) format|Unsupported param)/,
  /^(Invalid (base64|uri|tool_choice)|Only no echo)/,
  /^(Error: |Grammar trigger word|for mtmd|top_logprobs|logprobs is|JSON schema)/,
  /\bJinja Exception\b/
]

const UNSUPPORTED = /^(image|audio|video) input is not supported|does not support multimodal|does not support audio/

/** The model's output violated its own template: llama.cpp's `common_chat_peg_parse`. */
const NOT_ITS_FORMAT = /^The model produced output that does not match/

/** Maximum characters of an engine's message that are passed on. */
const MAX_MESSAGE_LENGTH = 400

/**
 * Translates llama-server's error reply. Quotes only text that a client may see.
 * @param status HTTP status. The `code` within the body takes precedence, because an error may come in a stream
 */
export function requestError(status: number, bodyText: string): CorralError {
  const failure = readFailure(status, bodyText)
  const { message, type } = failure
  const isTooLong = type === 'exceed_context_size_error' || /^Context size has been exceeded/.test(message)
  if (isTooLong || failure.contextSize !== undefined) return contextExceeded(failure.promptTokens, failure.contextSize)
  if (type === 'not_supported_error' || failure.status === 501 || UNSUPPORTED.test(message)) {
    const text = `The model cannot do what the request asks: ${sentence(message) || 'not supported.'}`
    return new CorralError('unsupported_capability', text)
  }
  if (NOT_ITS_FORMAT.test(message)) {
    const text =
      "The model's answer does not have the format that its chat template prescribes for tools, thoughts and answers, so it cannot be parsed. Ask again, in other words or without tools. If it fails often, use another model or quantization."
    return new CorralError('unsupported_capability', text)
  }
  if (failure.status === 404)
    return new CorralError('not_implemented', "The model's engine does not offer this function.")
  if (failure.status === 503 || type === 'unavailable_error') {
    return new CorralError('queue_full', "The model's engine is busy. Try again in a moment.", { retryAfter: 1 })
  }
  // A rejected key is not the client's fault, because corral makes the engine's key.
  const isRefusal = failure.status >= 400 && failure.status < 500 && failure.status !== 401 && failure.status !== 403
  if (/^Failed to load image/.test(message)) {
    const what = 'An image or a sound in the request cannot be read: its data is damaged. Send it again.'
    return new CorralError('invalid_request', what, { details: { unreadable_media: true } })
  }
  if (isRefusal || REQUEST_FAULTS.some(pattern => pattern.test(message))) {
    const reason = sentence(message) || 'no reason was given.'
    return new CorralError('invalid_request', `The request is not valid: ${reason}`)
  }
  const text = `The model's engine could not answer: ${sentence(message) || `status ${failure.status}.`} Send the request again. If it fails again, stop the model so that it is reloaded.`
  return new CorralError('internal', text)
}

/** Whether the cache of an earlier prompt is at fault: 0.5.0 cannot forget one of two consecutive images. */
export function isCacheFault(error: unknown): boolean {
  return error instanceof CorralError && error.code === 'internal' && error.message.includes('Chunk not found')
}

/** Describes a prompt that is longer than the context. The pipeline adds advice. */
export function contextExceeded(promptTokens?: number, contextSize?: number): CorralError {
  const counted = promptTokens !== undefined && contextSize !== undefined
  const what = counted
    ? `The prompt has ${promptTokens} tokens, but the context holds ${contextSize}.`
    : 'The prompt and its answer do not fit into the context.'
  return new CorralError('context_exceeded', what, {
    details: counted ? { n_prompt_tokens: promptTokens, n_ctx: contextSize } : {}
  })
}

function readFailure(status: number, bodyText: string) {
  const body = parseAnyJson(bodyText)
  // Other texts come from its HTTP library, and are not informative.
  const given = isObject(body) ? body.error : undefined
  const error: Record<string, unknown> = isObject(given) ? given : { message: given }
  const full = typeof error.message === 'string' ? error.message : ''
  // An input that must be processed in one batch (embeddings, reranking) is limited by the batch, which corral makes as
  // large as the context.
  const batch = /^input \((\d+) tokens\) is too large to process.*current batch size: (\d+)/s.exec(full)
  const number = (value: unknown) => (typeof value === 'number' ? value : undefined)
  return {
    status: number(error.code) ?? status,
    message: withoutQuotes(full),
    type: typeof error.type === 'string' ? error.type : '',
    promptTokens: batch ? Number(batch[1]) : number(error.n_prompt_tokens),
    contextSize: batch ? Number(batch[2]) : number(error.n_ctx)
  }
}

/** Removes quotations of the request, source excerpts of templates and marks of the JSON library from a message. */
function withoutQuotes(message: string): string {
  const jinja = message.lastIndexOf('\nError: ')
  const text = jinja === -1 ? message : message.slice(jinja + '\nError: '.length)
  const cut = text
    .replace(/^(vector::|invalid vector subscript|vector$).*$/s, OUT_OF_RANGE)
    .replace(/; last read: .*$/s, '')
    .replace(/\[json\.exception\.(\w+)\.\d+\]/g, 'json.exception $1:')
    .replace(/(; tools = |: |, got )["[{].*$/s, '')
    .replace(/(^|[\s"'`(=])(?:[A-Za-z]:)?(?:[\\/][\w.+~-]+){2,}/g, '$1<path>')
    .replace(/\s+/g, ' ')
    .trim()
  return cut.length > MAX_MESSAGE_LENGTH ? `${cut.slice(0, MAX_MESSAGE_LENGTH)}…` : cut
}

function sentence(message: string): string {
  const plain = message.replace(/json\.exception \w+: /g, '')
  return plain === '' || /[.!?…]$/.test(plain) ? plain : `${plain}.`
}
