import { readFile } from 'node:fs/promises'
import { ggufPieces, type OutputTensor } from './gguf-output.ts'
import { demoModelFile, readKeys } from './random-models.ts'

/*
 * Llama models that say the same text, whatever the prompt. Their only layer adds nothing, so the last token alone
 * determines the next one. Each token of the text is followed by the next token of the text, and any other token by the
 * first.
 */

/** Number of states: one per token of the text, and one for all other tokens. K-quants need multiples of 256. */
const WIDTH = 256
const FEED_FORWARD = 256
const HEAD = 64
const HEADS = WIDTH / HEAD
/**
 * After the norm, the current state has the value 16. The next token gets a logit of 24, and the rest of the text about
 * 5.
 */
const NEXT = 1.5
const ALSO = 0.3
const NORMAL = 1
const SCORE = -2000.5

/**
 * The bytes of an F16 model with the chat template and vocabulary of the demo model, extended by the words of the text.
 * @param says up to 255 unique tokens. A leading blank is part of the token. Tokens of the demo model, such as
 * `<tool_call>`, keep their meaning
 * @throws Error if a token is repeated, or there are too many
 */
export async function recitingModel(name: string, says: readonly string[]): Promise<Buffer> {
  if (new Set(says).size < says.length) throw new Error('the text of a scripted model repeats a token')
  if (says.length >= WIDTH) throw new Error(`the text of a scripted model can have at most ${WIDTH - 1} tokens`)
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
  return Buffer.concat([...ggufPieces(own, createTensors(tokens.length, ids, end), 1, kept)])
}

function createTensors(vocabulary: number, ids: readonly number[], end: number): OutputTensor[] {
  const embeddings = new Float32Array(vocabulary * WIDTH)
  const output = new Float32Array(vocabulary * WIDTH)
  for (let token = 0; token < vocabulary; token++) embeddings[token * WIDTH + ids.indexOf(token) + 1] = 1
  for (const [index, token] of ids.entries()) {
    // Each is slightly less likely than the one before, so that the order of the other candidates is fixed.
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

/** Offset of the values of a list (after its key and two types), and their number. */
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
