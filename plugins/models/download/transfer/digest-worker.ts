import { closeSync, openSync, readSync } from 'node:fs'
import { parentPort } from 'node:worker_threads'
import { crc32 } from 'node:zlib'
import { type DigestJob, type DigestReply, fileHashes, type WrittenChunks } from './digests.ts'

/** Small enough to stay in the processor's cache. */
const READ_BYTES = 256 * 1024
const buffer = Buffer.allocUnsafeSlow(READ_BYTES)

/** Reads a file back in order while it is being written, so it also finds damage by the disk. */
function digest({ path, size, chunkSize, git, port }: DigestJob): void {
  const reply = (message: DigestReply) => port.postMessage(message)
  let descriptor: number | undefined
  let hashes = fileHashes(size, git)
  let next = 0
  let crcs: WrittenChunks['crcs'] = []
  let scheduled = false

  function schedule() {
    if (scheduled || descriptor === undefined || (crcs.length === 0 && next < size)) return
    scheduled = true
    // Let other files and messages run between chunks.
    setImmediate(() => {
      scheduled = false
      attempt(step)
      schedule()
    })
  }

  function step() {
    if (next < size) readChunk()
    if (next < size) return
    const [sha256, gitSha1] = hashes.map(hash => hash.digest('hex'))
    close()
    reply({ type: 'done', sha256: sha256!, gitSha1 })
  }

  function readChunk() {
    const wanted = crcs.shift()
    const before = wanted === undefined ? [] : hashes.map(hash => hash.copy())
    const end = Math.min(size, next + chunkSize)
    let at = next
    let crc = 0
    while (at < end) {
      const length = readSync(descriptor!, buffer, 0, Math.min(READ_BYTES, end - at), at)
      if (length === 0) break
      const bytes = buffer.subarray(0, length)
      if (wanted !== undefined) crc = crc32(bytes, crc)
      for (const hash of hashes) hash.update(bytes)
      at += length
    }
    if (wanted === undefined && at < end) throw new Error(`${path} has become shorter`)
    if (at === end && (wanted === undefined || crc === wanted)) {
      next = end
      return
    }
    hashes = before
    crcs = []
    reply({ type: 'damaged', chunk: next / chunkSize })
  }

  function close() {
    if (descriptor !== undefined) closeSync(descriptor)
    descriptor = undefined
  }

  function attempt(action: () => void) {
    try {
      action()
    } catch (error) {
      close()
      const { message, code } = error as NodeJS.ErrnoException
      reply({ type: 'failed', message, code })
    }
  }

  port.on('message', (chunks: WrittenChunks) => {
    // Chunks after a damaged one were sent before it was known to be damaged, and are sent again.
    if (chunks.first === next / chunkSize + crcs.length) crcs.push(...chunks.crcs)
    schedule()
  })
  port.on('close', close)
  attempt(() => {
    descriptor = openSync(path, 'r')
  })
  schedule()
}

parentPort!.on('message', digest)
