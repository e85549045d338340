import { setTimeout as sleep } from 'node:timers/promises'
import { abortAfter, withAnySignal } from '../../core/system/abort-signals.ts'
import { processMemory, processorTime } from '../../core/system/processes.ts'
import { readJson } from '../../core/system/response-body.ts'
import { AT_REST, judge, type Look, memoryLimit, type Patience, readSlots } from './hang-watch.ts'
import type { EngineAddress } from './launch.ts'
import { createUpstream } from './upstream.ts'

export interface WatchDeps extends Patience {
  address: EngineAddress
  pid: number | undefined
  /** Bytes of the machine's memory that are reserved for the engine. Undefined if unknown. */
  reserved(): number | undefined
  /** The open requests and the bytes received for them. Undefined while the engine loads. */
  activity(): { open: number; received: number; filing: boolean } | undefined
  /** Called at each check once the engine serves. */
  onLook?(moved: boolean, atRest: boolean): void
  /** Reports that the engine must be ended. @param inLoop whether its main loop is blocked, for `stuck` */
  onFault(fault: 'stuck' | 'hung' | 'over_memory', inLoop: boolean): void
}

type Slots = ReturnType<typeof readSlots> | 'refused'

/** Maximum milliseconds between checks. Shorter if the limits are short. */
const MAX_STEP = 1000
const MIN_STEP = 10
/** Number of checks within the shortest limit. */
const CHECKS_PER_LIMIT = 8
/** Milliseconds between checks while memory grows by more than `GROWTH` bytes from one check to the next. */
const QUICK_STEP = 100
const GROWTH = 32 * 2 ** 20
/** Share of one processor core above which the engine is using the processor. */
const BUSY = 0.1
/** Checks of an idle engine before the watch sleeps until the next request. */
const LAST_LOOKS = 3

/** Watches an engine's memory, and its progress once it serves. Sleeps while it is idle until `wake`. */
export function watchEngine(deps: WatchDeps) {
  const limits = [deps.stuckAfter, deps.hangTimeout].filter(limit => limit > 0)
  const step = Math.max(MIN_STEP, Math.min(MAX_STEP, Math.min(...limits, Infinity) / CHECKS_PER_LIMIT))
  const probe = createUpstream(deps.address, { alive: () => false, explain: async error => error })
  const ended = new AbortController()
  const slots = createSlotReader()
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

  /** Asks for the slots, one question at a time. An unanswered question stays open until the loop continues. */
  function createSlotReader() {
    let asked: Promise<void> | undefined
    let answer: Slots
    async function ask(): Promise<void> {
      try {
        const { status, body } = await probe.request({ method: 'GET', path: '/slots', signal: ended.signal })
        const reply = readSlots(await readJson(body))
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

  /** Whether the engine uses too much memory. Records how its memory grows. */
  async function hasTooMuch(): Promise<boolean> {
    const reserved = deps.reserved()
    const now = reserved === undefined ? undefined : (await processMemory(deps.pid, ['status']))?.own
    if (now === undefined) return false
    grows = now - own > GROWTH
    own = now
    return now > memoryLimit(reserved!)
  }

  async function see(activity: NonNullable<ReturnType<WatchDeps['activity']>>): Promise<Look> {
    const time = performance.now()
    // A suspended machine or a busy gateway observed nothing in that time.
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
