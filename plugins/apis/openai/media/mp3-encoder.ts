import { readFile } from 'node:fs/promises'
import { createEncoder } from 'wasm-media-encoders'
import { packagedFile } from '../../../../core/system/package-info.ts'
import type { SampleEncoder } from './sample-encoder.ts'

const KILOBITS = 64

export async function mp3Encoder(): Promise<SampleEncoder> {
  const mp3 = await createEncoder('audio/mpeg', await readFile(packagedFile('wasm-media-encoders/wasm/mp3.wasm')))
  return {
    rates: [8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000],
    begin(sampleRate) {
      mp3.configure({ sampleRate, channels: 1, bitrate: KILOBITS })
      return new Uint8Array()
    },
    // The encoder reuses the memory of its results.
    encode: samples => mp3.encode([Float32Array.from(samples, sample => sample / 2 ** 15)]).slice(),
    end: () => mp3.finalize().slice()
  }
}
