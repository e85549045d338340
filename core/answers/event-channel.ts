import type { Channel } from './question.ts'

/** Milliseconds after which a stream begins although nothing is generated yet. Until then a failure is a status code. */
const FIRST_EVENT_MS = 800

/**
 * Returns the channel of an API that streams Server-Sent Events.
 * @param activity returns events without content that clients count as activity, beginning with the first events of the
 * protocol. Many clients ignore comments and give up during a long prefill
 */
export function eventChannel(heartbeatInterval: number, failure: Channel['failure'], activity?: () => string): Channel {
  return {
    contentType: 'text/event-stream',
    heartbeatInterval,
    ...(activity && { firstHeartbeat: FIRST_EVENT_MS }),
    heartbeat: status => `: ${status}\n\n${activity?.() ?? ''}`,
    failure
  }
}

/** Formats events whose names are also in their data. */
export const namedEvents = (events: readonly { type: string }[]) =>
  events.map(event => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`).join('')
