import { createHash, randomBytes } from 'node:crypto'
import { mkdir, open, rename, rm, stat, utimes } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import type { Storage } from '../../../core/contracts/storage.ts'
import { CorralError, isSystemError } from '../../../core/errors.ts'
import { requireSpace } from '../../../core/system/disk-space.ts'
import { namesIn } from '../../../core/system/folder-names.ts'

/** Files that clients sent so that models are made of them, by their SHA-256 (64 hex digits). */
export interface BlobStore {
  has(sha256: string): Promise<boolean>
  /**
   * Stores what arrives under its digest, or nothing.
   * @param size bytes to come, where that is known
   * @throws CorralError `invalid_request` when it is something else, `insufficient_storage`; whatever the body throws
   */
  write(sha256: string, body: AsyncIterable<Buffer>, size: number | undefined): Promise<void>
  /**
   * Gives the absolute paths of blobs, in their order, and keeps them until the work is done. A blob that was of use
   * goes then: what was made of it holds the same content, and is found in its place.
   * @throws CorralError `invalid_request` naming the digest that was not sent
   */
  use<T>(digests: readonly string[], work: (paths: string[]) => Promise<T>): Promise<T>
  /** Removes what an earlier process did not get whole, and what nobody used for a day. */
  sweep(age?: number): Promise<void>
}

const DAY = 24 * 3_600_000
const PART = /^[0-9a-f]{32}\.part$/
const BLOB = /^sha256-([0-9a-f]{64})$/

/** @param folder on the disk of the models, so that blobs become models without being copied */
export function createBlobStore(folder: string, storage: Storage, log: FastifyBaseLogger): BlobStore {
  /** How often each blob is in use. */
  const users = new Map<string, number>()
  /** Uploads that are going on. */
  const parts = new Set<string>()
  const pathOf = (sha256: string) => join(folder, `sha256-${sha256}`)

  /** A stored model's file of this content. */
  function stored(sha256: string) {
    for (const variant of storage.list()) {
      const file = variant.files.find(file => file.sha256 === sha256)
      if (file) return { variant, path: join(variant.directory, ...file.path.split('/')) }
    }
    return undefined
  }

  async function find(sha256: string): Promise<{ path: string; release: () => void } | undefined> {
    // A blob may be about to go, since it was of use: then it is part of a model already.
    const found = stored(sha256)
    if (found) {
      const release = storage.hold(found.variant)
      if (await isFile(found.path)) return { path: found.path, release }
      release()
    }
    return (await isFile(pathOf(sha256))) ? { path: pathOf(sha256), release: () => {} } : undefined
  }

  function done(sha256: string): boolean {
    const rest = users.get(sha256)! - 1
    if (rest > 0) users.set(sha256, rest)
    else users.delete(sha256)
    return rest === 0
  }

  return {
    async has(sha256) {
      // Who asks is about to use it: its day begins anew.
      const now = new Date()
      await utimes(pathOf(sha256), now, now).catch(error => {
        if (!isSystemError(error, 'ENOENT')) throw error
      })
      const found = await find(sha256)
      found?.release()
      return found !== undefined
    },

    async write(sha256, body, size) {
      const name = `${randomBytes(16).toString('hex')}.part`
      const part = join(folder, name)
      parts.add(name)
      try {
        await mkdir(folder, { recursive: true })
        if (size !== undefined) await requireSpace(folder, size, 'The file needs')
        const digest = await receive(part, body)
        if (digest !== sha256) throw otherDigest(sha256, digest)
        await rename(part, pathOf(sha256))
      } catch (error) {
        await rm(part, { force: true })
        throw isSystemError(error, 'ENOSPC', 'EDQUOT') ? diskFull(folder, error) : error
      } finally {
        parts.delete(name)
      }
    },

    async use(digests, work) {
      for (const sha256 of digests) users.set(sha256, (users.get(sha256) ?? 0) + 1)
      const found: { path: string; release: () => void }[] = []
      let used = false
      try {
        for (const sha256 of digests) {
          const blob = await find(sha256)
          if (!blob) throw neverSent(sha256)
          found.push(blob)
        }
        const result = await work(found.map(({ path }) => path))
        used = true
        return result
      } finally {
        for (const { release } of found) release()
        for (const sha256 of digests) {
          // Another one that uses it may fail, and be tried again: then it is found where it was put now.
          if (done(sha256) && used) await rm(pathOf(sha256), { force: true })
        }
      }
    },

    async sweep(age = DAY) {
      for (const name of await namesIn(folder)) {
        const sha256 = BLOB.exec(name)?.[1]
        const isLeft = PART.test(name) && !parts.has(name)
        if (!isLeft && (sha256 === undefined || users.has(sha256))) continue
        const path = join(folder, name)
        try {
          if (isLeft || Date.now() - (await stat(path)).mtimeMs > age) await rm(path, { force: true })
        } catch (error) {
          log.warn(error, `${path}, which no model needs, cannot be deleted`)
        }
      }
    }
  }
}

/** Writes a body to a new file, durably. @returns its SHA-256 */
async function receive(path: string, body: AsyncIterable<Buffer>): Promise<string> {
  const hash = createHash('sha256')
  const file = await open(path, 'wx', 0o600)
  try {
    for await (const chunk of body) {
      hash.update(chunk)
      for (let at = 0; at < chunk.length; ) at += (await file.write(chunk, at)).bytesWritten
    }
    await file.sync()
  } finally {
    await file.close()
  }
  return hash.digest('hex')
}

async function isFile(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isFile()
  } catch (error) {
    if (isSystemError(error, 'ENOENT', 'ENOTDIR')) return false
    throw error
  }
}

function diskFull(folder: string, cause: unknown): CorralError {
  return new CorralError(
    'insufficient_storage',
    `The disk of ${folder} became full while the file arrived; nothing of it was kept. ` +
      'Remove models that are not needed, or choose another disk with CORRAL_MODELS.',
    { cause }
  )
}

function otherDigest(wanted: string, got: string): CorralError {
  return new CorralError(
    'invalid_request',
    `The file that arrived has the digest sha256:${got}, not sha256:${wanted}; nothing of it was kept. ` +
      'Send the file that the digest was computed of.',
    { param: 'digest' }
  )
}

function neverSent(sha256: string): CorralError {
  return new CorralError(
    'invalid_request',
    `The file sha256:${sha256} is not here. Send it first with POST blobs/sha256:${sha256}, then create the model.`,
    { param: 'files' }
  )
}

/**
 * The 64 hex digits of a digest as Ollama's clients write it: `sha256:<64 hex digits>`, older ones with a dash.
 * @throws CorralError `invalid_request`
 */
export function parseDigest(text: string, param: string): string {
  const digits = /^sha256[:-]([0-9a-f]{64})$/i.exec(text)?.[1]
  if (digits !== undefined) return digits.toLowerCase()
  throw new CorralError(
    'invalid_request',
    `${JSON.stringify(text.slice(0, 100))} is no digest. Write sha256:<64 hex digits>.`,
    { param }
  )
}
