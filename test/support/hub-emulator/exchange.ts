import type { IncomingMessage, ServerResponse } from 'node:http'
import { answeredByFault, sendJson, sendText } from './answers.ts'
import type { FaultKind, Faults, RequestKind } from './faults.ts'
import type { Entry, Repository } from './repositories.ts'
import { rangeOf, serveBytes } from './serve-bytes.ts'
import type { SignedUrls } from './signed-urls.ts'
import type { LoggedRequest, Traffic } from './traffic.ts'

/** What the answers of all hubs need. */
export interface HubState {
  repositories: Map<string, Repository>
  /** Tokens that are good; which repository they open, the repository says. */
  tokens: Set<string>
  faults: Faults
  traffic: Traffic
  signedUrls: SignedUrls
  /** Most answers with bytes at once on one listener; more get 503. */
  connectionLimit: number
  /** Entries of one page of a listing. */
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
  /** Segments of the path, decoded. */
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
    this.log.status = status
    sendJson(this.request, this.response, status, body, headers)
  }

  text(status: number, body: string | Buffer, headers: Record<string, string | number> = {}): void {
    this.log.status = status
    sendText(this.request, this.response, status, body, 'text/plain; charset=utf-8', headers)
  }

  /**
   * Says what the request is for. Gives the faults that are to shape its answer; undefined when a fault (or the limit of
   * connections) was the answer.
   */
  async begin(kind: RequestKind, repository: string, entry?: Entry): Promise<FaultKind[] | undefined> {
    const { log, state } = this
    log.kind = kind
    log.repository = repository
    log.path = entry?.path
    const asked = entry && rangeOf(this.request.headers.range, entry.size)
    if (Array.isArray(asked)) log.range = asked
    const range = log.range ?? (entry ? ([0, entry.size] as [number, number]) : undefined)
    const faults = state.faults.take({ kind, path: log.path, cdn: log.cdn, range })
    log.faults = faults.map(fault => fault.kind)
    if (await answeredByFault(this.request, this.response, faults)) return undefined
    if (kind === 'bytes' && this.#active() > state.connectionLimit) {
      this.text(503, 'Too many connections')
      return undefined
    }
    return faults
  }

  #active(): number {
    return this.state.traffic.transfers().filter(request => !request.ended && request.cdn === this.log.cdn).length
  }

  /** Answers with a file's bytes; `begin` came before. */
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
