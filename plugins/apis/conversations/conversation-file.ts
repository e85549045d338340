import type { FileHandle } from 'node:fs/promises'
import { StringDecoder } from 'node:string_decoder'
import { type Static, Type } from 'typebox'
import { type ParsedJson, parseJson } from '../../../core/system/json-file.ts'

/** Lower case, because some file systems ignore case. */
export const ID_PATTERN = '^[a-z0-9][a-z0-9_-]{0,63}$'

const HeadSchema = Type.Object({
  format: Type.Literal(1),
  id: Type.String({ pattern: ID_PATTERN }),
  /** For a shared copy: the id of its conversation. */
  of: Type.Optional(Type.String()),
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
/** The characters and complete escapes at the start of a piece of a JSON string. */
const WHOLE = /(?:[^"\\]+|\\[^u]|\\u.{4})*/sy

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
  /** Reads a piece with one character for each byte. */
  const read = async (at: number) => {
    signal?.throwIfAborted()
    const { bytesRead, buffer } = await file.read(Buffer.allocUnsafe(PIECE_BYTES), 0, PIECE_BYTES, at)
    return buffer.toString('latin1', 0, bytesRead)
  }
  const first = await read(0)
  // Quotes inside strings are escaped, so this sequence can only be the start of the text.
  const begins = first.indexOf(TEXT_BEGINS) + TEXT_BEGINS.length
  if (begins < TEXT_BEGINS.length) return { fault: 'it does not start like a conversation' }
  const decoder = new StringDecoder('utf8')
  let at = begins
  let rest = first.slice(begins)
  while (true) {
    WHOLE.lastIndex = 0
    const [whole] = WHOLE.exec(rest)!
    onText?.(unescaped(decoder.write(Buffer.from(whole, 'latin1'))))
    at += whole.length
    rest = rest.slice(whole.length)
    if (rest.startsWith('"')) break
    const next = await read(at + rest.length)
    if (next === '') return { fault: 'it ends within its text' }
    rest += next
  }
  const [end = ''] = (await read(at)).split('\n', 1)
  const written = Buffer.from(first.slice(0, begins) + end, 'latin1').toString()
  const { value: head, fault } = parseJson(written, HeadSchema)
  return head ? { value: { head, documentAt: at + end.length + 1 } } : { fault }
}

function unescaped(text: string): string {
  try {
    return JSON.parse(`"${text}"`)
  } catch {
    // The file was edited by hand.
    return text
  }
}
