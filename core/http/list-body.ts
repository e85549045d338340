import { randomBytes } from 'node:crypto'
import type { FastifyReply } from 'fastify'
import { Type } from 'typebox'
import type { Model, ModelAlias } from '../contracts/models.ts'
import { isKnown } from './stored-file-reply.ts'

/** Headers of a request for a list, and the reply to a client that already has it, as routes declare them. */
export const LIST_HEADERS = Type.Object({
  'if-none-match': Type.Optional(Type.String({ description: 'The etag of the list that the client has' }))
})
export const NOT_MODIFIED = Type.Unsafe<FastifyReply>({ description: 'The client already has the current list' })

export interface ListRows {
  /** JSON before the rows; constant. */
  head: string
  /** JSON after the rows; depends only on the rows. */
  tail: string
  /** Whether rows stay the same as long as all models and aliases do. */
  followNames?: boolean
  /**
   * Returns one value for everything else that the row depends on besides the model. The row is rendered again if the
   * value changes.
   */
  factOf(model: Model, alias?: string): string | number
  /** The JSON of a row, if there is one. */
  textOf(model: Model, alias?: string): string | undefined
}

/**
 * The reply of a list of models, with one row for each model and then for each alias. With thousands of models,
 * rendering the JSON takes most of the request's time, and hardly any row changes between two requests. The last reply
 * is cached, and its bytes are reused for rows with the same model and fact.
 */
export class ListBody {
  #models: Model[] = []
  /** Aliases of the last rows; undefined for models. */
  #names: (string | undefined)[] = []
  #facts: (string | number)[] = []
  /** The end of each row. The end of an omitted row is the end of the previous row. */
  #ends: number[] = []
  #bytes: Buffer | undefined
  #tag = ''
  #version = 0
  readonly #run = randomBytes(6).toString('base64url')

  /**
   * Sends the list, or 304 if the client already has it.
   * @param models all models. Do not use this for callers who may see only some of them.
   */
  send(reply: FastifyReply, models: readonly Model[], aliases: readonly ModelAlias[], rows: ListRows): FastifyReply {
    const bytes = this.#bytesOf(models, aliases, rows)
    reply.headers({ etag: this.#tag, 'cache-control': 'private, no-cache' })
    if (isKnown(reply.request.headers['if-none-match'], this.#tag)) return reply.code(304).send()
    return reply.type('application/json; charset=utf-8').send(bytes)
  }

  #bytesOf(models: readonly Model[], aliases: readonly ModelAlias[], rows: ListRows): Buffer {
    const { factOf, textOf } = rows
    const count = models.length + aliases.length
    const modelAt = (at: number) => (at < models.length ? models[at]! : aliases[at - models.length]!.model)
    const nameAt = (at: number) => (at < models.length ? undefined : aliases[at - models.length]!.alias)
    let isSame = this.#bytes !== undefined && count === this.#models.length
    for (let at = 0; isSame && at < count; at++) {
      isSame = modelAt(at) === this.#models[at] && nameAt(at) === this.#names[at]
    }
    if (isSame && rows.followNames) return this.#bytes!
    const facts = Array.from({ length: count }, (_, at) => factOf(modelAt(at), nameAt(at)))
    if (isSame && facts.every((fact, at) => fact === this.#facts[at])) return this.#bytes!

    const places = new Map<Model, number[]>()
    for (const [at, model] of this.#models.entries()) {
      const known = places.get(model)
      if (known) known.push(at)
      else places.set(model, [at])
    }
    const written = new Written(this.#bytes?.length ?? 0)
    written.text(rows.head)
    const begin = written.length
    const ends: number[] = new Array(count)
    for (let at = 0; at < count; at++) {
      const model = modelAt(at)
      const name = nameAt(at)
      const before = places.get(model)?.find(old => this.#names[old] === name && this.#facts[old] === facts[at])
      const row = before === undefined ? textOf(model, name) : this.#row(before, begin)
      if (row && row.length > 0) {
        if (written.length > begin) written.text(COMMA)
        typeof row === 'string' ? written.text(row) : written.bytes(row)
      }
      ends[at] = written.length
    }
    written.text(rows.tail)
    this.#bytes = written.all()
    this.#models = Array.from({ length: count }, (_, at) => modelAt(at))
    this.#names = Array.from({ length: count }, (_, at) => nameAt(at))
    this.#facts = facts
    this.#ends = ends
    this.#tag = `"${this.#run}-${++this.#version}"`
    return this.#bytes
  }

  /** The JSON of a row of the last reply, without the comma before it. @param begin start of the first row */
  #row(at: number, begin: number): Buffer {
    const from = at === 0 ? begin : this.#ends[at - 1]!
    const row = this.#bytes!.subarray(from, this.#ends[at]!)
    return row[0] === COMMA.charCodeAt(0) ? row.subarray(1) : row
  }
}

const COMMA = ','

/** A growing buffer. Joining thousands of small buffers would need twice the memory. */
class Written {
  #bytes: Buffer
  length = 0

  /** @param expected estimated number of bytes */
  constructor(expected: number) {
    this.#bytes = Buffer.allocUnsafeSlow(Math.max(expected + 4096, 65_536))
  }

  text(text: string): void {
    // No character takes more than three bytes per UTF-16 unit.
    this.#reserve(3 * text.length)
    this.length += this.#bytes.write(text, this.length)
  }

  bytes(bytes: Buffer): void {
    this.#reserve(bytes.length)
    this.length += bytes.copy(this.#bytes, this.length)
  }

  /** All bytes, in a buffer of exactly their size. */
  all(): Buffer {
    const all = Buffer.allocUnsafeSlow(this.length)
    this.#bytes.copy(all, 0, 0, this.length)
    return all
  }

  #reserve(more: number): void {
    const needed = this.length + more
    if (needed <= this.#bytes.length) return
    const larger = Buffer.allocUnsafeSlow(Math.ceil(needed * 1.5))
    this.#bytes.copy(larger, 0, 0, this.length)
    this.#bytes = larger
  }
}
