import { hash } from 'node:crypto'
import type { EngineFields } from '../../../../core/contracts/engines.ts'

/** The prefixes of a prompt as digests. The text cannot be recovered from them. */
export interface PromptBlocks {
  /** In order. Each digest represents the whole prompt up to its end. At least one. */
  readonly blocks: readonly PromptBlock[]
  /** Approximate characters of the prompt. Images count by their processing cost. */
  readonly length: number
  /** The same for all requests of a conversation: derived from its first question, or from the client's name for it. */
  readonly key: number
  /** Whether it already contains an answer, so some node has read it before. */
  readonly continued: boolean
  /** The client's id of the conversation, hashed. */
  readonly session: number | undefined
}

export interface PromptBlock {
  readonly digest: number
  readonly end: number
  /** Worth remembering for other prompts with this prefix. Other blocks only mark where an earlier prompt ended. */
  readonly kept: boolean
}

/** The owner and model of a prompt. Prompts of different owners or models never match. */
export interface PromptScope {
  /** As `modelKey` returns it. */
  model: string
  owner: string | undefined
  /** The client's name for the conversation, such as from a header. */
  session?: string | undefined
}

/** Fields that chat templates put before the first message, or that change the whole prompt. */
const HEAD_FIELDS = [
  'tools',
  'chat_template',
  'chat_template_kwargs',
  'reasoning_effort',
  'input_prefix',
  'input_suffix'
]

/** Longer strings in parts that are not text are media: images, sounds. */
const MEDIA_FROM_LENGTH = 512
/** Assumed characters of an image or a sound: some hundreds of tokens. */
const MEDIA_LENGTH = 2048

/**
 * Computes the rolling digests of a request's prompt (`messages` or `prompt`, and the other fields that its template
 * sees): at the end of each message, and within one at characters 256, 384, 512, 768, 1024, … Prompts with the same
 * prefix have the same digests up to there.
 */
export function promptBlocks(request: EngineFields, { model, owner, session }: PromptScope): PromptBlocks {
  const scope = sha256(JSON.stringify([owner ?? null, model]))
  const { messages, prompt } = request
  const head = JSON.stringify(HEAD_FIELDS.map(name => request[name]))
  const parts = [head, ...(Array.isArray(messages) ? messages.map(textOfMessage) : [getText(prompt)])]
  const blocks: PromptBlock[] = []
  let rolling = scope
  let length = 0
  let next = 256
  let key: number | undefined
  const first = Array.isArray(messages) ? messages.findIndex(message => message?.role === 'user') + 1 : 0
  parts.forEach((part, index) => {
    for (let from = 0; from < part.length; ) {
      let to = Math.min(part.length, from + next - length)
      // A surrogate pair is not split.
      if (to < part.length && isSecondHalf(part.charCodeAt(to))) to++
      rolling = sha256(`${rolling}${part.slice(from, to)}`)
      length += to - from
      from = to
      const isMark = length >= next
      while (next <= length) next = nextMark(next)
      const isLast = index === parts.length - 1 && to === part.length
      if (isMark || to === part.length)
        blocks.push({ digest: toNumber(rolling), end: length, kept: isMark || isLast || index === 1 })
      // A text completion has no first question: its first characters identify it.
      if (first > 0 ? index === first && to === part.length : index > 0) key ??= toNumber(rolling)
    }
  })
  const named = session === undefined ? undefined : toNumber(sha256(`${scope}session ${session}`))
  const continued = Array.isArray(messages) && messages.some(message => message?.role === 'assistant')
  return { blocks, length, key: named ?? key ?? toNumber(rolling), continued, session: named }
}

const sha256 = (text: string) => hash('sha256', text)

const toNumber = (digest: string) => Number.parseInt(digest.slice(0, 12), 16)

/** Powers of two, and the middle between two of them. */
const nextMark = (mark: number): number => (Number.isInteger(Math.log2(mark)) ? mark * 1.5 : (mark / 3) * 4)

const isSecondHalf = (unit: number) => unit >= 0xdc00 && unit <= 0xdfff

/** Formats a message with marks of its boundaries, so that the text of one message cannot look like two. */
function textOfMessage(message: unknown): string {
  if (typeof message !== 'object' || message === null) return `\u0001${JSON.stringify(message)}\u0002`
  const { role, content, ...others } = message as Record<string, unknown>
  return `\u0001${role}\u0002${getText(content)}\u0002${Object.keys(others).length ? getText([others]) : ''}\u0003`
}

function getText(content: unknown): string {
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return JSON.stringify(content) ?? ''
  return content.map(textOfPart).join('\u0002')
}

function textOfPart(part: unknown): string {
  if (isText(part)) return part.text
  let media = 0
  const text = JSON.stringify(part, (_, value) => {
    if (typeof value !== 'string' || value.length < MEDIA_FROM_LENGTH) return value
    media++
    return sha256(value)
  })
  return text.padEnd(media * MEDIA_LENGTH)
}

function isText(part: unknown): part is { text: string } {
  return (
    typeof part === 'object' &&
    part !== null &&
    'text' in part &&
    typeof part.text === 'string' &&
    Object.keys(part).length <= 2
  )
}
