import { storedText } from '../../../../core/answers/documents.ts'
import type { Caller } from '../../../../core/contracts/callers.ts'
import type { LocalModel } from '../../../../core/contracts/native-records.ts'
import { sendInternally } from '../../../../core/http/internal-request.ts'
import { untilAborted } from '../../../../core/system/abort-signals.ts'
import { isObject, parseAnyJson } from '../../../../core/system/json-object.ts'
import { KeyedQueue } from '../../../../core/system/keyed-queue.ts'
import type { BuiltInCall, BuiltInContext } from './built-in-call.ts'
import { type Passage, splitPassages } from './passages.ts'

/** Files of one search, the newest ones. */
const MAX_FILES = 50
/** Passages of one search: a book has about 1000. */
const MAX_PASSAGES = 4000
const PASSAGES_PER_REQUEST = 16
/** Bytes of all passages and embeddings in memory. */
const MAX_CACHED_BYTES = 64 * 2 ** 20
const USUAL_LIMIT = 5
/** Purposes of files that are documents. Others are requests and results of batches. */
const DOCUMENTS = ['user_data', 'assistants']

interface Query {
  query: string
  files?: string[]
  limit?: number
}

/** The passages of a file, and the embeddings of the first of them. */
interface Entry {
  owner: string
  file: string
  passages: Passage[]
  vectors: Float32Array[]
}

/** Searches the documents that callers have uploaded. Nobody finds a document of another owner. */
export class DocumentSearch {
  readonly #context: BuiltInContext
  /** By file and model, the least recently used first. Contents of files never change. */
  readonly #entries = new Map<string, Entry>()
  /** The searches of an owner run one after the other, because the first one prepares the files for all. */
  readonly #owners = new KeyedQueue()

  constructor(context: BuiltInContext) {
    this.#context = context
  }

  /** @throws Error whose message is for the model */
  async run(query: Query, call: BuiltInCall): Promise<string> {
    const searching = this.#owners.run(call.caller.owner, async () => {
      call.signal.throwIfAborted()
      try {
        return await this.#search(query, call)
      } finally {
        // Cancelled searches have read files too.
        this.#shrink()
      }
    })
    return await untilAborted(searching, call.signal)
  }

  async #search({ query, files: named, limit = USUAL_LIMIT }: Query, call: BuiltInCall): Promise<string> {
    const { caller } = call
    // The rest of the time is for the question itself, and embeddings are kept for the next search.
    const until = performance.now() + call.timeout * 0.7
    const { userFiles } = this.#context.app()
    const own = userFiles?.list(caller.owner).filter(({ purpose }) => DOCUMENTS.includes(purpose)) ?? []
    this.#forgetOthers(
      caller,
      own.map(({ id }) => id)
    )
    const wanted = own
      .filter(({ id, filename }) => named === undefined || named.includes(id) || named.includes(filename))
      .sort((a, b) => b.createdAt - a.createdAt)
    if (!userFiles || wanted.length === 0) throw new Error(nothingFound(own.map(({ filename }) => filename)))
    const model = this.#context.settings.embedding_model || (await this.#firstModel(call))
    const [question] = await this.#embed(model, [query], call)
    const notes: string[] = []
    const found: { score: number; file: string; file_id: string; passage: Passage }[] = []
    let left = MAX_PASSAGES
    for (const [index, { id, filename: file }] of wanted.entries()) {
      if (index === MAX_FILES || left <= 0 || performance.now() > until) {
        notes.push(`${wanted.length - index} older files were not searched. Name the files to search.`)
        break
      }
      const entry = await this.#entry(id, model, userFiles, call)
      if ('because' in entry) {
        notes.push(`"${file}" was not searched: ${entry.because}.`)
        continue
      }
      const total = Math.min(entry.passages.length, left)
      while (entry.vectors.length < total && performance.now() < until) {
        const batch = entry.passages.slice(entry.vectors.length, entry.vectors.length + PASSAGES_PER_REQUEST)
        const texts = batch.map(({ text }) => text)
        entry.vectors.push(...(await this.#embed(model, texts, call)))
      }
      if (entry.vectors.length < entry.passages.length) {
        notes.push(
          `Of "${file}" the first ${entry.vectors.length} of ${entry.passages.length} passages were searched. Searching again continues.`
        )
      }
      left -= entry.vectors.length
      for (const [at, vector] of entry.vectors.entries()) {
        found.push({ score: product(vector, question!), file, file_id: id, passage: entry.passages[at]! })
      }
    }
    const best = found.sort((a, b) => b.score - a.score).slice(0, limit)
    const passages = best.map(({ score, passage: { text, ...place }, ...file }) => ({
      ...file,
      ...place,
      score: Math.round(score * 1000) / 1000,
      text
    }))
    return JSON.stringify({ passages, ...(notes.length > 0 && { notes }) })
  }

  async #entry(
    file: string,
    model: string,
    files: Parameters<typeof storedText>[1],
    { caller, signal }: BuiltInCall
  ): Promise<Entry | { because: string }> {
    const key = `${file} ${model}`
    let entry = this.#entries.get(key)
    if (!entry) {
      const read = await storedText(file, files, caller, this.#context.limits, signal)
      if ('because' in read) return read
      const passages = await splitPassages(read.text, read.pages !== undefined, MAX_PASSAGES)
      if (passages.length === 0) return { because: 'it contains no text' }
      entry = { owner: caller.owner, file, passages, vectors: [] }
    }
    this.#entries.delete(key)
    this.#entries.set(key, entry)
    return entry
  }

  /** Forgets files that the owner has deleted. */
  #forgetOthers({ owner }: Caller, files: readonly string[]): void {
    for (const [key, entry] of this.#entries) {
      if (entry.owner === owner && !files.includes(entry.file)) this.#entries.delete(key)
    }
  }

  #shrink(): void {
    let bytes = 0
    for (const [key, entry] of [...this.#entries].reverse()) {
      for (const { text } of entry.passages) bytes += 2 * text.length + 200
      for (const { byteLength } of entry.vectors) bytes += byteLength
      if (bytes > MAX_CACHED_BYTES) this.#entries.delete(key)
    }
  }

  async #firstModel(call: BuiltInCall): Promise<string> {
    const { models } = await this.#ask<{ models: LocalModel[] }>('/api/tags', undefined, call)
    const model = models.find(({ capabilities }) => capabilities.includes('embedding'))
    if (model) return model.name
    throw new Error(
      'no embedding model is installed. An admin can pull one, and name it in "mcp.embedding_model" in config.yaml'
    )
  }

  async #embed(model: string, input: string[], call: BuiltInCall): Promise<Float32Array[]> {
    const { embeddings } = await this.#ask<{ embeddings: number[][] }>(
      '/api/embed',
      { model, input, truncate: true },
      call
    )
    return embeddings.map(vector => Float32Array.from(vector))
  }

  /** Sends a request as the caller, with all of its limits. */
  async #ask<Reply>(url: string, body: object | undefined, { caller, signal }: BuiltInCall): Promise<Reply> {
    const asked = { url, signal, ...(body && { body: JSON.stringify(body) }) }
    const { status, body: bytes } = await sendInternally(this.#context.app(), caller, asked)
    const reply = parseAnyJson(bytes.toString())
    if (status === 200) return reply as Reply
    throw new Error(`the documents cannot be searched: ${isObject(reply) ? reply.error : status}`)
  }
}

/** @param own names of all documents */
function nothingFound(own: readonly string[]): string {
  if (own.length === 0) return 'the user has no documents. They are uploaded with POST /v1/files as "user_data"'
  return `there is no such document. The documents are: ${own.slice(0, 10).join(', ')}`
}

/** Returns how similar two embeddings of length 1 are. */
function product(one: Float32Array, other: Float32Array): number {
  let sum = 0
  for (let at = 0; at < one.length; at++) sum += one[at]! * other[at]!
  return sum
}
