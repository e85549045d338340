import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import pino from 'pino'
import type { Test } from 'tap'
import type { FileProgress, Pull, PullCaller, PullPlan } from '../../../../../core/contracts/downloads.ts'
import type { PullEvent } from '../../../../../core/contracts/hooks.ts'
import type { FileLocation, HubFile, HubRepository, HubRequest } from '../../../../../core/contracts/hubs.ts'
import type { Waiting } from '../../../../../core/contracts/progress.ts'
import { CorralError } from '../../../../../core/errors.ts'
import { dataPaths } from '../../../../../core/system/data-paths.ts'
import { openPulledNames } from '../../../../../plugins/models/download/choice/known-names.ts'
import { createDownloads } from '../../../../../plugins/models/download/index.ts'
import type { TransferRequest, TransferredFile } from '../../../../../plugins/models/download/transfer/transfers.ts'
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

/** Creates a hub. Large files have a SHA-256, small ones git's digest, like real hubs. */
function scriptedHub(name: string, contents: Contents, prefixes = [`${name}:`]) {
  const hub = {
    name,
    title: name,
    prefixes,
    contents,
    /** Thrown by all requests while set. */
    failure: undefined as CorralError | undefined,
    /** Ids and paths of requests. */
    requested: [] as string[],
    /** Files of which only the path is listed. */
    withoutSizes: new Set<string>(),
    async repository({ id, revision }: HubRequest, _: Waiting): Promise<HubRepository> {
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
    async locate({ id }: HubRepository, { path }: HubFile): Promise<FileLocation> {
      hub.requested.push(`${id}/${path}`)
      if (hub.failure) throw hub.failure
      const size = hub.contents[id]![path]!.length
      return { url: `https://${name}.test/${id}/${path}?signature=secret`, headers: {}, size }
    }
  }
  return hub
}

/** Downloads from the hubs' own contents: half of a file, then the rest. */
function scriptedTransfers(hubs: readonly ReturnType<typeof scriptedHub>[]) {
  let released = new AbortController()
  const bytesAt = (url: string) => {
    const { hostname, pathname } = new URL(url)
    const [, owner, name, ...path] = pathname.split('/')
    return hubs.find(hub => `${hub.name}.test` === hostname)!.contents[`${owner}/${name}`]![path.join('/')]!
  }
  const transfers = {
    /** Paths of the files downloaded from the start, in order. */
    fetched: [] as string[],
    /** Paths whose partial data was continued. */
    continued: [] as string[],
    requests: [] as TransferRequest[],
    /** Matching files stop in the middle until `release` is called. */
    holdAt: undefined as RegExp | undefined,
    /** Thrown in the middle of the next matching file. */
    failAt: undefined as { path: RegExp; error: unknown } | undefined,
    release() {
      transfers.holdAt = undefined
      released.abort()
      released = new AbortController()
    },
    prepare() {},
    async run(request: TransferRequest) {
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
            const going = AbortSignal.any([signal, released.signal])
            if (!going.aborted) await once(going, 'abort')
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

const CALLER: PullCaller = { turn: 'one' }

export type Setting = Awaited<ReturnType<typeof setting>>

interface SettingOptions {
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
  'Acme/Tiny-GGUF': { 'README.md': Buffer.from('# Tiny\n'), 'tiny-Q4_K_M.gguf': model(4), 'tiny-Q2_K.gguf': model(8) }
}

/** Creates a downloads service on real folders, with the test's hubs and transfers. */
export async function setting(t: Test, options: SettingOptions = {}) {
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
    pulledNames: openPulledNames(join(home, 'pulled-names.json'), logger),
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
  /** Defaults for one client over TCP. */
  const downloads = {
    ...service,
    pull: (plan: PullPlan, options: { detached: boolean; caller?: PullCaller }) =>
      service.pull(plan, { caller: CALLER, ...options }),
    resume: (id: string) => service.resume(id, CALLER)
  }
  const plan = (model: string, { caller = CALLER, ...more }: { as?: string; caller?: PullCaller } & Waiting = {}) =>
    service.plan({ model, caller, ...(more.as !== undefined && { as: more.as }) }, more)
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
    /** Events passed to hooks. */
    finished,
    log,
    /** Folders of unfinished pulls. */
    folders: () => readdirSync(paths.downloads),
    plan,
    /** Starts pulling, by name. */
    async pull(name: string, { detached = false, caller = CALLER }: { detached?: boolean; caller?: PullCaller } = {}) {
      const planned = await plan(name, { caller })
      const pull = await downloads.pull(planned, { detached, caller })
      if (!pull) throw new Error(`${name} already exists`)
      return { pull, plan: planned }
    }
  }
}

/** Watches a pull and collects its events. */
export function watching(pull: Pull) {
  const events: FileProgress[] = []
  const client = new AbortController()
  const result = pull.watch(files => void events.push(...files), client.signal)
  // Ignore the rejection in tests that do not check it.
  result.catch(() => undefined)
  return { result, events, leave: () => client.abort(new Error('left')) }
}

/** The downloads folder of a home. */
export const downloadsFolder = (home: string) => join(home, 'models', '.downloads')
