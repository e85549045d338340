import type { Lease } from '../contracts/scheduler.ts'
import { CorralError } from '../errors.ts'
import { askEngine, readAll } from './engine-reply.ts'

type Fields = Record<string, unknown>

/**
 * Refuses what llama-server 0.5.0 does not survive: an answer that was begun for it with tokens that are no text, such
 * as the end of a turn, and that is held to a grammar. Other answers that have begun may be held to one.
 * @param body a request for `/v1/chat/completions`
 * @throws CorralError `invalid_request`
 */
export async function requirePlainBeginning(lease: Lease, body: Fields): Promise<void> {
  const text = isConstrained(body) ? begunText(body.messages) : ''
  if (text === '') return
  const [marked, plain] = await Promise.all([tokens(lease, text, true), tokens(lease, text, false)])
  if (marked === plain) return
  throw new CorralError(
    'invalid_request',
    'The last message is an answer that has begun, with marks of the model in it (such as the end of a turn), and it is to be held to a format or to tools. Take the marks out of it, or the format and the tools.',
    { param: 'messages' }
  )
}

function isConstrained({ response_format, grammar, json_schema, tools }: Fields): boolean {
  const type = (response_format as Fields | null | undefined)?.type
  return (
    (type !== undefined && type !== 'text') ||
    Boolean(grammar ?? json_schema) ||
    (Array.isArray(tools) && tools.length > 0)
  )
}

/** The text of an assistant's last message. */
function begunText(messages: unknown): string {
  const last = Array.isArray(messages) ? (messages.at(-1) as Fields | undefined) : undefined
  if (last?.role !== 'assistant') return ''
  const { content } = last
  if (typeof content === 'string') return content
  return Array.isArray(content) ? content.map(part => (part as Fields | null)?.text ?? '').join('') : ''
}

async function tokens(lease: Lease, content: string, parseSpecial: boolean): Promise<string> {
  const body = JSON.stringify({ content, parse_special: parseSpecial })
  const response = await askEngine(lease, { path: '/tokenize', body })
  return (await readAll(response.body)).toString()
}
