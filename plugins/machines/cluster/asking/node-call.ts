import { CorralError } from '../../../../core/errors.ts'
import type { ClusterNode } from '../nodes/node.ts'
import type { NodeReply } from '../nodes/node-connection.ts'
import { FAILURE_TRAILER, parseFailedReply, parseFailure, readLines } from './ask-protocol.ts'

/** Sends a request to a node. Fails when the node is lost. @throws CorralError of its refusal; the signal's reason; Error */
export async function callNode(
  { connection, presence }: ClusterNode,
  path: string,
  { method = 'POST', signal, ...sent }: { method?: 'POST' | 'DELETE'; body?: object; signal?: AbortSignal }
): Promise<NodeReply> {
  const until = signal ? AbortSignal.any([signal, presence]) : presence
  const reply = await connection.send(method, path, { ...sent, signal: until })
  if (reply.statusCode === 200) return reply
  const failure = parseFailedReply(await reply.body.text(), reply.headers)
  throw failure ?? new Error(`it answered with status ${reply.statusCode}`)
}

/** Yields the lines of a streamed reply. @throws CorralError of a failure after the first line */
export async function* callLines<Line>(...call: Parameters<typeof callNode>): AsyncGenerator<Line> {
  const { body, trailers } = await callNode(...call)
  for await (const line of readLines(body)) yield JSON.parse(line) as Line
  const failure = trailers[FAILURE_TRAILER]
  if (failure !== undefined) throw parseFailure(failure) ?? new Error(failure)
}

export const explainFailure = (member: ClusterNode, error: unknown): string =>
  error instanceof CorralError ? error.message.replace(/\.$/, '') : member.explain(error)
