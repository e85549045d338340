import { mkdir } from 'node:fs/promises'
import { dirname } from 'node:path'
import type { FileLocation } from '../../../core/contracts/downloads.ts'
import { Digests } from './digests.ts'
import { FileTransfer } from './file-transfer.ts'
import { ConnectionPool } from './http/http-client.ts'
import { loadJournal } from './journal.ts'
import { Bandwidth, Buffers, ConnectionCount, type SharedResources } from './shared-resources.ts'
import { assertSpace, diskFull, freeSpace } from './transfer-errors.ts'
import type { TransferFile, TransferOptions, TransferRequest, TransferredFile } from './transfers.ts'

/** Files of one run that are fetched at the same time. */
const FILES = 4
/** Milliseconds between two rounds of progress reports and measurements. */
const TICK = 100
/**
 * Milliseconds between two writes of the journal, and the bytes after which it is written sooner: a kill must not cost more
 * than 8 MiB or one second.
 */
const JOURNAL_TIME = 500
const JOURNAL_TIME_SHORTEST = 250
const JOURNAL_BYTES = 3 * 1024 * 1024
/** Milliseconds between two checks of free disk space and speed. */
const SLOW_TICK = 1000

export interface TransferEngineOptions extends TransferOptions {
  /** Longest first back-off, in milliseconds. */
  firstDelay: number
  log(message: string): void
}

interface Run {
  request: TransferRequest
  files: FileTransfer[]
  reported: number[]
  controller: AbortController
}

/** Fetches the files of all runs over a limited number of connections, in the thread that calls it. */
export class TransferEngine {
  readonly #options: TransferEngineOptions
  readonly #shared: SharedResources
  readonly #connections = new ConnectionPool()
  readonly #digests = new Digests()
  readonly #hosts = new Map<string, ConnectionCount>()
  readonly #runs = new Set<Run>()
  #timer: NodeJS.Timeout | undefined
  #pumping = false
  #received = 0
  #journalled = { at: 0, received: 0, running: false }
  #slowTickAt = 0

  constructor(options: TransferEngineOptions) {
    this.#options = options
    this.#shared = {
      connectionsPerFile: options.connectionsPerFile,
      stallTimeout: options.stallTimeout,
      firstDelay: options.firstDelay,
      connections: this.#connections,
      bandwidth: new Bandwidth(options.bandwidthLimit, performance.now()),
      digests: this.#digests,
      buffers: new Buffers(),
      changed: () => this.#pumpSoon(),
      received: (host, bytes) => {
        this.#received += bytes
        this.#host(host).add(bytes)
      },
      overloaded: host => this.#host(host).overloaded(performance.now()),
      log: options.log
    }
  }

  /** As `Transfers.run`. */
  async run(request: TransferRequest): Promise<TransferredFile[]> {
    request.signal.throwIfAborted()
    this.#digests.prepare()
    await this.#assertSpace(request.files)
    const controller = new AbortController()
    const abort = () => controller.abort(request.signal.reason)
    request.signal.addEventListener('abort', abort, { once: true })
    if (request.signal.aborted) abort()
    const files = request.files.map((file, index) => {
      const locate = (): Promise<FileLocation> => request.locate(index, controller.signal)
      return new FileTransfer(file, request.identity, locate, controller.signal, this.#shared)
    })
    const run: Run = { request, files, reported: files.map(() => -1), controller }
    this.#runs.add(run)
    this.#timer ??= setInterval(() => this.#tick(), TICK)
    try {
      return await this.#all(run)
    } finally {
      request.signal.removeEventListener('abort', abort)
      this.#runs.delete(run)
      if (this.#runs.size === 0) {
        clearInterval(this.#timer)
        this.#timer = undefined
      }
    }
  }

  /** To be called when no run is left. */
  async close(): Promise<void> {
    this.#connections.close()
    await this.#digests.close()
  }

  async #all(run: Run): Promise<TransferredFile[]> {
    const results: TransferredFile[] = []
    let next = 0
    let failure: { error: unknown } | undefined
    const worker = async () => {
      while (next < run.files.length && !failure) {
        const index = next++
        try {
          const result = await run.files[index]!.run()
          results[index] = result
          run.request.onProgress(index, result.size, result.size)
          run.reported[index] = result.size
        } catch (error) {
          failure ??= { error }
          run.controller.abort(error)
        }
      }
    }
    await Promise.all(Array.from({ length: Math.min(FILES, run.files.length) }, worker))
    if (failure) throw failure.error
    return results
  }

  async #assertSpace(files: readonly TransferFile[]): Promise<void> {
    if (files.length === 0) return
    let needed = 0
    for (const { target, size } of files) {
      const journal = await loadJournal(target)
      needed += Math.max(0, (size ?? 0) - (journal?.map.completed ?? 0))
    }
    await mkdir(dirname(files[0]!.target), { recursive: true })
    await assertSpace(files[0]!.target, needed)
  }

  #host(name: string | undefined): ConnectionCount {
    const key = name ?? ''
    let count = this.#hosts.get(key)
    if (!count) {
      count = new ConnectionCount(this.#options.connections)
      this.#hosts.set(key, count)
    }
    return count
  }

  #pumpSoon(): void {
    if (this.#pumping) return
    this.#pumping = true
    setImmediate(() => {
      this.#pumping = false
      this.#pump()
    })
  }

  /** Starts connections where there is work for them; files with the fewest connections come first. */
  #pump(): void {
    const now = performance.now()
    const files = [...this.#runs].flatMap(run => run.files).filter(file => !file.fetched)
    let total = files.reduce((sum, file) => sum + file.connections.running, 0)
    const perHost = new Map<string | undefined, number>()
    for (const { host, connections } of files) perHost.set(host, (perHost.get(host) ?? 0) + connections.running)
    const waiting = new Set(files)
    while (total < this.#options.connections && waiting.size > 0) {
      let file: FileTransfer | undefined
      for (const other of waiting) {
        if (!file || other.connections.running < file.connections.running) file = other
      }
      const used = perHost.get(file!.host) ?? 0
      if (used >= this.#host(file!.host).limit || !file!.start(now)) {
        waiting.delete(file!)
        continue
      }
      total += 1
      perHost.set(file!.host, used + 1)
    }
  }

  #tick(): void {
    const now = performance.now()
    for (const run of this.#runs) this.#report(run)
    this.#measure(now)
    void this.#journal(now)
    if (now - this.#slowTickAt >= SLOW_TICK) {
      this.#slowTickAt = now
      for (const run of this.#runs) {
        for (const file of run.files) file.tick(now)
        void this.#watchSpace(run)
      }
    }
    this.#pump()
  }

  #report(run: Run): void {
    for (const [index, file] of run.files.entries()) {
      const { completed, total } = file
      if (completed === run.reported[index] || completed === 0 || run.reported[index] === total) continue
      // The last report of a file is made when it is verified.
      if (completed === total) continue
      run.reported[index] = completed
      run.request.onProgress(index, completed, total)
    }
  }

  #measure(now: number): void {
    const figures = new Map<string, { delivering: number; wanted: number }>()
    for (const run of this.#runs) {
      for (const file of run.files) {
        if (file.host === undefined || file.fetched) continue
        const sum = figures.get(file.host) ?? { delivering: 0, wanted: 0 }
        const { delivering, wanted } = file.connections
        figures.set(file.host, { delivering: sum.delivering + delivering, wanted: sum.wanted + wanted })
      }
    }
    for (const [host, { delivering, wanted }] of figures) this.#host(host).tick(now, delivering, wanted)
  }

  async #journal(now: number): Promise<void> {
    const state = this.#journalled
    const bytes = this.#received - state.received
    const due = now - state.at >= (bytes >= JOURNAL_BYTES ? JOURNAL_TIME_SHORTEST : JOURNAL_TIME)
    if (state.running || bytes === 0 || !due) return
    this.#journalled = { at: now, received: this.#received, running: true }
    await Promise.all([...this.#runs].flatMap(run => run.files).map(file => file.save()))
    this.#journalled.running = false
  }

  async #watchSpace(run: Run): Promise<void> {
    const first = run.request.files[0]
    if (!first) return
    const { free, reserve } = await freeSpace(first.target).catch(() => ({ free: 1, reserve: 0 }))
    const missing = run.files.reduce((sum, file) => sum + (file.fetched ? 0 : file.total - file.completed), 0)
    if (missing === 0 || free >= reserve / 2) return
    run.controller.abort(diskFull(first.target, missing + reserve, free))
  }
}
