/**
 * Writes a GGUF model of some 200 million random weights, which says nonsense as fast as a real one of its size:
 * `node dist/scripts/make-random-model.js FILE [--seed N] [--layers N]`.
 */
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { packageRoot } from '../core/package-info.ts'
import { SHAPE_200M, writeRandomModel } from './random-model.ts'

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { seed: { type: 'string', default: '1' }, layers: { type: 'string', default: `${SHAPE_200M.layers}` } }
})
const [target] = positionals
const [seed, layers] = [Number(values.seed), Number(values.layers)]
if (target === undefined || !Number.isInteger(seed) || !Number.isInteger(layers) || layers < 1) {
  console.error('Usage: make-random-model FILE [--seed N] [--layers N]')
  process.exit(2)
}
const vocabulary = join(packageRoot, 'plugins', 'storage', 'demo-model', 'tiny-chat-f16.gguf')
const made = await writeRandomModel(target, { vocabulary, shape: { ...SHAPE_200M, layers }, seed })
console.log(`${target}: ${(made.parameters / 1e6).toFixed(0)} million weights, ${(made.bytes / 1e6).toFixed(0)} MB`)
