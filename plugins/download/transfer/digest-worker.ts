import { createHash, type Hash } from 'node:crypto'
import { closeSync, openSync, readSync } from 'node:fs'
import { parentPort } from 'node:worker_threads'
import { crc32 } from 'node:zlib'

export type DigestRequest =
  | { type: 'open'; id: number; path: string; size: number; chunkSize: number; git: boolean }
  /** Chunks that are on disk from `first` on, with their CRC-32; -1 where none is known. */
  | { type: 'chunks'; id: number; first: number; crcs: number[] }
  | { type: 'close'; id: number }

export type DigestReply =
  | { type: 'done'; id: number; sha256: string; gitSha1: string | undefined }
  /** The chunk on disk does not match its CRC-32. Chunks are expected again from this one on. */
  | { type: 'damaged'; id: number; chunk: number }
  | { type: 'failed'; id: number; message: string; code: string | undefined }

interface OpenFile {
  id: number
  descriptor: number
  size: number
  chunkSize: number
  count: number
  next: number
  crcs: number[]
  hashes: Hash[]
}

/** Size of reads: small enough to stay in the processor's cache. */
const READ = 256 * 1024

/**
 * Computes digests right behind the writing of files, in order. It reads the files back, and so finds damage by the disk
 * too.
 */
export class DigestWork {
  readonly #reply: (reply: DigestReply) => void
  readonly #files = new Map<number, OpenFile>()
  readonly #buffer = Buffer.allocUnsafeSlow(READ)
  #running = false

  constructor(reply: (reply: DigestReply) => void) {
    this.#reply = reply
  }

  order(order: DigestRequest): void {
    if (order.type === 'open') this.#open(order)
    else if (order.type === 'close') this.#close(order.id)
    else {
      const file = this.#files.get(order.id)
      // Chunks behind a damaged one were sent before that was known, and are sent again.
      if (!file || order.first !== file.next + file.crcs.length) return
      file.crcs.push(...order.crcs)
    }
    this.#start()
  }

  #open(order: Extract<DigestRequest, { type: 'open' }>): void {
    const { id, size, chunkSize } = order
    try {
      const hashes = [createHash('sha256')]
      if (order.git) hashes.push(createHash('sha1').update(`blob ${size}\0`))
      const count = Math.ceil(size / chunkSize)
      const descriptor = openSync(order.path, 'r')
      this.#files.set(id, { id, descriptor, size, chunkSize, count, next: 0, crcs: [], hashes })
    } catch (error) {
      this.#failed(id, error)
    }
  }

  #close(id: number): void {
    const file = this.#files.get(id)
    if (!file) return
    this.#files.delete(id)
    closeSync(file.descriptor)
  }

  #start(): void {
    if (this.#running) return
    this.#running = true
    setImmediate(() => this.#round())
  }

  /** Reads one chunk of each file, then lets messages in. */
  #round(): void {
    this.#running = false
    let more = false
    for (const file of [...this.#files.values()]) {
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

  #chunk(file: OpenFile): void {
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
    this.#reply({ type: 'damaged', id: file.id, chunk: file.next })
  }

  #finish(file: OpenFile): void {
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
port.on('message', (order: DigestRequest) => work.order(order))
