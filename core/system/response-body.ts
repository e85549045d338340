import { Readable } from 'node:stream'

type Take = (chunk: Buffer) => Promise<void> | undefined

/** The body of an engine's answer. At most one piece is fetched ahead of the reader. */
export type EngineBody = Pick<ResponseBody, 'consume' | 'cancel'>

interface Source {
  pause(): unknown
  resume(): unknown
  destroy(): unknown
}

export class ResponseBody {
  readonly #source: Source
  readonly #held: Buffer[] = []
  #reader: { take: Take; resolve(): void; reject(error: unknown): void } | undefined
  /** Whether the reader is still working on the last piece. */
  #busy = false
  #paused = false
  #ended = false
  #failure: { error: unknown } | undefined

  constructor(source: Source) {
    this.#source = source
  }

  /** Calls `take` with each piece and waits for its result. Rejects with its error, or when the connection breaks. */
  consume(take: Take): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#reader = { take, resolve, reject }
      if (this.#failure) reject(this.#failure.error)
      else this.#goOn()
    })
  }

  cancel(): void {
    this.fail(new Error('The answer was interrupted.'))
  }

  push(chunk: Buffer): void {
    if (this.#failure) return
    this.#held.push(chunk)
    this.#goOn()
    // Most readers are ready again before the next piece arrives.
    if (this.#held.length > 1) this.#setPaused(true)
  }

  /** The body is complete, so the connection may be read for the next response. */
  end(): void {
    this.#ended = true
    this.#setPaused(false)
    this.#goOn()
  }

  /** No more data will arrive. The reader gets the error, now or later, unless the body is already complete. */
  fail(error: unknown): void {
    if (!this.#ended || this.#held.length > 0) this.#stop(error)
  }

  #stop(error: unknown): void {
    if (this.#failure) return
    this.#failure = { error }
    this.#held.length = 0
    this.#source.destroy()
    this.#reader?.reject(error)
  }

  #setPaused(paused: boolean): void {
    if (this.#paused === paused) return
    this.#paused = paused
    if (paused) this.#source.pause()
    else this.#source.resume()
  }

  /** Passes stored pieces to the reader while it accepts them. */
  #goOn(): void {
    if (!this.#reader || this.#busy || this.#failure) return
    const { take, resolve } = this.#reader
    for (let chunk = this.#held.shift(); chunk; chunk = this.#held.shift()) {
      try {
        const wait = take(chunk)
        if (wait) {
          this.#busy = true
          const done = () => {
            this.#busy = false
            this.#goOn()
          }
          return void wait.then(done, error => this.#stop(error))
        }
      } catch (error) {
        // Also if it was the last piece of a body that has ended.
        this.#stop(error)
        return
      }
    }
    if (this.#failure) return
    if (this.#ended) resolve()
    else this.#setPaused(false)
  }
}

/** Returns the body as a stream. Destroying the stream ends the answer. */
export function toStream(body: EngineBody): Readable {
  let wanted = () => {}
  const stream = new Readable({
    read: () => wanted(),
    destroy(error, done) {
      body.cancel()
      done(error)
    }
  })
  const take = (chunk: Buffer) =>
    stream.push(chunk)
      ? undefined
      : new Promise<void>(resolve => {
          wanted = resolve
        })
  body.consume(take).then(
    () => stream.push(null),
    error => stream.destroy(error)
  )
  return stream
}

export async function readText(body: EngineBody): Promise<string> {
  const chunks: Buffer[] = []
  await body.consume(chunk => void chunks.push(chunk))
  return Buffer.concat(chunks).toString()
}

/** Returns the whole body as JSON. @throws SyntaxError if it is not JSON */
export async function readJson(body: EngineBody): Promise<unknown> {
  return JSON.parse(await readText(body))
}
