import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Test } from 'tap'
import type { EmulatedFile } from './contents.ts'
import { CSGHUB_MANNERS, type CsgHubManners, serveCsgHub } from './csghub.ts'
import { Exchange, type HubState, type SignedUrlRules, SignedUrls } from './exchange.ts'
import { type Fault, Faults, type SetFault } from './faults.ts'
import { HUGGING_FACE_MANNERS, type HuggingFaceManners, serveHuggingFace } from './hugging-face.ts'
import { MODELSCOPE_MANNERS, type ModelScopeManners, serveModelScope } from './model-scope.ts'
import { type EmulatedRepository, Repository } from './repositories.ts'
import { type Bandwidth, Traffic } from './traffic.ts'

export interface HubEmulatorOptions {
  /** Which hub to emulate, Hugging Face by default. */
  hub?: 'huggingface' | 'csghub' | 'modelscope'
  /** By `owner/name`. */
  repositories: Record<string, EmulatedRepository>
  /** More valid tokens, which open no private or gated repository. */
  tokens?: string[]
  /** Entries on one page of a listing, 1,000 by default. */
  pageSize?: number
  bandwidth?: Bandwidth
  huggingFace?: Partial<HuggingFaceManners>
}

export interface HubEmulator {
  /** Address of the hub, without a trailing slash. */
  url: string
  cdn: {
    url: string
    /** Requests that sent credentials to the second listener. */
    leaks: string[]
  }
  /** All requests, with their ranges and served bytes. */
  traffic: Traffic
  /** May be changed at any time. */
  bandwidth: Bandwidth
  signedUrls: SignedUrlRules
  huggingFace: HuggingFaceManners
  csgHub: CsgHubManners
  modelScope: ModelScopeManners
  /** Maximum concurrent answers with bytes on one listener. Further requests get 503. */
  connectionLimit: number
  /** Sets a fault. Several faults may apply to one request. */
  fault(fault: Fault): SetFault
  clearFaults(): void
  repository(name: string): Repository
  add(name: string, repository: EmulatedRepository): Repository
  /** Commits other files to a repository. */
  change(name: string, files: Record<string, EmulatedFile>): void
  /** Stops listening and resets all connections. `url` stays the same. */
  goDown(): Promise<void>
  /** Listens again at the same addresses. */
  comeBack(): Promise<void>
  close(): Promise<void>
}

async function listen(server: Server, port: number): Promise<number> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, '127.0.0.1', () => {
      server.off('error', reject)
      resolve()
    })
  })
  return (server.address() as AddressInfo).port
}

async function stop(server: Server): Promise<void> {
  if (!server.listening) return
  const closed = new Promise(resolve => server.close(resolve))
  server.closeAllConnections()
  await closed
}

/**
 * Starts a hub with a second listener for bytes, like a CDN or an object store. The test fails at its end if
 * credentials reached the second listener.
 */
export async function startHubEmulator(t: Pick<Test, 'teardown'>, options: HubEmulatorOptions): Promise<HubEmulator> {
  const kind = options.hub ?? 'huggingface'
  const defaultBranch = kind === 'modelscope' ? 'master' : 'main'
  const signedUrls = new SignedUrls()
  const state: HubState = {
    repositories: new Map(),
    tokens: new Set(options.tokens),
    faults: new Faults(),
    traffic: new Traffic(),
    signedUrls,
    connectionLimit: Infinity,
    pageSize: options.pageSize ?? 1000,
    url: ''
  }
  state.traffic.bandwidth = options.bandwidth ?? {}
  const huggingFace = { ...HUGGING_FACE_MANNERS, ...options.huggingFace }
  const csgHub = { ...CSGHUB_MANNERS }
  const modelScope = { ...MODELSCOPE_MANNERS }
  const add = (name: string, settings: EmulatedRepository) => {
    const repository = new Repository(name, settings, defaultBranch)
    state.repositories.set(name, repository)
    if (settings.token) state.tokens.add(settings.token)
    return repository
  }
  for (const [name, settings] of Object.entries(options.repositories)) add(name, settings)

  const answer = (serve: (exchange: Exchange) => Promise<void>, cdn: boolean) => {
    return (request: IncomingMessage, response: ServerResponse) => {
      response.on('error', () => {})
      if (request.method !== 'GET' && request.method !== 'HEAD') {
        response.writeHead(405).end()
        return
      }
      serve(new Exchange(request, response, state, cdn)).catch(error => {
        console.error('The hub emulator failed:', error)
        response.destroy()
      })
    }
  }
  const hub = createServer(
    answer(async exchange => {
      if (kind === 'csghub') await serveCsgHub(exchange, csgHub)
      else if (kind === 'modelscope') await serveModelScope(exchange, modelScope)
      else await serveHuggingFace(exchange, huggingFace)
    }, false)
  )
  const cdn = createServer(answer(exchange => signedUrls.serve(exchange), true))
  const ports = { hub: await listen(hub, 0), cdn: await listen(cdn, 0) }
  state.url = `http://127.0.0.1:${ports.hub}`
  signedUrls.base = `http://127.0.0.1:${ports.cdn}`
  const close = async () => {
    await Promise.all([stop(hub), stop(cdn)])
  }
  const repository = (name: string) => {
    const found = state.repositories.get(name)
    if (!found) throw new Error(`The emulator has no repository ${name}.`)
    return found
  }
  t.teardown(async () => {
    await close()
    if (signedUrls.leaks.length > 0) throw new Error(`Credentials left the hub: ${signedUrls.leaks.join('; ')}`)
  })
  return {
    url: state.url,
    cdn: { url: signedUrls.base, leaks: signedUrls.leaks },
    traffic: state.traffic,
    get bandwidth() {
      return state.traffic.bandwidth
    },
    set bandwidth(bandwidth) {
      state.traffic.bandwidth = bandwidth
    },
    signedUrls: signedUrls.rules,
    huggingFace,
    csgHub,
    modelScope,
    get connectionLimit() {
      return state.connectionLimit
    },
    set connectionLimit(limit) {
      state.connectionLimit = limit
    },
    fault: fault => state.faults.add(fault),
    clearFaults: () => state.faults.clear(),
    repository,
    add,
    change: (name, files) => repository(name).change(files),
    goDown: close,
    async comeBack() {
      await listen(hub, ports.hub)
      await listen(cdn, ports.cdn)
    },
    close
  }
}
