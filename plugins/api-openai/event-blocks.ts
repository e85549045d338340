import { randomUUID } from 'node:crypto'

const NOTHING = Buffer.alloc(0)
const LINE_FEED = 10
const COLON = 58
const END_OF_EVENT = Buffer.from('\n\n')
const DONE = Buffer.from('data: [DONE]\n')
const ERROR = Buffer.from('data: {"error":')
const ID = Buffer.from('"id":"chatcmpl-')
const ID_LENGTH = 32
const QUOTE = 34
const NULL = Buffer.from('data: null\n\n')

/** What part of the engine's stream means, without its events being parsed. */
export interface EventBlock {
  /** Whole events, as they are to be passed on; empty when there is nothing to pass on. */
  bytes: Buffer
  /** Whether the answer is complete. */
  done: boolean
  /** The JSON of the engine's own error, with which its stream ends. */
  error?: string
}

/**
 * Cuts the engine's Server-Sent Events at the ends of events, without looking into them: a chunk that holds whole events,
 * as nearly every one does, is passed on as it is.
 */
export class EventBlocks {
  #rest: Buffer = NOTHING
  readonly #changes: Change[]
  readonly #id: string | undefined

  constructor(renames: Renames = {}) {
    this.#changes = changesOf(renames)
    this.#id = renames.id?.slice(-ID_LENGTH)
  }

  /** The events that this chunk completes; undefined when it completes none worth passing on. */
  push(chunk: Buffer): EventBlock | undefined {
    const data = this.#rest.length ? Buffer.concat([this.#rest, chunk]) : chunk
    const end = endOfEvents(data)
    this.#rest = end === data.length ? NOTHING : data.subarray(end)
    if (end === 0) return undefined
    let bytes = end === data.length ? data : data.subarray(0, end)
    // A comment that only keeps the connection open: corral sends its own.
    if (bytes[0] === COLON && bytes.indexOf('data:') === -1) return undefined
    // llama-server begins each further choice of one request with an event that is no chunk.
    if (bytes.includes(NULL)) bytes = replaceAll(bytes, NULL.toString('latin1'), '')
    const at = startOf(bytes, ERROR)
    if (at !== -1) {
      const lineEnd = bytes.indexOf(LINE_FEED, at)
      return {
        bytes: this.#renamed(bytes.subarray(0, at)),
        done: false,
        error: bytes.toString('utf8', at + 'data: '.length, lineEnd)
      }
    }
    return { bytes: this.#renamed(bytes), done: startOf(bytes, DONE) !== -1 }
  }

  #renamed(bytes: Buffer): Buffer {
    if (this.#id !== undefined) {
      // The engine's own are as long, so it is written in their place.
      for (let at = bytes.indexOf(ID); at !== -1; at = bytes.indexOf(ID, at + 1)) {
        const start = at + ID.length
        if (bytes[start + ID_LENGTH] === QUOTE) bytes.write(this.#id, start, ID_LENGTH, 'latin1')
      }
    }
    return changed(bytes, this.#changes)
  }
}

function endOfEvents(data: Buffer): number {
  const { length } = data
  if (length > 1 && data[length - 1] === LINE_FEED && data[length - 2] === LINE_FEED) return length
  const at = data.lastIndexOf(END_OF_EVENT)
  return at === -1 ? 0 : at + END_OF_EVENT.length
}

/** Where a line with these first bytes starts. Line feeds within JSON are escaped, so a line start is unambiguous. */
function startOf(bytes: Buffer, line: Buffer): number {
  let at = bytes.indexOf(line)
  while (at > 0 && bytes[at - 1] !== LINE_FEED) at = bytes.indexOf(line, at + 1)
  return at
}

/** Both texts are ASCII; other bytes stay as they are. */
function replaceAll(bytes: Buffer, from: string, to: string): Buffer {
  if (!bytes.includes(from, 0, 'latin1')) return bytes
  return Buffer.from(
    bytes.toString('latin1').replaceAll(from, () => to),
    'latin1'
  )
}

/**
 * A new id of an answer. llama-server makes its own of 32 random bits, so that they come again, and gives completions ids
 * of chat completions.
 */
export function answerId(kind: 'chatcmpl' | 'cmpl'): string {
  return `${kind}-${randomUUID().replaceAll('-', '')}`
}

/** What is called otherwise in a reply than the engine calls it. */
export interface Renames {
  /** The model's name as the engine reports it, and as it was asked for. */
  model?: [alias: string, asked: string]
  /** The answer's id, of `answerId`. */
  id?: string
}

interface Change {
  from: string
  to: string
}

function changesOf({ model, id }: Renames): Change[] {
  const changes: Change[] = []
  if (model && model[0] !== model[1]) {
    changes.push({ from: `"model":${JSON.stringify(model[0])}`, to: `"model":${JSON.stringify(model[1])}` })
  }
  // Within JSON texts quotes are escaped, so only the members themselves look like this.
  if (id?.startsWith('cmpl-')) changes.push({ from: ID.toString('latin1'), to: '"id":"cmpl-' })
  return changes
}

function changed(bytes: Buffer, changes: readonly Change[]): Buffer {
  return changes.reduce((before, { from, to }) => replaceAll(before, from, to), bytes)
}

/** A whole answer with the names that it is to have. */
export function renamed(body: Buffer, renames: Renames): Buffer {
  return changed(body, changesOf(renames))
}
