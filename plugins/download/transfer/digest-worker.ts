import { createHash, type Hash } from 'node:crypto'
import { closeSync, openSync, readSync } from 'node:fs'
import { parentPort } from 'node:worker_threads'
import { crc32 } from 'node:zlib'

export type DigestOrder =
  | { type: 'open'; id: number; path: string; size: number; chunkSize: number; git: boolean }
  /** Chunks that are on disk from `first` on, with their CRC-32; -1 where none is known. */
  | { type: 'chunks'; id: number; first: number; crcs: number[] }
  | { type: 'close'; id: number }

export type DigestReply =
  | { type: 'done'; id: number; sha256: string; gitSha1: string | undefined }
  /** What is on disk is not what its CRC-32 says. Chunks are expected anew from this one on. */
  | { type: 'bad'; id: number; chunk: number }
  | { type: 'failed'; id: number; message: string; code: string | undefined }

interface Followed {
  id: number
  descriptor: number
  size: number
  chunkSize: number
  count: number
  next: number
  crcs: number[]
  hashes: Hash[]
}

/** Bytes read at once: few enough to stay in the processor's cache. */
const READ = 256 * 1024

/**
 * Computes digests close behind the writing of files, in order, from what the disk gives back, and so finds damage of
 * the disk too.
 */
export class DigestWork {
  readonly #reply: (reply: DigestReply) => void
  readonly #followed = new Map<number, Followed>()
  readonly #buffer = Buffer.allocUnsafeSlow(READ)
  #running = false

  constructor(reply: (reply: DigestReply) => void) {
    this.#reply = reply
  }

  order(order: DigestOrder): void {
    if (order.type === 'open') this.#open(order)
    else if (order.type === 'close') this.#close(order.id)
    else {
      const file = this.#followed.get(order.id)
      // What follows a bad chunk was sent before that was known, and comes again.
      if (!file || order.first !== file.next + file.crcs.length) return
      file.crcs.push(...order.crcs)
    }
    this.#start()
  }

  #open(order: Extract<DigestOrder, { type: 'open' }>): void {
    const { id, size, chunkSize } = order
    try {
      const hashes = [createHash('sha256')]
      if (order.git) hashes.push(createHash('sha1').update(`blob ${size}\0`))
      const count = Math.ceil(size / chunkSize)
      const descriptor = openSync(order.path, 'r')
      this.#followed.set(id, { id, descriptor, size, chunkSize, count, next: 0, crcs: [], hashes })
    } catch (error) {
      this.#failed(id, error)
    }
  }

  #close(id: number): void {
    const file = this.#followed.get(id)
    if (!file) return
    this.#followed.delete(id)
    closeSync(file.descriptor)
  }

  #start(): void {
    if (this.#running) return
    this.#running = true
    setImmediate(() => this.#round())
  }

  /** One chunk of each file; then orders are heard again. */
  #round(): void {
    this.#running = false
    let more = false
    for (const file of [...this.#followed.values()]) {
      if (file.next < file.count && file.crcs.length === 0) continue
      try {
        if (file.next < file.count) this.#chunk(file)
        if (file.next === file.count) this.#finish(file)
        else more ||= file.crcs.length > 0
      } catch (error) {
        this.#close(file.id)
        this.#failed(file.id, error)
      }
    }
    if (more) this.#start()
  }

  #chunk(file: Followed): void {
    const before = file.hashes.map(hash => hash.copy())
    const expected = file.crcs.shift()!
    const end = Math.min(file.size, (file.next + 1) * file.chunkSize)
    let at = file.next * file.chunkSize
    let crc = 0
    while (at < end) {
      const length = readSync(file.descriptor, this.#buffer, 0, Math.min(READ, end - at), at)
      if (length === 0) break
      const bytes = this.#buffer.subarray(0, length)
      crc = crc32(bytes, crc)
      for (const hash of file.hashes) hash.update(bytes)
      at += length
    }
    if (at === end && (expected === -1 || crc === expected)) {
      file.next += 1
      return
    }
    file.hashes = before
    file.crcs = []
    this.#reply({ type: 'bad', id: file.id, chunk: file.next })
  }

  #finish(file: Followed): void {
    this.#close(file.id)
    const [sha256, gitSha1] = file.hashes.map(hash => hash.digest('hex'))
    this.#reply({ type: 'done', id: file.id, sha256: sha256!, gitSha1 })
  }

  #failed(id: number, error: unknown): void {
    const { message, code } = error as NodeJS.ErrnoException
    this.#reply({ type: 'failed', id, message, code })
  }
}

const port = parentPort!
const work = new DigestWork(reply => port.postMessage(reply))
port.on('message', (order: DigestOrder) => work.order(order))
