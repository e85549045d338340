import { createHash } from 'node:crypto'
import { open as openFile } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Static, Type } from 'typebox'
import type { Dispatcher } from 'undici'
import { CorralError, errorMessage, isSystemError } from '../errors.ts'
import { formatBytes } from './bytes.ts'
import { openConnections, type ServerConnections } from './connections.ts'
import { diskRefusal } from './disk-space.ts'
import { parseDuration } from './duration.ts'
import { isRedirect, MAX_REDIRECTS } from './redirects.ts'
import { retryAfterSeconds } from './retry-after.ts'
import { fits } from './schema-check.ts'
import { parseUntrustedJson } from './untrusted-json.ts'

export interface ReleaseServerOptions {
  /** Address of a server with GitHub's API for releases. */
  api_url: string
  /** Mirror to download from instead of https://github.com. Empty for none. */
  download_url: string
  repository: string
  connect_timeout: string | number
  /** What else a user can do who gets no more answers without a credential: the end of a sentence. */
  advice?: string
  /** Milliseconds without a byte after which a connection is given up. */
  stallTimeout?: number
}

/** A completely uploaded file of a release whose name is safe as a file name here. */
const AssetSchema = Type.Object({
  name: Type.String({ pattern: '^\\w[\\w.+-]*$' }),
  browser_download_url: Type.String(),
  size: Type.Number(),
  /** `sha256:` and 64 hex digits. */
  digest: Type.Optional(Type.Union([Type.String(), Type.Null()])),
  state: Type.Optional(Type.Literal('uploaded'))
})
export type ReleaseAsset = Static<typeof AssetSchema>

const ReleaseSchema = Type.Object({
  tag_name: Type.String({ pattern: '^[\\w.-]+$' }),
  assets: Type.Array(Type.Unknown())
})

export interface Release {
  tag_name: string
  assets: ReleaseAsset[]
}

/** Returns the digest's 64 hex digits, or undefined if it is absent or of another kind. */
export function getSha256({ digest }: ReleaseAsset): string | undefined {
  return /^sha256:([0-9a-f]{64})$/i.exec(digest ?? '')?.[1]?.toLowerCase()
}

const ANSWER_LIMIT_MS = 10_000
const STALL_LIMIT = 30_000
const PAGE_SIZE = 50

/** Consecutive attempts without progress before a download is given up, and milliseconds before the second attempt. */
const ATTEMPTS = 4
const PAUSE = 500
const MIN_PROGRESS_BYTES = 64 * 1024

export class ReleaseStatusError extends CorralError {
  readonly answered: number

  /** @param redirected after a redirect, 403 means that the address has expired, not too many requests */
  constructor(
    url: string,
    status: number,
    headers: Dispatcher.ResponseData['headers'],
    redirected: boolean,
    advice?: string
  ) {
    if (status === 429 || (status === 403 && !redirected)) {
      const seconds = retryAfterSeconds(headers as Record<string, string>, Date.now()) || 60
      super(
        'hub_rate_limited',
        `${url}: status ${status} (too many requests without a credential). Try again in ${Math.ceil(seconds / 60)} min${advice ?? ''}.`,
        { retryAfter: seconds }
      )
    } else super('hub_unreachable', `${url}: status ${status}`)
    this.answered = status
  }
}

export const isMissing = (error: unknown) => error instanceof ReleaseStatusError && error.answered === 404

function isRetryable(error: unknown): boolean {
  if (!(error instanceof CorralError) || error.code !== 'hub_unreachable') return false
  if (!(error instanceof ReleaseStatusError)) return true
  // 403: a signed address has expired. The next attempt gets a new one.
  return error.answered >= 500 || error.answered === 408 || error.answered === 403
}

/** Maximum size of a reply that is read into memory. A page of releases has a few MB. */
const MAX_REPLY_BYTES = 64_000_000

async function readText(body: AsyncIterable<Buffer>): Promise<string> {
  const pieces: Buffer[] = []
  let size = 0
  for await (const piece of body) {
    size += piece.length
    if (size > MAX_REPLY_BYTES) throw new Error(`it is larger than ${MAX_REPLY_BYTES} bytes`)
    pieces.push(piece)
  }
  return Buffer.concat(pieces).toString()
}

/** Downloads from a server with GitHub's API for releases, without credentials. */
export class ReleaseServer {
  readonly #options: ReleaseServerOptions
  #connections: Promise<ServerConnections> | undefined

  constructor(options: ReleaseServerOptions) {
    this.#options = options
  }

  /** Opens the response after all redirects. Each redirect may lead to another server. */
  async #open(
    address: string,
    accept: string,
    signal: AbortSignal,
    headers: Record<string, string> = {}
  ): Promise<Pick<Dispatcher.ResponseData, 'statusCode' | 'headers' | 'body'>> {
    const { connect_timeout, stallTimeout = STALL_LIMIT } = this.#options
    try {
      const { request } = await import('undici')
      this.#connections ??= openConnections(undefined, {
        connect: { timeout: parseDuration(connect_timeout)! },
        headersTimeout: Math.min(ANSWER_LIMIT_MS, stallTimeout),
        bodyTimeout: stallTimeout
      })
      const { to } = await this.#connections
      let url = new URL(address)
      for (let redirects = 0; redirects <= MAX_REDIRECTS; redirects++) {
        const response = await request(url, {
          dispatcher: to(url),
          signal,
          headers: { 'user-agent': 'corral', accept, ...headers }
        })
        const { statusCode, headers: answer } = response
        if (statusCode < 300) return response
        await response.body.dump()
        if (!isRedirect(statusCode) || typeof answer.location !== 'string') {
          // Signed addresses must not appear in messages.
          const where = redirects === 0 ? address : `${address} (at ${url.host})`
          throw new ReleaseStatusError(where, statusCode, answer, redirects > 0, this.#options.advice)
        }
        url = new URL(answer.location, url)
      }
      throw new Error(`more than ${MAX_REDIRECTS} redirects`)
    } catch (error) {
      signal.throwIfAborted()
      if (error instanceof CorralError) throw error
      const reasons = (error instanceof AggregateError ? error.errors : [error]).map(errorMessage)
      const message = `${address}: ${[...new Set(reasons)].join('; ')}. Check the network and its proxy (HTTPS_PROXY), or set a mirror.`
      throw new CorralError('hub_unreachable', message, { cause: error })
    }
  }

  /** Returns the releases in an answer of the API. Empty for a page after the last one. */
  async #releases(path: string, signal: AbortSignal): Promise<Release[]> {
    const { api_url: api, repository } = this.#options
    const url = `${api.replace(/\/$/, '')}/repos/${repository}/${path}`
    const { body } = await this.#open(url, 'application/vnd.github+json', signal)
    let found: unknown[]
    try {
      const { value, fault } = await parseUntrustedJson(await readText(body))
      if (fault !== undefined) throw new Error(fault)
      found = path.includes('?') && Array.isArray(value) ? value : [value]
    } catch (error) {
      signal.throwIfAborted()
      const text = `${url} did not answer as GitHub's API does (${errorMessage(error)})`
      throw new CorralError('hub_unreachable', text, { cause: error })
    }
    return found.map(release => {
      if (fits(ReleaseSchema, release)) {
        return { tag_name: release.tag_name, assets: release.assets.filter(asset => fits(AssetSchema, asset)) }
      }
      const text = `${api} does not answer as GitHub's API for releases does. Check its address in config.yaml.`
      throw new CorralError('hub_unreachable', text)
    })
  }

  addressOf({ browser_download_url: address }: ReleaseAsset): string {
    const mirror = this.#options.download_url.replace(/\/$/, '')
    return mirror === '' ? address : address.replace(/^https:\/\/github\.com(?=\/)/, mirror)
  }

  async latest(signal: AbortSignal): Promise<Release | undefined> {
    const [release] = await this.#releases('releases/latest', signal).catch(error => {
      if (isMissing(error)) return []
      throw error
    })
    return release
  }

  /** @throws CorralError `runtime_not_found` if there is no such release */
  async byTag(tag: string, signal: AbortSignal): Promise<Release> {
    const [release] = await this.#releases(`releases/tags/${encodeURIComponent(tag)}`, signal).catch(cause => {
      if (!isMissing(cause)) throw cause
      const what = `${this.#options.repository} has no release "${tag}" (${errorMessage(cause)})`
      throw new CorralError('runtime_not_found', `${what}. Leave the version out for the newest one.`, { cause })
    })
    return release!
  }

  /** Returns one page of the releases, newest first. The first page is 1. Empty after the last page. */
  async recent(page: number, signal: AbortSignal): Promise<Release[]> {
    return await this.#releases(`releases?per_page=${PAGE_SIZE}&page=${page}`, signal)
  }

  /** Opens the source of a release as `.tar.gz`. GitHub does not announce its digest. */
  async source(tag: string, signal: AbortSignal): Promise<Dispatcher.ResponseData['body']> {
    const host = (this.#options.download_url || 'https://github.com').replace(/\/$/, '')
    const url = `${host}/${this.#options.repository}/archive/refs/tags/${encodeURIComponent(tag)}.tar.gz`
    return (await this.#open(url, '*/*', signal)).body
  }

  async text(asset: ReleaseAsset, signal: AbortSignal): Promise<string> {
    return await readText((await this.#open(this.addressOf(asset), '*/*', signal)).body)
  }

  /**
   * Stores a file of a release under `path` and checks its size and digest. Resumes an interrupted transfer.
   * @param onBytes gets the number of stored bytes, which drops if the transfer starts over
   * @throws CorralError `checksum_mismatch` if it is not the announced file, `insufficient_storage`, `hub_unreachable`
   */
  async download(asset: ReleaseAsset, path: string, onBytes: (bytes: number) => void, signal: AbortSignal) {
    const expected = getSha256(asset)
    const mismatch = (text: string) => new CorralError('checksum_mismatch', `${asset.name} ${text}`)
    if (expected === undefined) throw mismatch('has no SHA-256 digest to verify it with.')
    const file = await openFile(path, 'w')
    let bytes = 0
    let hash = createHash('sha256')
    /** Identifies the exact bytes at the server. Without a validator the next attempt starts over. */
    let validator = ''

    const fetchRest = async (): Promise<void> => {
      const rest: Record<string, string> = validator === '' ? {} : { range: `bytes=${bytes}-`, 'if-range': validator }
      const opened = await this.#open(this.addressOf(asset), 'application/octet-stream', signal, rest)
      const { statusCode, headers, body } = opened
      const start = Number(/^bytes (\d+)-/.exec(String(headers['content-range'] ?? ''))?.[1] ?? 0)
      if (statusCode !== 206 || start !== bytes) {
        bytes = 0
        hash = createHash('sha256')
        // A weak ETag does not promise the same bytes.
        const tag = String(headers.etag ?? 'W/')
        validator = tag.startsWith('W/') ? String(headers['last-modified'] ?? '') : tag
        await file.truncate(0)
      }
      onBytes(bytes)
      try {
        if (start !== bytes) throw new Error('the server sent another range')
        for await (const piece of body as AsyncIterable<Buffer>) {
          if (bytes + piece.length > asset.size) throw mismatch(`has more bytes than the ${asset.size} announced.`)
          for (let at = 0; at < piece.length; ) {
            at += (await file.write(piece, at, piece.length - at, bytes + at)).bytesWritten
          }
          hash.update(piece)
          bytes += piece.length
          onBytes(bytes)
        }
      } catch (error) {
        signal.throwIfAborted()
        if (error instanceof CorralError || isSystemError(error, 'ENOSPC', 'EDQUOT', 'EIO', 'EROFS')) throw error
        const message = `${asset.name}: the download stopped after ${bytes} of ${asset.size} bytes (${errorMessage(error)}). Try again.`
        throw new CorralError('hub_unreachable', message, { cause: error })
      } finally {
        body.destroy()
      }
      if (bytes !== asset.size) throw mismatch(`has ${bytes} bytes, but ${asset.size} were announced.`)
    }

    try {
      for (let failures = 0, done = false; !done; ) {
        const before = bytes
        try {
          await fetchRest()
          done = true
        } catch (error) {
          signal.throwIfAborted()
          failures = bytes - before >= MIN_PROGRESS_BYTES ? 1 : failures + 1
          if (!isRetryable(error) || failures === ATTEMPTS) throw error
          await sleep(PAUSE * 2 ** (failures - 1), undefined, { signal }).catch(() => signal.throwIfAborted())
        }
      }
      const digest = hash.digest('hex')
      if (digest === expected) return
      throw mismatch(
        `has the digest ${digest}, but ${expected} was announced. It was damaged or replaced in transit. ` +
          'Try again, or use another mirror.'
      )
    } catch (error) {
      const what = `${asset.name} (${formatBytes(asset.size)}) was not installed`
      throw diskRefusal(error, what, 'home') ?? error
    } finally {
      await file.close()
    }
  }
}
