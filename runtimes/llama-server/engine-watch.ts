import { readFile } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { abortAfter } from '../../core/system/abort-after.ts'
import { withAnySignal } from '../../core/system/any-signal.ts'
import { AT_REST, judge, type Look, memoryLimit, type Patience, readSlots } from './hang-watch.ts'
import type { EngineAddress } from './launch.ts'
import { jsonOf } from './response-body.ts'
import { createUpstream } from './upstream.ts'

export interface WatchDeps extends Patience {
  address: EngineAddress
  pid: number | undefined
  /** Bytes of the machine's memory that are reserved for it; undefined where that is not known. */
  reserved(): number | undefined
  /** Requests that are open and what has come of them; undefined while the engine loads. */
  activity(): { open: number; received: number; filing: boolean } | undefined
  /** Called at each look once it serves: whether something moved, and whether it does nothing. */
  onLook?(moved: boolean, atRest: boolean): void
  /**
   * It has to be ended.
   * @param inLoop for `stuck`: its main loop is caught; else it computes beside it
   */
  onFault(fault: 'stuck' | 'hung' | 'over_memory', inLoop: boolean): void
}

/** What `/slots` says; undefined where it does not answer. */
type Slots = ReturnType<typeof readSlots> | 'refused'

/** Milliseconds between looks, at most; shorter where the limits are. */
const MAX_STEP = 1000
const MIN_STEP = 10
/** Looks within the shortest limit. */
const LOOKS = 8
/** Milliseconds between looks at a memory that grows by more than so many bytes from one to the next. */
const QUICK_STEP = 100
const GROWTH = 32 * 2 ** 20
/** The part of one processor core that is use. */
const BUSY = 0.1
/** Looks at an engine that does nothing before the watch sleeps until the next request. */
const LAST_LOOKS = 3
/** Linux counts processor time in these, whatever the kernel's own rate (`USER_HZ`). */
const MS_PER_TICK = 10

/**
 * Watches an engine from its start to its end: its memory all the time, and once it serves whether it gets on. It sleeps
 * while the engine does nothing; `wake` is called for each request.
 */
export function watchEngine(deps: WatchDeps) {
  const limits = [deps.stuckAfter, deps.hangTimeout].filter(limit => limit > 0)
  const step = Math.max(MIN_STEP, Math.min(MAX_STEP, Math.min(...limits, Infinity) / LOOKS))
  const probe = createUpstream(deps.address, { alive: () => false, explain: async error => error })
  const ended = new AbortController()
  const slots = slotsOf()
  let state = AT_REST
  let last = performance.now()
  let used: number | undefined
  let received = 0
  let counters = ''
  let own = 0
  let grows = false
  let restful = 0
  let asleep = false
  let timer: NodeJS.Timeout | undefined

  /** Asks for the slots once at a time: an unanswered question stays open, and is answered when the loop goes on. */
  function slotsOf() {
    let asked: Promise<void> | undefined
    let answer: Slots
    async function ask(): Promise<void> {
      try {
        const { status, body } = await probe.request({ method: 'GET', path: '/slots', signal: ended.signal })
        const reply = readSlots(await jsonOf(body))
        answer = status < 400 ? reply : status === 404 || status === 501 ? 'refused' : undefined
      } catch {
        answer = undefined
      }
      asked = undefined
    }
    return async (limit: number): Promise<Slots> => {
      answer = undefined
      asked ??= ask()
      await Promise.race([asked, sleep(limit, undefined, { ref: false })])
      return answer as Slots
    }
  }

  async function isHealthy(limit: number): Promise<boolean> {
    const signals = [ended.signal, abortAfter(Math.ceil(limit))]
    try {
      const ask = (signal: AbortSignal) => probe.request({ method: 'GET', path: '/health', signal })
      const { body } = await withAnySignal(signals, ask)
      body.cancel()
      return true
    } catch {
      return false
    }
  }

  /** Whether it has too much memory; notes how it grows. */
  async function hasTooMuch(): Promise<boolean> {
    const reserved = deps.reserved()
    const now = reserved === undefined ? undefined : await ownMemory(deps.pid)
    if (now === undefined) return false
    grows = now - own > GROWTH
    own = now
    return now > memoryLimit(reserved!)
  }

  async function see(activity: NonNullable<ReturnType<WatchDeps['activity']>>): Promise<Look> {
    const time = performance.now()
    // A machine that was suspended, or a gateway that was busy, has seen nothing in the meantime.
    const passed = Math.min(time - last, 2 * step)
    const elapsed = Math.max(1, time - last)
    last = time
    const before = used
    used = await processorTime(deps.pid)
    const { open, filing } = activity
    const look: Look = {
      passed,
      open,
      moved: activity.received !== received,
      slots: 'unknown',
      busy: used === undefined ? undefined : before !== undefined && used - before >= BUSY * elapsed,
      healthy: true,
      filing
    }
    received = activity.received
    if (look.moved || (open === 0 && !look.busy)) return look
    const answer = await slots(step)
    if (answer === 'refused') return { ...look, healthy: await isHealthy(step) }
    if (answer) {
      const moved = answer.counters !== counters
      counters = answer.counters
      return { ...look, moved, slots: answer.working ? 'working' : 'resting' }
    }
    return { ...look, slots: 'silent', healthy: look.busy === true || (await isHealthy(step)) }
  }

  async function look(): Promise<void> {
    timer = undefined
    const tooMuch = await hasTooMuch()
    if (ended.signal.aborted) return
    if (tooMuch) return deps.onFault('over_memory', false)
    const activity = deps.activity()
    if (activity) {
      const seen = await see(activity)
      if (ended.signal.aborted) return
      const { now, fault } = judge(state, seen, deps)
      state = now
      const atRest = seen.open === 0 && !(seen.busy ?? seen.slots === 'silent')
      deps.onLook?.(seen.moved || seen.slots === 'working' || seen.slots === 'resting', atRest)
      if (fault) return deps.onFault(fault, seen.slots === 'silent')
      restful = atRest ? restful + 1 : 0
      asleep = restful >= LAST_LOOKS && !grows
      if (asleep) return
    }
    schedule()
  }

  function schedule(): void {
    timer = setTimeout(() => void look(), grows || !deps.activity() ? Math.min(QUICK_STEP, step) : step)
    timer.unref()
  }

  schedule()
  return {
    /** A request begins: the watch goes on. */
    wake(): void {
      restful = 0
      if (!asleep) return
      asleep = false
      last = performance.now()
      used = undefined
      schedule()
    },
    end(): void {
      ended.abort(new Error('The engine is no longer watched.'))
      clearTimeout(timer)
      probe.cut(ended.signal.reason)
    }
  }
}

/** Milliseconds that a process and its threads have run; undefined where the system does not say (only Linux does). */
async function processorTime(pid: number | undefined): Promise<number | undefined> {
  if (pid === undefined || process.platform !== 'linux') return undefined
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => undefined)
  if (stat === undefined) return undefined
  // The second field is the program's name in parentheses, which may hold spaces and parentheses itself.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * MS_PER_TICK
}

/**
 * Bytes of memory that are a process's own: pages of mapped files, as weights are, are not counted, since the system takes
 * them back when it needs them. Undefined where the system does not say (only Linux does).
 */
async function ownMemory(pid: number | undefined): Promise<number | undefined> {
  if (pid === undefined || process.platform !== 'linux') return undefined
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '')
  const kilobytes = [...status.matchAll(/^Rss(?:Anon|Shmem):\s+(\d+) kB$/gm)].map(([, size]) => Number(size))
  return kilobytes.length === 0 ? undefined : kilobytes.reduce((sum, size) => sum + size, 0) * 1024
}
