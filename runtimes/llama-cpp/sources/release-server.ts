import { createHash, type Hash } from 'node:crypto'
import { type FileHandle, open as openFile } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Static, Type } from 'typebox'
import type { Dispatcher } from 'undici'
import { CorralError, isSystemError, messageOf } from '../../../core/errors.ts'
import { formatBytes } from '../../../core/system/bytes.ts'
import { openConnections, type ServerConnections } from '../../../core/system/connections.ts'
import { parseDuration } from '../../../core/system/duration.ts'
import { fits } from '../../../core/system/schema-check.ts'
import type { RuntimesOptions } from '../options.ts'

/** A server with GitHub's API for releases, as the settings name it. */
export interface ReleaseServerOptions extends Omit<RuntimesOptions['release'], 'tag'> {
  /** Milliseconds without a byte after which a connection is given up. */
  stallTimeout?: number
}

/** A file of a release that is completely uploaded, under a name that is safe as a file name here. */
const AssetSchema = Type.Object({
  name: Type.String({ pattern: '^\\w[\\w.+-]*$' }),
  browser_download_url: Type.String(),
  /** Bytes. */
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

/** A release, as GitHub's API lists it. */
export interface Release {
  tag_name: string
  assets: ReleaseAsset[]
}

/** The digest's 64 hex digits; undefined if it is absent or of another kind. */
export function sha256Of({ digest }: ReleaseAsset): string | undefined {
  return /^sha256:([0-9a-f]{64})$/i.exec(digest ?? '')?.[1]?.toLowerCase()
}

/** Milliseconds in which a server must begin to answer, and without a byte. */
const ANSWER_LIMIT = 10_000
const STALL_LIMIT = 30_000
const REDIRECTS = 5
const PAGE_SIZE = 50

/** Attempts in a row without progress until a download is given up, and milliseconds before the second one. */
const ATTEMPTS = 4
const PAUSE = 500
/** Bytes that count as progress. */
const PROGRESS = 64 * 1024

/** A server of releases answered with an error status. */
export class ReleaseStatusError extends CorralError {
  readonly answered: number

  /** @param redirected after a redirect, 403 means that the address has expired, not too many requests */
  constructor(url: string, status: number, headers: Dispatcher.ResponseData['headers'], redirected: boolean) {
    if (status === 429 || (status === 403 && !redirected)) {
      const reset = Number(headers['x-ratelimit-reset']) - Date.now() / 1000
      const seconds = Number(headers['retry-after'] ?? (reset > 0 ? Math.ceil(reset) : 60)) || 60
      super(
        'hub_rate_limited',
        `${url}: status ${status} (too many requests without a credential). Try again in ${Math.ceil(seconds / 60)} ` +
          'min, set runtimes.release.api_url to a mirror, or install an archive with "corral runtime install <file>".',
        { retryAfter: seconds }
      )
    } else super('hub_unreachable', `${url}: status ${status}`)
    this.answered = status
  }
}

function isRetryable(error: unknown): boolean {
  if (!(error instanceof CorralError) || error.code !== 'hub_unreachable') return false
  if (!(error instanceof ReleaseStatusError)) return true
  // 403: a signed address has expired; the next attempt gets a new one.
  return error.answered >= 500 || error.answered === 408 || error.answered === 403
}

function reasonOf(error: unknown): string {
  return error instanceof AggregateError ? [...new Set(error.errors.map(messageOf))].join('; ') : messageOf(error)
}

function parseRelease(value: unknown, apiUrl: string): Release {
  if (fits(ReleaseSchema, value)) {
    return { tag_name: value.tag_name, assets: value.assets.filter(asset => fits(AssetSchema, asset)) }
  }
  throw new CorralError(
    'hub_unreachable',
    `${apiUrl} does not answer as GitHub's API for releases does. Check runtimes.release.api_url.`
  )
}

/** What is stored of a file so far. */
interface Transfer {
  asset: ReleaseAsset
  file: FileHandle
  bytes: number
  hash: Hash
  /** Identifies these very bytes at the server; without one the next attempt starts over. */
  validator: string
  onBytes: (bytes: number) => void
}

/** A server with GitHub's API for releases, used without credentials. */
export class ReleaseServer {
  readonly #options: ReleaseServerOptions
  #connections: Promise<ServerConnections> | undefined

  constructor(options: ReleaseServerOptions) {
    this.#options = options
  }

  /** The response after all redirects; each one may lead to another server. */
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
        headersTimeout: Math.min(ANSWER_LIMIT, stallTimeout),
        bodyTimeout: stallTimeout
      })
      const { to } = await this.#connections
      let url = new URL(address)
      for (let redirects = 0; redirects <= REDIRECTS; redirects++) {
        const response = await request(url, {
          dispatcher: to(url),
          signal,
          headers: { 'user-agent': 'corral', accept, ...headers }
        })
        const { statusCode, headers: answer } = response
        if (statusCode < 300) return response
        await response.body.dump()
        if (![301, 302, 303, 307, 308].includes(statusCode) || typeof answer.location !== 'string') {
          // Signed addresses must not appear in messages.
          const where = redirects === 0 ? address : `${address} (at ${url.host})`
          throw new ReleaseStatusError(where, statusCode, answer, redirects > 0)
        }
        url = new URL(answer.location, url)
      }
      throw new Error(`more than ${REDIRECTS} redirects`)
    } catch (error) {
      signal.throwIfAborted()
      if (error instanceof CorralError) throw error
      throw new CorralError(
        'hub_unreachable',
        `${address}: ${reasonOf(error)}. Check the network and its proxy (HTTPS_PROXY), or set a mirror with runtimes.release.`,
        { cause: error }
      )
    }
  }

  async #json(path: string, signal: AbortSignal): Promise<unknown> {
    const url = `${this.#options.api_url.replace(/\/$/, '')}/repos/${this.#options.repository}/${path}`
    const { body } = await this.#open(url, 'application/vnd.github+json', signal)
    try {
      return JSON.parse(await body.text())
    } catch (error) {
      signal.throwIfAborted()
      throw new CorralError('hub_unreachable', `${url}: no answer of GitHub's API (${reasonOf(error)})`, {
        cause: error
      })
    }
  }

  addressOf({ browser_download_url: address }: ReleaseAsset): string {
    const { download_url: downloadUrl } = this.#options
    return downloadUrl === ''
      ? address
      : address.replace(/^https:\/\/github\.com(?=\/)/, downloadUrl.replace(/\/$/, ''))
  }

  /** The newest stable release, if there is one. */
  async latest(signal: AbortSignal): Promise<Release | undefined> {
    try {
      return parseRelease(await this.#json('releases/latest', signal), this.#options.api_url)
    } catch (error) {
      if (error instanceof ReleaseStatusError && error.answered === 404) return undefined
      throw error
    }
  }

  /** @throws CorralError `runtime_not_found` if there is no such release */
  async byTag(tag: string, signal: AbortSignal): Promise<Release> {
    const { api_url: apiUrl, repository } = this.#options
    try {
      return parseRelease(await this.#json(`releases/tags/${encodeURIComponent(tag)}`, signal), apiUrl)
    } catch (error) {
      if (!(error instanceof ReleaseStatusError && error.answered === 404)) throw error
      throw new CorralError(
        'runtime_not_found',
        `${repository} has no release "${tag}" (${error.message}). Leave the version out for the newest one.`,
        { cause: error }
      )
    }
  }

  /** One page of the releases, newest first; pages count from 1. Empty after the last one. */
  async recent(page: number, signal: AbortSignal): Promise<Release[]> {
    const found = await this.#json(`releases?per_page=${PAGE_SIZE}&page=${page}`, signal)
    return [found].flat().map(release => parseRelease(release, this.#options.api_url))
  }

  /** The source of a release as `.tar.gz`. GitHub announces no digest of it. */
  async source(tag: string, signal: AbortSignal): Promise<Dispatcher.ResponseData['body']> {
    const host = (this.#options.download_url || 'https://github.com').replace(/\/$/, '')
    const url = `${host}/${this.#options.repository}/archive/refs/tags/${encodeURIComponent(tag)}.tar.gz`
    return (await this.#open(url, '*/*', signal)).body
  }

  /** The text of a small file of a release. */
  async text(asset: ReleaseAsset, signal: AbortSignal): Promise<string> {
    return (await this.#open(this.addressOf(asset), '*/*', signal)).body.text()
  }

  /**
   * Stores a file of a release under `path` and checks its size and digest; an interrupted transfer is resumed.
   * @param onBytes gets the number of stored bytes; fewer than before if the transfer starts over
   * @throws CorralError `checksum_mismatch` if it is not the announced file, `insufficient_storage`, `hub_unreachable`
   */
  async download(
    asset: ReleaseAsset,
    path: string,
    onBytes: (bytes: number) => void,
    signal: AbortSignal
  ): Promise<void> {
    const expected = sha256Of(asset)
    if (expected === undefined) {
      throw new CorralError('checksum_mismatch', `${asset.name} has no SHA-256 digest to check it by.`)
    }
    const file = await openFile(path, 'w')
    try {
      const transfer: Transfer = { asset, file, bytes: 0, hash: createHash('sha256'), validator: '', onBytes }
      await this.#fetchAll(transfer, signal)
      const digest = transfer.hash.digest('hex')
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
      await file.close()
    }
  }

  async #fetchAll(transfer: Transfer, signal: AbortSignal): Promise<void> {
    for (let failures = 0; ; ) {
      const before = transfer.bytes
      try {
        return await this.#fetchRest(transfer, signal)
      } catch (error) {
        signal.throwIfAborted()
        failures = transfer.bytes - before >= PROGRESS ? 1 : failures + 1
        if (!isRetryable(error) || failures === ATTEMPTS) throw error
        await sleep(PAUSE * 2 ** (failures - 1), undefined, { signal }).catch(() => signal.throwIfAborted())
      }
    }
  }

  async #fetchRest(transfer: Transfer, signal: AbortSignal): Promise<void> {
    const { asset, file, validator, onBytes } = transfer
    const rest: Record<string, string> =
      validator === '' ? {} : { range: `bytes=${transfer.bytes}-`, 'if-range': validator }
    const { statusCode, headers, body } = await this.#open(
      this.addressOf(asset),
      'application/octet-stream',
      signal,
      rest
    )
    const start = Number(/^bytes (\d+)-/.exec(String(headers['content-range'] ?? ''))?.[1] ?? 0)
    if (statusCode !== 206 || start !== transfer.bytes) {
      // A weak ETag does not promise the same bytes.
      const tag = String(headers.etag ?? 'W/')
      Object.assign(transfer, {
        bytes: 0,
        hash: createHash('sha256'),
        validator: tag.startsWith('W/') ? String(headers['last-modified'] ?? '') : tag
      })
      await file.truncate(0)
    }
    onBytes(transfer.bytes)
    try {
      if (statusCode === 206 && start !== transfer.bytes) throw new Error('the server sent another range')
      for await (const piece of body as AsyncIterable<Buffer>) {
        if (transfer.bytes + piece.length > asset.size) {
          throw new CorralError('checksum_mismatch', `${asset.name} has more bytes than the ${asset.size} announced.`)
        }
        for (let at = 0; at < piece.length; ) {
          at += (await file.write(piece, at, piece.length - at, transfer.bytes + at)).bytesWritten
        }
        transfer.hash.update(piece)
        transfer.bytes += piece.length
        onBytes(transfer.bytes)
      }
    } catch (error) {
      signal.throwIfAborted()
      if (error instanceof CorralError || isSystemError(error, 'ENOSPC', 'EDQUOT', 'EIO')) throw error
      throw new CorralError(
        'hub_unreachable',
        `${asset.name}: the download broke off after ${transfer.bytes} of ${asset.size} bytes (${messageOf(error)}). Try again.`,
        { cause: error }
      )
    } finally {
      body.destroy()
    }
    if (transfer.bytes === asset.size) return
    throw new CorralError(
      'checksum_mismatch',
      `${asset.name} has ${transfer.bytes} bytes, ${asset.size} were announced.`
    )
  }
}
