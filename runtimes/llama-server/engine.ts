import { randomUUID } from 'node:crypto'
import { basename, dirname } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { setsTemplate } from '../../core/config/model-settings.ts'
import type { Build, EngineRunSettings } from '../../core/contracts/builds.ts'
import type { Engine, EngineExit } from '../../core/contracts/engines.ts'
import type { Waiting } from '../../core/contracts/progress.ts'
import { CorralError, errorMessage } from '../../core/errors.ts'
import { shardNames } from '../../core/models/gguf-file-name.ts'
import { fromFolder } from './arguments.ts'
import { engineCalls } from './calls.ts'
import { createEngineLogs, type EngineLogs, isQuoted, markAsClientText } from './engine-logs.ts'
import { type EngineProcess, watchOomKills } from './engine-process.ts'
import { watchEngine } from './engine-watch.ts'
import {
  type ExitFacts,
  engineFailure,
  type FailureCause,
  hungFailure,
  isFatal,
  overMemoryFailure,
  reactionTo,
  startFailure,
  stuckFailure
} from './failure.ts'
import { createInputGuard, createInputRecords, type Input, type InputRecords, inputOf } from './input-guard.ts'
import {
  allocateAddress,
  type EngineAddress,
  type EngineLog,
  type LaunchDeps,
  launchEngine,
  removeRunRecord
} from './launch.ts'
import type { LaunchSpec } from './launch-spec.ts'
import { createOutputReader, followLoad, type LoadedFacts, loadWarnings, MemoryReport } from './loading.ts'
import { PromptSlots } from './prompt-cache/prompt-slots.ts'
import { readAhead } from './read-ahead.ts'
import { inWorkerPools, lostWorkerFailure, type RpcWorkers } from './rpc-workers.ts'
import { createUpstream, type EngineRequest, type EngineResponse } from './upstream.ts'

export interface EngineDeps extends EngineRunSettings, LaunchDeps {
  log: EngineLog
  engineLogs?: EngineLogs
  /** Milliseconds that it may use the processor without progress. Unlimited if absent or 0. */
  stuckAfter?: number
  /** Bytes of the machine's memory that it is expected to use. Its memory is not watched if absent. */
  reserved?: number | undefined
  refuseProbabilities?: (() => never) | undefined
  inputs?: InputRecords
  rpcWorkers?: Pick<RpcWorkers, 'follow'>
  socketRoot?: string
}

export interface LlamaServerEngine extends Engine {
  readonly spec: LaunchSpec
  readonly build: Build
  readonly sharedArguments: readonly string[]
  reserved?: Engine['reserved']
  speculation?: Engine['speculation']
  outdated?: Promise<void>
  readonly promptSlots: PromptSlots
  /** Sends a request. Resolves at the response's headers. Sets no time limits. */
  request(request: EngineRequest): Promise<EngineResponse>
}

/** Milliseconds within which a process exits after its connections break. */
const EXIT_LAG = 1000
/** Milliseconds until the end of a worker is known here after an engine has noticed it. */
const WORKER_LAG = 1000
/** A free port may be taken before the engine listens on it, and a folder may not allow sockets. */
const ADDRESS_ATTEMPTS = 3
/** If something outside ended the engine while it loaded, it may have been aimed at another engine. */
const OTHER_ATTEMPTS = 2

/**
 * Starts a llama-server and resolves once it serves. Retries a failure that a second attempt may avoid (`reactionTo`).
 * @throws CorralError with `details.cause` and the decisive line of its log, or the signal's reason when the caller
 * gave up. Nothing of the engine is left then.
 */
export async function createLlamaServerEngine(
  build: Build,
  { slotFolder, ...others }: LaunchSpec,
  deps: EngineDeps,
  waiting: Waiting
): Promise<LlamaServerEngine> {
  // Without a name that llama-server can read, it would not even start.
  const isUnreadable =
    process.platform === 'win32' && /[^ -~]/.test(fromFolder(dirname(build.executables.server), slotFolder ?? ''))
  const spec = slotFolder === undefined || isUnreadable ? others : { ...others, slotFolder }
  const engineLogs = deps.engineLogs ?? createEngineLogs()
  let tcp = false
  for (let attempt = 1; ; attempt++) {
    waiting.signal?.throwIfAborted()
    const address = await allocateAddress(deps.socketRoot, process.platform, tcp)
    try {
      return await startEngine(build, spec, { ...deps, engineLogs }, waiting, address)
    } catch (error) {
      const cause = error instanceof CorralError ? String(error.details?.cause) : undefined
      const attempts = cause === 'cannot_listen' ? ADDRESS_ATTEMPTS : OTHER_ATTEMPTS
      if (waiting.signal?.aborted || reactionTo(cause) !== 'retry' || attempt >= attempts) throw error
      if (cause === 'cannot_listen') tcp = true
      deps.log.warn({ model: spec.alias, cause, reason: errorMessage(error) }, 'the load failed and is tried once more')
    }
  }
}

function listPaths({ modelPath, projectorPath, settings }: LaunchSpec, build: Build, address: EngineAddress): string[] {
  const loras = settings?.loras.map(({ path }) => path) ?? []
  const { draft, companion } = settings?.speculation ?? {}
  const files = [modelPath, projectorPath, draft?.modelPath, companion, ...loras]
  return [...files.filter(path => path !== undefined), address.folder, dirname(build.executables.server)]
}

async function startEngine(
  build: Build,
  spec: LaunchSpec,
  deps: EngineDeps & { engineLogs: EngineLogs },
  waiting: Waiting,
  address: EngineAddress
): Promise<LlamaServerEngine> {
  const { log, runDirectory } = deps
  const id = randomUUID().slice(0, 8)
  const names = { engine: id, model: spec.alias }
  const warn = (message: string) => log.warn(names, message)
  const paths = listPaths(spec, build, address)
  const page = deps.engineLogs.open({ id, variant: spec.variant.key, build: build.id, paths })
  const { stuckAfter = 0, hangTimeout } = deps
  const loading = followLoad(waiting, deps.loadTimeout, spec.alias, stuckAfter)
  const { draft, companion } = spec.settings?.speculation ?? {}
  const memory = new MemoryReport(spec.mode === 'chat' && (draft ?? companion) !== undefined)
  let child: EngineProcess | undefined
  let httpThreads: number
  let engine: LlamaServerEngine | undefined
  let ready = false
  /** Why corral itself ended the engine, if the engine is to blame. */
  let killedFor: CorralError | undefined

  const describe = (exit: ExitFacts) => engineFailure(spec.alias, ready, page, paths, exit)
  function killFor(error: CorralError): void {
    killedFor ??= error
    child?.kill()
  }
  const read = createOutputReader()
  function onLine(line: string, stream: 'stdout' | 'stderr'): void {
    const lines = read(line, stream)
    for (const said of lines) {
      if (said.type === 'memory') memory.note(said.use, loading.active)
      if (said.type !== 'text') continue
      const { text, level } = said
      page.push(level === undefined ? text : `${level[0]!.toUpperCase()} ${text}`)
      // The process is alive, but its GPU will not work again.
      if (killedFor === undefined && !isQuoted(text) && isFatal(text)) killFor(describe({ code: null, signal: null }))
      const important = loading.active && (level === 'error' || level === 'warn')
      log[important ? 'warn' : 'debug'](names, text)
    }
    loading.note(lines)
  }

  const watchingKills = watchOomKills()
  try {
    const launched = await launchEngine({ id, build, spec, address }, deps, { onLine, warn }, loading.signal)
    ;({ child, httpThreads } = launched)
  } catch (error) {
    loading.close()
    page.end(undefined, error instanceof CorralError ? error : undefined)
    throw error
  }
  const running = child
  // Its output may have been read while the launch was being recorded.
  if (killedFor) running.kill()
  const guard = createInputGuard(deps.inputs ?? createInputRecords(), spec.alias, getTemplate(spec))
  const reserved = () => engine?.reserved?.host ?? deps.reserved
  const watch = watchEngine({
    address,
    pid: running.pid,
    stuckAfter,
    hangTimeout,
    reserved,
    activity: () => (ready ? upstream.activity() : undefined),
    onLook: guard.look,
    onFault(fault, inLoop) {
      if (fault === 'hung') return killFor(hungFailure(spec.alias, hangTimeout))
      const isMemory = fault === 'over_memory'
      const error = isMemory
        ? overMemoryFailure(spec.alias, reserved()!, ready)
        : stuckFailure(spec.alias, stuckAfter, true)
      if (ready) {
        const trouble = isMemory ? 'memory' : inLoop ? 'loop' : 'beside'
        const { certain, inputs } = guard.convict(trouble, error)
        log.warn({ ...names, trouble, certain, inputs }, 'ending an engine with these requests')
      }
      killFor(error)
    }
  })
  // llama-server notices the end of a worker only when it needs the worker, and then takes seconds to report why it
  // aborts.
  const following = spec.workers?.length
    ? deps.rpcWorkers?.follow(spec.workers, worker => killFor(lostWorkerFailure(spec.alias, worker, ready)))
    : undefined
  async function withWorker(failure: CorralError): Promise<CorralError> {
    if (!following || failure.details?.cause !== ('rpc_unreachable' satisfies FailureCause)) return failure
    const worker = await Promise.race([following.lost, sleep(WORKER_LAG, undefined, { ref: false })])
    return worker === undefined ? failure : lostWorkerFailure(spec.alias, worker, ready)
  }
  const upstream = createUpstream(
    address,
    {
      alive: () => !gone,
      onRequest: watch.wake,
      async explain(error) {
        const exit = await Promise.race([running.exited, sleep(EXIT_LAG, undefined, { ref: false })])
        if (exit) return crash
        const text = `The engine of "${spec.alias}" closed the connection before it answered (${error.message}). Try again.`
        return new CorralError('engine_crashed', text, { cause: error, details: { cause: 'unknown' } })
      }
    },
    httpThreads
  )

  let stopping: Promise<void> | undefined
  let gone = false
  const stopped = () => new CorralError('model_stopped', `The model "${spec.alias}" was stopped.`)
  /** Settles when all output has been read, with the error for callers that wait. */
  const crash = running.exited.then(async exit => {
    gone = true
    watch.end()
    await running.drained
    try {
      if (killedFor) return killedFor
      return stopping ? stopped() : await withWorker(describe({ ...exit, oomKilled: await (await watchingKills)() }))
    } finally {
      following?.close()
    }
  })
  const exited = Promise.all([running.exited, crash]).then(([exit, failure]): EngineExit => {
    return stopping ? { ...exit, expected: true } : { ...exit, expected: false, failure }
  })
  const cleaned = crash.then(async failure => {
    guard.close(failure)
    upstream.cut(failure)
    const exit = await running.exited
    const expected = stopping !== undefined || (!ready && waiting.signal?.aborted)
    page.end(exit, expected ? undefined : failure)
    if (ready && !expected) warn(`llama-server ${running.pid} exited unexpectedly: ${failure.message}`)
    await removeRunRecord(runDirectory, id, address.folder).catch(error => {
      warn(`The folder of an engine could not be removed: ${errorMessage(error)}`)
    })
    return failure
  })

  let facts: LoadedFacts
  const reading = new AbortController()
  try {
    void readAhead(shardNames(spec.modelPath), reading.signal).then(bytes => {
      log.debug({ ...names, bytes }, 'read the model ahead of the engine')
    })
    const startError = await running.startError
    if (startError) throw startFailure(basename(build.executables.server), startError)
    void cleaned.then(failure => loading.fail(failure))
    facts = await loading.untilServing(upstream)
  } catch (error) {
    if (error instanceof CorralError) killedFor ??= error
    running.kill()
    await cleaned
    throw error
  } finally {
    reading.abort()
    loading.close()
  }
  for (const sentence of loadWarnings(page.all(), { gpuLayers: spec.options.n_gpu_layers })) warn(sentence)
  ready = true
  page.mark()

  async function stop(): Promise<void> {
    upstream.cut(stopped())
    await running.stop()
    await cleaned
  }

  const { contextSize, slots } = facts
  const { request } = upstream
  const promptSlots = new PromptSlots(slots)
  engine = {
    ...engineCalls({
      request,
      guard,
      alias: spec.alias,
      mode: spec.mode,
      contextSize,
      metadata: spec.variant.metadata,
      template: templateText(spec),
      promptSlots,
      // Marked as clients' text, so that no line of it is mistaken for the reason of a failure.
      mark: line => page.push(markAsClientText(line)),
      refuseProbabilities: deps.refuseProbabilities
    }),
    promptSlots,
    get storedConversations() {
      return promptSlots.summary
    },
    id,
    provider: 'llama-server',
    spec,
    contextSize,
    slots,
    get memory() {
      const use = memory.use()
      return use && inWorkerPools(use, spec.workers)
    },
    build,
    sharedArguments: deps.extraArguments,
    pid: running.pid,
    exited,
    request,
    stop: () => (stopping ??= stop()),
    logTail: () => page.all()
  }
  return engine
}

/** The text of its chat template. Empty if a flag sets another one. */
function templateText({ settings, variant: { defaults, metadata } }: LaunchSpec): string {
  return settings && setsTemplate(settings) ? '' : (defaults?.template ?? metadata.chatTemplate ?? '')
}

export function getTemplate({ mode, variant }: Pick<LaunchSpec, 'mode' | 'variant'>): Input | undefined {
  const { defaults, key, revision } = variant
  return mode === 'chat' ? inputOf('template', defaults?.template ?? `${key} ${revision}`) : undefined
}
