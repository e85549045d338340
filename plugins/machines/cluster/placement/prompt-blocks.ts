import { hash } from 'node:crypto'
import type { EngineFields } from '../../../../core/contracts/engines.ts'

/** What a prompt begins with, as digests: no text can be got back from them. */
export interface PromptBlocks {
  /** From the beginning on; each digest stands for the whole prompt up to its end. At least one. */
  readonly blocks: readonly PromptBlock[]
  /** Characters of the prompt, about; an image counts as many as it takes to read. */
  readonly length: number
  /** The same for all requests of a conversation: made of its first question, or of what the client calls it. */
  readonly key: number
  /** Whether there is an answer in it already: it was read somewhere before. */
  readonly continued: boolean
  /** Stands for the conversation that the client says this is a part of, if it says so. */
  readonly session: number | undefined
}

export interface PromptBlock {
  /** 48 bits. */
  readonly digest: number
  /** Characters up to its end. */
  readonly end: number
  /** Worth remembering for others that begin alike; the rest serves to recognise where an earlier prompt ended. */
  readonly kept: boolean
}

/** Whose prompt it is, and for which model: prompts of different owners, or models, have nothing in common. */
export interface PromptScope {
  /** As `modelKey` gives it. */
  model: string
  owner: string | undefined
  /** The conversation that the client names, such as by a header. */
  session?: string | undefined
}

/** What chat templates put before the first message, or what changes how they write everything. */
const HEAD_FIELDS = [
  'tools',
  'chat_template',
  'chat_template_kwargs',
  'reasoning_effort',
  'input_prefix',
  'input_suffix'
]

/** Strings of this length are no text where they stand in a part that is no text: images, sounds. */
const LONG = 512
/** Characters that an image or a sound counts as: some hundreds of tokens. */
const MEDIA_LENGTH = 2048

/**
 * The rolling digests of a request's prompt (`messages` or `prompt`, and what else its template sees): at the end of each
 * message, and within at characters 256, 384, 512, 768, 1024, … Two prompts that begin alike have the same digests up to
 * there, whatever follows.
 */
export function promptBlocks(request: EngineFields, { model, owner, session }: PromptScope): PromptBlocks {
  const scope = sha256(JSON.stringify([owner ?? null, model]))
  const { messages, prompt } = request
  const head = JSON.stringify(HEAD_FIELDS.map(name => request[name]))
  const parts = [head, ...(Array.isArray(messages) ? messages.map(textOfMessage) : [textOf(prompt)])]
  const blocks: PromptBlock[] = []
  let rolling = scope
  let length = 0
  let next = 256
  let key: number | undefined
  const first = Array.isArray(messages) ? messages.findIndex(message => message?.role === 'user') + 1 : 0
  parts.forEach((part, index) => {
    for (let from = 0; from < part.length; ) {
      let to = Math.min(part.length, from + next - length)
      // Half of a character has no digest of its own.
      if (to < part.length && isSecondHalf(part.charCodeAt(to))) to++
      rolling = sha256(`${rolling}${part.slice(from, to)}`)
      length += to - from
      from = to
      const isMark = length >= next
      while (next <= length) next = nextMark(next)
      const isLast = index === parts.length - 1 && to === part.length
      if (isMark || to === part.length)
        blocks.push({ digest: numberOf(rolling), end: length, kept: isMark || isLast || index === 1 })
      // A text that goes on has no first question: its first characters.
      if (first > 0 ? index === first && to === part.length : index > 0) key ??= numberOf(rolling)
    }
  })
  const named = session === undefined ? undefined : numberOf(sha256(`${scope}session ${session}`))
  const continued = Array.isArray(messages) && messages.some(message => message?.role === 'assistant')
  return { blocks, length, key: named ?? key ?? numberOf(rolling), continued, session: named }
}

const sha256 = (text: string) => hash('sha256', text)

const numberOf = (digest: string) => Number.parseInt(digest.slice(0, 12), 16)

/** Powers of two, and the middle between two of them. */
function nextMark(mark: number): number {
  return Number.isInteger(Math.log2(mark)) ? mark * 1.5 : (mark / 3) * 4
}

const isSecondHalf = (unit: number) => unit >= 0xdc00 && unit <= 0xdfff

/** A message with a mark of where it begins and ends, so that what one says can't pass for two. */
function textOfMessage(message: unknown): string {
  if (typeof message !== 'object' || message === null) return `\u0001${JSON.stringify(message)}\u0002`
  const { role, content, ...others } = message as Record<string, unknown>
  return `\u0001${role}\u0002${textOf(content)}\u0002${Object.keys(others).length ? textOf([others]) : ''}\u0003`
}

function textOf(content: unknown): string {
  if (typeof content === 'string') return content
  if (!Array.isArray(content)) return JSON.stringify(content) ?? ''
  return content.map(textOfPart).join('\u0002')
}

function textOfPart(part: unknown): string {
  if (isText(part)) return part.text
  let media = 0
  const text = JSON.stringify(part, (_, value) => {
    if (typeof value !== 'string' || value.length < LONG) return value
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
