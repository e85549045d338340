import type { EngineFields } from '../contracts/engines.ts'

/** Number of equal calls with equal results in a row from which the model is told. */
const MIN_CALLS = 5

/** Tool calls and their results. The ids and the text beside the calls may differ between equal turns. */
interface Turn {
  calls: string
  results: unknown[]
}

/**
 * Tells the model if the conversation repeats the same tool calls with the same results. The note is part of the fifth
 * result and of each further one, also in later turns, so that the prompt of the next turn begins with this one.
 */
export function noteRepeatedCalls<Body extends EngineFields>(body: Body): Body {
  const { messages } = body
  if (!Array.isArray(messages) || messages.length < 2 * MIN_CALLS) return body
  const noted = new Map<number, number>()
  let last: Turn | undefined
  let count = 0
  for (let at = 0, next = 1; at < messages.length; at = next++) {
    while (messages[next]?.role === 'tool') next++
    const turn = readTurn(messages.slice(at, next))
    count = turn && last && areEqual(turn, last) ? count + 1 : 1
    last = turn
    if (count >= MIN_CALLS) noted.set(next - 1, count)
  }
  if (noted.size === 0) return body
  const withNotes = messages.map((message, at) => (noted.has(at) ? withNote(message, noted.get(at)!) : message))
  return { ...body, messages: withNotes }
}

function readTurn([first, ...results]: EngineFields[]): Turn | undefined {
  const calls = first?.role === 'assistant' ? first.tool_calls : undefined
  if (!Array.isArray(calls) || results.length === 0) return undefined
  return { calls: JSON.stringify(calls.map(call => call?.function)), results: results.map(({ content }) => content) }
}

function areEqual(one: Turn, other: Turn): boolean {
  const isSame = (result: unknown, at: number) =>
    result === other.results[at] || JSON.stringify(result) === JSON.stringify(other.results[at])
  return one.calls === other.calls && one.results.length === other.results.length && one.results.every(isSame)
}

function withNote(message: EngineFields, count: number): EngineFields {
  const text = `[Note from the server: the last ${count} tool calls and their results were identical. Unless you are waiting for a change, do something else, or say what is in the way.]`
  const { content } = message
  if (Array.isArray(content)) return { ...message, content: [...content, { type: 'text', text }] }
  return { ...message, content: content ? `${content}\n\n${text}` : text }
}
