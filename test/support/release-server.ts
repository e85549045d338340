import { createHash, randomBytes } from 'node:crypto'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Test } from 'tap'
import { parseRange } from './hub-emulator/serve-bytes.ts'

/** How the bytes of one file are corrupted. */
export interface FileFault {
  /** Sent instead of bytes. */
  status?: number
  /** Bytes after which the connection is closed or stalls. */
  cutAfter?: number
  stallAfter?: number
  /** Bytes of other content. */
  content?: Buffer
  /** Sends the whole file for every range. */
  ignoreRange?: boolean
  /** Milliseconds before each 64 kB. */
  slow?: number
  /** Number of affected requests, all by default. */
  times?: number
}

export interface ReleaseFile {
  name: string
  data: Buffer
  /** The announced digest, if it differs. */
  digest?: string | null
  size?: number
}

interface PublishedRelease {
  tag: string
  prerelease: boolean
  files: ReleaseFile[]
}

export interface ReleaseRequest {
  host: 'api' | 'storage'
  path: string
  range: string | undefined
  ifRange: string | undefined
  status: number
  /** Bytes of the body that were sent. */
  bytes: number
}

const PIECE = 64 * 1024

export const sha256 = (data: Buffer) => createHash('sha256').update(data).digest('hex')

/**
 * Emulates GitHub with llama.cpp's releases: the API, stable releases (vX.Y.Z) that contain only `nightly-tag.txt`, and
 * nightly prereleases (bN) with the archives, their sizes and digests. Files are behind a redirect to a signed address
 * on another host, which serves ranges.
 */
export async function startReleaseServer(t: Pick<Test, 'teardown'>, repository = 'ggml-org/llama.cpp') {
  const releases: PublishedRelease[] = []
  const faults = new Map<string, FileFault & { left: number }>()
  const requests: ReleaseRequest[] = []
  const secret = randomBytes(16).toString('hex')
  const state = {
    /** Replaces answers of the API and of file addresses. */
    instead: undefined as ((request: IncomingMessage, response: ServerResponse) => boolean) | undefined,
    /** Prefix of file addresses, if it is not this server. */
    browserUrl: ''
  }
  const api = createServer((request, response) => answer('api', request, response, onApi))
  const storage = createServer((request, response) => answer('storage', request, response, onStorage))
  const urls = await Promise.all([api, storage].map(listen))
  const [url, storageUrl] = urls as [string, string]

  function answer(
    host: ReleaseRequest['host'],
    request: IncomingMessage,
    response: ServerResponse,
    on: (request: IncomingMessage, response: ServerResponse, log: ReleaseRequest) => unknown
  ): void {
    const { range, 'if-range': ifRange } = request.headers
    const log: ReleaseRequest = { host, path: request.url!, range, ifRange: ifRange as string, status: 0, bytes: 0 }
    requests.push(log)
    response.on('close', () => {
      log.status = response.statusCode
    })
    on(request, response, log)
  }

  function onApi(request: IncomingMessage, response: ServerResponse): unknown {
    if (state.instead?.(request, response)) return undefined
    const { pathname, searchParams } = new URL(request.url!, url)
    const json = (value: unknown) => {
      return response.setHeader('content-type', 'application/json; charset=utf-8').end(JSON.stringify(value))
    }
    const missing = () => {
      response.statusCode = 404
      return json({ message: 'Not Found', documentation_url: 'https://docs.github.com/rest', status: '404' })
    }
    const base = `/repos/${repository}/releases`
    if (pathname === `${base}/latest`) {
      const latest = releases.find(({ prerelease }) => !prerelease)
      return latest ? json(record(latest)) : missing()
    }
    if (pathname === base) {
      const size = Number(searchParams.get('per_page') ?? 30)
      const page = Number(searchParams.get('page') ?? 1)
      return json(releases.slice((page - 1) * size, page * size).map(record))
    }
    const tag = pathname.startsWith(`${base}/tags/`) && decodeURIComponent(pathname.slice(base.length + 6))
    if (tag) {
      const found = releases.find(release => release.tag === tag)
      return found ? json(record(found)) : missing()
    }
    const download = /\/releases\/download\/([^/]+)\/([^/]+)$/.exec(pathname)
    if (!download || !find(download[1]!, download[2]!)) return missing()
    const expires = Date.now() + 60_000
    const path = `/storage/${download[1]}/${download[2]}`
    return response
      .writeHead(302, { location: `${storageUrl}${path}?se=${expires}&sig=${signature(path, expires)}` })
      .end()
  }

  const signature = (path: string, expires: number) => sha256(Buffer.from(`${secret} ${path} ${expires}`))
  const find = (tag: string, name: string) =>
    releases.find(release => release.tag === tag)?.files.find(file => file.name === name)

  function record({ tag, prerelease, files }: PublishedRelease) {
    return {
      tag_name: tag,
      name: tag,
      draft: false,
      prerelease,
      assets: files.map(({ name, data, size, digest }) => ({
        name,
        state: 'uploaded',
        content_type: 'application/octet-stream',
        size: size ?? data.length,
        digest: digest === undefined ? `sha256:${sha256(data)}` : digest,
        browser_download_url: `${state.browserUrl || url}/${repository}/releases/download/${tag}/${name}`
      }))
    }
  }

  async function onStorage(request: IncomingMessage, response: ServerResponse, log: ReleaseRequest): Promise<void> {
    const { pathname, searchParams } = new URL(request.url!, storageUrl)
    const [, , tag, name] = pathname.split('/') as [string, string, string, string]
    const file = find(tag, name)
    const expires = Number(searchParams.get('se'))
    if (!file || searchParams.get('sig') !== signature(pathname, expires) || expires < Date.now()) {
      response
        .writeHead(403, { 'content-type': 'application/xml' })
        .end('<Error><Code>AuthenticationFailed</Code></Error>')
      return
    }
    const fault = findFault(name)
    if (fault?.status) {
      response.writeHead(fault.status).end('something went wrong')
      return
    }
    const data = fault?.content ?? file.data
    const etag = `"${sha256(data).slice(0, 16)}"`
    const current = request.headers['if-range'] === undefined || request.headers['if-range'] === etag
    const range = current && !fault?.ignoreRange ? parseRange(request.headers.range, data.length) : 'whole'
    if (range === 'unsatisfiable') {
      response.writeHead(416, { 'content-range': `bytes */${data.length}` }).end()
      return
    }
    const [start, end] = range === 'whole' ? [0, data.length] : range
    response.writeHead(range === 'whole' ? 200 : 206, {
      'content-length': end - start,
      etag,
      'accept-ranges': 'bytes',
      ...(range === 'whole' ? {} : { 'content-range': `bytes ${start}-${end - 1}/${data.length}` })
    })
    const stop = Math.min(end, start + (fault?.cutAfter ?? fault?.stallAfter ?? data.length))
    for (let at = start; at < stop && !response.destroyed; at += PIECE) {
      const piece = data.subarray(at, Math.min(stop, at + PIECE))
      log.bytes += piece.length
      await new Promise<void>(resolve => response.write(piece, () => resolve()))
      if (fault?.slow) await new Promise(resolve => setTimeout(resolve, fault.slow))
    }
    if (stop === end) response.end()
    else if (fault?.stallAfter === undefined) response.destroy()
  }

  function findFault(name: string): FileFault | undefined {
    const fault = faults.get(name)
    if (!fault || fault.left <= 0) return undefined
    fault.left--
    return fault
  }

  t.teardown(async () => {
    for (const server of [api, storage]) {
      server.closeAllConnections()
      await new Promise(resolve => server.close(resolve))
    }
  })

  return {
    url,
    requests,
    state,
    /**
     * Publishes a nightly release. It becomes the release named by the newest stable one unless `stable` is false. A
     * tag that starts with `v` is a stable release with its own archives.
     */
    publish(tag: string, files: ReleaseFile[], { stable = true }: { stable?: string | boolean } = {}) {
      if (tag.startsWith('v')) return void releases.unshift({ tag, prerelease: false, files })
      releases.unshift({ tag, prerelease: true, files })
      if (stable === false) return
      const name = stable === true ? `v0.${releases.length}.0` : stable
      const pointer = { name: 'nightly-tag.txt', data: Buffer.from(`${tag}\n`) }
      releases.unshift({ tag: name, prerelease: false, files: [pointer] })
    },
    /** Sets the fault of a file. */
    break(name: string, fault: FileFault) {
      faults.set(name, { ...fault, left: fault.times ?? Number.POSITIVE_INFINITY })
    },
    mend() {
      faults.clear()
      state.instead = undefined
    }
  }
}
export type ReleaseEmulator = Awaited<ReturnType<typeof startReleaseServer>>

async function listen(server: Server): Promise<string> {
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}
