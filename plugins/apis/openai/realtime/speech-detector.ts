/* Finds out by loudness when someone speaks. */

/** 20 ms at 24 kHz. */
const FRAME_BYTES = 960
const FRAME_MS = 20
/** Milliseconds of loudness that are speech rather than a click. */
const MIN_SPEECH_MS = 100

export interface TurnDetection {
  /** Between 0 and 1. */
  threshold?: number
  silence_duration_ms?: number
}

export class SpeechDetector {
  #rest = Buffer.alloc(0)
  #loud = 0
  #silent = 0
  isSpeaking = false

  /** Adds samples, and calls back at each beginning and end of speech. */
  add(samples: Buffer, { threshold = 0.5, silence_duration_ms: silence = 500 }: TurnDetection, turn: () => void): void {
    // Half of the scale, the default, is the loudness of quiet speech: 2 % of the range.
    const least = 32_768 * 0.04 * threshold
    this.#rest = Buffer.concat([this.#rest, samples])
    let at = 0
    for (; at + FRAME_BYTES <= this.#rest.length; at += FRAME_BYTES) {
      const isLoud = loudness(this.#rest.subarray(at, at + FRAME_BYTES)) > least
      this.#loud = isLoud ? this.#loud + FRAME_MS : 0
      this.#silent = isLoud ? 0 : this.#silent + FRAME_MS
      const changed = this.isSpeaking ? this.#silent >= silence : this.#loud >= MIN_SPEECH_MS
      if (!changed) continue
      this.isSpeaking = !this.isSpeaking
      turn()
    }
    this.#rest = this.#rest.subarray(at)
  }

  /** Forgets the samples, because their recording has ended. */
  reset(): void {
    this.isSpeaking = false
    this.#loud = 0
    this.#silent = 0
    this.#rest = Buffer.alloc(0)
  }
}

function loudness(frame: Buffer): number {
  let sum = 0
  for (let at = 0; at < frame.length; at += 2) sum += frame.readInt16LE(at) ** 2
  return Math.sqrt((2 * sum) / frame.length)
}
