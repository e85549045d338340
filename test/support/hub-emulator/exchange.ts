import { createHash, randomBytes } from 'node:crypto'
import type { IncomingMessage, ServerResponse } from 'node:http'
import { answeredByFault, sendExpired, sendJson, sendText } from './answers.ts'
import type { FaultKind, Faults, RequestKind } from './faults.ts'
import type { Entry, Repository } from './repositories.ts'
import { parseRange, serveBytes } from './serve-bytes.ts'
import type { LoggedRequest, Traffic } from './traffic.ts'

/** State that the answers of all hubs need. */
export interface HubState {
  repositories: Map<string, Repository>
  /** Valid tokens. The repository says which of them may read it. */
  tokens: Set<string>
  faults: Faults
  traffic: Traffic
  signedUrls: SignedUrls
  /** Maximum concurrent answers with bytes on one listener. Further requests get 503. */
  connectionLimit: number
  /** Entries on one page of a listing. */
  pageSize: number
  /** Address of the hub's listener. */
  url: string
}

/** One request and the means to answer it. */
export class Exchange {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  readonly state: HubState
  readonly log: LoggedRequest
  readonly url: URL
  /** Decoded segments of the path. */
  readonly segments: string[]

  constructor(request: IncomingMessage, response: ServerResponse, state: HubState, cdn: boolean) {
    this.request = request
    this.response = response
    this.state = state
    this.log = state.traffic.log(request, response, cdn)
    this.url = new URL(request.url!, 'http://emulator')
    this.segments = this.url.pathname.split('/').slice(1).map(decodeURIComponent)
  }

  get isHead(): boolean {
    return this.request.method === 'HEAD'
  }

  /** The bearer token, if one was sent. */
  get bearer(): string | undefined {
    return /^Bearer (.+)$/.exec(this.request.headers.authorization ?? '')?.[1]
  }

  /** Finds a repository by its exact name. */
  repository(name: string): Repository | undefined {
    return this.state.repositories.get(name)
  }

  json(status: number, body: unknown, headers: Record<string, string | number> = {}): void {
    sendJson(this.request, this.response, status, body, headers)
  }

  text(status: number, body: string | Buffer, headers: Record<string, string | number> = {}): void {
    sendText(this.request, this.response, status, body, 'text/plain; charset=utf-8', headers)
  }

  /**
   * Declares the purpose of the request. Returns the faults that shape its answer, or undefined if a fault or the
   * connection limit already answered.
   */
  async begin(kind: RequestKind, entry?: Entry): Promise<FaultKind[] | undefined> {
    const { log, state, request } = this
    log.kind = kind
    log.path = entry?.path
    const asked = entry && parseRange(request.headers.range, entry.size)
    const range = Array.isArray(asked) ? asked : entry && ([0, entry.size] as [number, number])
    const faults = state.faults.take({ kind, path: log.path, range })
    if (await answeredByFault(request, this.response, faults)) return undefined
    if (kind === 'bytes' && this.#active() > state.connectionLimit) {
      this.text(503, 'Too many connections')
      return undefined
    }
    return faults
  }

  #active(): number {
    return this.state.traffic.transfers().filter(request => !request.ended && request.cdn === this.log.cdn).length
  }

  /** Answers with a file's bytes, after `begin`. */
  async bytes(
    entry: Entry,
    faults: FaultKind[],
    headers: Record<string, string>,
    more: { etag?: string; rangeWith200?: boolean; spend?: (bytes: number) => boolean } = {}
  ): Promise<void> {
    const { request, response, log, state } = this
    await serveBytes(request, response, { entry, log, traffic: state.traffic, faults, headers, ...more })
  }
}

export interface SignedUrlRules {
  /** Milliseconds for which an address is valid. */
  lifeMs: number
  /** Bytes served through one address. Then the connection is reset, and later requests are refused. */
  lifeBytes: number
  /** The address contains its expiry time. */
  announced: boolean
}

interface Grant {
  entry: Entry
  expiresAt: number
  bytesLeft: number
}

/** Addresses that a hub issued for bytes on its second listener. */
export class SignedUrls {
  rules: SignedUrlRules = { lifeMs: 3_600_000, lifeBytes: Infinity, announced: true }
  /** Address of the second listener. */
  base = ''
  /** Requests to the second listener that carried credentials. */
  readonly leaks: string[] = []
  readonly #grants = new Map<string, Grant>()

  /** Issues a new address for a file, in the form of a CDN or an object store. */
  sign(repository: Repository, entry: Entry, manner: 'cdn' | 'store', life = this.rules.lifeMs): string {
    const { lifeBytes, announced } = this.rules
    const signature = randomBytes(24).toString('base64url')
    const expiresAt = Date.now() + life
    this.#grants.set(signature, { entry, expiresAt, bytesLeft: lifeBytes })
    const disposition = encodeURIComponent(
      `inline; filename*=UTF-8''${encodeURIComponent(entry.path.split('/').at(-1)!)};`
    )
    if (manner === 'store') {
      const date = new Date().toISOString().replace(/[-:]|\.\d+/g, '')
      const expiry = announced ? `X-Amz-Date=${date}&X-Amz-Expires=${Math.ceil(life / 1000)}&` : ''
      return `${this.base}/lfs/${entry.sha256.slice(0, 2)}/${entry.sha256.slice(2)}?${expiry}response-content-disposition=${disposition}&X-Amz-Signature=${signature}`
    }
    const expiry = announced ? `Expires=${Math.ceil(expiresAt / 1000)}&` : ''
    const folder = createHash('md5').update(repository.name).digest('hex').slice(0, 24)
    return `${this.base}/xet-bridge-us/${folder}/${getXetHash(entry)}?X-Xet-Cas-Uid=public&response-content-disposition=${disposition}&${expiry}Policy=eyJTdGF0ZW1lbnQiOltdfQ__&Signature=${signature}&Key-Pair-Id=K2L8F4GPSG1IFC`
  }

  /** Answers on the second listener, or on the hub's own if addresses are relative. */
  async serve(exchange: Exchange): Promise<void> {
    const { request, response, url } = exchange
    for (const header of ['authorization', 'cookie'] as const) {
      if (exchange.log.cdn && request.headers[header])
        this.leaks.push(`${request.method} ${url.pathname} carried ${header}`)
    }
    const signature = url.searchParams.get('Signature') ?? url.searchParams.get('X-Amz-Signature') ?? ''
    const grant = this.#grants.get(signature)
    if (!grant) return exchange.text(403, '<Error><Code>SignatureDoesNotMatch</Code></Error>')
    const { entry } = grant
    const faults = await exchange.begin('bytes', entry)
    if (!faults) return
    if (Date.now() >= grant.expiresAt || grant.bytesLeft <= 0) return sendExpired(request, response)
    const etag = `"${getXetHash(entry)}"`
    const headers = { etag, 'content-type': 'application/octet-stream', 'x-cache': 'Miss from cloudfront' }
    await exchange.bytes(entry, faults, headers, {
      etag,
      spend: bytes => {
        grant.bytesLeft -= bytes
        return grant.bytesLeft > -bytes
      }
    })
  }
}

/** 64 hex digits that look like the SHA-256 of the file but are not. */
export function getXetHash(entry: Entry): string {
  return createHash('sha256').update(`xet ${entry.sha256}`).digest('hex')
}
