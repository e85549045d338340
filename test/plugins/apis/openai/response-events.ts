import type { ResponseStreamEvent } from 'openai/resources/responses/responses'
import type { Test } from 'tap'
import { mustBe } from './declared-types.ts'

export async function collectEvents(stream: AsyncIterable<ResponseStreamEvent>): Promise<ResponseStreamEvent[]> {
  const events: ResponseStreamEvent[] = []
  for await (const event of stream) events.push(event)
  return events
}

/** Checks the rules that apply to every response stream. `typeFaults` checks the types. */
export function checkEvents(t: Test, events: ResponseStreamEvent[]): void {
  for (const event of events) mustBe('ResponseStreamEvent', event)
  t.strictSame(
    events.map(event => 'sequence_number' in event && event.sequence_number),
    events.map((_, index) => index),
    'sequence numbers have no gaps'
  )
}
