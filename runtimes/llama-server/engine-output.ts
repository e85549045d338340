import type { MemoryUse } from '../../core/contracts/engines.ts'
import { isObject } from '../../core/system/json-object.ts'
import { addUse } from './memory/engine-need.ts'

export type LogLevel = 'error' | 'warn' | 'info' | 'debug'

/** What one line of llama-server's output says. */
export type EngineLine =
  | { type: 'text'; text: string; level: LogLevel | undefined }
  /** How much of the model is loaded, 0 to 1; undefined where the line does not say. */
  | { type: 'loading'; fraction: number | undefined }
  | { type: 'ready' }
  /** Another state of the child protocol. */
  | { type: 'state' }
  /** Memory that the engine uses. */
  | { type: 'memory'; use: MemoryUse }

const STATE_PREFIX = 'cmd_child_to_router:state:'
const MAIN_STAGE = 'text_model'
/** The main model's part of the load compared with a draft model or a projector. */
const MAIN_WEIGHT = 8
const LEVELS: Record<string, LogLevel> = { E: 'error', W: 'warn', I: 'info', D: 'debug' }
/** `[port] ` of a router's child, time since the start, level. */
const PLAIN_PREFIX = /^(?:\[\d+\] )?(?:\d+\.\d\d\.\d{3}\.\d{3} )?([EWID]) /

function parseObject(text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return isObject(value) ? value : undefined
  } catch {
    return undefined
  }
}

function loadedFraction(payload: unknown): number | undefined {
  if (!isObject(payload) || !Array.isArray(payload.stages)) return undefined
  const { stages, current, value } = payload
  const at = stages.indexOf(current)
  if (at < 0 || typeof value !== 'number') return undefined
  const weights = stages.map(stage => (stage === MAIN_STAGE ? MAIN_WEIGHT : 1))
  const sum = (list: number[]) => list.reduce((total, weight) => total + weight, 0)
  const done = sum(weights.slice(0, at)) + weights[at]! * Math.min(1, Math.max(0, value))
  return done / sum(weights)
}

function parseState(text: string): EngineLine | undefined {
  const message = parseObject(text)
  if (!message || typeof message.state !== 'string') return undefined
  if (message.state === 'ready') return { type: 'ready' }
  if (message.state === 'loading') return { type: 'loading', fraction: loadedFraction(message.payload) }
  return { type: 'state' }
}

function parseMemory(data: unknown): EngineLine | undefined {
  if (!isObject(data) || data.unit !== 'MiB' || !Array.isArray(data.rows)) return undefined
  const use: MemoryUse = {}
  for (const row of data.rows) {
    if (!isObject(row) || typeof row.self !== 'number') return undefined
    // Whatever is on no device is in the machine's memory, such as weights repacked for the processor.
    const pool = row.kind === 'device' ? String(row.name) : 'host'
    use[pool] = (use[pool] ?? 0) + row.self * 2 ** 20
  }
  return { type: 'memory', use }
}

function parseJsonLine(line: string): EngineLine[] | undefined {
  const entry = parseObject(line)
  if (entry?.type === 'fit_memory_breakdown') {
    const memory = parseMemory(entry.data)
    return memory && [memory]
  }
  if (entry?.type !== 'log' || typeof entry.msg !== 'string') return undefined
  const level = Object.values(LEVELS).find(name => name === entry.level)
  return entry.msg
    .split('\n')
    .filter(text => text.trim() !== '')
    .map(text => ({ type: 'text', text: text.trimEnd(), level }))
}

/** What a line of output says: plain or JSON log lines, messages of the child protocol; nothing for a blank line. */
export function parseLine(line: string): EngineLine[] {
  if (line.trim() === '') return []
  if (line.startsWith(STATE_PREFIX)) {
    const state = parseState(line.slice(STATE_PREFIX.length))
    if (state) return [state]
  }
  if (line.startsWith('{')) {
    const parsed = parseJsonLine(line)
    if (parsed) return parsed
  }
  const prefix = PLAIN_PREFIX.exec(line)
  const text = line.slice(prefix?.[0].length ?? 0).trimEnd()
  return [{ type: 'text', text, level: prefix ? LEVELS[prefix[1]!] : undefined }]
}

/**
 * What an engine holds, by llama-server's own tables (`common_memory_breakdown_print` in common/fit.cpp, v0.5.0). All that it
 * prints while it loads come from `--fit`, which estimates before anything is allocated: the first one is of the model
 * with its initial parameters, then one of the draft model where there is one, then one for each try to put fewer
 * layers on the devices, of which the last is what it settles on, or within a layer of that. Without devices nothing is
 * tried. The table at its end is of the model as it was.
 */
export class MemoryReport {
  readonly #drafts: boolean
  readonly #tables: MemoryUse[] = []
  #final: MemoryUse | undefined

  /** @param drafts whether it loads a draft model too */
  constructor(drafts: boolean) {
    this.#drafts = drafts
  }

  /** A table that it printed (`fit_memory_breakdown`), while it loads or later. */
  note(use: MemoryUse, loading: boolean): void {
    if (loading) this.#tables.push(use)
    else this.#final = use
  }

  /** Bytes by pool; undefined before the first table. */
  use(): MemoryUse | undefined {
    const draft = this.#drafts ? this.#tables[1] : undefined
    const model = this.#final ?? (draft && this.#tables.length === 2 ? this.#tables[0] : this.#tables.at(-1))
    return model && addUse(model, draft ?? {})
  }
}
