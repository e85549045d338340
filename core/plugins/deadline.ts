import { formatDuration } from '../system/duration.ts'

export class DeadlineError extends Error {}

/** Waits for the work, but not for ever. @throws DeadlineError after `deadline` milliseconds */
export async function within<T>(deadline: number, work: () => T | Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const expired = new Promise<never>((_, reject) => {
    const late = () => reject(new DeadlineError(`it took longer than ${formatDuration(deadline)}`))
    // Timers beyond 2^31 ms fire at once; such a deadline is none.
    if (deadline < 2 ** 31) timer = setTimeout(late, deadline)
  })
  try {
    return await Promise.race([(async () => work())(), expired])
  } finally {
    clearTimeout(timer)
  }
}
