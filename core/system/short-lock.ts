import { setTimeout as sleep } from 'node:timers/promises'
import { lock } from 'proper-lockfile'
import { isSystemError } from '../errors.ts'

/** Milliseconds after which a process that is killed, or blocked, loses its lock. */
const STALE = 4_000
const MAX_WAIT_MS = 12_000
const PAUSE = 50

/**
 * Runs a short piece of work while no other process does the same for this file (which need not exist). The lock does
 * not mean that a server runs.
 * @throws the errors of `work`; an error with code `ELOCKED` if others hold the lock for too long; an error with code
 * `ECOMPROMISED` if this process was blocked so long that another one may have worked at the same time
 */
export async function withShortLock<T>(file: string, work: () => Promise<T>): Promise<T> {
  let compromised: Error | undefined
  const unlock = await acquire(file, error => {
    compromised = error
  })
  try {
    return await work()
  } finally {
    if (compromised === undefined) await unlock()
    // biome-ignore lint/correctness/noUnsafeFinally: work that was not alone must not count as done
    else throw compromised
  }
}

async function acquire(file: string, onCompromised: (error: Error) => void): Promise<() => Promise<void>> {
  const deadline = performance.now() + MAX_WAIT_MS
  for (;;) {
    try {
      // The library's own retries would repeat every failure, such as a missing permission, for seconds.
      return await lock(file, { realpath: false, stale: STALE, onCompromised })
    } catch (error) {
      if (!isSystemError(error, 'ELOCKED') || performance.now() > deadline) throw error
      await sleep(PAUSE + Math.random() * PAUSE)
    }
  }
}
