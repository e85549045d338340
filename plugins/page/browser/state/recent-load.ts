import { signal } from '@preact/signals'
import { engines, gpus, pools } from './server-state.ts'

/** What the server did at one moment. */
export interface LoadSample {
  /** Epoch seconds. */
  at: number
  running: number
  waiting: number
  /** Tokens a second that all models generated since the sample before. */
  tokens: number
  /** Bytes that models hold of all pools. */
  memory: number
  /** Degrees Celsius of the hottest GPU; of unknown ones, 0. */
  temperature: number
  /** Percent of their time in which GPUs computed, on average. */
  utilization: number
}

/** Samples that are kept: five minutes, one a second. */
const MAX_COUNT = 300

/** The last minutes, the oldest first. Collected while somebody looks. */
export const samples = signal<readonly LoadSample[]>([])

let watchers = 0
let timer: ReturnType<typeof setInterval> | undefined
/** Generated tokens of each engine at the last sample. */
let counted = new Map<string, number>()

/** Collects samples until the returned function is called. */
export function collectSamples(): () => void {
  watchers += 1
  if (timer === undefined) {
    timer = setInterval(sample, 1000)
    sample()
  }
  return () => {
    watchers -= 1
    if (watchers > 0) return
    clearInterval(timer)
    timer = undefined
    counted = new Map()
  }
}

function sample(): void {
  const at = Date.now() / 1000
  let running = 0
  let waiting = 0
  let fresh = 0
  const next = new Map<string, number>()
  for (const engine of engines.peek()) {
    waiting += engine.queued
    if (engine.state !== 'loaded') continue
    running += engine.running
    const name = `${engine.name} ${engine.mode}`
    const before = counted.get(name)
    next.set(name, engine.generated_tokens)
    // One that was loaded again counts from zero.
    if (before !== undefined) fresh += engine.generated_tokens >= before ? engine.generated_tokens - before : 0
  }
  counted = next
  const last = samples.peek().at(-1)
  const passed = last ? Math.max(0.5, at - last.at) : 1
  const memory = pools.peek().reduce((sum, { reserved }) => sum + reserved, 0)
  const temperature = Math.max(0, ...gpus.peek().map(({ temperature = 0 }) => temperature))
  const busy = gpus.peek().flatMap(({ utilization = [] }) => utilization)
  const utilization = (100 * busy.reduce((sum, each) => sum + each, 0)) / Math.max(1, busy.length)
  const all = last && passed > 10 ? [] : samples.peek()
  const now = { at, running, waiting, tokens: fresh / passed, memory, temperature, utilization }
  samples.value = [...all.slice(1 - MAX_COUNT), now]
}
