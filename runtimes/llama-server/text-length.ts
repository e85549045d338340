import type { EngineFields } from '../../core/contracts/engines.ts'
import { CorralError } from '../../core/errors.ts'

/** Characters that no token of any vocabulary stands for: a text with more for each token of the context cannot fit. */
const MAX_TOKEN_LENGTH = 256
/**
 * Tokens whose text is always looked at, also where the context is smaller: to cut a million characters takes llama.cpp
 * some 50 MB of memory for a moment.
 */
const MIN_COUNT = 8192
/** What a token has on average, for what is said of a text that nobody has counted. */
const USUAL_TOKEN = 4

/** Most characters that are worth being read for a context. */
export function longestText(contextSize: number): number {
  return Math.max(contextSize, MIN_COUNT) * MAX_TOKEN_LENGTH
}

/**
 * Refuses texts that cannot fit, before an engine cuts them into tokens: that takes so much memory for tens of megabytes
 * that the engine has to be ended, with the answers of others.
 * @throws CorralError `context_exceeded`
 */
export function requireFittingText(body: EngineFields, contextSize: number): void {
  const { messages, prompt, input_prefix, input_suffix, content, input, query, documents } = body
  const single = [prompt, content, input, documents].flat()
  const most = longestText(contextSize)
  const length = [
    textLength(messages),
    textLength([input_prefix, input_suffix, query]),
    ...single.map(textLength)
  ].find(each => each > most)
  if (length === undefined) return
  throw new CorralError(
    'context_exceeded',
    `The text has ${length} characters, and cannot fit into a context of ${contextSize} tokens.`,
    { details: { n_prompt_tokens: Math.ceil(length / USUAL_TOKEN), n_ctx: contextSize } }
  )
}

/** Refuses texts that are too long to be cut into tokens for their own sake. @throws CorralError `over_limit` */
export function requireShortText(content: unknown, contextSize: number): void {
  const [length, most] = [textLength(content), longestText(contextSize)]
  if (length <= most) return
  throw new CorralError(
    'over_limit',
    `"content" has ${length} characters, and this model's engine splits ${most} into tokens at once. Send it in parts.`,
    { param: 'content', details: { value: most, given: length } }
  )
}

/** A text of more characters explains by itself what memory and time an engine takes for it. */
const LARGE = 128 * 1024

/** Images and sounds explain it too, whatever their size: a small file may hold a large picture. */
export function isLarge({ messages, prompt }: EngineFields): boolean {
  return textLength(messages) + textLength(prompt) > LARGE || hasMedia(messages)
}

/** Characters that are rarely more tokens than llama-server reads in one batch, after which it looks at nothing else. */
const SMALL = 2048

/** Whether a prompt is read in one go. */
export function isSmall({ messages, prompt }: EngineFields): boolean {
  return textLength(messages) + textLength(prompt) <= SMALL && !hasMedia(messages)
}

function hasMedia(messages: unknown): boolean {
  if (!Array.isArray(messages)) return false
  return messages.some(message => {
    const content = message?.content
    return Array.isArray(content) && content.some(part => part?.image_url || part?.input_audio)
  })
}

/** Characters of all texts in a value; images and sounds are none. */
function textLength(value: unknown): number {
  if (typeof value === 'string') return value.length
  if (typeof value !== 'object' || value === null) return 0
  let length = 0
  // Without Object.entries: all of a conversation is looked at with each of its requests.
  if (Array.isArray(value)) {
    for (const each of value) length += textLength(each)
    return length
  }
  for (const name in value) {
    if (name !== 'image_url' && name !== 'input_audio') length += textLength(value[name as keyof typeof value])
  }
  return length
}
