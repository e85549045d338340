import type { EmbeddingsReply, Engine, RankingReply } from '../contracts/engines.ts'
import type { Lease } from '../contracts/leases.ts'
import type { TokenTally } from '../http/request-record.ts'
import type { Vector } from './embedding.ts'
import { requireCall } from './engine-call.ts'

/* Embeds and ranks long lists in batches, so that other clients get their turn in between. */

/** Embeds all inputs. The result of `made`, if any, replaces the engine's vector. */
export async function embedChunked(
  lease: Lease,
  inputs: Parameters<NonNullable<Engine['embed']>>[0],
  tally: TokenTally,
  { made = vector => vector, ...options }: { truncate?: boolean; most?: number; made?: (vector: Vector) => Vector } = {}
): Promise<EmbeddingsReply> {
  const vectors: Vector[] = []
  const ask = (part: typeof inputs) => {
    tally.unread = part
    return requireCall(lease, 'embed')(part, { ...options, signal: lease.signal })
  }
  const promptTokens = await inBatches(lease, inputs, tally, ask, reply => {
    for (const vector of reply.vectors) vectors.push(made(vector))
  })
  return { vectors, promptTokens }
}

export async function rerankChunked(
  lease: Lease,
  { query, documents }: { query: string; documents: readonly string[] },
  tally: TokenTally
): Promise<RankingReply> {
  const scores: RankingReply['scores'] = []
  const ask = (part: typeof documents) => {
    tally.unread = part.flatMap(document => [query, document])
    return requireCall(lease, 'rerank')(query, part, lease)
  }
  const promptTokens = await inBatches(lease, documents, tally, ask, (reply, from) => {
    for (const { index, score } of reply.scores) scores.push({ index: from + index, score })
  })
  return { scores, promptTokens }
}

/** Asks for batches of the engine's size, and counts the tokens. Other clients get their turn between two batches. */
async function inBatches<Item, Reply extends { promptTokens: number }>(
  lease: Lease,
  items: readonly Item[],
  tally: TokenTally,
  ask: (part: readonly Item[]) => Promise<Reply>,
  take: (reply: Reply, from: number) => void
): Promise<number> {
  let sum = 0
  for (let from = 0, at = 0; from === 0 || from < items.length; at++) {
    if (from > 0) await lease.letOthers()
    const part = items.slice(from, from + (lease.engine.batch ?? items.length))
    const reply = await ask(part)
    tally.unread = undefined
    tally.read(reply.promptTokens, 0, at)
    take(reply, from)
    sum += reply.promptTokens
    from += Math.max(1, part.length)
  }
  return sum
}
