import { join } from 'node:path'
import { packageRoot } from '../core/system/package-info.ts'
import { writeRandomModel } from './random-model.ts'

/** The demo model that comes with corral. */
export const demoModelFile = join(packageRoot, 'plugins', 'storage', 'demo-model', 'tiny-chat-f16.gguf')

/** Numbers of an embedding that a model of `writeRandomDecoderEmbedding` makes. */
export const DECODER_WIDTH = 128
/** llama.cpp's number of LLAMA_POOLING_TYPE_LAST: a text's embedding is its last token's. */
const POOLING_LAST = 3

/**
 * Writes a GGUF model with random weights that is one for embeddings although its architecture is a chat model's, as
 * Qwen3-Embedding is: only its metadata tell.
 */
export async function writeRandomDecoderEmbedding(target: string, seed = 1): Promise<void> {
  await writeRandomModel(target, {
    vocabulary: demoModelFile,
    shape: { layers: 2, embedding: DECODER_WIDTH, feedForward: 256, heads: 2, kvHeads: 1 },
    metadata: { 'llama.pooling_type': POOLING_LAST },
    seed
  })
}
