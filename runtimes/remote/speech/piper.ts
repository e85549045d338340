import type { AnswerSink, EngineFields, Operations } from '../../../core/contracts/engines.ts'
import type { Model } from '../../../core/contracts/models.ts'
import { CorralError } from '../../../core/errors.ts'
import type { RemoteServers } from '../remote-servers.ts'

export const PIPER_ARGUMENTS = ['-m', 'piper.http_server', '--host', '127.0.0.1', '--port', '{port}', '-m', '{model}']
/** Characters that are spoken together. The sound of a sentence is complete before the client hears it. */
const MAX_SENTENCE_LENGTH = 400
/** The server calls its sounds HTML. */
const ANY_TYPE = /./

/** The calls of a running piper, which knows one voice with one or more speakers. */
export function piperCalls(ask: RemoteServers['ask'], { metadata: { info, voices = [] } }: Model): Operations {
  const type = `audio/pcm;rate=${info['audio.sample_rate']}`
  return {
    async speak({ input, voice, speed }: EngineFields, { signal, take }: AnswerSink): Promise<void> {
      const options = {
        ...(voices.length > 1 && { speaker: voice ?? voices[0] }),
        ...(typeof speed === 'number' && { length_scale: 1 / speed })
      }
      for (const text of sentences(String(input))) {
        const read = async (body: { arrayBuffer(): Promise<ArrayBuffer> }) => Buffer.from(await body.arrayBuffer())
        const wav = await ask('/synthesize', { text, ...options }, signal, read, { accepts: ANY_TYPE })
        await take([{ bytes: samplesOf(wav), type }])
      }
      const usage = { promptTokens: String(input).length, cachedTokens: 0, completionTokens: 0 }
      await take([{ finish: 'stop', usage }])
    }
  }
}

/** Splits a text into sentences, and long sentences between words. Parts without letters and digits are silent. */
export function sentences(text: string): string[] {
  const long = new RegExp(`.{1,${MAX_SENTENCE_LENGTH}}(?=\\s|$)|.{1,${MAX_SENTENCE_LENGTH}}`, 'gsu')
  return [...new Intl.Segmenter(undefined, { granularity: 'sentence' }).segment(text)]
    .flatMap(({ segment }) => segment.trim().match(long) ?? [])
    .filter(part => /[\p{L}\p{N}]/u.test(part))
}

/** Returns the samples of a WAV file, which are its last chunk. */
function samplesOf(wav: Buffer): Buffer {
  const at = wav.indexOf('data', 12, 'latin1')
  if (at !== -1) return wav.subarray(at + 8)
  throw new CorralError('engine_crashed', 'The program "piper" answered without a sound.')
}
