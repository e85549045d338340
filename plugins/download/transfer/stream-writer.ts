import { writeSync } from 'node:fs'
import { GATHERED } from './part-writer.ts'

/** Writes a file of which nobody says how long it is, from its start. */
export class StreamWriter {
  readonly #descriptor: number
  readonly #buffer: Buffer
  #filled = 0
  /** Bytes on disk. */
  written = 0

  constructor(descriptor: number, buffer: Buffer) {
    this.#descriptor = descriptor
    this.#buffer = buffer
  }

  room(): Buffer {
    return this.#buffer.subarray(this.#filled, GATHERED)
  }

  took(length: number): boolean {
    this.#filled += length
    if (this.#filled === GATHERED) this.flush()
    return true
  }

  /** To be called at the end. @throws what the file system says */
  flush(): void {
    let at = 0
    while (at < this.#filled) {
      const length = writeSync(this.#descriptor, this.#buffer, at, this.#filled - at, this.written)
      this.written += length
      at += length
    }
    this.#filled = 0
  }
}
