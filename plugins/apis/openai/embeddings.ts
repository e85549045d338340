import type { FastifyReply } from 'fastify'
import { shortened, type Vector, vectorReply } from '../../../core/answers/embedding.ts'
import type { EmbeddingsReply, RankingReply } from '../../../core/contracts/engines.ts'
import type { Model } from '../../../core/contracts/models.ts'
import { CorralError } from '../../../core/errors.ts'
import type { EmbeddingRequest, RerankRequest } from './schemas.ts'

/** Returns the texts or token lists to embed. @throws CorralError naming the wrong field */
export function embeddingInputs({ input, dimensions }: EmbeddingRequest, variant: Model): (string | number[])[] {
  const { embeddingLength } = variant.metadata
  const empty = [input].flat().indexOf('')
  if (empty !== -1) {
    const param = typeof input === 'string' ? 'input' : `input[${empty}]`
    throw new CorralError('invalid_request', `"${param}" must be a non-empty text.`, { param })
  }
  if (dimensions && embeddingLength !== undefined) requireLength(dimensions, embeddingLength)
  // A list of numbers is one text, given as tokens.
  return typeof input === 'string' || typeof input[0] === 'number' ? [input as string | number[]] : (input as string[])
}

function requireLength(dimensions: number, length: number): void {
  if (dimensions <= length) return
  throw new CorralError(
    'invalid_request',
    `"dimensions" must be at most ${length}, the length of the model's embeddings.`,
    { param: 'dimensions' }
  )
}

/** Shortens an embedding to `dimensions` and normalizes it again. @throws CorralError if it is shorter than that */
export function toDimensions(vector: Vector, { dimensions }: EmbeddingRequest): Vector {
  if (!dimensions) return vector
  requireLength(dimensions, vector.length)
  return shortened(vector, dimensions)
}

export function embeddingList(
  reply: FastifyReply,
  { vectors, promptTokens }: EmbeddingsReply,
  { encoding_format }: EmbeddingRequest,
  model: string
) {
  const toRow = (vector: Vector, index: number) => ({
    object: 'embedding',
    index,
    embedding: encoding_format === 'base64' ? toBase64(vector) : Array.from(vector)
  })
  const usage = { prompt_tokens: promptTokens, total_tokens: promptTokens }
  return vectorReply(reply, vectors, toRow, data => ({ object: 'list', model, usage, data }))
}

function toBase64(vector: ArrayLike<number>): string {
  const bytes = Buffer.alloc(vector.length * 4)
  for (let index = 0; index < vector.length; index++) bytes.writeFloatLE(vector[index]!, index * 4)
  return bytes.toString('base64')
}

/** Returns the texts to rank. @throws CorralError unless exactly one of the two fields is set */
export function documentTexts({ documents, texts }: RerankRequest): string[] {
  if (Boolean(documents) === Boolean(texts)) {
    const message = 'Send the texts to rank either as "documents" or as "texts".'
    throw new CorralError('invalid_request', message, { param: 'documents' })
  }
  return texts ?? documents!.map(document => (typeof document === 'string' ? document : document.text))
}

export function ranking(
  reply: RankingReply,
  { top_n, return_documents }: RerankRequest,
  documents: readonly string[],
  model: string
) {
  return {
    object: 'list',
    model,
    usage: { prompt_tokens: reply.promptTokens, total_tokens: reply.promptTokens },
    results: best(reply, top_n).map(({ index, score }) => ({
      index,
      relevance_score: score,
      ...(return_documents && { document: { text: documents[index]! } })
    }))
  }
}

export function textRanking(reply: RankingReply, { top_n, return_text }: RerankRequest, texts: readonly string[]) {
  return best(reply, top_n).map(({ index, score }) => ({ index, score, ...(return_text && { text: texts[index]! }) }))
}

const best = ({ scores }: RankingReply, most: number | null | undefined) =>
  [...scores].sort((a, b) => b.score - a.score).slice(0, most ?? undefined)
