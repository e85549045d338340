import { BadAnswer } from './response-head.ts'

/** Longest line with a chunk's size, and most bytes of trailing headers. */
const LINE_LIMIT = 16 * 1024

/** Takes the framing off a body that comes in chunks. */
export class ChunkedBody {
  #state: 'size' | 'data' | 'data-end' | 'trailer' | 'end' = 'size'
  #left = 0
  #line = ''
  #trailer = 0

  get ended(): boolean {
    return this.#state === 'end'
  }

  /**
   * Gives the data in `bytes` piece by piece, until `onData` says false.
   * @returns how many bytes were used; fewer than given after the end of the body or when `onData` stopped it
   * @throws BadAnswer when the framing is broken
   */
  push(bytes: Buffer, onData: (data: Buffer) => boolean): number {
    let at = 0
    while (at < bytes.length && this.#state !== 'end') {
      if (this.#state === 'data') {
        const data = bytes.subarray(at, at + this.#left)
        at += data.length
        this.#left -= data.length
        if (this.#left === 0) this.#state = 'data-end'
        if (!onData(data)) return at
        continue
      }
      const newline = bytes.indexOf(10, at)
      const end = newline === -1 ? bytes.length : newline + 1
      this.#line += bytes.toString('latin1', at, end)
      at = end
      if (this.#line.length > LINE_LIMIT) throw new BadAnswer('the answer has a chunk line that does not end')
      if (newline === -1) break
      const line = this.#line.replace(/\r?\n$/, '')
      this.#line = ''
      this.#onLine(line)
    }
    return at
  }

  #onLine(line: string): void {
    if (this.#state === 'size') {
      const size = /^([0-9a-f]{1,12})[ \t]*(?:;.*)?$/i.exec(line)
      if (!size) throw new BadAnswer('the answer has a chunk without a size')
      this.#left = Number.parseInt(size[1]!, 16)
      this.#state = this.#left === 0 ? 'trailer' : 'data'
    } else if (this.#state === 'data-end') {
      if (line !== '') throw new BadAnswer('the answer has a chunk longer than it says')
      this.#state = 'size'
    } else if (line === '') {
      this.#state = 'end'
    } else {
      this.#trailer += line.length
      if (this.#trailer > LINE_LIMIT) throw new BadAnswer('the answer has trailing headers without end')
    }
  }
}
