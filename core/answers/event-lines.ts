import { StringDecoder } from 'node:string_decoder'

/**
 * Cuts a stream of bytes into the payloads of its Server-Sent Events. Only what engines send is needed: events of
 * one `data:` line each, and comments.
 */
export class EventLines {
  #rest = ''
  // Several times as fast as TextDecoder with pieces as short as tokens.
  #decoder = new StringDecoder('utf8')

  /** The payloads of the `data:` lines that this chunk completes. */
  push(chunk: Uint8Array): string[] {
    const text = this.#rest + this.#decoder.write(chunk)
    const lines = text.split('\n')
    this.#rest = lines.pop()!
    const payloads: string[] = []
    for (const line of lines) {
      if (line.startsWith('data:')) payloads.push(line.slice(line[5] === ' ' ? 6 : 5).trimEnd())
    }
    return payloads
  }
}
