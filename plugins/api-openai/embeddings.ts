import type { StoredVariant } from '../../core/contracts/storage.ts'
import { CorralError } from '../../core/errors.ts'
import type { Question } from './relay.ts'
import type { EmbeddingRequest } from './request-schemas.ts'

type Fields = Record<string, unknown>

interface EmbeddingReply {
  data: { embedding: string; [other: string]: unknown }[]
  [other: string]: unknown
}

/** @throws CorralError with the field at fault, before a model is loaded for it */
export function embeddingQuestion(request: EmbeddingRequest, variant: StoredVariant): Question {
  const { input, encoding_format, dimensions } = request
  const { embeddingLength } = variant.metadata
  const empty = [input].flat().indexOf('')
  if (empty !== -1) {
    const param = typeof input === 'string' ? 'input' : `input[${empty}]`
    throw new CorralError('invalid_request', `"${param}" must be text that is not empty.`, { param })
  }
  if (dimensions && embeddingLength !== undefined) requireLength(dimensions, embeddingLength)
  // What is cut to size is read from base64, which is exact and short.
  const format = dimensions ? 'base64' : (encoding_format ?? 'float')
  return {
    mode: 'embedding',
    path: '/v1/embeddings',
    body: { input, encoding_format: format },
    list: { asked: 'input', told: 'data' }
  }
}

function requireLength(dimensions: number, length: number): void {
  if (dimensions <= length) return
  throw new CorralError(
    'invalid_request',
    `"dimensions" must be ${length} at most: the model's vectors have so many.`,
    {
      param: 'dimensions'
    }
  )
}

/**
 * A reply in base64 whose vectors are cut and normalised anew.
 * @throws CorralError when they are shorter than that
 */
export function cutEmbeddings(reply: EmbeddingReply, dimensions: number, format: 'float' | 'base64'): Fields {
  const data = reply.data.map(({ encoding_format: _, ...entry }) => {
    const vector = readVector(entry.embedding)
    requireLength(dimensions, vector.length)
    const short = normalised(vector.subarray(0, dimensions))
    return { ...entry, embedding: format === 'base64' ? writeVector(short) : [...short] }
  })
  return { ...reply, data }
}

/** Numbers of 32 bits, little-endian. */
function readVector(base64: string): Float32Array {
  const bytes = Buffer.from(base64, 'base64')
  return Float32Array.from({ length: bytes.length / 4 }, (_, index) => bytes.readFloatLE(index * 4))
}

function writeVector(vector: Float32Array): string {
  const bytes = Buffer.alloc(vector.length * 4)
  for (const [index, value] of vector.entries()) bytes.writeFloatLE(value, index * 4)
  return bytes.toString('base64')
}

function normalised(vector: Float32Array): Float32Array {
  const length = Math.hypot(...vector)
  return length === 0 ? vector : vector.map(value => value / length)
}
