/**
 * Writes a GGUF file with random weights, whose answers are nonsense: `node dist/scripts/make-random-model.js FILE
 * [--kind KIND] [--seed N] [--layers N]`.
 *
 * KIND is one of
 * - `chat` (the default): about 200 million weights, as fast as a real model of that size
 * - `embedding`, `reranker`: small encoders
 * - `decoder-embedding`: a small embedding model with a chat model's architecture
 * - `vision-projector`, `audio-projector`: gives the demo model vision or hearing when placed beside its file
 */
import { writeFile } from 'node:fs/promises'
import { parseArgs } from 'node:util'
import {
  randomEncoder,
  randomProjector,
  SHAPE_200M,
  writeRandomDecoderEmbedding,
  writeRandomModel
} from './random-models.ts'

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    kind: { type: 'string', default: 'chat' },
    seed: { type: 'string', default: '1' },
    layers: { type: 'string', default: `${SHAPE_200M.layers}` }
  }
})
const [target] = positionals
const [seed, layers] = [Number(values.seed), Number(values.layers)]
const WRITERS: Record<string, (file: string) => Promise<unknown>> = {
  chat: file => writeRandomModel(file, { ...SHAPE_200M, layers }, { seed }),
  embedding: file => writeFile(file, randomEncoder('embedding', seed)),
  reranker: file => writeFile(file, randomEncoder('reranker', seed)),
  'decoder-embedding': file => writeRandomDecoderEmbedding(file, seed),
  'vision-projector': file => writeFile(file, randomProjector('vision', seed)),
  'audio-projector': file => writeFile(file, randomProjector('audio', seed))
}
const write = Object.hasOwn(WRITERS, values.kind) ? WRITERS[values.kind] : undefined
if (target === undefined || !write || !Number.isInteger(seed) || !Number.isInteger(layers) || layers < 1) {
  console.error(`Usage: make-random-model FILE [--kind ${Object.keys(WRITERS).join('|')}] [--seed N] [--layers N]`)
  process.exit(2)
}
await write(target)
