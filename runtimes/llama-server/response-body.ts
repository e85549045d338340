type Take = (chunk: Buffer) => Promise<void> | undefined

/** The body of an engine's answer: no more of it is fetched than is read, but for one piece ahead. */
export interface EngineBody {
  /**
   * Calls `take` with each piece as it comes, and waits for what it returns before the next one. Resolves at the end of
   * the body; rejects with what `take` throws, or when the connection breaks. To be called once.
   */
  consume(take: Take): Promise<void>
  /** Cuts the connection, if there still is one. */
  cancel(): void
}

/** The connection that a body comes by. */
interface Source {
  pause(): unknown
  resume(): unknown
  destroy(): unknown
}

/** A body that is given piece by piece by its connection. */
export class ResponseBody implements EngineBody {
  readonly #source: Source
  readonly #held: Buffer[] = []
  #reader: { take: Take; resolve(): void; reject(error: unknown): void } | undefined
  /** The reader has not done with the last piece. */
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
    this.fail(new Error('The answer was cut off.'))
  }

  /** Takes what has come. */
  push(chunk: Buffer): void {
    if (this.#failure) return
    this.#held.push(chunk)
    if (this.#reader && !this.#busy) this.#goOn()
    // Most readers come, and go on, before the next piece does.
    else if (this.#held.length > 1 && !this.#paused) {
      this.#paused = true
      this.#source.pause()
    }
  }

  /** All of it has come: what else the connection has to say may be read. */
  end(): void {
    this.#ended = true
    this.#resume()
    if (this.#reader && !this.#busy) this.#goOn()
  }

  /** No more comes: who reads gets the error, now or later, unless all of it has come already. */
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

  /** Gives the reader what is held, as far as it takes that. */
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
      // Also when it was the last piece of a body that has ended.
      this.#end(error)
    }
  }
}

/** The whole body as text. */
export async function textOf(body: EngineBody): Promise<string> {
  const chunks: Buffer[] = []
  await body.consume(chunk => void chunks.push(chunk))
  return Buffer.concat(chunks).toString()
}

/** The whole body as JSON. @throws SyntaxError where it is none */
export async function jsonOf(body: EngineBody): Promise<unknown> {
  return JSON.parse(await textOf(body))
}
