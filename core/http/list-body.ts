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
  /** JSON before each list of rows; constant. */
  heads: readonly string[]
  /** JSON after the last list; depends only on the rows. */
  tail: string
  /** Whether rows stay the same as long as all models and aliases do. */
  followNames?: boolean
  /** Everything else that the row depends on besides the model, as one value. A new one renders the row again. */
  factOf(model: Model, alias?: string): string | number
  /** The JSON of the row in each list, if it has one there. */
  textsOf(model: Model, alias?: string): readonly (string | undefined)[]
}

interface Row {
  model: Model
  /** Undefined unless it is the row of an alias. */
  name: string | undefined
  fact: string | number
  texts: readonly (string | undefined)[]
}

/**
 * The reply of a list of models (a row for each model, then for each alias), or of several such lists. With thousands
 * of models, rendering the JSON takes most of the request's time, and hardly any row changes between two requests. So
 * the last reply is cached, and so are its rows, which are reused for the same model and fact.
 */
export class ListBody {
  #rows: Row[] = []
  #bytes: Buffer | undefined
  #tag = ''
  #version = 0
  readonly #run = randomBytes(6).toString('base64url')

  /** Sends the list, or 304 if the client has it. `models` are all: not for callers who may see only some of them. */
  send(reply: FastifyReply, models: readonly Model[], aliases: readonly ModelAlias[], rows: ListRows): FastifyReply {
    const bytes = this.#bytesOf(models, aliases, rows)
    reply.headers({ etag: this.#tag, 'cache-control': 'private, no-cache' })
    if (isKnown(reply.request.headers['if-none-match'], this.#tag)) return reply.code(304).send()
    return reply.type('application/json; charset=utf-8').send(bytes)
  }

  #bytesOf(models: readonly Model[], aliases: readonly ModelAlias[], rows: ListRows): Buffer {
    const last = this.#rows
    const modelAt = (at: number) => (at < models.length ? models[at]! : aliases[at - models.length]!.model)
    const nameAt = (at: number) => (at < models.length ? undefined : aliases[at - models.length]!.alias)
    const isSame =
      models.length + aliases.length === last.length &&
      last.every(({ model, name }, at) => modelAt(at) === model && nameAt(at) === name)
    if (this.#bytes && isSame && rows.followNames) return this.#bytes
    const facts = Array.from({ length: models.length + aliases.length }, (_, at) =>
      rows.factOf(modelAt(at), nameAt(at))
    )
    if (this.#bytes && isSame && last.every(({ fact }, at) => fact === facts[at])) return this.#bytes

    const places = new Map<Model, Row[]>()
    for (const row of last) {
      const known = places.get(row.model)
      if (known) known.push(row)
      else places.set(row.model, [row])
    }
    this.#rows = facts.map((fact, at) => {
      const model = modelAt(at)
      const name = nameAt(at)
      const before = places.get(model)?.find(old => old.name === name && old.fact === fact)
      return before ?? { model, name, fact, texts: rows.textsOf(model, name) }
    })
    const lists = rows.heads.map((head, at) => {
      const texts = this.#rows.map(row => row.texts[at]).filter(text => text !== undefined)
      return head + texts.join(',')
    })
    this.#bytes = Buffer.from(lists.join('') + rows.tail)
    this.#tag = `"${this.#run}-${++this.#version}"`
    return this.#bytes
  }
}
