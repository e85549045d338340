import type { EmbeddingsReply } from '../contracts/engines.ts'
import { CorralError } from '../errors.ts'

/**
 * The first numbers of an embedding, made of length 1 again.
 * @throws CorralError `internal` when it has other things than numbers
 */
export function shortened(embedding: EmbeddingsReply['vectors'][number], dimensions = embedding.length): number[] {
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
