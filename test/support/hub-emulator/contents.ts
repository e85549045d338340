import { createHash } from 'node:crypto'
import { closeSync, openSync, readSync, statSync } from 'node:fs'

/** Bytes that a hub serves without keeping all of them in memory. */
export interface Content {
  readonly size: number
  /** Digests that are given instead of computed. */
  readonly digests?: Digests
  /** Bytes from `start` up to, but not including, `end`. */
  read(start: number, end: number): Buffer
}

/** Bytes that are generated on request: `head` first, then a pattern of `seed` that differs at every position. */
export interface GeneratedFile {
  size: number
  seed?: number
  head?: Buffer
  /** Digests that the hub reports instead of computing them, for large files that nobody downloads. */
  digests?: Digests
}

/** A file of an emulated repository: its bytes, its text, a generator, or a path on disk. */
export type EmulatedFile = Buffer | string | GeneratedFile | { from: string }

const PAGE = 4096
const PATTERN_PAGES = 256

/** Pseudo-random bytes of a seed (xorshift32). */
function pattern(seed: number): Buffer {
  const words = new Uint32Array((PATTERN_PAGES * PAGE) / 4)
  let state = (seed * 2_654_435_761 + 1) >>> 0 || 1
  for (let index = 0; index < words.length; index++) {
    state ^= state << 13
    state ^= state >>> 17
    state ^= state << 5
    words[index] = state >>> 0
  }
  return Buffer.from(words.buffer)
}

function generated({ size, seed = 1, head = Buffer.alloc(0), digests }: GeneratedFile): Content {
  let base: Buffer | undefined
  return {
    size,
    ...(digests && { digests }),
    read(start, end) {
      base ??= pattern(seed)
      const first = Math.floor(start / PAGE)
      const last = Math.ceil(end / PAGE)
      const pages = Buffer.allocUnsafe((last - first) * PAGE)
      for (let page = first; page < last; page++) {
        const at = (page - first) * PAGE
        const from = (page % PATTERN_PAGES) * PAGE
        base.copy(pages, at, from, from + PAGE)
        // Each page contains its number, so that misplaced bytes never have the right digest.
        pages.writeDoubleLE(page, at)
      }
      const bytes = pages.subarray(start - first * PAGE, end - first * PAGE)
      if (start < head.length) head.copy(bytes, 0, start, Math.min(end, head.length))
      return bytes
    }
  }
}

function fromDisk(path: string): Content {
  return {
    size: statSync(path).size,
    read(start, end) {
      const bytes = Buffer.alloc(end - start)
      const file = openSync(path, 'r')
      try {
        readSync(file, bytes, 0, bytes.length, start)
      } finally {
        closeSync(file)
      }
      return bytes
    }
  }
}

export function toContent(file: EmulatedFile): Content {
  if (typeof file === 'string') return toContent(Buffer.from(file))
  if (Buffer.isBuffer(file)) return { size: file.length, read: (start, end) => file.subarray(start, end) }
  return 'from' in file ? fromDisk(file.from) : generated(file)
}

/** Digests of a file: SHA-256 (64 hex digits), and the SHA-1 of its git blob (40 hex digits). */
export interface Digests {
  sha256: string
  gitSha1: string
}

const known = new WeakMap<Content, Promise<Digests>>()

async function compute(content: Content): Promise<Digests> {
  const sha256 = createHash('sha256')
  const sha1 = createHash('sha1').update(`blob ${content.size}\0`)
  const step = 4 * 1024 * 1024
  for (let start = 0; start < content.size; start += step) {
    const bytes = content.read(start, Math.min(start + step, content.size))
    sha256.update(bytes)
    sha1.update(bytes)
    // Lets other requests be answered in between.
    await new Promise(setImmediate)
  }
  return { sha256: sha256.digest('hex'), gitSha1: sha1.digest('hex') }
}

export function getDigests(content: Content): Promise<Digests> {
  let digests = known.get(content) ?? (content.digests && Promise.resolve(content.digests))
  if (!digests) {
    digests = compute(content)
    known.set(content, digests)
  }
  return digests
}

/** The SHA-256 of a file, as a hub reports it. */
export async function sha256Of(file: EmulatedFile): Promise<string> {
  return (await getDigests(toContent(file))).sha256
}
