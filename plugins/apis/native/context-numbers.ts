import { deflateRawSync, inflateRawSync } from 'node:zlib'
import { CorralError } from '../../../core/errors.ts'

/*
 * The `context` of Ollama's generate: numbers that a client gets with an answer and sends with its next prompt, so that the
 * model knows what was said. At Ollama they are a model's tokens. Here they are the conversation itself, compressed, which
 * works with any model and can be shortened by whole turns; to clients they are opaque either way.
 */

/** A turn of a conversation in `context`: its text, without images. */
export interface Turn {
  role: 'system' | 'user' | 'assistant'
  content: string
}

/** Begins all numbers of this server's own. */
const MARK = 0xc0_77a1
/** Characters of a conversation; more fits into no context. */
const MAX_CHARACTERS = 16 * 2 ** 20

/** The numbers that stand for a conversation: whole ones from 0 to 2^24 - 1. */
export function contextOf(turns: readonly Turn[]): number[] {
  const bytes = deflateRawSync(JSON.stringify(turns.map(({ role, content }) => [role, content])))
  const numbers = [MARK, bytes.length]
  for (let at = 0; at < bytes.length; at += 3) {
    numbers.push((bytes[at]! << 16) | ((bytes[at + 1] ?? 0) << 8) | (bytes[at + 2] ?? 0))
  }
  return numbers
}

/**
 * The conversation that numbers stand for; empty where none are sent, and for those of another server, which mean nothing
 * here.
 * @throws CorralError `invalid_request` for numbers of this server's that were changed
 */
export function turnsOf(context: unknown): Turn[] {
  if (!Array.isArray(context) || context[0] !== MARK) return []
  const [, length, ...numbers] = context as number[]
  const bytes = Buffer.alloc(numbers.length * 3)
  for (const [index, number] of numbers.entries()) bytes.writeUIntBE(number & 0xff_ffff, index * 3, 3)
  try {
    const text = inflateRawSync(bytes.subarray(0, length), { maxOutputLength: MAX_CHARACTERS }).toString()
    const turns: unknown = JSON.parse(text)
    if (Array.isArray(turns) && turns.every(isTurn)) return turns.map(([role, content]) => ({ role, content }))
  } catch {
    // Refused below, as what is no conversation.
  }
  throw new CorralError(
    'invalid_request',
    '"context" is not what an answer of this server gave. Send it unchanged, or leave it out.',
    { param: 'context' }
  )
}

const isTurn = (turn: unknown): turn is [Turn['role'], string] =>
  Array.isArray(turn) && ['system', 'user', 'assistant'].includes(turn[0]) && typeof turn[1] === 'string'
