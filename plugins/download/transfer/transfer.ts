import type { FileLocation } from '../../../core/contracts/downloads.ts'

/** One file to be fetched. */
export interface TransferFile {
  /** In the repository; for messages. */
  path: string
  /** Absolute path that it gets once it is whole and verified. Beside it lie its partial data and their journal. */
  target: string
  /** Bytes; undefined where only the place itself knows. */
  size: number | undefined
  /** What it is verified by; where there is neither, by its size. */
  sha256?: string
  gitSha1?: string
}

export interface TransferRequest {
  /** Names the content of all files (hub, repository, revision): partial data of another one are not continued. */
  identity: string
  files: readonly TransferFile[]
  /** Where the bytes of a file are now; asked anew whenever a place stops working. Its CorralErrors end the transfer. */
  locate(index: number, signal: AbortSignal): Promise<FileLocation>
  signal: AbortSignal
  /** Bytes of one file that are on disk: at most ten times a second and file, and at its end. */
  onProgress(index: number, completed: number, total: number): void
}

/** What a verified file turned out to be. */
export interface TransferredFile {
  /** Bytes. */
  size: number
  /** 64 hex digits, computed from the bytes. */
  sha256: string
}

/** Fetches files, however often they are interrupted. */
export interface Transfers {
  /**
   * Fetches and verifies files; gives what they are, in order. What is there already is verified and kept. After a
   * failure or an abort partial data stay, and the next run continues them.
   * @throws CorralError `hub_unreachable`, `hub_forbidden`, `hub_rate_limited`, `checksum_mismatch`,
   * `insufficient_storage`; the signal's reason
   */
  run(request: TransferRequest): Promise<TransferredFile[]>
  /** Ends all runs; settles when nothing is written any longer. */
  close(): Promise<void>
}

export interface TransferOptions {
  /** Most connections for one file, and for all files together. */
  connectionsPerFile: number
  connections: number
  /** Bytes a second of all transfers together; 0 is no limit. */
  bandwidthLimit: number
  /** Milliseconds without a byte after which a connection is replaced. */
  stallTimeout: number
}
