import type { EmbeddingsReply, Engine, RankingReply } from '../contracts/engines.ts'
import type { Lease } from '../contracts/leases.ts'
import type { TokenTally } from '../http/request-record.ts'
import type { Vector } from './embedding.ts'
import { callOf } from './pipeline.ts'

/*
 * Long lists are asked for in parts, so that they do not keep others waiting until their end.
 */

/**
 * Vectors of all inputs, each as `made` gives it where it is there.
 * @throws CorralError `unsupported_capability`, or what the engine, the lease or `made` does
 */
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
    const { vectors, promptTokens } = await callOf(lease, 'embed')(part, { ...options, signal })
    tally.unread = undefined
    tally.read(promptTokens, 0, at++)
    for (const vector of vectors) all.vectors.push(made ? made(vector) : vector)
    all.promptTokens += promptTokens
  }
  return all
}

/** Scores of all documents. @throws CorralError `unsupported_capability`, or what the engine or the lease does */
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
    const { scores, promptTokens } = await callOf(lease, 'rerank')(query, part, lease)
    tally.unread = undefined
    tally.read(promptTokens, 0, at++)
    for (const { index, score } of scores) all.scores.push({ index: from + index, score })
    all.promptTokens += promptTokens
    from += part.length
  }
  return all
}

/** The list in parts as large as the engine works on at once; between two of them others have their turn. */
async function* partsOf<Item>(lease: Lease, items: readonly Item[]): AsyncGenerator<readonly Item[]> {
  for (let from = 0; from === 0 || from < items.length; ) {
    if (from > 0) await lease.letOthers()
    const part = items.slice(from, from + (lease.engine.batch ?? items.length))
    from += Math.max(1, part.length)
    yield part
  }
}
