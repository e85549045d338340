import type { Build } from '../../core/contracts/builds.ts'
import { CorralError, messageOf } from '../../core/errors.ts'
import { readRecords } from './build-records.ts'
import { changeSelection, selectionIn } from './selection.ts'

/** Failures of a start that may be the build's. */
const SUSPICIOUS = new Set(['runtime_missing', 'load_failed', 'engine_crashed', 'load_timeout'])

export interface TrialDeps {
  /** Where builds and their records lie. */
  directory: string
  log: { warn(object: object, message: string): void }
  /** Writes down that a build does not work here. */
  remember(id: string, reason: string): Promise<void>
  /** What new engines run on from now on. */
  setCurrent(build: Build): void
}

/**
 * Starts an engine. On a build that an upgrade brought, and that has started none yet, a failure is tried again on the
 * former build: when that one manages it, the new one is to blame, and corral returns to the former one for good.
 * @throws what `attempt` throws on the given build
 */
export async function startOnTrial<T>(
  build: Build,
  attempt: (build: Build) => Promise<T>,
  { directory, log, remember, setCurrent }: TrialDeps
): Promise<T> {
  if (selectionIn(directory).trial !== build.id) return await attempt(build)
  try {
    const started = await attempt(build)
    await changeSelection(directory, ({ trial: _, ...others }) => others)
    return started
  } catch (error) {
    const { previous } = selectionIn(directory)
    const former = (await readRecords(directory)).find(record => record.build.id === previous)?.build
    if (!former || !(error instanceof CorralError) || !SUSPICIOUS.has(error.code)) throw error
    const started = await attempt(former).catch(() => {
      // It is not the build, then: the former one does not manage it either.
      throw error
    })
    // Another start that failed at the same time may have returned already.
    if (selectionIn(directory).trial === build.id) {
      const reason = messageOf(error)
      await remember(build.id, reason)
      await changeSelection(directory, ({ failed }) => ({ selected: former.id, ...(failed && { failed }) }))
      setCurrent(former)
      log.warn(
        { failed: build.id, build: former.id, reason },
        `llama.cpp ${build.id} fails where ${former.id} works: corral has returned to ${former.id}. ` +
          '"corral runtime list" shows both.'
      )
    }
    return started
  }
}
