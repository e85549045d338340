import { Readable } from 'node:stream'
import { setImmediate as others } from 'node:timers/promises'
import type { FastifyReply } from 'fastify'
import type { EmbeddingsReply } from '../contracts/engines.ts'
import { CorralError } from '../errors.ts'

export type Vector = EmbeddingsReply['vectors'][number]

/**
 * The first numbers of an embedding, made of length 1 again.
 * @throws CorralError `internal` when it has other things than numbers
 */
export function shortened(embedding: Vector, dimensions = embedding.length): number[] {
  const kept = Array.from(embedding.slice(0, dimensions))
  let sum = 0
  for (const value of kept) {
    if (!Number.isFinite(value)) {
      throw new CorralError(
        'internal',
        'The model gave an embedding with values that are not numbers. Send another text.'
      )
    }
    sum += value * value
  }
  const length = Math.sqrt(sum)
  return length === 0 ? kept : kept.map(value => value / length)
}

/** Numbers whose JSON is made at once, which takes about two milliseconds. */
const PIECE = 8192

/**
 * A reply that is, or ends with, a list with a row for each vector. Two thousand vectors are 10 MB of JSON and more, and to
 * make that at once would stop everybody's streams for 150 ms, or seconds: it is made in pieces, as fast as the client
 * reads, and between two of them others have their turn.
 * @param rowOf must not throw: the reply may have begun
 * @param around the reply that has this list as its last field, or is it
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
