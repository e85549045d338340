import { Readable } from 'node:stream'
import { setImmediate as others } from 'node:timers/promises'
import type { FastifyReply } from 'fastify'
import type { EmbeddingsReply, Engine, RankingReply } from '../contracts/engines.ts'
import type { Lease } from '../contracts/leases.ts'
import { CorralError } from '../errors.ts'
import type { TokenTally } from '../http/request-record.ts'
import { requireCall } from './engine-call.ts'

export type Vector = EmbeddingsReply['vectors'][number]

/** The first `dimensions` numbers of an embedding, scaled to length 1. @throws CorralError `internal` */
export function shortened(embedding: Vector, dimensions = embedding.length): number[] {
  const kept = Array.from(embedding.slice(0, dimensions))
  let sum = 0
  for (const value of kept) {
    if (!Number.isFinite(value)) {
      const message = 'The model returned an embedding with values that are not numbers. Send another text.'
      throw new CorralError('internal', message)
    }
    sum += value * value
  }
  const length = Math.sqrt(sum)
  return length === 0 ? kept : kept.map(value => value / length)
}

/** Numbers converted to JSON in one step, which takes about two milliseconds. */
const PIECE = 8192

/**
 * A reply that is a list, or whose last field is a list, with a row for each vector. Two thousand vectors are over 10
 * MB of JSON. Writing them in one step would stop all streams for 150 ms or more, so the JSON is written in pieces, as
 * fast as the client reads.
 * @param rowOf must not throw, because the reply may have begun
 * @param around makes the reply around the list
 */
export function vectorReply<Row, Reply>(
  reply: FastifyReply,
  vectors: readonly Vector[],
  rowOf: (vector: Vector, index: number) => Row,
  around: (rows: Row[]) => Reply
): Reply | FastifyReply {
  const perPiece = Math.max(1, Math.floor(PIECE / Math.max(1, vectors[0]?.length ?? 0)))
  const rows = (from: number) => vectors.slice(from, from + perPiece).map((vector, at) => rowOf(vector, from + at))
  if (vectors.length <= perPiece) return around(rows(0))
  const frame = JSON.stringify(around([]))
  const end = frame.lastIndexOf(']')
  async function* pieces() {
    yield frame.slice(0, end)
    for (let from = 0; from < vectors.length; from += perPiece) {
      yield `${from > 0 ? ',' : ''}${JSON.stringify(rows(from)).slice(1, -1)}`
      await others()
    }
    yield frame.slice(end)
  }
  return reply.type('application/json; charset=utf-8').send(Readable.from(pieces(), { objectMode: false }))
}

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
