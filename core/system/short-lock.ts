import { setTimeout as sleep } from 'node:timers/promises'
import { lock } from 'proper-lockfile'
import { isSystemError } from '../errors.ts'

/** Milliseconds after which a process that is killed, or blocked, loses its lock. */
const STALE = 4_000
const MAX_WAIT_MS = 12_000
const PAUSE = 50

export interface LockOptions {
  /** Milliseconds after which a process that is killed, or blocked, loses its lock. */
  stale?: number
  /** Milliseconds to wait for others. */
  maxWait?: number
  signal?: AbortSignal
  /** Called before it waits for others. */
  onWait?: () => void
  /** Called if this process was blocked so long that another one may work at the same time. Without it, that fails. */
  onLost?: () => void
}

/**
 * Runs work while no other process does the same for this file (which need not exist). By default, the work is short.
 * The lock does not mean that a server runs.
 * @throws the errors of `work`; an error with code `ELOCKED` if others hold the lock for too long; an error with code
 * `ECOMPROMISED` if this process was blocked so long that another one may have worked at the same time
 */
export async function withShortLock<T>(file: string, work: () => Promise<T>, options: LockOptions = {}): Promise<T> {
  let compromised: Error | undefined
  const unlock = await acquire(file, options, error => {
    compromised = error
    options.onLost?.()
  })
  try {
    return await work()
  } finally {
    if (compromised === undefined) await unlock()
    // biome-ignore lint/correctness/noUnsafeFinally: work that was not alone must not count as done
    else if (!options.onLost) throw compromised
  }
}

async function acquire(
  file: string,
  { stale = STALE, maxWait = MAX_WAIT_MS, signal, onWait }: LockOptions,
  onCompromised: (error: Error) => void
): Promise<() => Promise<void>> {
  const deadline = performance.now() + maxWait
  for (let isFirst = true; ; isFirst = false) {
    signal?.throwIfAborted()
    try {
      // The library's own retries would repeat every failure, such as a missing permission, for seconds.
      return await lock(file, { realpath: false, stale, onCompromised })
    } catch (error) {
      if (!isSystemError(error, 'ELOCKED') || performance.now() > deadline) throw error
      if (isFirst) onWait?.()
      await sleep(PAUSE + Math.random() * PAUSE, undefined, signal && { signal }).catch(() => signal?.throwIfAborted())
    }
  }
}
