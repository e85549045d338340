import { wavHeader } from '../../../../core/answers/wav-header.ts'
import type { Delta } from '../../../../core/contracts/engines.ts'
import { CorralError } from '../../../../core/errors.ts'
import type { SampleEncoder } from './sample-encoder.ts'

/* Engines speak in samples of 16 bits with one channel (`audio/pcm;rate=22050`). Clients choose the format. */

export const SOUND_TYPES = {
  mp3: 'audio/mpeg',
  opus: 'audio/ogg',
  flac: 'audio/flac',
  wav: 'audio/wav',
  pcm: 'audio/pcm'
} as const
export type SoundFormat = keyof typeof SOUND_TYPES

/** Clients of OpenAI's API play `pcm` with this rate, whatever the voice. */
const PCM_RATE = 24_000
const NOTHING = Buffer.alloc(0)

/** Opens each encoder. Their code is loaded here, because most answers are not spoken. */
const ENCODERS: Record<SoundFormat, () => SampleEncoder | Promise<SampleEncoder>> = {
  mp3: async () => (await import('./mp3-encoder.ts')).mp3Encoder(),
  opus: async () => (await import('./opus-encoder.ts')).opusEncoder(),
  flac: async () => (await import('./flac-encoder.ts')).flacEncoder(),
  wav: () => ({ begin: wavHeader, encode: littleEndian, end: () => NOTHING }),
  pcm: () => ({ rates: [PCM_RATE], begin: () => NOTHING, encode: littleEndian, end: () => NOTHING })
}

/** Opens an encoder, which turns the samples of one answer into a sound. */
export async function openSoundEncoder(format: SoundFormat) {
  const encoder = await ENCODERS[format]()
  let convert: ((samples: Int16Array) => Int16Array) | undefined
  /** Half a sample at the end of the last piece. */
  let rest = NOTHING

  /** Prepares for this rate. @returns the header of the sound */
  function begin(rate: number): Uint8Array {
    const played = encoder.rates?.includes(rate) === false ? PCM_RATE : rate
    convert = resampler(rate, played)
    return encoder.begin(played)
  }

  return {
    type: SOUND_TYPES[format],
    /** Returns the next bytes of the sound, or none. @throws CorralError `engine_crashed` for other media */
    add({ bytes, type = '' }: Pick<Delta, 'bytes' | 'type'>): Uint8Array {
      if (!bytes?.length) return NOTHING
      const rate = Number(/^audio\/pcm;rate=(\d+)/.exec(type)?.[1])
      if (!(rate > 0)) throw new CorralError('engine_crashed', `The engine speaks ${type}, not audio/pcm;rate=….`)
      const header = convert ? NOTHING : begin(rate)
      const all = Buffer.concat([rest, bytes])
      const samples = new Int16Array(Math.floor(all.length / 2))
      for (let at = 0; at < samples.length; at++) samples[at] = all.readInt16LE(2 * at)
      rest = all.subarray(2 * samples.length)
      return Buffer.concat([header, encoder.encode(convert!(samples))])
    },
    end: (): Uint8Array => (convert ? encoder.end() : NOTHING)
  }
}

function littleEndian(samples: Int16Array): Buffer {
  const encoded = Buffer.alloc(2 * samples.length)
  for (const [at, sample] of samples.entries()) encoded.writeInt16LE(sample, 2 * at)
  return encoded
}

/** Returns a function that changes the rate of samples, by a line between each two of them. */
function resampler(from: number, to: number): (samples: Int16Array) => Int16Array {
  if (from === to) return samples => samples
  let [last, consumed, made] = [0, 0, 0]
  return samples => {
    const result: number[] = []
    for (; made * from <= (consumed + samples.length - 1) * to; made++) {
      const before = Math.floor((made * from) / to) - consumed
      const one = before < 0 ? last : samples[before]!
      const other = samples[before + 1] ?? one
      result.push(Math.round(one + ((other - one) * ((made * from) % to)) / to))
    }
    consumed += samples.length
    last = samples.at(-1) ?? last
    return Int16Array.from(result)
  }
}
