import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { deflateSync } from 'node:zlib'
import { SseParser } from '../../../../../core/answers/openai-events.ts'
import {
  demoModelFile,
  randomEncoder,
  randomProjector,
  writeRandomDecoderEmbedding,
  writeRandomModel
} from '../../../../../scripts/random-models.ts'
import { type Corral, until } from '../../../../support/corral.ts'

/** Models with random weights by purpose. Their output is meaningless. */
export const MODELS = {
  embedding: 'random/embedding',
  decoder: 'random/decoder-embedding',
  reranker: 'random/reranker',
  seeing: 'random/seeing-chat',
  hearing: 'random/hearing-chat'
}

/** Writes the files of `MODELS` into a folder and returns the path to import for each. */
export async function writeModels(folder: string): Promise<Record<keyof typeof MODELS, string>> {
  const place = (kind: string, file = `random-${kind}.gguf`) => {
    mkdirSync(join(folder, kind), { recursive: true })
    return join(folder, kind, file)
  }
  const paths = {
    embedding: place('embedding'),
    decoder: place('decoder'),
    reranker: place('reranker'),
    seeing: place('seeing'),
    hearing: place('hearing')
  }
  writeFileSync(paths.embedding, randomEncoder('embedding'))
  writeFileSync(paths.reranker, randomEncoder('reranker'))
  await writeRandomDecoderEmbedding(paths.decoder)
  for (const [kind, sense] of [
    ['seeing', 'vision'],
    ['hearing', 'audio']
  ] as const) {
    copyFileSync(demoModelFile, paths[kind])
    writeFileSync(place(kind, 'mmproj-F16.gguf'), randomProjector(sense))
  }
  return paths
}

const THINKING_TEMPLATE =
  "{% for m in messages %}<|{{ m['role'] }}|>\n{% if m['reasoning_content'] %}<think>\n{{ m['reasoning_content'] }}\n</think>\n{% endif %}{{ m['content'] }}</s>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n<think>\n{% endif %}"

/** Writes a model that thinks first, generates nonsense and never stops by itself. */
export async function writeThinkingModel(path: string): Promise<void> {
  const shape = { layers: 4, embedding: 512, feedForward: 1024, heads: 8, kvHeads: 2 }
  await writeRandomModel(path, shape, { metadata: { 'tokenizer.chat_template': THINKING_TEMPLATE } })
}

/**
 * Reads a chat stream. `read` resolves when it ends or the client disconnects.
 * @returns as soon as there is thinking; `said` is still being filled
 */
export async function readThoughts({ body }: Pick<Response, 'body'>) {
  const said = { id: '', thinking: '', content: '' }
  const lines = new SseParser()
  const read = (async () => {
    for await (const chunk of body!) {
      for (const payload of lines.push(Buffer.from(chunk))) {
        if (payload === '[DONE]') continue
        const { id, choices } = JSON.parse(payload)
        said.id = id
        said.thinking += choices[0]?.delta.reasoning_content ?? ''
        said.content += choices[0]?.delta.content ?? ''
      }
    }
  })().catch(() => {})
  await until('the model thinks', () => said.thinking.length > 20)
  return { said, read }
}

/** Imports the models of `writeModels`. */
export async function importModels(corral: Pick<Corral, 'json'>, paths: Record<string, string>): Promise<void> {
  for (const [kind, name] of Object.entries(MODELS)) {
    const { status, body } = await corral.json('/api/import', { path: paths[kind], name, stream: false })
    if (status !== 200) throw new Error(`${name} cannot be imported: ${JSON.stringify(body)}`)
  }
}

/** Returns a PNG whose pattern depends on the seed. */
export function pngBytes(width = 32, height = 32, seed = 1): Buffer {
  const rows = Buffer.alloc(height * (width * 3 + 1))
  for (let at = 0; at < rows.length; at++) rows[at] = at % (width * 3 + 1) === 0 ? 0 : (at * seed * 7) % 251
  return pngFile(width, height, rows)
}

/** Returns a PNG file of less than a kilobyte that claims to be huge. */
export function hugePngBytes(): Buffer {
  return pngFile(60_000, 60_000, Buffer.alloc(100))
}

function pngFile(width: number, height: number, rows: Buffer): Buffer {
  const header = Buffer.alloc(13)
  header.writeUInt32BE(width, 0)
  header.writeUInt32BE(height, 4)
  // 8 bits per color, in RGB.
  header[8] = 8
  header[9] = 2
  return Buffer.concat([
    Buffer.from('\x89PNG\r\n\x1a\n', 'latin1'),
    pngChunk('IHDR', header),
    pngChunk('IDAT', deflateSync(rows)),
    pngChunk('IEND', Buffer.alloc(0))
  ])
}

function pngChunk(type: string, data: Buffer): Buffer {
  const body = Buffer.concat([Buffer.from(type, 'latin1'), data])
  const length = Buffer.alloc(4)
  length.writeUInt32BE(data.length)
  const check = Buffer.alloc(4)
  check.writeUInt32BE(crc32(body))
  return Buffer.concat([length, body, check])
}

function crc32(bytes: Buffer): number {
  let crc = 0xffffffff
  for (const byte of bytes) {
    crc ^= byte
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0)
  }
  return (crc ^ 0xffffffff) >>> 0
}

/** Returns a WAV file with a tone: one channel, 16 bits, 16 kHz. */
export function wavBytes(seconds = 1, hertz = 440): Buffer {
  const rate = 16_000
  const samples = Math.round(seconds * rate)
  const header = Buffer.alloc(44)
  header.write('RIFF', 0, 'latin1')
  header.writeUInt32LE(36 + samples * 2, 4)
  header.write('WAVEfmt ', 8, 'latin1')
  header.writeUInt32LE(16, 16)
  header.writeUInt16LE(1, 20)
  header.writeUInt16LE(1, 22)
  header.writeUInt32LE(rate, 24)
  header.writeUInt32LE(rate * 2, 28)
  header.writeUInt16LE(2, 32)
  header.writeUInt16LE(16, 34)
  header.write('data', 36, 'latin1')
  header.writeUInt32LE(samples * 2, 40)
  const data = Buffer.alloc(samples * 2)
  for (let at = 0; at < samples; at++) {
    data.writeInt16LE(Math.round(8_000 * Math.sin((2 * Math.PI * hertz * at) / rate)), at * 2)
  }
  return Buffer.concat([header, data])
}

/** WebP images of 20 × 10 pixels: lossy, lossless and extended. */
export const WEBP = {
  lossy:
    'UklGRnQAAABXRUJQVlA4IGgAAADwAwCdASoUAAoAPpE+mkelo6KhMAgAsBIJbACdMoR3N6SAYQX4NVoAAP73yRYsGCtDRIqALWl2kIaVUTAYUbT1KRY3Z13Z0J7/+r0Gf1Og1fgZtXMidSO2+dHMoMDGBjaMdQEEp2AAAA==',
  lossless: 'UklGRkQAAABXRUJQVlA4TDcAAAAvE0ACAJkyRPQ/NhHR/4Cito2Y0LjjD3Wvv0AghQH8jIXatm0Ye6rJH8gYMSp8oECFwhhq4oUNAA==',
  extended:
    'UklGRqIAAABXRUJQVlA4WAoAAAAQAAAAEwAACQAAQUxQSBQAAAABD/DA/4iIIBZMrhDnz5NBRP+DFlZQOCBoAAAA8AMAnQEqFAAKAD6RPppHpaOioTAIALASCWwAnTKEdzekgGEF+DVaAAD+98kWLBgrQ0SKgC1pdpCGlVEy7xAT902wSyBX47oLQvngd6dG2puhcQ+YkNjSwBE5Qxo/WuxUgL+YolMQAAA='
}
