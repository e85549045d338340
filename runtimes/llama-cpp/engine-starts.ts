import type { Build, BuildSource, Runtimes } from '../../core/contracts/builds.ts'
import type { Engine, EngineSpec } from '../../core/contracts/engines.ts'
import type { HardwareService } from '../../core/contracts/hardware.ts'
import type { Waiting } from '../../core/contracts/progress.ts'
import { CorralError, messageOf } from '../../core/errors.ts'
import { reactionTo } from '../llama-server/reactions.ts'
import { machineMark, markFailed, noteFailedAttempt } from './build-records.ts'
import type { SearchLog } from './search-report.ts'

export interface EngineStartsDeps {
  sources: readonly BuildSource[]
  hardware: HardwareService
  /** Where builds and their records lie. */
  directory: string
  log: SearchLog
  startEngine(build: Build, spec: EngineSpec, waiting: Waiting): Promise<Engine>
  /** The build to start on, searched for where there is none. */
  build: Runtimes['build']
  /** It is searched for anew when it is wanted next. */
  forget(build: Build): void
  forgetFailure(choice: string | undefined): void
}

export interface EngineStarts {
  startEngine: Runtimes['startEngine']
  /** Whether an engine runs on the build of this id. */
  inUse(id: string): boolean
}

/** Starts engines; when the build turns out to be at fault, once more on the next best one. */
export function createEngineStarts({ log, directory, ...deps }: EngineStartsDeps): EngineStarts {
  /** Engines by the id of their build. */
  const engines = new Map<string, Set<Engine>>()

  async function start(build: Build, spec: EngineSpec, waiting: Waiting): Promise<Engine> {
    const engine = await deps.startEngine(build, spec, waiting)
    const { id } = engine.build
    const running = engines.get(id) ?? new Set()
    engines.set(id, running.add(engine))
    void engine.exited.then(() => running.delete(engine))
    return engine
  }

  /** Writes down that a build does not work, so that it is not chosen again by itself. */
  async function noteFailure({ id, source, runtime }: Build, reason: string): Promise<void> {
    const machine = machineMark(await deps.hardware.detect())
    const failure = { reason, at: new Date().toISOString(), machine }
    await markFailed(directory, id, failure)
    const description = deps.sources.find(({ name }) => name === source)?.description
    if (runtime === undefined || description === undefined) return
    await noteFailedAttempt(directory, { ...failure, source, description, runtime })
  }

  /** What to start on after a failure that the build is to blame for; undefined when there is nothing else. */
  async function otherBuild(
    build: Build,
    error: unknown,
    waiting: Waiting,
    choice?: string
  ): Promise<Build | undefined> {
    if (!(error instanceof CorralError) || waiting.signal?.aborted) return undefined
    const cause = error.details?.cause
    if (reactionTo(typeof cause === 'string' ? cause : undefined) !== 'other_build') return undefined
    // A folder that is gone is found out about by the search; the rest is the build's fault.
    const gone = cause === 'executable_missing'
    if (!gone) await noteFailure(build, error.message)
    deps.forget(build)
    try {
      const other = await deps.build(waiting, choice)
      return other.id === build.id && !gone ? undefined : other
    } catch (reason) {
      waiting.signal?.throwIfAborted()
      // A folder that was moved may be back any moment, and looking there costs nothing.
      if (gone) deps.forgetFailure(choice)
      log.warn({ build: build.id }, `llama.cpp: ${build.id} does not work, and there is no other: ${messageOf(reason)}`)
      return undefined
    }
  }

  return {
    async startEngine(spec, waiting) {
      const choice = spec.settings?.runtime
      const build = await deps.build(waiting, choice)
      try {
        return await start(build, spec, waiting)
      } catch (error) {
        const other = await otherBuild(build, error, waiting, choice)
        if (!other) throw error
        log.warn(
          { build: build.id, other: other.id },
          `llama.cpp: ${build.id} does not work here (${messageOf(error)}); "${spec.alias}" is started on ${other.id}.`
        )
        return await start(other, spec, waiting)
      }
    },
    inUse: id => (engines.get(id)?.size ?? 0) > 0
  }
}
