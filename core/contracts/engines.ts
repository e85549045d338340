import type { Readable } from 'node:stream'
import type { EngineSettings } from '../config/model-settings.ts'
import type { CorralError } from '../errors.ts'
import type { LoadOptions } from '../models/options.ts'
import type { Build, MemoryUse } from './builds.ts'
import type { StoredVariant } from './storage.ts'

export type EngineMode = 'chat' | 'embedding' | 'rerank'

/** How much an engine may take of what it would take more and more of. */
export interface EngineBounds {
  /** Bytes of the machine's memory for the states of earlier prompts (`--cache-ram`). */
  promptCache: number
  /** Most checkpoints of each slot, which models with windows or states have (`--ctx-checkpoints`). */
  checkpoints: number
  /** Bytes of each of the build's devices that are left free when layers are placed by themselves (`--fit-target`). */
  deviceMargins?: readonly number[]
}

/** What an engine is started for. */
export interface EngineSpec {
  /** The name the engine reports. */
  alias: string
  mode: EngineMode
  variant: StoredVariant
  /** Absolute path of the (first) model file, converted where that was needed. */
  modelPath: string
  projectorPath?: string
  options: LoadOptions
  /** What `config.yaml` says of the model beyond its options; files in it are absolute. */
  settings?: EngineSettings
  /** Folder that the engine may save its slots' caches in (`--slot-save-path`); none are saved where absent. */
  slotFolder?: string
  /** llama-server's defaults and corral's own hold where absent. */
  bounds?: EngineBounds
}

export interface EngineExit {
  /** Exit code, or null when a signal ended it. */
  code: number | null
  signal: string | null
  /** Whether corral asked for it. */
  expected: boolean
  /** Why it ended, where corral did not ask for it: `engine_crashed` with `details.cause`. */
  failure?: CorralError
}

export interface EngineRequest {
  method: 'GET' | 'POST'
  path: string
  body?: string | Buffer
  headers?: Record<string, string>
  signal: AbortSignal
}

export interface EngineResponse {
  status: number
  headers: Record<string, string | string[] | undefined>
  body: Readable
}

/** One running inference server, in this process's care or on another machine. */
export interface Engine {
  readonly id: string
  readonly spec: EngineSpec
  /** Tokens of context that each slot really has. */
  readonly contextSize: number
  readonly slots: number
  /** Bytes the engine holds in each memory pool, as it reports itself; absent where unknown. */
  readonly memory: MemoryUse | undefined
  /** The build it runs on. */
  readonly build: Build
  /** Flags that all engines get beside what the spec says. */
  readonly sharedArguments: readonly string[]
  readonly pid: number | undefined
  /** Settles when the engine has gone, whoever ended it. Never rejects. */
  readonly exited: Promise<EngineExit>
  /** Sends a request; resolves at the response's headers. No time limits of its own. */
  request(request: EngineRequest): Promise<EngineResponse>
  /** Ends it: politely first, then by force. Settles when it has gone. Open requests are cut. */
  stop(): Promise<void>
  /** The last lines it printed, oldest first. */
  logTail(): string[]
}
