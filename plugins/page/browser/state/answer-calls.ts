import { asData, imageMessage } from '../../../../core/answers/tool-result.ts'
import type { HostedCall, Message, ResultFile } from './chat-format.ts'

/* Calls of tools that the server runs during an answer. */

/** What the server reports about a call. */
export interface HostedEvent {
  type: 'call' | 'result' | 'approval'
  /** Of the call, or of the approval if it needs one. */
  id: string
  /** The approval that was decided about. */
  approval?: string
  server: string
  tool: string
  name: string
  arguments: string
  output?: string
  failed?: boolean
  files?: ResultFile[]
}

/** Whether the user must decide about a call. */
export const isAsked = ({ state }: HostedCall) => state === 'asked'
/** Whether the user has decided about a call that the server has not run yet. */
export const isDecided = ({ state }: HostedCall) => state === 'approved' || state === 'denied'

/** Adds a report to the calls of an answer. @param at length of the answer's text so far */
export function withEvent(calls: readonly HostedCall[], event: HostedEvent, at: number): HostedCall[] {
  const { type, approval, id, server, tool, name, arguments: given, output = '', failed = false, files } = event
  const fresh: HostedCall = { id, server, tool, name, arguments: given, at }
  if (type === 'approval') return [...calls, { ...fresh, approval: id, state: 'asked' }]
  const index = calls.findLastIndex(call =>
    approval === undefined
      ? type === 'result' && call.id === id && call.output === undefined
      : call.approval === approval
  )
  const { state: _, ...known } = calls[index] ?? fresh
  const call = { ...known, id, ...(type === 'result' && { output, failed, ...(files && { files }) }) }
  return index < 0 ? [...calls, call] : calls.with(index, call)
}

/** The parts of an answer: texts, each with the calls that the model made after it. The last part has no calls. */
export function partsOf({ content, calls = [] }: Pick<Message, 'content' | 'calls'>) {
  const parts: { text: string; calls: HostedCall[] }[] = []
  let from = 0
  for (const call of calls) {
    const last = parts.at(-1)
    if (last && call.at <= from) last.calls.push(call)
    else parts.push({ text: content.slice(from, call.at), calls: [call] })
    from = Math.max(from, call.at)
  }
  return [...parts, { text: content.slice(from), calls: [] }]
}

/**
 * Builds the messages of a request from an answer, with calls and results as the server had them in its loop.
 * @param seesImages whether the model gets the images of results
 */
export function answerMessages(message: Message, seesImages: boolean): object[] {
  return partsOf(message).flatMap(({ text: content, calls }): object[] => {
    if (calls.length === 0) return content === '' ? [] : [{ role: 'assistant', content }]
    const tool_calls = calls.map(({ id, name, arguments: given }) => ({
      id,
      type: 'function',
      function: { name, arguments: given }
    }))
    const results = calls.map(call => ({
      role: 'tool',
      tool_call_id: call.id,
      name: call.name,
      content: call.output === undefined ? 'The tool was not run.' : asData(call, call.output)
    }))
    const images = seesImages && imageMessage(calls.flatMap(({ files = [] }) => files))
    return [{ role: 'assistant', content, tool_calls }, ...results, ...(images ? [images] : [])]
  })
}
