/** Writes samples with one channel in a format. */
export interface SampleEncoder {
  /** The rates that it can write. All, if absent. */
  rates?: readonly number[]
  /** Prepares for one of its rates, and returns the header of the sound. */
  begin(rate: number): Uint8Array
  encode(samples: Int16Array): Uint8Array
  end(): Uint8Array
}

/** Cuts samples into blocks of the same length. What is left waits for more samples. */
export class Blocks {
  rest = new Int16Array()

  cut(samples: Int16Array, length: number): Int16Array[] {
    const all = new Int16Array(this.rest.length + samples.length)
    all.set(this.rest)
    all.set(samples, this.rest.length)
    const count = Math.floor(all.length / length)
    this.rest = all.slice(count * length)
    return Array.from({ length: count }, (_, at) => all.subarray(at * length, (at + 1) * length))
  }
}
