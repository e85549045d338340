import type { Build, BuildSource, Runtimes } from '../../core/contracts/builds.ts'
import type { HardwareService } from '../../core/contracts/hardware.ts'
import type { Waiting } from '../../core/contracts/progress.ts'
import { CorralError, messageOf } from '../../core/errors.ts'
import { reactionTo } from '../llama-server/failure-causes.ts'
import { addFailedAttempt, machineFingerprint, markFailed } from './build-records.ts'
import type { SearchLog } from './search-report.ts'

export interface EngineStartsDeps {
  sources: readonly BuildSource[]
  hardware: HardwareService
  /** Where builds and their records lie. */
  directory: string
  log: SearchLog
  /** Starts on a build, or on the former one where this one is on trial. */
  start<Started>(build: Build, attempt: (build: Build) => Promise<Started>): Promise<Started>
  /** The build to start on, searched for where there is none. */
  build: Runtimes['build']
  /** It is searched for anew when it is wanted next. */
  forget(build: Build): void
  forgetFailure(choice: string | undefined): void
}

export interface EngineStarts {
  startOn: Runtimes['startOn']
  /** Whether an engine runs on the build of this id. */
  inUse(id: string): boolean
}

/** Starts engines; when the build turns out to be at fault, once more on the next best one. */
export function createEngineStarts({ log, directory, ...deps }: EngineStartsDeps): EngineStarts {
  /** How many engines run on each build, by its id. */
  const running = new Map<string, number>()

  const start = <Started extends { exited: Promise<unknown> }>(
    first: Build,
    attempt: (build: Build) => Promise<Started>
  ) =>
    deps.start(first, async build => {
      const engine = await attempt(build)
      const count = (by: number) => running.set(build.id, (running.get(build.id) ?? 0) + by)
      count(1)
      void engine.exited.then(() => count(-1))
      return engine
    })

  /** Writes down that a build does not work, so that it is not chosen again by itself. */
  async function noteFailure({ id, source, runtime }: Build, reason: string): Promise<void> {
    const machine = machineFingerprint(await deps.hardware.detect())
    const failure = { reason, at: new Date().toISOString(), machine }
    await markFailed(directory, id, failure)
    const description = deps.sources.find(({ name }) => name === source)?.description
    if (runtime === undefined || description === undefined) return
    await addFailedAttempt(directory, { ...failure, source, description, runtime })
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
    async startOn({ name, choice }, attempt, waiting) {
      const build = await deps.build(waiting, choice)
      try {
        return await start(build, attempt)
      } catch (error) {
        const other = await otherBuild(build, error, waiting, choice)
        if (!other) throw error
        log.warn(
          { build: build.id, other: other.id },
          `llama.cpp: ${build.id} does not work here (${messageOf(error)}); "${name}" is started on ${other.id}.`
        )
        return await start(other, attempt)
      }
    },
    inUse: id => (running.get(id) ?? 0) > 0
  }
}
