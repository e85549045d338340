import { randomUUID } from 'node:crypto'
import { totalmem } from 'node:os'
import { basename } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { CorralError, messageOf } from '../../core/errors.ts'
import { processStartTime } from '../../core/processes.ts'
import type { Build } from '../../core/runtimes.ts'
import type { Engine, EngineExit, EngineSpec, Waiting } from '../../core/services.ts'
import { allocateAddress, type EngineAddress, makePrivateFolder } from './address.ts'
import { engineArguments, promptCacheSize } from './arguments.ts'
import { knownFlags } from './build-flags.ts'
import { engineEnvironment } from './environment.ts'
import { classifyFailure, isFatal } from './failure.ts'
import { type LoadedFacts, loadingOf } from './loading.ts'
import { createLogTail, parseLine } from './log-lines.ts'
import { type EngineProcess, type ProcessExit, startEngineProcess } from './process.ts'
import { removeRunRecord, writeRunRecord } from './run-records.ts'
import { createUpstream } from './upstream.ts'

export interface EngineLog {
  debug(object: object, message: string): void
  warn(object: object, message: string): void
}

export interface EngineDeps {
  log: EngineLog
  /** Where running engines are written down, for `reapStrayEngines`. */
  runDirectory: string
  /** Milliseconds without a sign of progress after which a load is given up. */
  loadTimeout: number
  /** Where sockets' private folders are made; the system's temporary folder by default. */
  socketRoot?: string
  /** Flags of llama-server put after corral's own. */
  extraArguments?: readonly string[]
  /** Variables that the build's kind wants on this machine; those of the model go before. */
  environment?: Readonly<Record<string, string>>
}

/** Milliseconds that an engine gets to end politely. */
const STOP_GRACE = 2000
/** Milliseconds in which the death of a process follows the breaking of its connections. */
const EXIT_LAG = 1000
/** A port found free may be taken before the engine listens on it. */
const ADDRESS_ATTEMPTS = 3

/**
 * Starts a llama-server for a model and resolves once it serves. Progress is told while it loads.
 * @throws CorralError `load_failed`, `insufficient_memory` or `runtime_missing` with `details.cause` and the decisive
 * line of its log, `load_timeout` when nothing moved for `loadTimeout`; the signal's reason when the caller gave up.
 * Nothing of the engine is left then.
 */
export async function createLlamaServerEngine(
  build: Build,
  spec: EngineSpec,
  deps: EngineDeps,
  waiting: Waiting
): Promise<Engine> {
  for (let attempt = 1; ; attempt++) {
    waiting.signal?.throwIfAborted()
    const address = await allocateAddress(deps.socketRoot)
    try {
      return await startEngine(build, spec, deps, waiting, address)
    } catch (error) {
      const taken = error instanceof CorralError && error.details?.cause === 'cannot_listen'
      if (!taken || 'socketPath' in address.listen || attempt === ADDRESS_ATTEMPTS) throw error
    }
  }
}

async function startEngine(
  build: Build,
  spec: EngineSpec,
  deps: EngineDeps,
  waiting: Waiting,
  address: EngineAddress
): Promise<Engine> {
  const { log } = deps
  const id = randomUUID().slice(0, 8)
  const tail = createLogTail()
  const paths = [spec.modelPath, ...(spec.projectorPath === undefined ? [] : [spec.projectorPath])]
  const loading = loadingOf(waiting, deps.loadTimeout, spec.alias)
  let ready = false
  let memory: Engine['memory']

  const onLine = (line: string) => {
    loading.noteOutput()
    for (const said of parseLine(line)) {
      if (said.type === 'loading') loading.noteFraction(said.fraction)
      else if (said.type === 'ready') loading.noteReady()
      else if (said.type === 'memory') memory = said.use
      else if (said.type === 'text') {
        tail.push(said.level === undefined ? said.text : `${said.level[0]!.toUpperCase()} ${said.text}`)
        if (loading.active && isFatal(said.text)) loading.fail(failureOf({ code: null, signal: null }))
        const grave = loading.active && (said.level === 'error' || said.level === 'warn')
        log[grave ? 'warn' : 'debug']({ engine: id, model: spec.alias }, said.text)
      }
    }
  }

  const warn = (message: string) => log.warn({ engine: id, model: spec.alias }, message)
  const environment = engineEnvironment(process.env, {
    configHome: address.folder,
    apiKey: address.key,
    more: { ...deps.environment, ...spec.settings?.environment }
  })
  let child: EngineProcess
  try {
    await writeRunRecord(deps.runDirectory, id, { folder: address.folder })
    await makePrivateFolder(address)
    const flags = await knownFlags(build, environment)
    loading.signal.throwIfAborted()
    child = await startEngineProcess({
      executable: build.executables.server,
      arguments: engineArguments(spec, {
        listen: address.listen,
        promptCache: promptCacheSize(Math.min(totalmem(), process.constrainedMemory() || Number.POSITIVE_INFINITY)),
        knownFlags: flags,
        extra: deps.extraArguments
      }),
      environment,
      onLine,
      warn
    })
  } catch (error) {
    loading.close()
    await removeRunRecord(deps.runDirectory, id, address.folder)
    throw error
  }

  let stopping: Promise<void> | undefined
  const exited: Promise<EngineExit> = child.exited.then(exit => ({ ...exit, expected: stopping !== undefined }))

  async function recordProcess(): Promise<void> {
    const { pid } = child
    const startTime = pid === undefined ? undefined : await processStartTime(pid)
    if (startTime === undefined) return
    await writeRunRecord(deps.runDirectory, id, { folder: address.folder, pid, startTime })
  }

  function failureOf(exit: ProcessExit): CorralError {
    const failure = classifyFailure({ lines: ready ? tail.sinceMark() : tail.all(), exit, paths })
    const details = { cause: failure.cause, line: failure.line, exitCode: exit.code, signal: exit.signal }
    const name = `"${spec.alias}"`
    return ready
      ? new CorralError('engine_crashed', `The engine of ${name} ended while in use. ${failure.sentence}`, { details })
      : new CorralError(failure.code, `The model ${name} could not be loaded. ${failure.sentence}`, { details })
  }

  async function crashOf(exit: EngineExit): Promise<CorralError> {
    await child.drained
    return exit.expected ? new CorralError('model_stopped', `The model "${spec.alias}" was stopped.`) : failureOf(exit)
  }

  let gone = false
  const upstream = createUpstream(address, {
    alive: () => !gone,
    async explain(error) {
      const exit = await Promise.race([exited, sleep(EXIT_LAG, undefined, { ref: false })])
      if (exit) return crashOf(exit)
      return new CorralError(
        'engine_crashed',
        `The engine of "${spec.alias}" closed the connection before it had answered (${error.message}). Try again.`,
        { cause: error }
      )
    }
  })
  const recorded = recordProcess().catch(error => {
    warn(`llama-server ${child.pid} could not be written down: ${messageOf(error)}`)
  })
  const cleaned = exited.then(async exit => {
    gone = true
    const crash = await crashOf(exit)
    upstream.cut(crash)
    if (ready && !exit.expected) warn(`llama-server ${child.pid} ended by itself: ${crash.message}`)
    await recorded
    await removeRunRecord(deps.runDirectory, id, address.folder).catch(error => {
      warn(`The folder of an engine could not be removed: ${messageOf(error)}`)
    })
    return crash
  })

  let facts: LoadedFacts
  try {
    const startError = await child.startError
    if (startError) {
      throw new CorralError(
        'runtime_missing',
        `llama-server could not be started (${startError.code}: ${basename(build.executables.server)}). Choose another llama.cpp build (corral doctor shows which there are).`,
        { cause: startError, details: { cause: 'executable_missing' } }
      )
    }
    await recorded
    void cleaned.then(crash => loading.fail(crash))
    facts = await loading.untilServing(upstream)
  } catch (error) {
    child.kill()
    await cleaned
    throw error
  } finally {
    loading.close()
  }
  ready = true
  tail.mark()

  async function stop(): Promise<void> {
    upstream.cut(new CorralError('model_stopped', `The model "${spec.alias}" was stopped.`))
    child.end()
    const timer = setTimeout(() => child.kill(), STOP_GRACE)
    await exited
    clearTimeout(timer)
    await cleaned
  }

  return {
    id,
    spec,
    contextSize: facts.contextSize,
    slots: facts.slots,
    memory,
    build,
    pid: child.pid,
    exited,
    request: request => upstream.request(request),
    stop: () => (stopping ??= stop()),
    logTail: () => tail.all()
  }
}
