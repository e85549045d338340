import { randomUUID } from 'node:crypto'
import { lookup } from 'node:dns/promises'
import { once } from 'node:events'
import { createServer } from 'node:http'
import { isIPv4 } from 'node:net'
import { networkInterfaces } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { BuildDevice, Runtimes } from '../../../core/contracts/builds.ts'
import type { Gpu, HardwareService, MemoryNow } from '../../../core/contracts/hardware.ts'
import {
  WORKER_ALIVE_PATH,
  WORKER_PATH,
  WORKER_SIGN_INTERVAL,
  type Worker,
  type WorkerFacts,
  type WorkerHost,
  type WorkerOptions
} from '../../../core/contracts/workers.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { abortAfter, withResolver } from '../../../core/system/abort-signals.ts'
import { isListening } from '../../../core/system/free-port.ts'
import { oneByOne } from '../../../core/system/keyed-queue.ts'
import { version } from '../../../core/system/package-info.ts'
import { isPublicAddress } from '../../../core/system/private-address.ts'
import { processMemory } from '../../../core/system/processes.ts'
import { toolEnvironment } from '../../../core/system/tool-environment.ts'
import { type EngineProcess, startEngineProcess } from '../../llama-server/engine-process.ts'
import { matchDevices } from '../../llama-server/memory/device-placement.ts'
import { parseDevice } from '../../llama-server/server-facts.ts'
import type { BuildsLog } from '../builds-directory.ts'
import { WorkerCache } from './worker-cache.ts'

const GIB = 2 ** 30
const START_LIMIT_MS = 60_000
const FIRST_PAUSE_MS = 1000
const MAX_PAUSE = 30_000
/** Milliseconds of running after which a server is assumed to have worked. */
const WORKED = 60_000
const TRIM_INTERVAL_MS = 5000
/** Milliseconds for which a client's connection may outlive its follower. */
const CUT_OFF = 10_000
/** Far more connections than asking for a worker's facts needs. */
const MAX_CONNECTIONS = 256

/**
 * Returns the memory that a worker's devices offer to clients. A device with dedicated memory keeps as much free as
 * llama-server would (1 GiB, or a quarter of a small one). A tenth of the machine's memory stays free, at least 1 GiB,
 * in addition to the memory of other programs.
 * @param own bytes of the machine's memory that `ggml-rpc-server` uses for its client
 * @param limit bytes that may be taken from each device
 */
export function offeredDevices(
  devices: readonly BuildDevice[],
  machine: { gpus: readonly Gpu[]; now: MemoryNow; own: number; limit: number | undefined }
): WorkerFacts['devices'] {
  const { gpus, now, own, limit: most = Number.POSITIVE_INFINITY } = machine
  const accelerators = devices.filter(({ id }) => id !== 'CPU')
  const matched = matchDevices(accelerators, gpus)
  return devices.map(({ id: name, description, totalMemory = 0, freeMemory = 0 }) => {
    const gpu = matched.find(({ device }) => device.id === name)?.gpu
    const seen = gpu && !gpu.unifiedMemory ? now.gpus[gpu.id] : undefined
    const isHost = name === 'CPU' || gpu?.unifiedMemory === true
    const spare = isHost ? now.host.available : (seen?.free ?? freeMemory)
    const reserve = isHost ? Math.min(totalMemory / 4, Math.max(GIB, totalMemory / 10)) : Math.min(GIB, totalMemory / 4)
    // Memory that its client already uses still belongs to the offer.
    const room = isHost ? Math.min(totalMemory - reserve, spare + own) : totalMemory - reserve
    const usable = Math.max(0, Math.floor(Math.min(most, room)))
    return { name, description, total: totalMemory, usable, free: Math.max(0, Math.floor(Math.min(usable, spare))) }
  })
}

/** Returns the address to listen on. @throws CorralError `address_not_allowed` if it is a public one */
export async function listenAddress(
  host: string,
  insecure: boolean,
  interfaces: typeof networkInterfaces = networkInterfaces
): Promise<string> {
  const { address } = await lookup(host, { family: 4 }).catch(() => ({ address: '' }))
  // An IPv6 address resolves to itself.
  if (!isIPv4(address)) {
    const what = `"${host}" is not an IPv4 address of this machine or a name of one.`
    throw new CorralError('invalid_request', `${what} llama.cpp's RPC listens only on such addresses.`)
  }
  const all = Object.values(interfaces()).flatMap(list => list ?? [])
  const reached =
    address === '0.0.0.0' ? all.filter(({ family }) => family === 'IPv4').map(one => one.address) : [address]
  // An address does not become private by belonging to this machine.
  const open = reached.find(each => isPublicAddress(each, new Set()))
  if (open === undefined || insecure) return address
  const message = `A worker on ${host} could be reached from the internet (${open}), and anyone who reaches it can run programs on this machine, because llama.cpp's RPC has neither keys nor encryption. Listen on an address of a private network or a VPN (--host), or add --insecure if a firewall admits only your machines.`
  throw new CorralError('address_not_allowed', message)
}

/** Offers this machine to others: runs `ggml-rpc-server` of the build that engines use, and reports facts about it. */
export function createWorkerHost(deps: {
  runtimes: Pick<Runtimes, 'build' | 'environment'>
  hardware: HardwareService
  cache: string
  log: BuildsLog
}): WorkerHost {
  const { runtimes, hardware, cache, log } = deps
  return {
    async start(options, waiting): Promise<Worker> {
      const host = await listenAddress(options.host, options.insecure)
      const [build, { gpus, cpu }] = await Promise.all([runtimes.build(waiting), hardware.detect()])
      const { id, kind, source, digest, commit } = build
      const program = build.executables.rpcServer
      if (program === undefined) {
        const message = `The llama.cpp build ${build.id} has no ggml-rpc-server beside its llama-server (${build.directory}). Choose another one with "corral runtime use", or name a folder that has it with --llama-cpp.`
        throw new CorralError('runtime_missing', message)
      }
      const folder = join(cache, 'rpc', `${options.port}`)
      const store = options.cache > 0 ? new WorkerCache(folder, options.cache) : undefined
      const { port, devices = [], threads = cpu.cores ?? cpu.threads } = options
      const command = {
        executable: program,
        arguments: [
          ...['-H', host, '-p', `${port}`, '-t', `${threads}`],
          ...(devices.length > 0 ? ['-d', devices.join(',')] : []),
          ...(store ? ['-c'] : [])
        ],
        environment: {
          ...toolEnvironment(process.env),
          ...runtimes.environment(build),
          ...(store && { LLAMA_CACHE: store.directory })
        }
      }
      const server = superviseServer(command, { ...options, host }, store, log)
      const facts = async (): Promise<WorkerFacts> => {
        const { process: running, instance = '', clients = 0, devices: own = [] } = server.now ?? {}
        const [now, use] = await Promise.all([hardware.memory(), processMemory(running?.pid)])
        return {
          corral: version,
          platform: process.platform,
          arch: process.arch,
          build: { id, kind, source, version: build.version, digest, ...(commit !== undefined && { commit }) },
          instance,
          busy: clients > 0,
          devices: offeredDevices(own, { gpus, now, own: use?.own ?? 0, limit: options.memory })
        }
      }
      let close = async () => {}
      try {
        await server.start(waiting.signal)
        close = await tellFacts(host, port + 1, server, facts)
      } catch (error) {
        await server.stop()
        throw error
      }
      return {
        address: `${host}:${port}`,
        ...(store && { cacheDirectory: store.directory }),
        facts,
        async stop() {
          await Promise.all([close(), server.stop()])
        }
      }
    }
  }
}

/** A `ggml-rpc-server` that runs. */
interface Running {
  process: EngineProcess
  instance: string
  devices: BuildDevice[]
  clients: number
  followers: Set<() => void>
}

/** Supervises one `ggml-rpc-server`, and restarts it when it exits unexpectedly. */
function superviseServer(
  command: Pick<Parameters<typeof startEngineProcess>[0], 'executable' | 'arguments' | 'environment'>,
  { host, port, notice = () => {} }: WorkerOptions,
  cache: WorkerCache | undefined,
  log: BuildsLog
) {
  let now: Running | undefined
  const stopped = new AbortController()
  /** Cache maintenance runs one step at a time. */
  const alone = oneByOne()
  const tend = (work: (cache: WorkerCache) => Promise<unknown>) =>
    alone(async () => {
      await (cache && work(cache))?.catch(error => {
        log.warn({ reason: errorMessage(error) }, 'Could not maintain the cache of weights')
      })
    })
  const trimming = setInterval(() => {
    if (now && now.clients > 0) void tend(store => store.trim())
  }, TRIM_INTERVAL_MS)
  trimming.unref()

  async function start(signal: AbortSignal | undefined): Promise<void> {
    signal?.throwIfAborted()
    await tend(store => store.prepare())
    let complaint = 'it gave no reason'
    const accepted = withResolver()
    const running: Running = {
      instance: randomUUID(),
      devices: [],
      clients: 0,
      followers: new Set(),
      process: startEngineProcess({
        ...command,
        onLine(line, stream) {
          log.debug({}, line)
          if (stream === 'stderr' && !line.startsWith('load_backend:')) complaint = line
          const device = now === running ? undefined : parseDevice(line)
          if (device) running.devices.push(device)
          if (line === 'Accepted client connection') {
            running.clients++
            accepted.resolve()
          }
          if (line === 'Client connection closed' && --running.clients === 0) void tend(store => store.settle())
        },
        warn: message => log.warn({}, message)
      })
    }
    const { startError, exited, drained, kill } = running.process
    const failure = startError.then(async error => {
      if (error) throw new Error(`it could not be started: ${errorMessage(error)}`)
      const { code, signal: by } = await exited
      await drained
      throw new Error(`it exited at once (${by ?? `exit code ${code}`}): ${complaint}`)
    })
    failure.catch(() => {
      // A later failure is handled by the watch below.
    })
    const limit = AbortSignal.any([abortAfter(START_LIMIT_MS), stopped.signal, ...(signal ? [signal] : [])])
    const untilReady = async () => {
      // It prints nothing until a client has connected.
      const reached = host === '0.0.0.0' ? '127.0.0.1' : host
      while (!(await isListening(port, reached, limit))) await sleep(50, undefined, { signal: limit })
      await accepted.promise
      while (running.clients > 0) await sleep(10, undefined, { signal: limit })
    }
    try {
      await Promise.race([failure, untilReady()])
    } catch (error) {
      kill()
      await exited
      signal?.throwIfAborted()
      const why = errorMessage(error)
      const advice = /server socket/.test(why)
        ? 'If another program uses the port, choose a different one with "corral worker --port".'
        : 'Correct the flags of "corral worker", or choose another llama.cpp build (corral runtime list).'
      const text = `ggml-rpc-server does not work on ${host}:${port}: ${why}. ${advice}`
      throw new CorralError('load_failed', text, { cause: error })
    }
    now = running
    void watch(running)
  }

  /** Starts another process when this one has ended unexpectedly. */
  async function watch({ process, followers }: Running): Promise<void> {
    const began = performance.now()
    const { code, signal } = await process.exited
    await process.drained
    now = undefined
    for (const told of followers) told()
    followers.clear()
    if (stopped.signal.aborted) return
    const why = signal ?? `exit code ${code}`
    log.warn({ why }, 'ggml-rpc-server exited unexpectedly and will be restarted')
    notice(`ggml-rpc-server exited unexpectedly (${why}) and will be restarted`)
    let pause = performance.now() - began > WORKED ? 0 : FIRST_PAUSE_MS
    while (!stopped.signal.aborted) {
      await sleep(pause, undefined, { signal: stopped.signal }).catch(() => {})
      if (stopped.signal.aborted) return
      try {
        await start(undefined)
        return notice('ggml-rpc-server is running again')
      } catch (error) {
        if (stopped.signal.aborted) return
        pause = Math.min(MAX_PAUSE, Math.max(FIRST_PAUSE_MS, pause * 2))
        log.warn({ reason: errorMessage(error), again: pause }, 'ggml-rpc-server could not be restarted')
        notice(`${errorMessage(error)} The next try is in ${pause / 1000} s.`)
      }
    }
  }

  return {
    start,
    /** Undefined while it is restarted. */
    get now(): Readonly<Running> | undefined {
      return now
    },
    /**
     * Calls back when the current process has ended. Returns a function that stops following. A client that stays
     * connected after its follower has left was disconnected without notice, and would keep all others out forever.
     */
    follow(running: Readonly<Running>, told: () => void): () => void {
      const { followers, process } = running
      followers.add(told)
      return () => {
        if (!followers.delete(told)) return
        void sleep(CUT_OFF, undefined, { ref: false }).then(() => {
          if (stopped.signal.aborted || now !== running || running.clients === 0 || followers.size > 0) return
          log.warn({}, 'the client of ggml-rpc-server left without closing its connection; restarting the server')
          process.kill()
        })
      }
    },
    async stop(): Promise<void> {
      if (stopped.signal.aborted) return
      stopped.abort()
      clearInterval(trimming)
      await now?.process.stop()
      await tend(async () => {})
    }
  }
}

/** Serves the worker's facts over HTTP, and how long its server runs. Returns a function that ends the service. */
async function tellFacts(
  host: string,
  port: number,
  server: ReturnType<typeof superviseServer>,
  facts: () => Promise<WorkerFacts>
): Promise<() => Promise<void>> {
  const http = createServer({ requestTimeout: 10_000, headersTimeout: 10_000 }, (request, response) => {
    const path = request.url?.split('?')[0]
    const { now } = server
    if (request.method !== 'GET' || (path !== WORKER_PATH && path !== WORKER_ALIVE_PATH)) response.writeHead(404).end()
    else if (!now) response.writeHead(503).end()
    else if (path === WORKER_ALIVE_PATH) {
      response.writeHead(200, { 'content-type': 'text/plain', 'cache-control': 'no-store' })
      response.write(`${now.instance}\n`)
      const timer = setInterval(() => response.write('\n'), WORKER_SIGN_INTERVAL)
      const forget = server.follow(now, () => response.end())
      response.on('close', () => {
        clearInterval(timer)
        forget()
      })
    } else {
      facts().then(
        told => {
          response.writeHead(200, { 'content-type': 'application/json', 'cache-control': 'no-store' })
          response.end(JSON.stringify(told))
        },
        () => response.writeHead(500).end()
      )
    }
  })
  http.maxConnections = MAX_CONNECTIONS
  http.listen(port, host)
  try {
    await once(http, 'listening')
  } catch (error) {
    const message = `A worker reports its facts on the port after its own, but cannot listen on ${host}:${port}: ${errorMessage(error)}. Choose another port with --port.`
    throw new CorralError('load_failed', message, { cause: error })
  }
  return async () => {
    const closed = once(http, 'close')
    http.close()
    http.closeAllConnections()
    await closed
  }
}
