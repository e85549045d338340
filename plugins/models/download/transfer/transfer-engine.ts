import { mkdir } from 'node:fs/promises'
import { dirname } from 'node:path'
import { CorralError, errorMessage } from '../../../../core/errors.ts'
import { Digests } from './digests.ts'
import { FileTransfer, type SharedResources } from './file-transfer.ts'
import { ConnectionPool } from './http-connection.ts'
import { Bandwidth, ConnectionLimit } from './limits.ts'
import { partialBytes } from './part-file.ts'
import { diskFull, diskSpace } from './transfer-errors.ts'
import type { TransferEngineOptions, TransferFile, TransferRequest, TransferredFile } from './transfers.ts'

const FILES_AT_ONCE = 4
/** Also the time between two reports of a file's progress: fewer than ten per second. */
const TICK_MS = 125
/** Time between two writes of the journal: a kill must not cost more than 8 MiB or one second. */
const JOURNAL_INTERVAL_MS = 250
const SLOW_TICK_MS = 1000
/** Time between two connections that are taken from one run for another: each takes a moment to end. */
const MAKE_ROOM_INTERVAL_MS = 500

interface Run {
  request: TransferRequest
  files: FileTransfer[]
  reported: number[]
  controller: AbortController
}

/** Downloads the files of all runs over a limited number of connections, in the calling thread. */
export class TransferEngine {
  readonly #shared: SharedResources
  readonly #limits = new Map<string | undefined, ConnectionLimit>()
  readonly #runs = new Set<Run>()
  #timer: NodeJS.Timeout | undefined
  #pumping = false
  #received = 0
  #journalled = { at: 0, received: 0, running: false }
  #slowTickAt = 0
  #madeRoomAt = Number.NEGATIVE_INFINITY

  constructor(options: TransferEngineOptions) {
    this.#shared = {
      options,
      connections: new ConnectionPool(),
      bandwidth: new Bandwidth(options.bandwidthLimit, performance.now()),
      digests: new Digests(),
      buffers: [],
      changed: () => this.#pumpSoon(),
      received: bytes => {
        this.#received += bytes
      },
      overloaded: host => this.#limitFor(host).overloaded(performance.now())
    }
    this.#shared.digests.prepare()
  }

  async run(request: TransferRequest): Promise<TransferredFile[]> {
    request.signal.throwIfAborted()
    await this.#assertSpace(request.files)
    const controller = new AbortController()
    const signal = AbortSignal.any([request.signal, controller.signal])
    const files = request.files.map((file, index) => {
      const locate = () => request.locate(index, signal)
      return new FileTransfer(file, request.identity, locate, signal, this.#shared)
    })
    const run: Run = { request, files, reported: files.map(() => -1), controller }
    this.#runs.add(run)
    this.#timer ??= setInterval(() => this.#tick(), TICK_MS)
    try {
      return await this.#all(run)
    } finally {
      this.#runs.delete(run)
      if (this.#runs.size === 0) {
        clearInterval(this.#timer)
        this.#timer = undefined
      }
    }
  }

  /** Call this when there are no runs left. */
  async close(): Promise<void> {
    this.#shared.connections.close()
    await this.#shared.digests.close()
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
          const isDisk = error instanceof CorralError && error.code === 'insufficient_storage'
          if (run.request.files[index]!.isOptional && !isDisk && !run.request.signal.aborted && !failure) {
            results[index] = { size: 0, sha256: '', leftOut: errorMessage(error) }
            continue
          }
          failure ??= { error }
          run.controller.abort(error)
        }
      }
    }
    await Promise.all(Array.from({ length: Math.min(FILES_AT_ONCE, run.files.length) }, worker))
    if (failure) throw failure.error
    return results
  }

  async #assertSpace(files: readonly TransferFile[]): Promise<void> {
    if (files.length === 0) return
    const folder = dirname(files[0]!.target)
    await mkdir(folder, { recursive: true })
    let needed = 0
    for (const { target, size } of files) needed += Math.max(0, (size ?? 0) - (await partialBytes(target)))
    const { free, reserve } = await diskSpace(folder)
    if (needed + reserve > free) throw diskFull(needed + reserve, free)
  }

  #limitFor(host: string | undefined): ConnectionLimit {
    const limit = this.#limits.get(host) ?? new ConnectionLimit(this.#shared.options.connections)
    this.#limits.set(host, limit)
    return limit
  }

  #pumpSoon(): void {
    if (this.#pumping) return
    this.#pumping = true
    setImmediate(() => {
      this.#pumping = false
      this.#pump()
    })
  }

  /** Starts connections where they are needed. Files with the fewest connections come first. */
  #pump(): void {
    const now = performance.now()
    const files = [...this.#runs].flatMap(run => run.files).filter(file => file.fetching)
    const countConnections = (some: FileTransfer[]) => some.reduce((sum, file) => sum + file.running, 0)
    const waiting = new Set(files)
    while (countConnections(files) < this.#shared.options.connections && waiting.size > 0) {
      const file = [...waiting].reduce((fewest, other) => (other.running < fewest.running ? other : fewest))
      const used = countConnections(files.filter(({ host }) => host === file.host))
      if (used >= this.#limitFor(file.host).current(now) || !file.start(now)) waiting.delete(file)
    }
    this.#makeRoom(now)
  }

  /** Takes a connection from the busiest run for a run without any: servers may never free one. */
  #makeRoom(now: number): void {
    if (now - this.#madeRoomAt < MAKE_ROOM_INTERVAL_MS) return
    const countConnections = ({ files }: Run) => files.reduce((sum, file) => sum + file.running, 0)
    const runs = [...this.#runs].sort((a, b) => countConnections(b) - countConnections(a))
    const [most] = runs
    const starving = runs.find(run => countConnections(run) === 0 && run.files.some(file => file.isIdle(now)))
    if (!most || !starving || countConnections(most) < 2) return
    this.#madeRoomAt = now
    const busiest = most.files.reduce((busy, file) => (file.running > busy.running ? file : busy))
    busiest.yieldConnection()
  }

  #tick(): void {
    const now = performance.now()
    for (const run of this.#runs) this.#report(run)
    void this.#journal(now)
    if (now - this.#slowTickAt >= SLOW_TICK_MS) {
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

  async #journal(now: number): Promise<void> {
    const { at, received, running } = this.#journalled
    if (running || received === this.#received || now - at < JOURNAL_INTERVAL_MS) return
    this.#journalled = { at: now, received: this.#received, running: true }
    await Promise.all([...this.#runs].flatMap(run => run.files).map(file => file.save()))
    this.#journalled.running = false
  }

  async #watchSpace(run: Run): Promise<void> {
    const [first] = run.request.files
    const missing = run.files.reduce((sum, file) => sum + (file.fetched ? 0 : file.total - file.completed), 0)
    if (!first || missing === 0) return
    const folder = dirname(first.target)
    // If the space is unknown, a failed write will show it.
    const { free, reserve } = await diskSpace(folder).catch(() => ({ free: 1, reserve: 0 }))
    if (free < reserve / 2) run.controller.abort(diskFull(missing + reserve, free))
  }
}
