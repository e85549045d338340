import { createHash } from 'node:crypto'
import { createWriteStream } from 'node:fs'
import { type Readable, Transform } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { EnvHttpProxyAgent, interceptors, request } from 'undici'
import { messageOf } from '../../core/errors.ts'
import type { Release, ReleaseAsset } from './release-assets.ts'
import { sha256Of } from './release-assets.ts'

export interface ReleaseServerOptions {
  /** Address of a server with GitHub's API for releases. */
  apiUrl: string
  /** Put in the place of `https://github.com` in the files' addresses, for mirrors; empty leaves them. */
  downloadUrl: string
  /** `owner/name`. */
  repository: string
  /** Milliseconds until a server counts as unreachable. */
  connectTimeout: number
  signal: AbortSignal
}

/** Milliseconds in which a server that was reached must begin to answer. */
const ANSWER_LIMIT = 10_000
/** Milliseconds without a byte after which a transfer is given up. */
const STALL_LIMIT = 30_000
const REDIRECTIONS = 5

function textOf(error: unknown): string {
  if (error instanceof AggregateError) return [...new Set(error.errors.map(messageOf))].join('; ')
  return messageOf(error)
}

/** Talks to a server that has GitHub's API for releases; needs no credentials. */
export function createReleaseServer(options: ReleaseServerOptions) {
  const { signal } = options
  const agent = new EnvHttpProxyAgent({
    connect: { timeout: options.connectTimeout },
    headersTimeout: ANSWER_LIMIT,
    bodyTimeout: STALL_LIMIT
  })
  const dispatcher = agent.compose(interceptors.redirect({ maxRedirections: REDIRECTIONS }))

  async function get(url: string, accept: string) {
    try {
      const response = await request(url, {
        dispatcher,
        signal,
        headers: { accept, 'user-agent': 'corral' }
      })
      if (response.statusCode === 200) return response
      await response.body.dump()
      const limited = response.statusCode === 403 || response.statusCode === 429
      throw new Error(`status ${response.statusCode}${limited ? ' (too many requests without a credential)' : ''}`)
    } catch (error) {
      if (signal.aborted) throw signal.reason
      throw new Error(`${url}: ${textOf(error)}`, { cause: error })
    }
  }

  async function json(path: string): Promise<unknown> {
    const url = `${options.apiUrl.replace(/\/$/, '')}/repos/${options.repository}/${path}`
    const { body } = await get(url, 'application/vnd.github+json')
    try {
      return JSON.parse(await body.text())
    } catch (error) {
      throw new Error(`${url}: no answer of GitHub's API (${messageOf(error)})`, { cause: error })
    }
  }

  function checked(value: unknown): Release {
    const release = value as Partial<Release> | null
    if (typeof release?.tag_name !== 'string' || !Array.isArray(release.assets)) {
      throw new Error(`${options.apiUrl} does not answer as GitHub's API for releases does`)
    }
    return release as Release
  }

  const addressOf = (asset: ReleaseAsset) =>
    options.downloadUrl === ''
      ? asset.browser_download_url
      : asset.browser_download_url.replace(/^https:\/\/github\.com(?=\/)/, options.downloadUrl.replace(/\/$/, ''))

  return {
    addressOf,
    latest: async () => checked(await json('releases/latest')),
    byTag: async (tag: string) => checked(await json(`releases/tags/${encodeURIComponent(tag)}`)),
    recent: async () => ((await json('releases?per_page=30')) as unknown[]).map(checked),

    /** The archive of the source that a tag names, as `.tar.gz`. GitHub announces no digest of it. */
    async source(tag: string): Promise<Readable> {
      const host = (options.downloadUrl || 'https://github.com').replace(/\/$/, '')
      const url = `${host}/${options.repository}/archive/refs/tags/${encodeURIComponent(tag)}.tar.gz`
      return (await get(url, '*/*')).body
    },

    /** The text of a small file of a release. */
    async text(asset: ReleaseAsset): Promise<string> {
      return (await get(addressOf(asset), '*/*')).body.text()
    },

    /**
     * Stores a file of a release, checking its size and digest on the way.
     * @throws Error when it is not what the release says it is
     */
    async download(asset: ReleaseAsset, path: string, onBytes: (bytes: number) => void): Promise<void> {
      const expected = sha256Of(asset)
      if (expected === undefined) throw new Error(`${asset.name} has no SHA-256 digest to check it by`)
      const { body } = await get(addressOf(asset), 'application/octet-stream')
      const hash = createHash('sha256')
      let bytes = 0
      const meter = new Transform({
        transform(piece: Buffer, _, done) {
          hash.update(piece)
          bytes += piece.length
          onBytes(bytes)
          done(null, piece)
        }
      })
      try {
        await pipeline(body, meter, createWriteStream(path), { signal })
      } catch (error) {
        if (signal.aborted) throw signal.reason
        throw new Error(`${asset.name}: the download broke off after ${bytes} bytes: ${textOf(error)}`, {
          cause: error
        })
      }
      const digest = hash.digest('hex')
      if (bytes !== asset.size) throw new Error(`${asset.name} has ${bytes} bytes, ${asset.size} were announced`)
      if (digest !== expected) throw new Error(`${asset.name} has the digest ${digest}, ${expected} was announced`)
    },

    close: () => agent.destroy()
  }
}
export type ReleaseServer = ReturnType<typeof createReleaseServer>
