import { lookup } from 'node:dns/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Agent } from 'undici'
import type { EngineSettings } from '../../core/config/model-settings.ts'
import type { Build } from '../../core/contracts/builds.ts'
import type { MemoryUse } from '../../core/contracts/engines.ts'
import type { Waiting } from '../../core/contracts/progress.ts'
import { type WorkerFacts, WorkerFactsSchema } from '../../core/contracts/worker-facts.ts'
import { WORKER_ALIVE_PATH, WORKER_PATH, WORKER_SIGN_INTERVAL } from '../../core/contracts/workers.ts'
import { CorralError, errorMessage } from '../../core/errors.ts'
import { abortAfter } from '../../core/system/abort-after.ts'
import { parseJson } from '../../core/system/json-file.ts'
import { isLoopback, isPublicAddress } from '../../core/system/private-address.ts'
import type { FailureCause } from './failure-causes.ts'
import type { Device } from './memory/device-placement.ts'

/*
 * The machines that a model's engine computes on beside its own (`rpc` of its settings). llama.cpp itself asks nobody
 * who they are, aborts where one does not answer and waits for ever where another client has it: so they are asked
 * first, by what `corral worker` tells of itself, and followed while an engine uses them.
 */

/** A worker that was reached. */
export interface RpcWorker {
  /** `host:port` as it is configured: for people, and the name of its memory. */
  name: string
  /** `address:port` that `--rpc` gets: what was checked is what is connected to. */
  endpoint: string
  facts: WorkerFacts
}

/** Milliseconds for an answer, which takes one in a network that works. */
const ANSWER_LIMIT = 3000
/** Milliseconds that a worker may take to notice that its last client has gone. */
const FREE_LIMIT = 10_000
/** Milliseconds without a sign of life after which a worker counts as lost. */
const SILENCE_LIMIT = 4 * WORKER_SIGN_INTERVAL
/** Milliseconds that figures of memory are good for. */
const FRESH = 1000
/** Bytes: more than a worker with the most devices has to say. */
const MAX_ANSWER_LENGTH = 64 * 1024

type RpcSettings = NonNullable<EngineSettings['rpc']>

function refusal(cause: FailureCause, worker: string, message: string, error?: unknown): CorralError {
  return new CorralError('load_failed', message, { details: { cause, worker }, cause: error })
}

/** Of a worker's devices, the names of the pools in which their memory counts. */
export function poolsOf({ name, facts }: Pick<RpcWorker, 'name' | 'facts'>): string[] {
  return facts.devices.map(device => (facts.devices.length === 1 ? name : `${name} ${device.name}`))
}

/** Where layers can be put on workers, in llama.cpp's order: its devices `RPC0`, `RPC1`, … */
export function workerDevices(workers: readonly RpcWorker[]): (Device & { total: number })[] {
  return workers.flatMap(worker => {
    const pools = poolsOf(worker)
    return worker.facts.devices.map(({ usable, total }, at) => ({
      pool: pools[at]!,
      budget: usable,
      overhead: 0,
      total
    }))
  })
}

/** Memory by llama.cpp's devices, with those of workers as the pools in which they count. */
export function inWorkerPools(use: MemoryUse, workers: readonly RpcWorker[] = []): MemoryUse {
  const pools = workers.flatMap(poolsOf)
  const named = Object.entries(use).map(([device, bytes]) => {
    const number = /^RPC(\d+)$/.exec(device)?.[1]
    return [(number !== undefined && pools[Number(number)]) || device, bytes]
  })
  return Object.fromEntries(named)
}

/** The release of llama.cpp that a build is of, by its id: `release-b11347-cuda-13`, `source-v0.5.0-cpu`. */
const releaseOf = (id: string) => /(?:^|-)(b\d+|v\d+\.\d+\.\d+)(?=-|$)/.exec(id)?.[1]

/**
 * Why a worker's llama.cpp is not this one; undefined where it is. Both ends must be of the same release, since they
 * exchange operations by their numbers. Builds for other hardware, or compiled elsewhere, have other digests; an
 * official one for the same system may not.
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
    return `its llama-server is not that of this machine, although both come from the release ${own.id}: SHA-256 ${build.digest.slice(0, 12)}… there, ${own.digest.slice(0, 12)}… here`
  }
  const release = releaseOf(own.id)
  const sameCommit = own.commit !== undefined && own.commit === build.commit
  if (sameCommit || (release !== undefined && release === releaseOf(build.id))) return undefined
  return `it has llama.cpp ${theirs}, and this machine ${ours}`
}

/** The machines that engines compute on beside this one. */
export type RpcWorkers = ReturnType<typeof createRpcWorkers>

export function createRpcWorkers(
  log: { warn(object: object, message: string): void },
  resolve: typeof lookup = lookup
) {
  let agent: Agent | undefined
  async function get(url: string, signal: AbortSignal) {
    // Loaded with the first request: few models have workers.
    const undici = await import('undici')
    agent ??= new undici.Agent({
      connect: { timeout: ANSWER_LIMIT },
      headersTimeout: ANSWER_LIMIT,
      bodyTimeout: SILENCE_LIMIT
    })
    return await undici.request(url, { dispatcher: agent, signal })
  }
  /** What was last heard of workers, by their names. */
  const heard = new Map<string, { worker: RpcWorker; at: number }>()
  /** Workers of which it was said that nothing protects what goes there. */
  const warned = new Set<string>()

  /** @throws CorralError `load_failed` where it is neither this machine nor in a private network */
  async function addressOf(alias: string, name: string, insecure: boolean): Promise<{ host: string; port: number }> {
    const [, host, port] = /^(.*):(\d+)$/.exec(name)! as unknown as [string, string, string]
    // What llama.cpp resolves to is IPv4 too.
    const found = await resolve(host, { family: 4, all: true }).catch(error => {
      const message = `The model "${alias}" could not be loaded: the name of its worker ${name} cannot be resolved to an IPv4 address (${errorMessage(error)}).`
      throw refusal('rpc_unreachable', name, message, error)
    })
    const open = found.find(({ address }) => isPublicAddress(address, new Set()))
    if (open && !insecure) {
      throw refusal(
        'rpc_public',
        name,
        `The model "${alias}" could not be loaded: its worker ${name} is at a public address (${open.address}), and what goes there is neither encrypted nor authenticated. Use an address of a private network or a VPN, or set rpc_insecure for the model.`
      )
    }
    return { host: found[0]!.address, port: Number(port) }
  }

  async function ask(url: string, signal: AbortSignal): Promise<WorkerFacts> {
    const limited = AbortSignal.any([signal, abortAfter(ANSWER_LIMIT)])
    const { statusCode, body } = await get(url, limited)
    if (statusCode === 503) throw new Error('its ggml-rpc-server is being started again')
    let text = ''
    for await (const piece of body.setEncoding('utf8')) {
      text += piece
      if (text.length > MAX_ANSWER_LENGTH) throw new Error('it answers with too much')
    }
    const parsed = statusCode === 200 ? parseJson(text, WorkerFactsSchema) : { fault: `status ${statusCode}` }
    if (parsed.fault !== undefined)
      throw new Error(`what answers is no "corral worker" of this version: ${parsed.fault}`)
    return parsed.value
  }

  async function reachOne(
    alias: string,
    name: string,
    insecure: boolean,
    build: Build,
    signal: AbortSignal
  ): Promise<RpcWorker> {
    const { host, port } = await addressOf(alias, name, insecure)
    let facts: WorkerFacts
    try {
      facts = await ask(`http://${host}:${port + 1}${WORKER_PATH}`, signal)
    } catch (error) {
      signal.throwIfAborted()
      const reason = error instanceof Error && error.name === 'TimeoutError' ? 'no answer in 3 s' : errorMessage(error)
      throw refusal(
        'rpc_unreachable',
        name,
        `The model "${alias}" could not be loaded: its worker ${name} cannot be reached (${reason}; asked at port ${port + 1}). Start "corral worker" there, or take it out of "rpc" of the model's settings.`,
        error
      )
    }
    const mismatch = buildMismatch(build, facts)
    if (mismatch !== undefined) {
      throw refusal(
        'rpc_mismatch',
        name,
        `The model "${alias}" could not be loaded: its worker ${name} does not fit, since ${mismatch}. Both machines need the same release of llama.cpp ("corral runtime install" and "corral runtime use", then start the worker again).`
      )
    }
    if (!isLoopback(host) && !warned.has(name)) {
      warned.add(name)
      const what = 'what goes to a worker is not encrypted, and nobody there is asked who they are (docs/rpc.md)'
      log.warn({ model: alias, worker: name }, what)
    }
    const worker: RpcWorker = { name, endpoint: `${host}:${port}`, facts }
    heard.set(name, { worker, at: performance.now() })
    return worker
  }

  /**
   * Asks the workers of a model, all at once.
   * @param alias the model's name, for errors
   * @throws CorralError `load_failed` with `details.cause` and `details.worker`
   */
  async function reach(alias: string, settings: RpcSettings, build: Build, waiting: Waiting): Promise<RpcWorker[]> {
    const signal = waiting.signal ?? new AbortController().signal
    const reached = settings.workers.map(name => reachOne(alias, name, settings.insecure, build, signal))
    return await Promise.all(reached)
  }

  /** The same once no client is connected to any of them: the last one may have ended just now. */
  async function reachFree(alias: string, settings: RpcSettings, build: Build, waiting: Waiting): Promise<RpcWorker[]> {
    const until = performance.now() + FREE_LIMIT
    for (;;) {
      const workers = await reach(alias, settings, build, waiting)
      const busy = workers.find(({ facts }) => facts.busy)
      if (!busy) return workers
      if (performance.now() > until) {
        throw refusal(
          'rpc_busy',
          busy.name,
          `The model "${alias}" could not be loaded: its worker ${busy.name} serves another client, and ggml-rpc-server has room for one. Stop the model that uses it, or start another worker on that machine (corral worker --port).`
        )
      }
      await sleep(100, undefined, { signal: waiting.signal })
    }
  }

  /**
   * Follows the workers of an engine.
   * @param onLost called once, with the name of the first one that has ended or does not answer any more
   * @returns `lost` with that name once there is one, and how to end it
   */
  function follow(workers: readonly RpcWorker[], onLost: (name: string) => void) {
    const closing = new AbortController()
    let tell = (_: string) => {}
    const lost = new Promise<string>(resolve => {
      tell = resolve
    })
    async function followOne({ endpoint, facts, name }: RpcWorker): Promise<void> {
      const colon = endpoint.lastIndexOf(':')
      const port = Number(endpoint.slice(colon + 1)) + 1
      const url = `http://${endpoint.slice(0, colon)}:${port}${WORKER_ALIVE_PATH}`
      let why = 'its ggml-rpc-server has ended'
      try {
        const { body, statusCode } = await get(url, closing.signal)
        let first = ''
        for await (const piece of body.setEncoding('utf8')) {
          if (first.includes('\n')) continue
          first += piece
          if (!first.includes('\n') && first.length < MAX_ANSWER_LENGTH) continue
          // It was started anew between the question and now: what the engine had there is lost.
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

  /**
   * Bytes that engines may take of each worker's devices.
   * @param held what they hold of them
   */
  async function budgets(held: MemoryUse): Promise<MemoryUse> {
    const all = await Promise.all(
      [...heard.values()].map(async ({ worker, at }) => {
        if (performance.now() - at < FRESH) return worker
        const colon = worker.endpoint.lastIndexOf(':')
        const url = `http://${worker.endpoint.slice(0, colon)}:${Number(worker.endpoint.slice(colon + 1)) + 1}${WORKER_PATH}`
        try {
          const now = { ...worker, facts: await ask(url, new AbortController().signal) }
          heard.set(worker.name, { worker: now, at: performance.now() })
          return now
        } catch {
          // It is no reason to unload anything: a load asks again, and says what is wrong. Where nothing is held there,
          // nobody waits for it a second time.
          if (poolsOf(worker).some(pool => held[pool])) heard.set(worker.name, { worker, at: performance.now() })
          else heard.delete(worker.name)
          return worker
        }
      })
    )
    return Object.assign(
      {},
      ...all.map(worker => {
        const pools = poolsOf(worker)
        return Object.fromEntries(
          worker.facts.devices.map(({ usable, free }, at) => {
            return [pools[at]!, Math.min(usable, free + (held[pools[at]!] ?? 0))]
          })
        )
      })
    )
  }

  return { reach, reachFree, follow, budgets, close: async () => await agent?.destroy() }
}

/** The error for an engine whose worker is lost. */
export function lostWorkerFailure(alias: string, worker: string, ready: boolean): CorralError {
  const details = { cause: 'rpc_lost' satisfies FailureCause, worker }
  return ready
    ? new CorralError(
        'engine_crashed',
        `The engine of "${alias}" ended while in use: its worker ${worker} is gone. The model is loaded again once the worker is back.`,
        { details }
      )
    : new CorralError(
        'load_failed',
        `The model "${alias}" could not be loaded: its worker ${worker} went away meanwhile. Start "corral worker" there again.`,
        { details }
      )
}
