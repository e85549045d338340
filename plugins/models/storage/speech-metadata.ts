import type { FileHandle } from 'node:fs/promises'
import type { ModelMetadata } from '../../../core/contracts/models.ts'
import { CorralError } from '../../../core/errors.ts'
import { foreignStart, START_SIZE } from '../../../core/models/gguf-file.ts'
import { labelFromFileName } from '../../../core/models/gguf-file-name.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { readOpened } from '../../../core/system/regular-file.ts'

/* The headers of models that recognize speech, and of voices. */

/** `ggml` as a number, which begins the file. */
const GGML = 0x67676d6c
/** Places of sizes in the header, with their smallest and largest value. */
const SIZES = {
  vocabulary: [4, 51_864, 60_000],
  audioContext: [8, 1, 10_000],
  textContext: [24, 1, 10_000],
  textWidth: [28, 64, 8192],
  textLayers: [36, 1, 256]
} as const
/** Smaller vocabularies are those of English-only models. */
const MULTILINGUAL_VOCABULARY = 51_865
/** The version of the format is the first field of an ONNX file. */
const ONNX = 0x08
const MAX_VOICES = 1000

async function readStart(path: string, file: FileHandle, format: string, isRight: (start: Buffer) => boolean) {
  const start = await readOpened(file, Math.min((await file.stat()).size, START_SIZE))
  if (start.length === START_SIZE && isRight(start)) return start
  const foreign = foreignStart(path, start)
  throw foreign ? new CorralError('invalid_request', foreign, { param: 'path' }) : refuse(path, `is not ${format}`)
}

const refuse = (path: string, what: string) =>
  new CorralError('invalid_request', `${path} ${what}. Download it again, then repeat the import.`, { param: 'path' })

/** Reads the header of a model that recognizes speech. @throws CorralError `invalid_request` */
export async function readRecognizer(path: string, file: FileHandle, named: string): Promise<ModelMetadata> {
  const start = await readStart(path, file, 'a ggml file', bytes => bytes.readUInt32LE() === GGML)
  const sizes = Object.entries(SIZES).map(([name, [at, least, most]]) => {
    const value = start.readInt32LE(at)
    if (value >= least && value <= most) return [name, value] as const
    throw refuse(path, `does not recognize speech: its header has the impossible ${name} ${value}`)
  })
  const size = Object.fromEntries(sizes) as Record<keyof typeof SIZES, number>
  const isMultilingual = size.vocabulary >= MULTILINGUAL_VOCABULARY
  return {
    architecture: 'whisper',
    contextLength: size.textContext,
    embeddingLength: size.textWidth,
    quantization: labelFromFileName(named) ?? 'F16',
    capabilities: ['audio', 'transcribe', ...(isMultilingual ? ['translate'] : [])],
    info: { 'general.architecture': 'whisper', 'whisper.block_count': size.textLayers }
  }
}

/** Checks a voice. @param described the JSON beside it @throws CorralError `invalid_request` */
export async function readVoice(
  path: string,
  file: FileHandle,
  named: string,
  described: unknown
): Promise<ModelMetadata> {
  await readStart(path, file, 'an ONNX file', bytes => bytes[0] === ONNX)
  const field = (name: string) => (isObject(described) && isObject(described[name]) ? described[name] : {})
  const rate = Number(field('audio').sample_rate)
  if (!(rate >= 4000 && rate <= 192_000) || Object.keys(field('phoneme_id_map')).length === 0) {
    throw refuse(path, 'is not a voice: the .onnx.json file beside it has no sample rate or no phonemes')
  }
  const speakers = Object.keys(field('speaker_id_map')).slice(0, MAX_VOICES)
  return {
    architecture: 'vits',
    capabilities: ['speak'],
    voices: speakers.length > 0 ? speakers : [named.replace(/\.onnx$/i, '')],
    info: {
      'general.architecture': 'vits',
      'general.language': String(field('language').code ?? field('espeak').voice ?? ''),
      'audio.sample_rate': rate
    }
  }
}
