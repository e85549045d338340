import { readFile } from 'node:fs/promises'
import type { EngineAddress } from './launch.ts'
import { createUpstream } from './upstream.ts'

export interface HangWatchDeps {
  /** Milliseconds without any sign of life after which it counts as hung. */
  limit: number
  /** Requests that wait for it or read from it, and bytes that it has sent so far. */
  activity(): { open: number; received: number }
  /** Whether it answers a health check. */
  healthy(signal: AbortSignal): Promise<boolean>
  /** Processor time that it has used so far, in any unit; undefined where the system does not say. */
  processorTime(): Promise<number | undefined>
  onHung(): void
}

/** Checks in a row without a sign of life after which it counts as hung; together they last the limit. */
const LOOKS = 8

/**
 * Watches an engine that serves. It is hung when, with requests open, no byte comes, `/health` is not answered and no
 * processor time passes, at every check for the whole limit. A long prompt evaluation uses processor time and leaves
 * `/health` answered, however long it takes. Checks are counted, not time, so that a suspended machine
 * does not end its engines. Returns a function that ends the watch.
 */
export function watchForHang(deps: HangWatchDeps): () => void {
  /** A look takes as long as it waits before it, when nothing answers. */
  const step = Math.max(1, Math.ceil(deps.limit / LOOKS / 2))
  let received = deps.activity().received
  let used: number | undefined
  let silent = 0
  let stopped = false
  let timer: NodeJS.Timeout

  async function showsLife(): Promise<boolean> {
    const now = deps.activity()
    const moved = now.received !== received
    received = now.received
    if (now.open === 0 || moved) return true
    if (await deps.healthy(AbortSignal.timeout(step)).catch(() => false)) return true
    const before = used
    used = await deps.processorTime()
    return used !== undefined && used !== before
  }

  async function look(): Promise<void> {
    silent = (await showsLife()) ? 0 : silent + 1
    if (stopped) return
    if (silent >= LOOKS) return deps.onHung()
    schedule()
  }

  function schedule(): void {
    timer = setTimeout(() => void look(), step)
    timer.unref()
  }

  schedule()
  return () => {
    stopped = true
    clearTimeout(timer)
  }
}

/** Clock ticks that a process and its threads have run; undefined where the system does not say (only Linux does). */
async function processorTime(pid: number | undefined): Promise<number | undefined> {
  if (pid === undefined || process.platform !== 'linux') return undefined
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => undefined)
  if (stat === undefined) return undefined
  // The second field is the program's name in parentheses, which may hold spaces and parentheses itself.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return Number(fields[11]) + Number(fields[12])
}

/** Watches a real engine for hanging: asks `/health` apart from its requests, and reads its processor time. */
export function watchEngine(
  address: EngineAddress,
  pid: number | undefined,
  watch: Pick<HangWatchDeps, 'limit' | 'activity' | 'onHung'>
): () => void {
  const probe = createUpstream(address, { alive: () => false, explain: async error => error })
  const endWatch = watchForHang({
    ...watch,
    async healthy(signal) {
      const { body } = await probe.request({ method: 'GET', path: '/health', signal })
      body.destroy()
      return true
    },
    processorTime: () => processorTime(pid)
  })
  return () => {
    endWatch()
    probe.cut(new Error('The engine is no longer watched.'))
  }
}
