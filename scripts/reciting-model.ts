import { readFile } from 'node:fs/promises'
import { ggufPieces, type OutputTensor } from './gguf-output.ts'
import { demoModelFile, readKeys } from './random-models.ts'

/*
 * Models of the Llama architecture that always say the same, whatever they are asked. Their only layer adds nothing, so
 * the next token follows from the last one alone; each token of the text leads to the next, and any other token leads to
 * the first.
 */

/** States that a model can be in: a token of its text each, and one for all other tokens. K-quants need multiples of 256. */
const WIDTH = 256
const FEED_FORWARD = 256
const HEAD = 64
const HEADS = WIDTH / HEAD
/** After the norm, the state that a model is in has the number 16: logits are 24 for what comes next, some 5 for the rest of the text. */
const NEXT = 1.5
const ALSO = 0.3
const NORMAL = 1
const SCORE = -2000.5

/**
 * The bytes of a model (F16) with the chat template of the demo model and its vocabulary, to which words of the text are
 * added.
 * @param says tokens, all different, at most 255; a blank at the beginning of one is part of it. Those of the demo
 * model, such as `<tool_call>`, count as what they are there
 * @throws Error where a token comes twice, or there are too many
 */
export async function recitingModel(name: string, says: readonly string[]): Promise<Buffer> {
  if (new Set(says).size < says.length) throw new Error('a token of a text that is recited comes twice')
  if (says.length >= WIDTH) throw new Error(`a text that is recited has ${WIDTH - 1} tokens at most`)
  const keys = readKeys(await readFile(demoModelFile))
  const tokens = textList(keys.get('tokenizer.ggml.tokens')!)
  const known = tokens.length
  const ids = says.map(piece => {
    const text = piece.replaceAll(' ', '▁')
    const at = tokens.indexOf(text)
    return at < 0 ? tokens.push(text) - 1 : at
  })
  const added = tokens.length - known
  const end = keys.get('tokenizer.ggml.eos_token_id')!.readUInt32LE(keys.get('tokenizer.ggml.eos_token_id')!.length - 4)
  const own = {
    'general.name': name,
    'general.basename': 'reciting',
    'general.size_label': '1M',
    'general.file_type': 1,
    'llama.block_count': 1,
    'llama.embedding_length': WIDTH,
    'llama.feed_forward_length': FEED_FORWARD,
    'llama.attention.head_count': HEADS,
    'llama.attention.head_count_kv': HEADS,
    'llama.vocab_size': tokens.length,
    'tokenizer.ggml.tokens': tokens,
    'tokenizer.ggml.scores': [
      ...numberList(keys.get('tokenizer.ggml.scores')!, 'float32'),
      ...Array<number>(added).fill(SCORE)
    ],
    'tokenizer.ggml.token_type': [
      ...numberList(keys.get('tokenizer.ggml.token_type')!, 'int32'),
      ...Array<number>(added).fill(NORMAL)
    ]
  }
  const kept = [...keys].filter(([key]) => !(key in own)).map(([, pair]) => pair)
  return Buffer.concat([...ggufPieces(own, tensorsOf(tokens.length, ids, end), 1, kept)])
}

function tensorsOf(vocabulary: number, ids: readonly number[], end: number): OutputTensor[] {
  const embeddings = new Float32Array(vocabulary * WIDTH)
  const output = new Float32Array(vocabulary * WIDTH)
  for (let token = 0; token < vocabulary; token++) embeddings[token * WIDTH + ids.indexOf(token) + 1] = 1
  for (const [index, token] of ids.entries()) {
    // All are a bit less likely than the one before, so that the order of those that come next in likelihood is certain.
    output.fill(ALSO - index / 2048, token * WIDTH, (token + 1) * WIDTH)
  }
  for (const [state, token] of [...ids, end].entries()) output[token * WIDTH + state] = NEXT
  const given = (name: string, rows: number, fill: Float32Array): OutputTensor => ({
    name: `${name}.weight`,
    shape: [WIDTH, rows],
    fill
  })
  const zeros = (name: string) => given(name, WIDTH, new Float32Array(WIDTH * WIDTH))
  const ones = (name: string): OutputTensor => ({ name: `${name}.weight`, shape: [WIDTH], fill: 'ones' })
  return [
    given('token_embd', vocabulary, embeddings),
    ones('blk.0.attn_norm'),
    ...['attn_q', 'attn_k', 'attn_v', 'attn_output'].map(name => zeros(`blk.0.${name}`)),
    ones('blk.0.ffn_norm'),
    ...['ffn_gate', 'ffn_up', 'ffn_down'].map(name => zeros(`blk.0.${name}`)),
    ones('output_norm'),
    given('output', vocabulary, output)
  ]
}

/** Where the values of a list begin: behind its key and two types, and how many there are. */
function listStart(pair: Buffer): { at: number; count: number } {
  const behindKey = 8 + Number(pair.readBigUInt64LE(0))
  return { at: behindKey + 16, count: Number(pair.readBigUInt64LE(behindKey + 8)) }
}

function textList(pair: Buffer): string[] {
  let { at, count } = listStart(pair)
  const texts: string[] = []
  for (; count > 0; count--) {
    const length = Number(pair.readBigUInt64LE(at))
    texts.push(pair.toString('utf8', at + 8, at + 8 + length))
    at += 8 + length
  }
  return texts
}

function numberList(pair: Buffer, type: 'float32' | 'int32'): number[] {
  const { at, count } = listStart(pair)
  return Array.from({ length: count }, (_, i) =>
    type === 'int32' ? pair.readInt32LE(at + i * 4) : pair.readFloatLE(at + i * 4)
  )
}
