import type { EngineFields } from '../../core/contracts/engines.ts'
import { CorralError } from '../../core/errors.ts'

/** No token of any vocabulary has more characters. A longer text per token of the context cannot fit. */
const MAX_TOKEN_LENGTH = 256
/** Tokens that are always tokenized, even if the context is smaller. A million characters take some 50 MB. */
const MIN_COUNT = 8192
/** Average characters per token, for messages about texts that have not been tokenized. */
const CHARACTERS_PER_TOKEN = 4

/** Maximum characters of a text that could fit into a context. */
export function longestText(contextSize: number): number {
  return Math.max(contextSize, MIN_COUNT) * MAX_TOKEN_LENGTH
}

/** Rejects texts that cannot fit. Tokenizing tens of megabytes could end the engine. @throws CorralError */
export function requireFittingText(body: EngineFields, contextSize: number): void {
  const { messages, prompt, input_prefix, input_suffix, content, input, query, documents } = body
  const single = [prompt, content, input, documents].flat()
  const most = longestText(contextSize)
  const lengths = [messages, [input_prefix, input_suffix, query], ...single].map(textLength)
  const length = lengths.find(each => each > most)
  if (length === undefined) return
  const message = `The text has ${length} characters and cannot fit into a context of ${contextSize} tokens.`
  const details = { n_prompt_tokens: Math.ceil(length / CHARACTERS_PER_TOKEN), n_ctx: contextSize }
  throw new CorralError('context_exceeded', message, { details })
}

/** Rejects texts that are too long for a request to tokenize them. @throws CorralError `over_limit` */
export function requireShortText(content: unknown, contextSize: number): void {
  const [length, most] = [textLength(content), longestText(contextSize)]
  if (length <= most) return
  const message = `"content" has ${length} characters, but this model's engine tokenizes at most ${most} per request. Send it in parts.`
  throw new CorralError('over_limit', message, { param: 'content', details: { value: most, given: length } })
}

/** The memory and time that an engine takes for a text of more characters are explained by its length. */
const LARGE = 128 * 1024

/** Images and sounds explain a long time too: a small file may contain a large picture. */
export function isLarge({ messages, prompt }: EngineFields): boolean {
  return textLength(messages) + textLength(prompt) > LARGE || hasMedia(messages)
}

/** Characters that rarely exceed one batch of llama-server, which it processes without interruption. */
const SMALL = 2048

/** Whether a prompt is processed in one batch. */
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

/** Counts the characters of all texts in a value, without images and sounds. */
function textLength(value: unknown): number {
  if (typeof value === 'string') return value.length
  if (typeof value !== 'object' || value === null) return 0
  let length = 0
  // Avoids Object.entries, because every request sends its whole conversation.
  if (Array.isArray(value)) {
    for (const each of value) length += textLength(each)
    return length
  }
  for (const name in value) {
    if (name !== 'image_url' && name !== 'input_audio') length += textLength(value[name as keyof typeof value])
  }
  return length
}
