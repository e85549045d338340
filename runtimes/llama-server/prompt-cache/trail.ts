import { crc32 } from 'node:zlib'
import { type Static, Type } from 'typebox'
import type { EngineFields } from '../../../core/contracts/engines.ts'

export const TrailSchema = Type.Object({
  sums: Type.Array(Type.Integer()),
  length: Type.Integer()
})
/** Checksums of the beginnings of a prompt, by which prompts are compared without storing anybody's text. */
export type Trail = Static<typeof TrailSchema>

/** Boundaries are close at the beginning, because short conversations differ there. */
const FIRST = 4
const nextBoundary = (at: number) => at + (at < 64 ? 4 : at < 1024 ? 16 : at < 65_536 ? 256 : 4096)

/** Computes the trail of a request's prompt. Tools come first, as in most templates. */
export function getTrail({ tools, messages, prompt, input_prefix }: EngineFields): Trail {
  const parts = [
    tools,
    ...(Array.isArray(messages)
      ? messages.map(readText)
      : [input_prefix === undefined ? prompt : `${input_prefix}${prompt ?? ''}`])
  ]
  const text = Buffer.from(parts.map(part => (typeof part === 'string' ? part : JSON.stringify(part))).join('\n'))
  const sums: number[] = []
  let sum = 0
  let from = 0
  for (let to = FIRST; to < text.length; to = nextBoundary(to)) {
    sum = crc32(text.subarray(from, to), sum)
    sums.push(sum)
    from = to
  }
  return { sums, length: text.length }
}

/** Returns a message's content if it is plain text. Fields that all messages share would make short ones look alike. */
function readText(message: { content?: unknown; tool_calls?: unknown }): unknown {
  return typeof message.content === 'string' && !message.tool_calls ? message.content : message
}

/** Returns how many bytes two prompts have in common at the beginning, rounded down to a boundary. */
export function commonLength(one: Trail, other: Trail): number {
  const length = Math.min(one.length, other.length)
  let common = 0
  let at = 0
  for (let boundary = FIRST; boundary < length; boundary = nextBoundary(boundary)) {
    if (one.sums[at] !== other.sums[at]) break
    common = boundary
    at++
  }
  return common
}

/** Whether a prompt begins with the whole of an earlier one, as far as the checksums show. Never for a few bytes. */
export function continues(later: Trail, earlier: Trail): boolean {
  return (
    earlier.sums.length > 0 && later.length >= earlier.length && earlier.sums.every((sum, at) => later.sums[at] === sum)
  )
}
