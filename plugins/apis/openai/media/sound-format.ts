import type { Delta } from '../../../../core/contracts/engines.ts'
import { CorralError } from '../../../../core/errors.ts'

/* Engines speak in samples of 16 bits with one channel (`audio/pcm;rate=22050`). Clients choose the format. */

export const SOUND_TYPES = { mp3: 'audio/mpeg', wav: 'audio/wav', pcm: 'audio/pcm' } as const
export type SoundFormat = keyof typeof SOUND_TYPES

/** Clients of OpenAI's API play `pcm` with this rate, whatever the voice. */
const PCM_RATE = 24_000
const MP3_RATES = [8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000]
const MP3_KILOBITS = 64

/** Opens an encoder, which turns the samples of one answer into a sound. */
export async function openSoundEncoder(format: SoundFormat) {
  // Imported here, because most answers are not spoken.
  const mp3 = format === 'mp3' ? await (await import('wasm-media-encoders')).createMp3Encoder() : undefined
  let convert: ((samples: Int16Array) => Int16Array) | undefined
  /** Half a sample at the end of the last piece. */
  let rest = Buffer.alloc(0)

  /** Prepares for this rate. @returns the header of the sound */
  function begin(rate: number): Buffer {
    const played = format === 'pcm' || (mp3 && !MP3_RATES.includes(rate)) ? PCM_RATE : rate
    convert = resampler(rate, played)
    mp3?.configure({ sampleRate: played, channels: 1, bitrate: MP3_KILOBITS })
    return format === 'wav' ? wavHeader(rate) : Buffer.alloc(0)
  }

  return {
    type: SOUND_TYPES[format],
    /** Returns the next bytes of the sound, or none. @throws CorralError `engine_crashed` for other media */
    add({ bytes, type = '' }: Pick<Delta, 'bytes' | 'type'>): Uint8Array {
      if (!bytes?.length) return Buffer.alloc(0)
      const rate = Number(/^audio\/pcm;rate=(\d+)/.exec(type)?.[1])
      if (!(rate > 0)) throw new CorralError('engine_crashed', `The engine answered with ${type}, not with samples.`)
      const header = convert ? Buffer.alloc(0) : begin(rate)
      const all = Buffer.concat([rest, bytes])
      const samples = new Int16Array(Math.floor(all.length / 2))
      for (let at = 0; at < samples.length; at++) samples[at] = all.readInt16LE(2 * at)
      rest = all.subarray(2 * samples.length)
      const played = convert!(samples)
      // The encoder reuses the memory of its results.
      if (mp3) return mp3.encode([Float32Array.from(played, sample => sample / 2 ** 15)]).slice()
      const encoded = Buffer.alloc(2 * played.length)
      for (const [at, sample] of played.entries()) encoded.writeInt16LE(sample, 2 * at)
      return Buffer.concat([header, encoded])
    },
    end: (): Uint8Array => (mp3 && convert ? mp3.finalize().slice() : Buffer.alloc(0))
  }
}

/** The header of a WAV file whose length is not known yet, as streams have it. */
function wavHeader(rate: number): Buffer {
  const header = Buffer.from(
    'RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\x01\0\x01\0rateratebl\x10\0data\xff\xff\xff\xff',
    'latin1'
  )
  header.writeUInt32LE(rate, 24)
  header.writeUInt32LE(2 * rate, 28)
  header.writeUInt16LE(2, 32)
  return header
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
