import { Decoder } from '@evan/opus/wasm/index.js'
import type { ReadFault } from './file-reader.ts'
import { opusPackets } from './opus-packets.ts'
import { wavHeader } from './wav-header.ts'

/** Models for speech hear this rate. */
const RATE = 16_000
const BYTES_PER_SAMPLE = 2
const HEADER_BYTES = 44

/** Decodes a recording in Opus to WAV with one channel. @param memory bytes that the result may have */
export function decodeOpus(file: Buffer, memory: number): { wav: Uint8Array } | ReadFault {
  const sound = opusPackets(file)
  if (!sound) return { fault: 'codec' }
  const bytesFor = (samples: number) => Math.round((samples * RATE) / 48_000) * BYTES_PER_SAMPLE
  // Known before anything is decoded: packets with two bytes can be 120 ms of silence.
  if (bytesFor(sound.samples) > memory) return { fault: 'memory' }
  const wav = Buffer.alloc(HEADER_BYTES + bytesFor(sound.samples))
  const decoder = new Decoder({ channels: 1, sample_rate: RATE })
  let end = HEADER_BYTES
  for (const packet of sound.packets) {
    const samples = decoder.decode(packet)
    wav.set(samples, end)
    end += samples.length
  }
  // The header is written over the samples that are not played.
  const result = wav.subarray(bytesFor(sound.skip), end)
  wavHeader(RATE, result.length - HEADER_BYTES).copy(result)
  return { wav: result }
}
