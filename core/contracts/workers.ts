import { type Static, Type } from 'typebox'
import type { Waiting } from './progress.ts'

/* `corral worker` offers memory and devices to llama-servers elsewhere. The next port describes them over HTTP. */

/** The default port of `corral worker`. Its description is served at the next port. */
export const WORKER_PORT = 50052
/** Path of a worker's description, as JSON. */
export const WORKER_PATH = '/worker'
/** A reply that lasts as long as `ggml-rpc-server`: the instance, then empty lines as signs of life. */
export const WORKER_ALIVE_PATH = '/worker/alive'
/** Milliseconds between signs of life. */
export const WORKER_SIGN_INTERVAL = 5000

/** What `corral worker` reports about itself. Sizes are bytes. */
export const WorkerFactsSchema = Type.Object({
  corral: Type.String({ maxLength: 100 }),
  platform: Type.String({ maxLength: 40 }),
  arch: Type.String({ maxLength: 40 }),
  /** As in `BuildSchema`. */
  build: Type.Object({
    id: Type.String({ maxLength: 200 }),
    kind: Type.String({ maxLength: 40 }),
    source: Type.String({ maxLength: 40 }),
    version: Type.String({ maxLength: 200 }),
    commit: Type.Optional(Type.String({ maxLength: 40 })),
    digest: Type.String({ maxLength: 64 })
  }),
  /** Changes whenever its `ggml-rpc-server` is started. */
  instance: Type.String({ maxLength: 100 }),
  /** Whether a client is connected: `ggml-rpc-server` serves one at a time, and lets others wait forever. */
  busy: Type.Boolean(),
  /** In llama.cpp's order. */
  devices: Type.Array(
    Type.Object({
      name: Type.String({ minLength: 1, maxLength: 40 }),
      description: Type.String({ maxLength: 200 }),
      /** As llama.cpp sees it. */
      total: Type.Integer({ minimum: 0 }),
      /** Maximum that a client may use. */
      usable: Type.Integer({ minimum: 0 }),
      /** The part of `usable` that is free now. */
      free: Type.Integer({ minimum: 0 })
    }),
    { minItems: 1, maxItems: 64 }
  )
})
export type WorkerFacts = Static<typeof WorkerFactsSchema>

export interface WorkerOptions {
  /** IPv4 address to listen on, or its name. `ggml-rpc-server` does not support IPv6. */
  host: string
  port: number
  /** Whether it may listen beyond loopback and private networks. */
  insecure: boolean
  /** Bytes that clients may use of each device. Undefined means all that the machine can spare. */
  memory?: number | undefined
  /** Devices to offer, such as CUDA0; if absent, all GPUs, or the processor if there is no GPU. */
  devices?: readonly string[] | undefined
  /** Threads of the processor; undefined is one for each core. */
  threads?: number | undefined
  /** Bytes of weights cached on disk, so that they need not be sent again. 0 disables the cache. */
  cache: number
  /** Called with a sentence when something happens to its `ggml-rpc-server`. */
  notice?: (message: string) => void
}

export interface Worker {
  /** `host:port`, for `rpc` in `config.yaml`. */
  readonly address: string
  /** Folder of its cache; absent without one. */
  readonly cacheDirectory?: string
  facts(): Promise<WorkerFacts>
  stop(): Promise<void>
}

/** Offers this machine to others. */
export interface WorkerHost {
  /** Starts a worker. @throws CorralError `address_not_allowed`, `runtime_missing`, `load_failed` */
  start(options: WorkerOptions, waiting: Waiting): Promise<Worker>
}
