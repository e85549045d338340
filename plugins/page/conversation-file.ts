import type { FileHandle } from 'node:fs/promises'
import { StringDecoder } from 'node:string_decoder'
import { type Static, Type } from 'typebox'
import { type ParsedJson, parseJson } from '../../core/system/json-file.ts'

/** Lower case, because some file systems ignore case. */
export const ID_PATTERN = '^[a-z0-9][a-z0-9_-]{0,63}$'

const HeadSchema = Type.Object({
  format: Type.Literal(1),
  id: Type.String({ pattern: ID_PATTERN }),
  title: Type.String(),
  pinned: Type.Boolean(),
  updated_at: Type.String(),
  version: Type.Integer({ minimum: 1 }),
  text: Type.String()
})

/** The first line of a conversation's file. The text is stored for searches. */
export type ConversationHead = Static<typeof HeadSchema>

const PIECE_BYTES = 64 * 1024
const TEXT_BEGINS = ',"text":"'
const [QUOTE, BACKSLASH] = [0x22, 0x5c]

/**
 * Reads the head of a conversation's file piece by piece, since its text may have many megabytes.
 * @param onText receives the text in pieces
 * @param signal stops reading between two pieces
 * @returns the head without its text, and the offset of the document
 */
export async function readHead(
  file: FileHandle,
  onText?: (piece: string) => void,
  signal?: AbortSignal
): Promise<ParsedJson<{ head: ConversationHead; documentAt: number }>> {
  const pieces = piecesOf(file, signal)
  const first: Buffer = (await pieces.next()).value ?? Buffer.alloc(0)
  // Quotes inside strings are escaped, so this sequence can only be the start of the text.
  const begins = first.indexOf(TEXT_BEGINS) + TEXT_BEGINS.length
  if (begins < TEXT_BEGINS.length) return { fault: 'it does not start like a conversation' }
  const readText = onText && textReader(onText)
  let at = begins
  let piece = first.subarray(begins)
  let isEscaped = false
  for (let end = -1; ; ) {
    ;[end, isEscaped] = endOfString(piece, isEscaped)
    readText?.(end < 0 ? piece : piece.subarray(0, end))
    at += end < 0 ? piece.length : end
    if (end >= 0) break
    const next = await pieces.next()
    if (next.done) return { fault: 'it ends within its text' }
    piece = next.value
  }
  const rest = Buffer.alloc(PIECE_BYTES)
  const { bytesRead } = await file.read(rest, 0, PIECE_BYTES, at)
  const line = rest.subarray(0, bytesRead).indexOf('\n')
  const written = first.toString('utf8', 0, begins) + rest.toString('utf8', 0, line < 0 ? bytesRead : line)
  const { value: head, fault } = parseJson(written, HeadSchema)
  return head ? { value: { head, documentAt: at + line + 1 } } : { fault }
}

async function* piecesOf(file: FileHandle, signal: AbortSignal | undefined): AsyncGenerator<Buffer, undefined> {
  for (let at = 0; ; ) {
    signal?.throwIfAborted()
    const { bytesRead, buffer } = await file.read(Buffer.allocUnsafe(PIECE_BYTES), 0, PIECE_BYTES, at)
    if (bytesRead === 0) return undefined
    at += bytesRead
    yield buffer.subarray(0, bytesRead)
  }
}

/** Finds the quote that ends a JSON string, or -1, and whether the byte after the piece is escaped. */
function endOfString(piece: Buffer, isEscaped: boolean): [end: number, isEscaped: boolean] {
  const backslashesBefore = (at: number) => {
    let count = 0
    while (at - count > 0 && piece[at - count - 1] === BACKSLASH) count += 1
    // The first byte may be escaped by the previous piece.
    return count === at && isEscaped ? count + 1 : count
  }
  for (let at = piece.indexOf(QUOTE); at >= 0; at = piece.indexOf(QUOTE, at + 1)) {
    if (backslashesBefore(at) % 2 === 0) return [at, false]
  }
  return [-1, backslashesBefore(piece.length) % 2 === 1]
}

/** Decodes a JSON string that arrives in pieces, without splitting characters or escapes. */
function textReader(onText: (piece: string) => void): (bytes: Buffer) => void {
  const decoder = new StringDecoder('utf8')
  let kept = ''
  return bytes => {
    const escaped = kept + decoder.write(bytes)
    let end = escaped.length
    let backslashes = 0
    const last = escaped.lastIndexOf('\\')
    while (escaped[last - backslashes] === '\\') backslashes += 1
    if (backslashes % 2 === 1 && end - last < (escaped[last + 1] === 'u' ? 6 : 2)) end = last
    kept = escaped.slice(end)
    const whole = escaped.slice(0, end)
    try {
      onText(JSON.parse(`"${whole}"`))
    } catch {
      // The file was edited by hand.
      onText(whole)
    }
  }
}
