import { askEngine, readAll, reasonOf } from '../../core/answers/engine-reply.ts'
import type { Lease } from '../../core/contracts/scheduler.ts'
import { CorralError } from '../../core/errors.ts'

export interface Embeddings {
  /** One for each text, of length 1. */
  vectors: number[][]
  promptTokens: number
}

/** Texts that the engine is asked for at once: it goes on with what it has when the client has gone. */
const BATCH = 32

interface EmbeddingReply {
  data: { index: number; embedding: number[] }[]
  usage?: { prompt_tokens?: number }
}

/**
 * Embeds texts.
 * @param options.truncate cuts texts that are longer than the context
 * @param options.dimensions keeps only so many numbers of each embedding
 * @throws CorralError `context_exceeded`, `invalid_request`, and the lease's reason when it was taken away
 */
export async function embedTexts(
  lease: Lease,
  texts: readonly string[],
  options: { truncate: boolean; dimensions?: number | undefined }
): Promise<Embeddings> {
  try {
    const vectors: number[][] = []
    let promptTokens = 0
    for (let at = 0; at < texts.length; at += BATCH) {
      const batch = texts.slice(at, at + BATCH)
      const input = options.truncate ? await Promise.all(batch.map(text => fitting(lease, text))) : batch
      const { data, usage } = await ask<EmbeddingReply>(lease, '/v1/embeddings', { input, encoding_format: 'float' })
      for (const { index, embedding } of data) vectors[at + index] = shortened(embedding, options.dimensions)
      promptTokens += usage?.prompt_tokens ?? 0
    }
    return { vectors, promptTokens }
  } catch (error) {
    throw reasonOf(lease, error)
  }
}

async function ask<Reply>(lease: Lease, path: string, body: Record<string, unknown>): Promise<Reply> {
  const response = await askEngine(lease, { path, body: JSON.stringify(body) })
  return JSON.parse((await readAll(response.body)).toString('utf8')) as Reply
}

/** The text, or the tokens of its beginning where it is longer than the context. */
async function fitting(lease: Lease, text: string): Promise<string | number[]> {
  const tokens = async (add_special: boolean) =>
    (await ask<{ tokens: number[] }>(lease, '/tokenize', { content: text, add_special })).tokens
  const whole = await tokens(true)
  // Models that pool the last token take one less than their context, as llama-server reads them piece by piece.
  const room = lease.engine.contextSize - 1
  return whole.length <= room ? text : cutTokens(whole, await tokens(false), room)
}

/**
 * Leaves so many tokens that `room` is kept. What the model's vocabulary puts before and behind every text stays.
 * @param whole the tokens with those
 * @param plain the text's own
 */
export function cutTokens(whole: readonly number[], plain: readonly number[], room: number): number[] {
  const added = whole.length - plain.length
  let before = 0
  while (before < added && whole[before] !== plain[0]) before++
  const behind = added - before
  const kept = Math.max(0, room - added)
  return [
    ...whole.slice(0, before),
    ...whole.slice(before, before + kept),
    ...(behind > 0 ? whole.slice(whole.length - behind) : [])
  ]
}

/** The first numbers of an embedding, made of length 1 again. */
export function shortened(embedding: readonly number[], dimensions = embedding.length): number[] {
  const kept = embedding.slice(0, dimensions)
  let sum = 0
  for (const value of kept) {
    if (!Number.isFinite(value)) {
      throw new CorralError('internal', 'The model gave an embedding that is no number. Send another text.')
    }
    sum += value * value
  }
  const length = Math.sqrt(sum)
  return length === 0 ? kept : kept.map(value => value / length)
}
