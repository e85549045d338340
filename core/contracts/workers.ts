import type { Waiting } from './progress.ts'
import type { WorkerFacts } from './worker-facts.ts'

/*
 * One model over several machines: `corral worker` lends a machine's memory and devices to llama-servers elsewhere. Its
 * `ggml-rpc-server` speaks llama.cpp's RPC protocol, in which nobody can ask what is at the other end; that is told over
 * HTTP at the port behind it.
 */

/** The port that `corral worker` lends a machine at where no other is given; what it says of itself is at the next one. */
export const WORKER_PORT = 50052
/** What a worker says of itself, as JSON. */
export const WORKER_PATH = '/worker'
/**
 * A reply that lasts as long as the worker's `ggml-rpc-server`: its first line is the instance, an empty line every
 * `WORKER_SIGN_INTERVAL` says that it still runs.
 */
export const WORKER_ALIVE_PATH = '/worker/alive'
/** Milliseconds between signs of life. */
export const WORKER_SIGN_INTERVAL = 5000

export interface WorkerOptions {
  /** IPv4 address to listen on, which `ggml-rpc-server` has no others of; or a name of one. */
  host: string
  port: number
  /** Whether it may listen beyond loopback and private networks. */
  insecure: boolean
  /** Bytes that clients may take of each device; undefined is what the machine can spare. */
  memory?: number | undefined
  /** Devices to lend, such as CUDA0; all GPUs where absent, and the processor where there is none. */
  devices?: readonly string[] | undefined
  /** Threads of the processor; undefined is one for each core. */
  threads?: number | undefined
  /** Bytes of weights that are kept on the disk, so that they need not be sent again; 0 is none. */
  cache: number
  /** Told in a sentence what happens to its `ggml-rpc-server` while it runs. */
  notice?: (message: string) => void
}

/** A worker that runs. */
export interface Worker {
  /** `host:port`, as it goes into `rpc` of `config.yaml`. */
  readonly address: string
  /** Where its cache is; absent without one. */
  readonly cacheDirectory?: string
  facts(): Promise<WorkerFacts>
  /** Ends it and its `ggml-rpc-server`. */
  stop(): Promise<void>
}

/** Lends this machine to others. */
export interface WorkerHost {
  /**
   * Starts a worker on the build that engines run on here, which is found or made first.
   * @throws CorralError `address_not_allowed` beyond loopback and private networks, `runtime_missing`, `load_failed`
   */
  start(options: WorkerOptions, waiting: Waiting): Promise<Worker>
}
