type Take = (chunk: Buffer) => Promise<void> | undefined

/** The body of an engine's answer. At most one piece is fetched ahead of the reader. */
export interface EngineBody {
  /** Calls `take` with each piece and waits for its result. Rejects with its error, or when the connection breaks. */
  consume(take: Take): Promise<void>
  cancel(): void
}

interface Source {
  pause(): unknown
  resume(): unknown
  destroy(): unknown
}

export class ResponseBody implements EngineBody {
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

  consume(take: Take): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#reader = { take, resolve, reject }
      this.#goOn()
    })
  }

  cancel(): void {
    this.fail(new Error('The answer was interrupted.'))
  }

  push(chunk: Buffer): void {
    if (this.#failure) return
    this.#held.push(chunk)
    if (this.#reader && !this.#busy) this.#goOn()
    // Most readers are ready again before the next piece arrives.
    else if (this.#held.length > 1 && !this.#paused) {
      this.#paused = true
      this.#source.pause()
    }
  }

  /** The body is complete, so the connection may be read for the next response. */
  end(): void {
    this.#ended = true
    this.#resume()
    if (this.#reader && !this.#busy) this.#goOn()
  }

  /** No more data will arrive. The reader gets the error, now or later, unless the body is already complete. */
  fail(error: unknown): void {
    if (!this.#ended || this.#held.length > 0) this.#end(error)
  }

  #end(error: unknown): void {
    if (this.#failure) return
    this.#failure = { error }
    this.#held.length = 0
    this.#source.destroy()
    this.#reader?.reject(error)
  }

  /** Passes stored pieces to the reader while it accepts them. */
  #goOn(): void {
    const { take, resolve, reject } = this.#reader!
    if (this.#failure) reject(this.#failure.error)
    while (this.#held.length > 0 && !this.#busy) this.#give(take, this.#held.shift()!)
    if (this.#busy || this.#failure) return
    if (this.#ended) resolve()
    else this.#resume()
  }

  #resume(): void {
    if (!this.#paused) return
    this.#paused = false
    this.#source.resume()
  }

  #give(take: Take, chunk: Buffer): void {
    try {
      const wait = take(chunk)
      if (!wait) return
      this.#busy = true
      const done = () => {
        this.#busy = false
        this.#goOn()
      }
      wait.then(done, error => this.#end(error))
    } catch (error) {
      // Also if it was the last piece of a body that has ended.
      this.#end(error)
    }
  }
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
