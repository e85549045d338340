import { createHash, type Hash } from 'node:crypto'
import { type FileHandle, open as openFile } from 'node:fs/promises'
import type { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { CorralError, isSystemError, messageOf } from '../../../core/errors.ts'
import { formatBytes } from '../../../core/system/bytes.ts'

/** A file of a release, as GitHub's API lists it. */
export interface ReleaseAsset {
  name: string
  browser_download_url: string
  /** Bytes. */
  size: number
  /** `sha256:` and 64 hex digits. */
  digest?: string | null
}

/** A release, as GitHub's API gives it. */
export interface Release {
  tag_name: string
  assets: ReleaseAsset[]
}

/** The digest's 64 hex digits; undefined when it is absent or of another kind. */
export function sha256Of({ digest }: ReleaseAsset): string | undefined {
  return /^sha256:([0-9a-f]{64})$/i.exec(digest ?? '')?.[1]?.toLowerCase()
}

export interface DownloadOptions {
  /** Asks for the file. @throws CorralError */
  open(headers: Record<string, string>): Promise<{
    statusCode: number
    headers: Record<string, string | string[] | undefined>
    body: Readable
  }>
  /** How many bytes there are by now; fewer than before when it has to begin anew. */
  onBytes(bytes: number): void
  signal: AbortSignal
}

/** Attempts in a row that bring next to nothing until a transfer is given up, and the pauses between them. */
const ATTEMPTS = 4
const PAUSE = 500
/** Bytes of one attempt that count as getting on. */
const GETTING_ON = 64 * 1024

/** What is stored of a file so far. */
interface Stored {
  file: FileHandle
  bytes: number
  hash: Hash
  /** What names these very bytes at the server. */
  validator: string | undefined
}

/**
 * Stores a release's file under `path`, checking its size and digest; a transfer that breaks off goes on where it was.
 * @throws CorralError `checksum_mismatch` when it is not what the release says it is, `insufficient_storage`,
 *   `hub_unreachable`
 */
export async function downloadChecked(asset: ReleaseAsset, path: string, options: DownloadOptions): Promise<void> {
  const expected = sha256Of(asset)
  if (expected === undefined) {
    throw new CorralError('checksum_mismatch', `${asset.name} has no SHA-256 digest to check it by.`)
  }
  const state: Stored = { file: await openFile(path, 'w'), bytes: 0, hash: createHash('sha256'), validator: undefined }
  try {
    const resumed = await fetchAll(asset, state, options)
    let digest = state.hash.digest('hex')
    if (digest !== expected && resumed) {
      // The parts may have been of two different files.
      await begin(state)
      await fetchAll(asset, state, options)
      digest = state.hash.digest('hex')
    }
    if (digest === expected) return
    throw new CorralError(
      'checksum_mismatch',
      `${asset.name} has the digest ${digest}, ${expected} was announced: it was damaged or replaced on the way. ` +
        'Try again, or through another mirror.'
    )
  } catch (error) {
    if (!isSystemError(error, 'ENOSPC', 'EDQUOT')) throw error
    throw new CorralError(
      'insufficient_storage',
      `The disk is full: ${asset.name} has ${formatBytes(asset.size)}, and does not fit beside ${path}. Free some space.`,
      { cause: error }
    )
  } finally {
    await state.file.close()
  }
}

/** Fetches until all bytes are there; gives whether they came in more than one piece. */
async function fetchAll(asset: ReleaseAsset, state: Stored, options: DownloadOptions): Promise<boolean> {
  const { signal } = options
  let last: unknown
  for (let failures = 0, pieces = 1; ; pieces++) {
    const before = state.bytes
    let reason: unknown
    try {
      await fetchRest(asset, state, options)
      if (state.bytes === asset.size) return pieces > 1
      reason = new CorralError(
        'checksum_mismatch',
        `${asset.name} has ${state.bytes} bytes, ${asset.size} were announced.`
      )
    } catch (error) {
      signal.throwIfAborted()
      if (!worthAnotherTry(error)) throw last !== undefined && statusOf(error) === 416 ? last : error
      reason = error
    }
    last = reason
    failures = state.bytes - before >= GETTING_ON ? 1 : failures + 1
    if (failures === ATTEMPTS) throw reason
    await sleep(PAUSE * 2 ** (failures - 1), undefined, { signal }).catch(() => signal.throwIfAborted())
  }
}

function worthAnotherTry(error: unknown): boolean {
  if (!(error instanceof CorralError) || error.code !== 'hub_unreachable') return false
  const status = statusOf(error)
  // 403: a signed address that has expired; the next attempt gets a fresh one.
  return status === undefined || status >= 500 || status === 408 || status === 403
}

function statusOf(error: unknown): number | undefined {
  return error instanceof CorralError && 'answered' in error ? Number(error.answered) : undefined
}

async function begin(state: Stored): Promise<void> {
  await state.file.truncate(0)
  state.bytes = 0
  state.hash = createHash('sha256')
  state.validator = undefined
}

async function fetchRest(asset: ReleaseAsset, state: Stored, { open, onBytes, signal }: DownloadOptions) {
  const { validator } = state
  const rest: Record<string, string> =
    state.bytes === 0 ? {} : { range: `bytes=${state.bytes}-`, ...(validator && { 'if-range': validator }) }
  const { statusCode, headers, body } = await open(rest)
  const start = Number(/^bytes (\d+)-/.exec(String(headers['content-range'] ?? ''))?.[1] ?? 0)
  if (statusCode !== 206 || start !== state.bytes) await begin(state)
  if (statusCode === 206 && start !== state.bytes) {
    body.destroy()
    throw new CorralError('hub_unreachable', `${asset.name}: the server sent other bytes than were asked for`)
  }
  // A weak one does not promise the same bytes.
  const tag = String(headers.etag ?? '')
  state.validator ??= tag !== '' && !tag.startsWith('W/') ? tag : String(headers['last-modified'] ?? '') || undefined
  onBytes(state.bytes)
  try {
    for await (const piece of body as AsyncIterable<Buffer>) {
      if (state.bytes + piece.length > asset.size) {
        throw new CorralError('checksum_mismatch', `${asset.name} has more bytes than the ${asset.size} announced.`)
      }
      for (let at = 0; at < piece.length; ) {
        at += (await state.file.write(piece, at, piece.length - at, state.bytes + at)).bytesWritten
      }
      state.hash.update(piece)
      state.bytes += piece.length
      onBytes(state.bytes)
    }
  } catch (error) {
    if (signal.aborted) throw signal.reason
    if (error instanceof CorralError || isSystemError(error, 'ENOSPC', 'EDQUOT', 'EIO')) throw error
    throw new CorralError(
      'hub_unreachable',
      `${asset.name}: the download broke off after ${state.bytes} of ${asset.size} bytes (${messageOf(error)}). Try again.`,
      { cause: error }
    )
  } finally {
    body.destroy()
  }
}
