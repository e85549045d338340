import type { Lease } from '../contracts/scheduler.ts'
import { askWithinContext, type Overflow } from './context-overflow.ts'
import { AnswerReader, type Delta } from './engine-answer.ts'
import { engineError } from './engine-error.ts'
import { cutInTheMiddle, forEachChunk, reasonOf } from './engine-reply.ts'
import { EventLines } from './event-lines.ts'

/** A request to llama-server that generates text: where it goes and what it says. */
export interface EngineCall {
  /** `/v1/chat/completions`, `/v1/completions` or `/infill`. */
  path: string
  body: Record<string, unknown>
  /** What happens to a conversation that is longer than the context. */
  overflow?: Overflow
}

/**
 * Asks the engine and gives what its events add, those of one chunk at a time; waits for what `take` returns before the
 * next. The engine always streams, also for a reply in one piece: llama-server notices that the asker of an unstreamed
 * answer has gone only while nothing else is generated, and would go on for nobody.
 * @throws CorralError when the engine refuses or breaks off; the lease's reason when it was taken away
 */
export async function readAnswer(
  lease: Lease,
  call: EngineCall,
  take: (deltas: Delta[]) => Promise<void> | undefined
): Promise<void> {
  const lines = new EventLines()
  const reader = new AnswerReader()
  const body = { ...call.body, stream: true, return_progress: true }
  let finished = false
  try {
    const response = await askWithinContext(lease, { path: call.path, body }, call.overflow)
    await forEachChunk(response.body, chunk => {
      const deltas: Delta[] = []
      for (const payload of lines.push(chunk)) {
        if (payload === '[DONE]') continue
        const delta = reader.read(JSON.parse(payload))
        if (delta.error !== undefined) throw engineError(500, JSON.stringify({ error: delta.error }))
        finished ||= delta.finish !== undefined
        deltas.push(delta)
      }
      return take(deltas)
    })
    if (!finished) throw cutInTheMiddle(lease)
  } catch (error) {
    throw reasonOf(lease, error)
  }
}
