import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import pino from 'pino'
import type { Test } from 'tap'
import type {
  FileProgress,
  Pull,
  PullCaller,
  PullPlan,
  PullRecord,
  PullRequest
} from '../../../../../core/contracts/downloads.ts'
import type { PullEvent } from '../../../../../core/contracts/hooks.ts'
import type { Hub, HubFile, HubRepository } from '../../../../../core/contracts/hubs.ts'
import type { Waiting } from '../../../../../core/contracts/progress.ts'
import type { StoredVariant } from '../../../../../core/contracts/storage.ts'
import { CorralError } from '../../../../../core/errors.ts'
import { dataPaths } from '../../../../../core/system/data-paths.ts'
import { createDownloads, type DownloadsService } from '../../../../../plugins/models/download/index.ts'
import { PulledNames } from '../../../../../plugins/models/download/pulled-names.ts'
import type {
  TransferRequest,
  TransferredFile,
  Transfers
} from '../../../../../plugins/models/download/transfer/transfers.ts'
import { createCatalog } from '../../../../../plugins/models/storage/catalog.ts'
import { ModelStore } from '../../../../../plugins/models/storage/model-store.ts'
import { ggufBytes } from '../../../../support/gguf-writer.ts'

export const sha256 = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex')
export const gitSha1 = (bytes: Buffer) =>
  createHash('sha1').update(`blob ${bytes.length}\0`).update(bytes).digest('hex')

/** Creates a complete GGUF model. Another seed gives other weights. */
export function model(seed = 1): Buffer {
  const metadata = { 'general.architecture': 'llama', 'llama.context_length': 4096, 'llama.embedding_length': 64 }
  return ggufBytes({ metadata, tensors: [{ name: 'a', shape: [4096] }], seed })
}

/** Repositories by id, each with its files' bytes. */
export type Contents = Record<string, Record<string, Buffer>>

export interface ScriptedHub extends Hub {
  contents: Contents
  /** Thrown by all requests while set. */
  failure: CorralError | undefined
  /** Ids and paths of requests. */
  requested: string[]
  /** Files of which only the path is listed. */
  withoutSizes: Set<string>
}

/** Creates a hub. Large files have a SHA-256, small ones git's digest, like real hubs. */
export function scriptedHub(name: string, contents: Contents, prefixes: string[] = [`${name}:`]): ScriptedHub {
  const hub: ScriptedHub = {
    name,
    title: name,
    prefixes,
    contents,
    failure: undefined,
    requested: [],
    withoutSizes: new Set(),
    async repository({ id, revision }) {
      hub.requested.push(id)
      if (hub.failure) throw hub.failure
      const found = Object.keys(hub.contents).find(key => key.toLowerCase() === id.toLowerCase())
      if (!found) throw new CorralError('repo_not_found', `${name} has no ${id}.`)
      const files = Object.entries(hub.contents[found]!).map(([path, bytes]): HubFile => {
        if (hub.withoutSizes.has(path)) return { path, size: undefined }
        const digest = /\.(gguf|safetensors)$/.test(path) ? { sha256: sha256(bytes) } : { gitSha1: gitSha1(bytes) }
        return { path, size: bytes.length, ...digest }
      })
      const listing = sha256(Buffer.from(JSON.stringify(files))).slice(0, 40)
      return {
        hub: name,
        id: found,
        revision: revision ?? listing,
        address: `https://${name}.test/${found}`,
        gated: false,
        files
      }
    },
    async locate(repository: HubRepository, file: HubFile) {
      hub.requested.push(`${repository.id}/${file.path}`)
      if (hub.failure) throw hub.failure
      const bytes = hub.contents[repository.id]![file.path]!
      return {
        url: `https://${name}.test/${repository.id}/${file.path}?signature=secret`,
        headers: {},
        size: bytes.length
      }
    }
  }
  return hub
}

export interface ScriptedTransfers extends Transfers {
  /** Paths of the files downloaded from the start, in order. */
  fetched: string[]
  /** Paths whose partial data was continued. */
  continued: string[]
  /** Matching files stop in the middle until `release` is called. */
  holdAt: RegExp | undefined
  release(): void
  /** Thrown in the middle of the next matching file. */
  failAt: { path: RegExp; error: unknown } | undefined
  requests: TransferRequest[]
}

/** Downloads from the hubs' own contents: half of a file, then the rest. */
export function scriptedTransfers(hubs: readonly ScriptedHub[]): ScriptedTransfers {
  const waiting = new Set<() => void>()
  const bytesAt = (url: string) => {
    const { hostname, pathname } = new URL(url)
    const [, owner, name, ...path] = pathname.split('/')
    return hubs.find(hub => `${hub.name}.test` === hostname)!.contents[`${owner}/${name}`]![path.join('/')]!
  }
  const transfers: ScriptedTransfers = {
    fetched: [],
    continued: [],
    requests: [],
    holdAt: undefined,
    failAt: undefined,
    release() {
      transfers.holdAt = undefined
      for (const go of [...waiting]) go()
    },
    prepare() {
      // Nothing here takes time to start.
    },
    async run(request) {
      transfers.requests.push(request)
      const { files, signal, onProgress } = request
      const done: TransferredFile[] = []
      for (const [index, { path, target }] of files.entries()) {
        signal.throwIfAborted()
        if (!existsSync(target)) {
          const bytes = bytesAt((await request.locate(index, signal)).url)
          mkdirSync(dirname(target), { recursive: true })
          const part = `${target}.part`
          const list = existsSync(part) ? transfers.continued : transfers.fetched
          list.push(path)
          writeFileSync(part, bytes.subarray(0, bytes.length / 2))
          onProgress(index, Math.floor(bytes.length / 2), bytes.length)
          if (transfers.failAt?.path.test(path)) {
            const { error } = transfers.failAt
            transfers.failAt = undefined
            throw error
          }
          if (transfers.holdAt?.test(path)) {
            await new Promise<void>((resolve, reject) => {
              const go = () => {
                waiting.delete(go)
                signal.removeEventListener('abort', stop)
                resolve()
              }
              const stop = () => {
                waiting.delete(go)
                reject(signal.reason)
              }
              waiting.add(go)
              signal.addEventListener('abort', stop)
              if (signal.aborted) stop()
            })
          }
          signal.throwIfAborted()
          writeFileSync(part, bytes)
          renameSync(part, target)
        }
        const bytes = readFileSync(target)
        onProgress(index, bytes.length, bytes.length)
        done.push({ size: bytes.length, sha256: sha256(bytes) })
      }
      return done
    },
    async close() {}
  }
  return transfers
}

/** The service, as used by one client over TCP unless a test says otherwise. */
export type TestedDownloads = Omit<DownloadsService, 'plan' | 'pull' | 'resume'> & {
  plan(request: Omit<PullRequest, 'caller'> & { caller?: PullCaller }, waiting: Waiting): Promise<PullPlan>
  pull(plan: PullPlan, options: { detached: boolean; caller?: PullCaller }): Promise<Pull | undefined>
  resume(id: string, caller?: PullCaller): Promise<PullRecord>
}

const CALLER: PullCaller = { turn: 'one' }

function asClient(service: DownloadsService): TestedDownloads {
  return {
    ...service,
    plan: (request, waiting) => service.plan({ caller: CALLER, ...request }, waiting),
    pull: (plan, options) => service.pull(plan, { caller: CALLER, ...options }),
    resume: (id, caller = CALLER) => service.resume(id, caller)
  }
}

export interface Setting {
  store: ModelStore
  downloads: TestedDownloads
  transfers: ScriptedTransfers
  hub: ScriptedHub
  other: ScriptedHub
  home: string
  /** Events passed to hooks. */
  finished: PullEvent[]
  /** Folders of unfinished pulls. */
  folders(): string[]
  log: string[]
  /** Starts pulling, by name. */
  pull(model: string, options?: { detached?: boolean; caller?: PullCaller }): Promise<{ pull: Pull; plan: PullPlan }>
}

export interface SettingOptions {
  home?: string
  contents?: Contents
  pauseAfter?: number
  retryPauses?: readonly [number, number]
  search?: string[]
  limits?: { pulls: number; waiting: number }
  /** Called before the store reads the files of a pull. */
  onAdopt?: () => void
}

/** Q4_K_M and Q2_K of one model. */
export const TINY: Contents = {
  'Acme/Tiny-GGUF': {
    'README.md': Buffer.from('# Tiny\n'),
    'tiny-Q4_K_M.gguf': model(4),
    'tiny-Q2_K.gguf': model(8)
  }
}

/** Creates a downloads service on real folders, with the test's hubs and transfers. */
export async function setting(t: Test, options: SettingOptions = {}): Promise<Setting> {
  const home = options.home ?? t.testdir()
  const log: string[] = []
  const logger = pino({ level: 'debug' }, { write: line => void log.push(line) })
  const paths = dataPaths(home, undefined)
  const store = await ModelStore.open(paths.models, logger)
  const adopt = store.adopt.bind(store)
  store.adopt = (...request) => {
    options.onAdopt?.()
    return adopt(...request)
  }
  const catalog = createCatalog(store, () => new Map(), logger)
  const hub = scriptedHub('huggingface', structuredClone(options.contents ?? TINY), ['hf:', 'hf.co/'])
  for (const [id, files] of Object.entries(options.contents ?? TINY)) hub.contents[id] = { ...files }
  const other = scriptedHub('modelscope', {})
  const transfers = scriptedTransfers([hub, other])
  const finished: PullEvent[] = []
  const service = createDownloads({
    storage: store,
    catalog,
    pulledNames: new PulledNames(join(home, 'pulled-names.json'), logger),
    transfers,
    conversion: { supports: async () => ({ architecture: 'LlamaForCausalLM', supported: true }) },
    paths,
    search: options.search ?? ['huggingface', 'modelscope'],
    memory: async () => ({ ram: 16e9, gpu: 0 }),
    privateAddresses: [],
    limits: options.limits ?? { pulls: 4, waiting: 64 },
    pauseAfter: options.pauseAfter ?? 5_000,
    retryPauses: options.retryPauses ?? [30_000, 600_000],
    hooks: { pullFinished: event => void finished.push(event), pullFailed: () => {}, stateChanged: () => {} },
    log: logger
  })
  const downloads = asClient(service)
  downloads.addHub(hub)
  downloads.addHub(other)
  downloads.checkSearch()
  await downloads.start()
  t.teardown(async () => {
    await downloads.stop()
    await store.close()
  })
  return {
    store,
    downloads,
    transfers,
    hub,
    other,
    home,
    finished,
    log,
    folders: () => readdirSync(paths.downloads),
    async pull(name, { detached = false, caller = CALLER } = {}) {
      const plan = await downloads.plan({ model: name, caller }, {})
      const pull = await downloads.pull(plan, { detached, caller })
      if (!pull) throw new Error(`${name} already exists`)
      return { pull, plan }
    }
  }
}

/** Watches a pull and collects its events. */
export function watching(pull: Pull): {
  result: Promise<StoredVariant>
  events: FileProgress[]
  leave(): void
} {
  const events: FileProgress[] = []
  const client = new AbortController()
  const result = pull.watch(files => void events.push(...files), client.signal)
  // Ignore the rejection in tests that do not check it.
  result.catch(() => undefined)
  return { result, events, leave: () => client.abort(new Error('left')) }
}

/** The downloads folder of a home. */
export const downloadsFolder = (home: string) => join(home, 'models', '.downloads')
