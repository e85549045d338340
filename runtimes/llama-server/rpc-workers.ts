import { lookup } from 'node:dns/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Agent } from 'undici'
import type { EngineSettings } from '../../core/config/model-settings.ts'
import type { Build } from '../../core/contracts/builds.ts'
import type { MemoryUse } from '../../core/contracts/engines.ts'
import type { Waiting } from '../../core/contracts/progress.ts'
import {
  WORKER_ALIVE_PATH,
  WORKER_PATH,
  WORKER_SIGN_INTERVAL,
  type WorkerFacts,
  WorkerFactsSchema
} from '../../core/contracts/workers.ts'
import { CorralError, errorMessage } from '../../core/errors.ts'
import { abortAfter, withResolver } from '../../core/system/abort-signals.ts'
import { parseJson } from '../../core/system/json-file.ts'
import { isLoopback, isPublicAddress } from '../../core/system/private-address.ts'
import { CAUSES, endedFailure, type FailureCause } from './failure.ts'
import type { Device } from './memory/device-placement.ts'

/*
 * Manages the machines that a model's engine uses in addition to its own (`rpc` in its settings). llama.cpp does not
 * authenticate them, aborts if one does not answer, and waits forever if another client uses it. So corral first asks
 * each `corral worker` for its facts, and follows it while an engine uses it.
 */

export interface RpcWorker {
  /** `host:port` as configured. Used as display name, and as the name of its memory. */
  name: string
  /** `address:port` for `--rpc`. The connection goes to exactly the address that was checked. */
  endpoint: string
  facts: WorkerFacts
}

/** Seconds after which a worker that does not answer may be back. */
const RETRY_AFTER_S = 5
const ANSWER_LIMIT_MS = 3000
/** Milliseconds that a worker may take to notice that its last client has left. */
const FREE_LIMIT_MS = 10_000
const SILENCE_LIMIT_MS = 4 * WORKER_SIGN_INTERVAL
const MEMORY_MAX_AGE_MS = 1000
const MAX_ANSWER_BYTES = 64 * 1024

type RpcSettings = NonNullable<EngineSettings['rpc']>

function refusal(alias: string, cause: FailureCause, worker: string, why: string, error?: unknown): CorralError {
  const { code } = CAUSES[cause]
  const retry = code === 'engine_unreachable' ? { retryAfter: RETRY_AFTER_S } : {}
  const message = `The model "${alias}" could not be loaded: ${why}`
  return new CorralError(code, message, { details: { cause, worker }, cause: error, ...retry })
}

/** Returns an address at which a worker answers: on the port after its own. */
function urlOf({ endpoint }: Pick<RpcWorker, 'endpoint'>, path: string): string {
  const colon = endpoint.lastIndexOf(':')
  return `http://${endpoint.slice(0, colon)}:${Number(endpoint.slice(colon + 1)) + 1}${path}`
}

/** Returns a worker's devices with the pools that their memory belongs to. */
export function pooledDevices({ name, facts: { devices } }: Pick<RpcWorker, 'name' | 'facts'>) {
  return devices.map(device => ({ ...device, pool: devices.length === 1 ? name : `${name} ${device.name}` }))
}

/** Lists the workers' devices that can hold layers, in llama.cpp's order: `RPC0`, `RPC1`, … */
export function workerDevices(workers: readonly RpcWorker[]): (Device & { total: number })[] {
  const devices = workers.flatMap(pooledDevices)
  return devices.map(({ pool, usable, total }) => ({ pool, budget: usable, overhead: 0, total }))
}

/** Renames llama.cpp's devices in a memory use to the pools of the workers. */
export function inWorkerPools(use: MemoryUse, workers: readonly RpcWorker[] = []): MemoryUse {
  const pooled = workers.flatMap(pooledDevices)
  const named = Object.entries(use).map(([device, bytes]) => {
    const { pool = device } = pooled[Number(/^RPC(\d+)$/.exec(device)?.[1])] ?? {}
    return [pool, bytes]
  })
  return Object.fromEntries(named)
}

/** Returns the llama.cpp release in a build's id: `release-b11347-cuda-13`, `source-v0.5.0-cpu`. */
const getRelease = (id: string) => /(?:^|-)(b\d+|v\d+\.\d+\.\d+)(?=-|$)/.exec(id)?.[1]

/**
 * Returns why a worker's llama.cpp does not match this machine's, or undefined if it does. Both ends must be of the
 * same release, because they exchange operations by number. Builds for other hardware, or compiled elsewhere, have
 * other digests, but an official build for the same system must have the same.
 */
export function buildMismatch(
  own: Pick<Build, 'id' | 'version' | 'commit' | 'source' | 'digest'>,
  { build, platform, arch }: Pick<WorkerFacts, 'build' | 'platform' | 'arch'>,
  here: { platform: string; arch: string } = process
): string | undefined {
  if (own.digest === build.digest) return undefined
  const [ours, theirs] = [`${own.version} (${own.id})`, `${build.version} (${build.id})`]
  const sameSystem = platform === here.platform && arch === here.arch
  if (own.source === 'release' && build.source === 'release' && own.id === build.id && sameSystem) {
    return `its llama-server differs from that of this machine, although both come from the release ${own.id}: SHA-256 ${build.digest.slice(0, 12)}… there, ${own.digest.slice(0, 12)}… here`
  }
  const release = getRelease(own.id)
  const sameCommit = own.commit !== undefined && own.commit === build.commit
  if (sameCommit || (release !== undefined && release === getRelease(build.id))) return undefined
  return `it has llama.cpp ${theirs}, but this machine has ${ours}`
}

export type RpcWorkers = ReturnType<typeof createRpcWorkers>

export function createRpcWorkers(
  log: { warn(object: object, message: string): void },
  resolve: typeof lookup = lookup
) {
  let agent: Agent | undefined
  async function get(url: string, signal: AbortSignal) {
    // Loaded with the first request, because few models have workers.
    const undici = await import('undici')
    agent ??= new undici.Agent({
      connect: { timeout: ANSWER_LIMIT_MS },
      headersTimeout: ANSWER_LIMIT_MS,
      bodyTimeout: SILENCE_LIMIT_MS
    })
    return await undici.request(url, { dispatcher: agent, signal })
  }
  /** The last facts from workers, by their names. */
  const heard = new Map<string, { worker: RpcWorker; at: number }>()
  /** Workers for which a warning about unprotected traffic was logged. */
  const warned = new Set<string>()

  /** @throws CorralError `load_failed` if it is not on this machine or in a private network */
  async function endpointOf(alias: string, name: string, insecure: boolean): Promise<string> {
    const [, host, port] = /^(.*):(\d+)$/.exec(name)! as unknown as [string, string, string]
    // llama.cpp resolves names to IPv4 too.
    const found = await resolve(host, { family: 4, all: true }).catch(error => {
      const why = `the name of its worker ${name} cannot be resolved to an IPv4 address (${errorMessage(error)}).`
      throw refusal(alias, 'rpc_unreachable', name, why, error)
    })
    const open = found.find(({ address }) => isPublicAddress(address, new Set()))
    if (open && !insecure) {
      const why = `its worker ${name} has a public address (${open.address}), and traffic to it is neither encrypted nor authenticated. Use an address of a private network or a VPN, or set rpc_insecure for the model.`
      throw refusal(alias, 'rpc_public', name, why)
    }
    return `${found[0]!.address}:${port}`
  }

  /** Asks a worker for its facts. Waits while it restarts, which it does when a client leaves without a word. */
  async function ask(url: string, signal: AbortSignal): Promise<WorkerFacts> {
    const until = performance.now() + ANSWER_LIMIT_MS
    for (;;) {
      const limited = AbortSignal.any([signal, abortAfter(ANSWER_LIMIT_MS)])
      const { statusCode, body } = await get(url, limited)
      if (statusCode !== 503) return await readFacts(statusCode, body.setEncoding('utf8'))
      if (performance.now() > until) throw new Error('its ggml-rpc-server is restarting')
      await sleep(100, undefined, { signal })
    }
  }

  async function readFacts(statusCode: number, body: AsyncIterable<string>): Promise<WorkerFacts> {
    let text = ''
    for await (const piece of body) {
      text += piece
      if (text.length > MAX_ANSWER_BYTES) throw new Error('its answer is too long')
    }
    const parsed = statusCode === 200 ? parseJson(text, WorkerFactsSchema) : { fault: `status ${statusCode}` }
    if (parsed.fault !== undefined)
      throw new Error(`the answer is not from a "corral worker" of this version: ${parsed.fault}`)
    return parsed.value
  }

  async function reachOne(alias: string, name: string, insecure: boolean, build: Build, signal: AbortSignal) {
    const endpoint = await endpointOf(alias, name, insecure)
    const url = urlOf({ endpoint }, WORKER_PATH)
    let facts: WorkerFacts
    try {
      facts = await ask(url, signal)
    } catch (error) {
      signal.throwIfAborted()
      const reason = error instanceof Error && error.name === 'TimeoutError' ? 'no answer in 3 s' : errorMessage(error)
      const why = `its worker ${name} cannot be reached (${reason}; tried port ${new URL(url).port}). Start "corral worker" there, or remove it from "rpc" in the model's settings.`
      throw refusal(alias, 'rpc_unreachable', name, why, error)
    }
    const mismatch = buildMismatch(build, facts)
    if (mismatch !== undefined) {
      const why = `its worker ${name} does not match, because ${mismatch}. Both machines need the same release of llama.cpp ("corral runtime install" and "corral runtime use", then restart the worker).`
      throw refusal(alias, 'rpc_mismatch', name, why)
    }
    if (!isLoopback(new URL(url).hostname) && !warned.has(name)) {
      warned.add(name)
      const what = 'traffic to a worker is neither encrypted nor authenticated (docs/rpc.md)'
      log.warn({ model: alias, worker: name }, what)
    }
    const worker: RpcWorker = { name, endpoint, facts }
    heard.set(name, { worker, at: performance.now() })
    return worker
  }

  /** Asks all workers of a model in parallel. @throws CorralError with `details.cause` and `details.worker` */
  async function reach(alias: string, settings: RpcSettings, build: Build, waiting: Waiting): Promise<RpcWorker[]> {
    const signal = waiting.signal ?? new AbortController().signal
    const reached = settings.workers.map(name => reachOne(alias, name, settings.insecure, build, signal))
    return await Promise.all(reached)
  }

  /** Does the same once no client is connected to any worker, because the last engine may have just ended. */
  async function reachFree(alias: string, settings: RpcSettings, build: Build, waiting: Waiting): Promise<RpcWorker[]> {
    const until = performance.now() + FREE_LIMIT_MS
    for (;;) {
      const workers = await reach(alias, settings, build, waiting)
      const busy = workers.find(({ facts }) => facts.busy)
      if (!busy) return workers
      if (performance.now() > until) {
        const why = `its worker ${busy.name} serves another client, and ggml-rpc-server accepts only one. Stop the model that uses it, or start another worker on that machine (corral worker --port).`
        throw refusal(alias, 'rpc_busy', busy.name, why)
      }
      await sleep(100, undefined, { signal: waiting.signal })
    }
  }

  /** Follows the workers of an engine. `onLost` and `lost` get the name of the first that ends or no longer answers. */
  function follow(workers: readonly RpcWorker[], onLost: (name: string) => void) {
    const closing = new AbortController()
    const { promise: lost, resolve: tell } = withResolver<string>()
    async function followOne(worker: RpcWorker): Promise<void> {
      const { facts, name } = worker
      let why = 'its ggml-rpc-server has exited'
      try {
        const { body, statusCode } = await get(urlOf(worker, WORKER_ALIVE_PATH), closing.signal)
        let first = ''
        for await (const piece of body.setEncoding('utf8')) {
          if (first.includes('\n')) continue
          first += piece
          if (!first.includes('\n') && first.length < MAX_ANSWER_BYTES) continue
          // The worker was restarted after the check, so the engine's data there is lost.
          if (statusCode !== 200 || first.split('\n')[0] !== facts.instance) break
        }
      } catch (error) {
        why = errorMessage(error)
      }
      if (closing.signal.aborted) return
      log.warn({ worker: name, reason: why }, 'a worker is lost')
      tell(name)
      onLost(name)
    }
    for (const worker of workers) void followOne(worker)
    return { lost, close: () => closing.abort() }
  }

  /** Returns the bytes that engines may use of each worker's devices. @param held bytes that they already use */
  async function budgets(held: MemoryUse): Promise<MemoryUse> {
    const all = await Promise.all(
      [...heard.values()].map(async ({ worker, at }) => {
        if (performance.now() - at < MEMORY_MAX_AGE_MS) return worker
        try {
          const now = { ...worker, facts: await ask(urlOf(worker, WORKER_PATH), new AbortController().signal) }
          heard.set(worker.name, { worker: now, at: performance.now() })
          return now
        } catch {
          // An unreachable worker is not a reason to unload anything, because a load asks again and reports the
          // problem. If nothing is in use there, the next check does not wait for it.
          if (pooledDevices(worker).some(({ pool }) => held[pool]))
            heard.set(worker.name, { worker, at: performance.now() })
          else heard.delete(worker.name)
          return worker
        }
      })
    )
    const devices = all.flatMap(pooledDevices)
    return Object.fromEntries(
      devices.map(({ pool, usable, free }) => [pool, Math.min(usable, free + (held[pool] ?? 0))])
    )
  }

  return { reach, reachFree, follow, budgets, close: async () => await agent?.destroy() }
}

export function lostWorkerFailure(alias: string, worker: string, ready: boolean): CorralError {
  const texts = [
    `exited while in use: its worker ${worker} is gone. The model can be loaded again once the worker is back.`,
    `worker ${worker} went away during the load. Start "corral worker" there again.`
  ] as const
  return endedFailure(alias, ready, 'rpc_lost', texts, { worker })
}
