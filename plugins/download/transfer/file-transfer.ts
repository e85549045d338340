import type { FileLocation } from '../../../core/contracts/downloads.ts'
import { messageOf } from '../../../core/errors.ts'
import { FileFetches } from './file-fetches.ts'
import { FileSource } from './file-source.ts'
import { PartFile } from './part-file.ts'
import { Retries } from './retries.ts'
import type { SharedResources } from './shared-resources.ts'
import { storageError, wrongContent } from './transfer-errors.ts'
import type { TransferFile, TransferredFile } from './transfers.ts'
import { checkTarget, type Mismatch, Verification } from './verification.ts'

/** Times that a file's content may change while it is fetched. */
const MAX_CHANGES = 2

/** Fetches one file, verifies it, and renames it to its target. */
export class FileTransfer {
  readonly file: TransferFile
  readonly #shared: SharedResources
  readonly #identity: string
  readonly #signal: AbortSignal
  readonly #source: FileSource
  readonly #verification: Verification
  readonly #settled: Promise<TransferredFile>
  #resolve!: (file: TransferredFile) => void
  #reject!: (error: unknown) => void
  #part: PartFile | undefined
  #fetches: FileFetches | undefined
  /** Size of a target that existed already. */
  #presentSize: number | undefined
  #ended = false
  #changes = 0

  constructor(
    file: TransferFile,
    identity: string,
    locate: () => Promise<FileLocation>,
    signal: AbortSignal,
    shared: SharedResources
  ) {
    this.file = file
    this.#shared = shared
    this.#identity = identity
    this.#signal = signal
    this.#source = new FileSource(locate)
    this.#verification = new Verification({ sha256: file.sha256, gitSha1: file.gitSha1 }, shared.digests, {
      onVerified: sha256 => void this.#finish(sha256),
      onMissing: () => this.#step(),
      onRestart: mismatch => this.#changed(mismatch),
      onMismatch: mismatch => void this.#giveUp(mismatch),
      onFailed: error => this.#fail(error)
    })
    this.#settled = new Promise((resolve, reject) => {
      this.#resolve = resolve
      this.#reject = reject
    })
    // `run` reports failures.
    this.#settled.catch(() => {})
  }

  get completed(): number {
    return this.#part?.map?.completed ?? this.#presentSize ?? 0
  }

  get total(): number {
    return this.#part?.map?.size ?? this.file.size ?? this.#presentSize ?? 0
  }

  /** Connections that it has, those that receive bytes, and as many as it could use. */
  get connections(): { running: number; delivering: number; wanted: number } {
    const { running = 0, delivering = 0, wanted = 0 } = this.#fetches ?? {}
    return { running, delivering, wanted }
  }

  /** Host that it comes from; undefined while unknown. */
  get host(): string | undefined {
    return this.#source.host
  }

  /** All bytes are on disk, or the transfer has ended; the digest may be pending. */
  get fetched(): boolean {
    return this.#ended || this.#part?.map?.complete === true
  }

  /** Fetches and verifies the file. @throws CorralError, the signal's reason */
  async run(): Promise<TransferredFile> {
    const abort = () => this.#fail(this.#signal.reason)
    try {
      this.#signal.throwIfAborted()
      this.#signal.addEventListener('abort', abort, { once: true })
      const present = await checkTarget(this.file, this.#shared.digests, this.#signal)
      if (present) {
        this.#presentSize = present.size
        return present
      }
      await this.#open()
      return await this.#settled
    } catch (error) {
      throw await storageError(error, this.file.target, this.total, this.total - this.completed)
    } finally {
      this.#signal.removeEventListener('abort', abort)
      await this.#close()
    }
  }

  /** Starts another connection. @returns false when there is nothing to do for it now */
  start(now: number): boolean {
    return !this.#ended && this.#fetches?.start(now) === true
  }

  /** Called once a second. */
  tick(now: number): void {
    this.#fetches?.tick(now)
  }

  /** Writes the journal. */
  async save(): Promise<void> {
    if (this.#ended) return
    this.#fetches?.flush()
    try {
      await this.#part?.save()
    } catch (error) {
      this.#fail(error)
    }
  }

  async #open(): Promise<void> {
    const { path, size, sha256, gitSha1, target } = this.file
    const part = await PartFile.open(target, { identity: this.#identity, path, size, sha256, gitSha1 })
    this.#part = part
    const retries = new Retries(this.#shared.firstDelay, size, performance.now())
    const context = { path, part, source: this.#source, retries, verification: this.#verification }
    this.#fetches = new FileFetches(this.#shared, context, {
      onEnd: () => this.#step(),
      onSize: () => this.#begin(),
      onChanged: mismatch => this.#changed(mismatch),
      onFailed: error => this.#fail(error)
    })
    this.#begin()
    this.#step()
  }

  /** Verification starts with what is on disk. */
  #begin(): void {
    const { map, path } = this.#part!
    if (map && !this.#ended) this.#verification.begin(path, map)
    else this.#verification.end()
  }

  /** Continues with whatever is next. */
  #step(): void {
    const map = this.#part?.map
    if (!this.#ended && map) {
      this.#verification.advance()
      if (map.complete && this.#fetches!.running === 0) this.#verification.complete()
    }
    this.#shared.changed()
  }

  /** Nothing on disk can be used: starts over. */
  #changed(what: Mismatch): void {
    if (this.#ended) return
    this.#changes += 1
    if (this.#changes > MAX_CHANGES) {
      void this.#giveUp(what)
      return
    }
    this.#fetches!.restart()
    this.#source.renew()
    const part = this.#part!
    part.reset()
    part.place = undefined
    if (this.file.size === undefined) part.map = undefined
    this.#begin()
    this.#step()
  }

  async #giveUp(what: Mismatch): Promise<void> {
    this.#ended = true
    try {
      await this.#fetches!.stop()
      await this.#part!.discard()
      this.#reject(wrongContent(this.file.path, what.expected, what.got))
    } catch (error) {
      this.#reject(error)
    }
  }

  async #finish(sha256: string): Promise<void> {
    if (this.#ended) return
    this.#ended = true
    try {
      const { size } = this.#part!.map!
      await this.#fetches!.stop()
      await this.#part!.finish()
      this.#resolve({ size, sha256 })
    } catch (error) {
      this.#reject(error)
    }
  }

  #fail(error: unknown): void {
    if (this.#ended) return
    this.#ended = true
    this.#reject(error)
  }

  async #close(): Promise<void> {
    this.#ended = true
    this.#verification.end()
    await this.#fetches?.stop()
    try {
      await this.#part?.close()
    } catch (error) {
      // The earlier journal stays valid; on a full disk there is no space for a newer one.
      this.#shared.log(`the journal of ${this.file.target} could not be written: ${messageOf(error)}`)
    }
  }
}
