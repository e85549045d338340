type Fields = Record<string, unknown>

/** A list that the engine is asked for in parts: what the request calls it, and what the reply calls its results. */
export interface PartedList {
  asked: 'input' | 'documents'
  told: 'data' | 'results'
}

interface PartReply {
  usage?: Record<string, number>
  [list: string]: unknown
}

/** Entries that the engine is asked for at once: it goes on with what it has when the client has gone. */
const PART = 32

/** The bodies to ask the engine with, one after the other; the body itself where it has no long list of texts. */
export function inParts(body: Fields, { asked }: PartedList): Fields[] {
  const list = body[asked]
  // A list of numbers is one text, of tokens.
  if (!Array.isArray(list) || list.length <= PART || typeof list[0] === 'number') return [body]
  const parts: Fields[] = []
  for (let at = 0; at < list.length; at += PART) parts.push({ ...body, [asked]: list.slice(at, at + PART) })
  return parts
}

/** The reply that the engine would have given to the whole list. */
export function joinParts(replies: readonly Buffer[], { told }: PartedList): Buffer {
  if (replies.length === 1) return replies[0]!
  const parts = replies.map(reply => JSON.parse(reply.toString('utf8')) as PartReply)
  const entries = parts.flatMap((part, number) =>
    (part[told] as { index: number }[]).map(entry => ({ ...entry, index: entry.index + number * PART }))
  )
  const usage: Record<string, number> = {}
  for (const part of parts) {
    for (const [name, count] of Object.entries(part.usage ?? {})) usage[name] = (usage[name] ?? 0) + count
  }
  return Buffer.from(JSON.stringify({ ...parts[0], [told]: entries, usage }))
}
