import { readFile } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { abortAfter, withAnySignal } from '../../core/system/abort-signals.ts'
import type { EngineAddress } from './launch.ts'
import { readJson } from './response-body.ts'
import { createUpstream } from './upstream.ts'

/*
 * Decides whether an engine makes progress. Two facts are visible from outside: what it sends and how much of the
 * processor it uses. It reports two more: any of its threads answers `/health`, and its main loop answers `/slots`,
 * even while it waits for the model to compute. A loop that is blocked by something else does not answer.
 */

export interface Look {
  /** Milliseconds since the check before. */
  passed: number
  /** Requests that wait for it or read from it. */
  open: number
  /** Whether it has sent something other than a keep-alive, or a slot has advanced. */
  moved: boolean
  /** The report of its main loop. `unknown` if this build or its flags have no `/slots`, or without a need to ask. */
  slots: 'working' | 'resting' | 'silent' | 'unknown'
  /** Whether it used the processor. Undefined if the system does not report it. */
  busy: boolean | undefined
  healthy: boolean
  /** Whether slots are being saved to files or restored from them. */
  filing: boolean
}

/** Milliseconds without progress. */
export interface Stillness {
  /** It used the processor but made no progress. */
  still: number
  /** It showed no sign of life. */
  quiet: number
  /** The model has been computing since the last movement. */
  computing: number
  /** The longest time that the model took to move. */
  slowest: number
}

export const AT_REST: Stillness = { still: 0, quiet: 0, computing: 0, slowest: 0 }

export interface Patience {
  /** Milliseconds. 0 is unlimited. */
  stuckAfter: number
  /** Milliseconds. 0 is unlimited. */
  hangTimeout: number
}

/** On a slow machine everything is slow. An engine is stuck only after this many times the model's slowest movement. */
const SLOWNESS = 20

/**
 * Decides whether an engine makes progress:
 * 1. There was progress, or it is idle and has no work: all is well.
 * 2. The model computes: a batch of a long prompt or an image may take an hour on a slow machine, but it ends. Its
 *    duration is remembered.
 * 3. Slots are being saved or restored, which has no time limit.
 * 4. It uses the processor for none of these reasons, with or without open requests: it is stuck after a while. If its
 *    slots are not visible, this looks the same as 2.
 * 5. It does not use the processor while requests are open: a GPU may be working. If it does not answer either, it
 *    hangs.
 */
export function judge(
  before: Stillness,
  look: Look,
  { stuckAfter, hangTimeout }: Patience
): { now: Stillness; fault?: 'stuck' | 'hung' } {
  const { passed } = look
  const busy = look.busy ?? (look.healthy && look.slots === 'silent')
  if (look.moved || (look.open === 0 && !busy)) {
    const took = look.moved && before.computing > 0 ? before.computing + passed : 0
    return { now: { ...AT_REST, slowest: Math.max(before.slowest, took) } }
  }
  if (look.slots === 'working') return { now: { ...before, still: 0, quiet: 0, computing: before.computing + passed } }
  if (busy) {
    if (look.filing || look.slots === 'unknown') return { now: { ...before, still: 0, quiet: 0 } }
    const still = before.still + passed
    const stuck = stuckAfter > 0 && still >= Math.max(stuckAfter, SLOWNESS * before.slowest)
    return { now: { ...before, still, quiet: 0 }, ...(stuck && { fault: 'stuck' }) }
  }
  if (look.healthy) return { now: { ...before, quiet: 0 } }
  const quiet = before.quiet + passed
  return { now: { ...before, quiet }, ...(hangTimeout > 0 && quiet >= hangTimeout && { fault: 'hung' }) }
}

/** How far an engine may exceed its reservation, as a factor and in bytes. The larger limit applies. */
const MEMORY_FACTOR = 1.5
const MEMORY_MARGIN = 512 * 2 ** 20

/** Returns the bytes of the machine's memory above which an engine is ended, given its reservation. */
export function memoryLimit(reserved: number): number {
  return Math.max(MEMORY_FACTOR * reserved, reserved + MEMORY_MARGIN)
}

/** Reads the reply of `GET /slots`: whether a slot is in use, and a text that changes when a slot advances. */
export function readSlots(reply: unknown): { working: boolean; counters: string } | undefined {
  if (!Array.isArray(reply)) return undefined
  const slots = reply.filter(slot => typeof slot === 'object' && slot !== null)
  const counters = slots.map(slot => {
    const { id_task, n_prompt_tokens, n_prompt_tokens_processed, next_token } = slot
    const decoded = [next_token].flat()[0]?.n_decoded
    return [id_task, slot.is_processing, n_prompt_tokens, n_prompt_tokens_processed, decoded].join(' ')
  })
  return { working: slots.some(slot => slot.is_processing === true), counters: counters.join('\n') }
}

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
/** Linux reports processor time in these units, independent of the kernel's own rate (`USER_HZ`). */
const MS_PER_TICK = 10

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
    const now = reserved === undefined ? undefined : await ownMemory(deps.pid)
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

/** Returns the milliseconds that a process and its threads have run. Undefined except on Linux. */
async function processorTime(pid: number | undefined): Promise<number | undefined> {
  if (pid === undefined || process.platform !== 'linux') return undefined
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => undefined)
  if (stat === undefined) return undefined
  // The second field is the program's name in parentheses, which may contain spaces and parentheses.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * MS_PER_TICK
}

/** Returns a process's private bytes (Linux only). The system reclaims pages of mapped files, such as weights. */
async function ownMemory(pid: number | undefined): Promise<number | undefined> {
  if (pid === undefined || process.platform !== 'linux') return undefined
  const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '')
  const kilobytes = [...status.matchAll(/^Rss(?:Anon|Shmem):\s+(\d+) kB$/gm)].map(([, size]) => Number(size))
  return kilobytes.length === 0 ? undefined : kilobytes.reduce((sum, size) => sum + size, 0) * 1024
}
