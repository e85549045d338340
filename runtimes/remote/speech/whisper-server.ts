import type { AnswerSink, Delta, EngineFields, Operations } from '../../../core/contracts/engines.ts'
import { CorralError } from '../../../core/errors.ts'
import LANGUAGES from './languages.json' with { type: 'json' }
import { fillFlacLength, soundLength } from './sound-length.ts'

export const WHISPER_ARGUMENTS = [
  ...['--host', '127.0.0.1', '--port', '{port}', '--model', '{model}'],
  // The path is a pattern, so that it answers where OpenAI's API does.
  ...['--inference-path', '/v1/audio/\\w+', '--language', 'auto', '--split-on-word', '--no-language-probabilities']
]
/** Seconds. The decoded samples of four hours take 900 MB. */
const MAX_SECONDS = 4 * 60 * 60
/** Positions of the encoder for each second, which count as tokens of the prompt. */
const POSITIONS_PER_SECOND = 50

/** The calls of whisper.cpp's server, which answers like OpenAI's API, with words of tokens. */
export function whisperCalls({ transcribe, translate }: Operations): Operations {
  const improved = (call: Operations['transcribe']) => async (request: EngineFields, sink: AnswerSink) => {
    const file = Buffer.from(String(request.audio), 'base64')
    const audio = fillFlacLength(file) ? file.toString('base64') : String(request.audio)
    requireShort(soundLength(file))
    let tokens = 0
    const toOpenai = (delta: Delta): Delta => {
      const { segment, duration } = delta.json ?? {}
      if (segment) {
        tokens += (segment as Segment).tokens?.length ?? 0
        return toSegment(segment as Segment)
      }
      const promptTokens = Math.ceil(Number(duration ?? 0) * POSITIONS_PER_SECOND)
      return { ...delta, ...(delta.usage && { usage: { promptTokens, cachedTokens: 0, completionTokens: tokens } }) }
    }
    const asked = { ...request, audio, language: languageCode(request.language), timed: true }
    await call!(asked, { ...sink, take: deltas => sink.take(deltas.map(toOpenai)) }).catch(error => {
      throw error instanceof CorralError && error.code === 'invalid_request' ? unreadable() : error
    })
  }
  return { transcribe: improved(transcribe), translate: improved(translate) }
}

/** The core names the field of the request in the message for the client. */
const unreadable = () =>
  new CorralError('invalid_request', 'The recording cannot be read.', { details: { unreadable_media: true } })

function requireShort(seconds: number | undefined): void {
  if (seconds === undefined) throw unreadable()
  if (seconds <= MAX_SECONDS) return
  const what = `The recording is too long: ${Math.round(seconds / 60)} minutes, and ${MAX_SECONDS / 60} are allowed.`
  throw new CorralError('invalid_request', `${what} Split it, and send the parts.`, { param: 'file' })
}

/** Returns a language that the model may know: the server would fail otherwise. @throws CorralError `invalid_request` */
function languageCode(given: unknown): string | undefined {
  if (typeof given !== 'string') return undefined
  const code = given.toLowerCase().split(/[-_]/)[0]!
  if (LANGUAGES.includes(code)) return code
  const message = `"language" must be a code of ISO 639-1 that the model knows, such as "de", not ${JSON.stringify(given.slice(0, 40))}.`
  throw new CorralError('invalid_request', message, { param: 'language' })
}

interface Segment extends Record<string, unknown> {
  id: number
  text: string
  start: number
  end: number
  tokens?: number[]
  words?: { word: string; start?: number; end?: number }[]
}

/** Joins the tokens of a segment to words. A word begins with a space. */
function toSegment({ text, words: tokens = [], ...segment }: Segment): Delta {
  const { start, end } = segment
  const words: { word: string; start: number; end: number }[] = []
  for (const { word, start: from = start, end: to = end } of tokens) {
    const last = words.at(-1)
    if (last && !word.startsWith(' ')) Object.assign(last, { word: last.word + word, end: to })
    else words.push({ word: word.trimStart(), start: from, end: to })
  }
  return { content: segment.id === 0 ? text.trimStart() : text, json: { segment: { ...segment, words } } }
}
