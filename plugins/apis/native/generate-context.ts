import { deflateRawSync, inflateRawSync } from 'node:zlib'
import { CorralError } from '../../../core/errors.ts'

/*
 * Implements `context` of Ollama's generate: numbers that a client receives with an answer and sends with its next
 * prompt to continue the conversation. In Ollama they are tokens. Here they are the compressed conversation, which
 * works with any model and can be truncated message by message. Clients treat the numbers as opaque.
 */

/** A message in `context`, without images. */
export interface Turn {
  role: 'system' | 'user' | 'assistant'
  content: string
}

/** The first number of every context that this server creates. */
const CONTEXT_MARK = 0xc0_77a1
/** Maximum characters of a conversation. More fits in no model's context. */
const MAX_CHARACTERS = 16 * 2 ** 20

/** Encodes a conversation as integers from 0 to 2^24 - 1. */
export function encodeContext(turns: readonly Turn[]): number[] {
  const bytes = deflateRawSync(JSON.stringify(turns.map(({ role, content }) => [role, content])))
  const numbers = [CONTEXT_MARK, bytes.length]
  for (let at = 0; at < bytes.length; at += 3) {
    numbers.push((bytes[at]! << 16) | ((bytes[at + 1] ?? 0) << 8) | (bytes[at + 2] ?? 0))
  }
  return numbers
}

/**
 * Decodes a conversation. Returns an empty list if there is no context, or another server created it.
 * @throws CorralError `invalid_request` if the numbers were changed
 */
export function decodeContext(context: unknown): Turn[] {
  if (!Array.isArray(context) || context[0] !== CONTEXT_MARK) return []
  const [, length, ...numbers] = context as number[]
  const bytes = Buffer.alloc(numbers.length * 3)
  for (const [index, number] of numbers.entries()) bytes.writeUIntBE(number & 0xff_ffff, index * 3, 3)
  try {
    const text = inflateRawSync(bytes.subarray(0, length), { maxOutputLength: MAX_CHARACTERS }).toString()
    const turns: unknown = JSON.parse(text)
    if (Array.isArray(turns) && turns.every(isTurn)) return turns.map(([role, content]) => ({ role, content }))
  } catch {
    // The error below covers this case.
  }
  throw new CorralError(
    'invalid_request',
    '"context" was not created by this server or was changed. Send it unchanged, or leave it out.',
    { param: 'context' }
  )
}

const isTurn = (turn: unknown): turn is [Turn['role'], string] =>
  Array.isArray(turn) && ['system', 'user', 'assistant'].includes(turn[0]) && typeof turn[1] === 'string'
