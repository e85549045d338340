import type { Readable } from 'node:stream'
import type { Dispatcher } from 'undici'
import { CorralError, messageOf } from '../../../core/errors.ts'
import { openConnections, type ServerConnections } from '../../../core/system/connections.ts'
import { downloadChecked, type Release, type ReleaseAsset } from './release-download.ts'

export interface ReleaseServerOptions {
  /** Address of a server with GitHub's API for releases. */
  apiUrl: string
  /** Put in the place of `https://github.com` in the files' addresses, for mirrors; empty leaves them. */
  downloadUrl: string
  /** `owner/name`. */
  repository: string
  /** Milliseconds until a server counts as unreachable. */
  connectTimeout: number
  /** Milliseconds without a byte after which a connection is given up. */
  stallTimeout?: number
  signal: AbortSignal
}

/** Milliseconds in which a server that was reached must begin to answer. */
const ANSWER_LIMIT = 10_000
const STALL_LIMIT = 30_000
const REDIRECTIONS = 5
const PAGE_SIZE = 50

function textOf(error: unknown): string {
  if (error instanceof AggregateError) return [...new Set(error.errors.map(messageOf))].join('; ')
  return messageOf(error)
}

/** A server of releases answered with a status that is no success. */
export class ReleaseStatusError extends CorralError {
  readonly answered: number

  /** @param redirected behind a redirection a 403 is an address that has expired, not a limit of requests */
  constructor(
    url: string,
    answered: number,
    headers: Record<string, string | string[] | undefined>,
    redirected: boolean
  ) {
    const limited = answered === 429 || (answered === 403 && !redirected)
    if (limited) {
      const reset = Number(headers['x-ratelimit-reset']) - Date.now() / 1000
      const seconds = Number(headers['retry-after'] ?? (reset > 0 ? Math.ceil(reset) : 60)) || 60
      super(
        'hub_rate_limited',
        `${url}: status ${answered} (too many requests without a credential). Try again in ${Math.ceil(seconds / 60)} ` +
          'min, set runtimes.release.api_url to a mirror, or install an archive with "corral runtime install <file>".',
        { retryAfter: seconds }
      )
    } else super('hub_unreachable', `${url}: status ${answered}`)
    this.answered = answered
  }
}

/** Talks to a server that has GitHub's API for releases; needs no credentials. */
export function createReleaseServer(options: ReleaseServerOptions) {
  const { signal } = options
  const stallTimeout = options.stallTimeout ?? STALL_LIMIT
  let connections: Promise<ServerConnections> | undefined

  /** The answer after all redirections; each one may lead to another server. */
  async function open(
    address: string,
    headers: Record<string, string>
  ): Promise<Pick<Dispatcher.ResponseData, 'statusCode' | 'headers' | 'body'>> {
    try {
      const { request } = await import('undici')
      connections ??= openConnections(undefined, {
        connect: { timeout: options.connectTimeout },
        headersTimeout: Math.min(ANSWER_LIMIT, stallTimeout),
        bodyTimeout: stallTimeout
      })
      const { to } = await connections
      let url = new URL(address)
      for (let count = 0; ; count++) {
        const response = await request(url, {
          dispatcher: to(url),
          signal,
          headers: { 'user-agent': 'corral', ...headers }
        })
        const { location } = response.headers
        if (![301, 302, 303, 307, 308].includes(response.statusCode) || typeof location !== 'string') {
          if (response.statusCode < 300) return response
          await response.body.dump()
          // Signed addresses are no business of a message's readers.
          const where = count === 0 ? address : `${address} (at ${url.host})`
          throw new ReleaseStatusError(where, response.statusCode, response.headers, count > 0)
        }
        await response.body.dump()
        if (count === REDIRECTIONS) throw new Error(`more than ${REDIRECTIONS} redirections`)
        url = new URL(location, url)
      }
    } catch (error) {
      if (signal.aborted) throw signal.reason
      if (error instanceof CorralError) throw error
      throw new CorralError(
        'hub_unreachable',
        `${address}: ${textOf(error)}. Check the network and its proxy (HTTPS_PROXY), or set a mirror with runtimes.release.`,
        { cause: error }
      )
    }
  }

  async function json(path: string): Promise<unknown> {
    const url = `${options.apiUrl.replace(/\/$/, '')}/repos/${options.repository}/${path}`
    const { body } = await open(url, { accept: 'application/vnd.github+json' })
    let text: string
    try {
      text = await body.text()
    } catch (error) {
      signal.throwIfAborted()
      throw new CorralError('hub_unreachable', `${url}: the answer broke off (${textOf(error)})`, { cause: error })
    }
    try {
      return JSON.parse(text)
    } catch (error) {
      throw new CorralError('hub_unreachable', `${url}: no answer of GitHub's API (${messageOf(error)})`, {
        cause: error
      })
    }
  }

  function checked(value: unknown): Release {
    const release = value as Partial<Release> | null
    if (typeof release?.tag_name === 'string' && /^[\w.-]+$/.test(release.tag_name) && Array.isArray(release.assets)) {
      return { tag_name: release.tag_name, assets: release.assets.filter(isWhole) }
    }
    throw new CorralError(
      'hub_unreachable',
      `${options.apiUrl} does not answer as GitHub's API for releases does. Check runtimes.release.api_url.`
    )
  }

  const addressOf = (asset: ReleaseAsset) =>
    options.downloadUrl === ''
      ? asset.browser_download_url
      : asset.browser_download_url.replace(/^https:\/\/github\.com(?=\/)/, options.downloadUrl.replace(/\/$/, ''))

  return {
    addressOf,

    /** The newest stable release; undefined where there is none. */
    async latest(): Promise<Release | undefined> {
      try {
        return checked(await json('releases/latest'))
      } catch (error) {
        if (error instanceof ReleaseStatusError && error.answered === 404) return undefined
        throw error
      }
    },

    /** @throws CorralError `runtime_not_found` where there is no such release */
    async byTag(tag: string): Promise<Release> {
      try {
        return checked(await json(`releases/tags/${encodeURIComponent(tag)}`))
      } catch (error) {
        if (!(error instanceof ReleaseStatusError && error.answered === 404)) throw error
        throw new CorralError(
          'runtime_not_found',
          `${options.repository} has no release "${tag}" (${error.message}). Leave the version out for the newest one.`,
          { cause: error }
        )
      }
    },

    /** One page of the releases, the latest first; pages count from 1. Empty after the last one. */
    async recent(page: number): Promise<Release[]> {
      const releases = await json(`releases?per_page=${PAGE_SIZE}&page=${page}`)
      return Array.isArray(releases) ? releases.map(checked) : [checked(releases)]
    },

    /** The archive of the source that a tag names, as `.tar.gz`. GitHub announces no digest of it. */
    async source(tag: string): Promise<Readable> {
      const host = (options.downloadUrl || 'https://github.com').replace(/\/$/, '')
      const url = `${host}/${options.repository}/archive/refs/tags/${encodeURIComponent(tag)}.tar.gz`
      return (await open(url, { accept: '*/*' })).body
    },

    /** The text of a small file of a release. */
    async text(asset: ReleaseAsset): Promise<string> {
      return (await open(addressOf(asset), { accept: '*/*' })).body.text()
    },

    /**
     * Stores a file of a release; a transfer that breaks off or stalls goes on where it was.
     * @param onBytes gets how many bytes there are
     * @throws CorralError `checksum_mismatch` when it is not what the release says it is, `hub_unreachable`
     */
    download: (asset: ReleaseAsset, path: string, onBytes: (bytes: number) => void): Promise<void> =>
      downloadChecked(asset, path, {
        open: headers => open(addressOf(asset), { accept: 'application/octet-stream', ...headers }),
        onBytes,
        signal
      }),

    close: async () => {
      await (await connections)?.close()
    }
  }
}
export type ReleaseServer = ReturnType<typeof createReleaseServer>

/** Whether a file is there to be fetched, under a name that may become one here. */
function isWhole(value: unknown): value is ReleaseAsset {
  const asset = value as (Partial<ReleaseAsset> & { state?: unknown }) | null
  return (
    typeof asset?.name === 'string' &&
    /^\w[\w.+-]*$/.test(asset.name) &&
    typeof asset.browser_download_url === 'string' &&
    typeof asset.size === 'number' &&
    (asset.state === undefined || asset.state === 'uploaded')
  )
}
