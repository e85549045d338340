import type { EmbeddingsReply, Engine, RankingReply } from '../contracts/engines.ts'
import type { Lease } from '../contracts/leases.ts'
import type { TokenTally } from '../http/request-record.ts'
import type { Vector } from './embedding.ts'
import { requireCall } from './pipeline.ts'

/* Embeds and ranks long lists in batches, so that other clients get their turn in between. */

/** Embeds all inputs. The result of `made`, if any, replaces the engine's vector. */
export async function embedChunked(
  lease: Lease,
  inputs: Parameters<NonNullable<Engine['embed']>>[0],
  tally: TokenTally,
  { made, ...options }: { truncate?: boolean; most?: number; made?: (vector: Vector) => Vector } = {}
): Promise<EmbeddingsReply> {
  const { signal } = lease
  const all: EmbeddingsReply = { vectors: [], promptTokens: 0 }
  let at = 0
  for await (const part of partsOf(lease, inputs)) {
    tally.unread = part
    const { vectors, promptTokens } = await requireCall(lease, 'embed')(part, { ...options, signal })
    tally.unread = undefined
    tally.read(promptTokens, 0, at++)
    for (const vector of vectors) all.vectors.push(made ? made(vector) : vector)
    all.promptTokens += promptTokens
  }
  return all
}

/** Scores all documents. @throws CorralError `unsupported_capability`, or whatever the engine or the lease throws */
export async function rerankChunked(
  lease: Lease,
  { query, documents }: { query: string; documents: readonly string[] },
  tally: TokenTally
): Promise<RankingReply> {
  const all: RankingReply = { scores: [], promptTokens: 0 }
  let from = 0
  let at = 0
  for await (const part of partsOf(lease, documents)) {
    tally.unread = part.flatMap(document => [query, document])
    const { scores, promptTokens } = await requireCall(lease, 'rerank')(query, part, lease)
    tally.unread = undefined
    tally.read(promptTokens, 0, at++)
    for (const { index, score } of scores) all.scores.push({ index: from + index, score })
    all.promptTokens += promptTokens
    from += part.length
  }
  return all
}

/** Splits a list into batches of the engine's size. Other clients get their turn between two batches. */
async function* partsOf<Item>(lease: Lease, items: readonly Item[]): AsyncGenerator<readonly Item[]> {
  for (let from = 0; from === 0 || from < items.length; ) {
    if (from > 0) await lease.letOthers()
    const part = items.slice(from, from + (lease.engine.batch ?? items.length))
    from += Math.max(1, part.length)
    yield part
  }
}
