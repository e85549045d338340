import type { AnswerSink } from '../contracts/engines.ts'

/** The request header of prompts that should not displace a conversation. */
const BACKGROUND = 'x-corral-background'

/** Whether a request says that it is a background one. */
export function isSaidBackground(headers: NodeJS.Dict<string | string[]>): boolean {
  return /^(1|true|yes)$/i.test([headers[BACKGROUND]].flat()[0] ?? '')
}

/** Returns the headers of a request that engines pass on to the server that answers it. */
export function forwardedHeaders({ traceParent, background }: AnswerSink<never>): Record<string, string> {
  return {
    ...(traceParent !== undefined && { traceparent: traceParent }),
    ...(background && { [BACKGROUND]: 'true' })
  }
}
