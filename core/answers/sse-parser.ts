import { StringDecoder } from 'node:string_decoder'

/** Splits Server-Sent Events into their payloads. Engines send one `data:` line for each event, and comments. */
export class SseParser {
  #rest = ''
  // Several times as fast as TextDecoder for chunks as short as tokens.
  #decoder = new StringDecoder('utf8')

  /** Adds a chunk. Returns the payloads of the `data:` lines that it completes. */
  push(chunk: Uint8Array): string[] {
    const text = this.#rest + this.#decoder.write(chunk)
    const payloads: string[] = []
    let start = 0
    for (let end = text.indexOf('\n'); end !== -1; end = text.indexOf('\n', start)) {
      if (text.startsWith('data:', start))
        payloads.push(text.slice(start + (text[start + 5] === ' ' ? 6 : 5), end).trimEnd())
      start = end + 1
    }
    this.#rest = text.slice(start)
    return payloads
  }
}
