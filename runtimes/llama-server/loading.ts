import { setTimeout as sleep } from 'node:timers/promises'
import type { MemoryUse } from '../../core/contracts/engines.ts'
import type { Waiting } from '../../core/contracts/progress.ts'
import { CorralError } from '../../core/errors.ts'
import { untilAborted, withResolver } from '../../core/system/abort-signals.ts'
import { isObject, parseAnyJson } from '../../core/system/json-object.ts'
import { printable } from '../../core/system/printable.ts'
import { readText } from '../../core/system/response-body.ts'
import { markAsClientText } from './engine-logs.ts'
import { stuckFailure } from './failure.ts'
import warnings from './load-warnings.json' with { type: 'json' }
import { addUse } from './memory/engine-need.ts'
import type { Upstream } from './upstream.ts'

export type LoadedFacts = NonNullable<ReturnType<typeof factsFromProps>>

/** The model and its contexts are in memory and warmed up. */
const LOADED = /load_model: initializing, n_slots = /

/** Milliseconds between requests for `/health` of a build that does not report its state. */
const HEALTH_INTERVAL_MS = 250

async function getJson(upstream: Upstream, path: string, signal: AbortSignal) {
  const { status, body } = await upstream.request({ method: 'GET', path, signal })
  return { status, value: parseAnyJson(await readText(body)) }
}

/** Reads `/props`, as far as older and newer builds agree on it. */
export function factsFromProps(props: unknown) {
  const { total_slots: slots, default_generation_settings: settings } = (props ?? {}) as Record<string, unknown>
  const contextSize = (settings as { n_ctx?: unknown } | undefined)?.n_ctx
  return typeof slots === 'number' && typeof contextSize === 'number' ? { contextSize, slots } : undefined
}

/**
 * Follows a load until the engine serves. Gives up when the caller does, or after `timeout` ms without progress.
 * @param templateLimit the same limit for reading the chat template, the last step. 0 is unlimited
 */
export function followLoad(
  { signal: outer, onProgress }: Waiting,
  timeout: number,
  subject: string,
  templateLimit = 0
) {
  const control = new AbortController()
  const signal: AbortSignal = outer ? AbortSignal.any([outer, control.signal]) : control.signal
  let active = true
  let fraction = 0
  let speaksStates = false
  const { promise: reportedReady, resolve: markReady } = withResolver()

  const fail = (error: unknown) => {
    if (active) control.abort(error)
  }
  let stall = setTimeout(() => {
    const seconds = Math.round(timeout / 1000)
    const text = `Loading the model "${subject}" made no progress for ${seconds} s and was stopped. Check its disk, or raise runtimes.load_timeout.`
    fail(new CorralError('load_timeout', text, { details: { cause: 'stalled' } }))
  }, timeout)

  /** For builds that do not support the child protocol. */
  async function pollHealth(upstream: Upstream): Promise<void> {
    for (;;) {
      await sleep(HEALTH_INTERVAL_MS, undefined, { signal })
      if (speaksStates) return reportedReady
      try {
        const { status } = await getJson(upstream, '/health', signal)
        if (status === 200) return
      } catch {
        // It is not listening yet. If it never will, the signal is aborted.
        signal.throwIfAborted()
      }
    }
  }

  async function serve(upstream: Upstream): Promise<LoadedFacts> {
    await Promise.race([reportedReady, pollHealth(upstream)])
    const { status, value } = await getJson(upstream, '/props', signal)
    const facts = factsFromProps(value)
    if (facts) return facts
    const message = `The engine of "${subject}" started, but GET /props gave no usable answer (status ${status}). Use a newer llama.cpp build.`
    throw new CorralError('load_failed', message, { details: { cause: 'unknown' } })
  }

  onProgress?.({ phase: 'loading', subject: '' })
  return {
    /** Aborted when the load has failed, with the error as reason. */
    signal,
    get active() {
      return active
    },
    /** Takes lines that the engine has printed. Each line is a sign of progress. */
    note(lines: readonly EngineLine[]): void {
      if (active) stall.refresh()
      for (const line of lines) {
        if (line.type === 'text' && active && templateLimit > 0 && LOADED.test(line.text)) {
          clearTimeout(stall)
          stall = setTimeout(() => fail(stuckFailure(subject, templateLimit, false)), Math.min(timeout, templateLimit))
        }
        if (line.type === 'text' || line.type === 'memory') continue
        speaksStates = true
        if (line.type === 'ready') markReady()
        else if (line.type === 'loading' && active && line.fraction !== undefined && line.fraction >= fraction) {
          fraction = line.fraction
          onProgress?.({ phase: 'loading', subject: '', fraction })
        }
      }
    },
    fail,
    /** Resolves when the engine serves. Rejects when the load has failed. */
    async untilServing(upstream: Upstream): Promise<LoadedFacts> {
      signal.throwIfAborted()
      return await untilAborted(serve(upstream), signal)
    },
    close(): void {
      active = false
      clearTimeout(stall)
    }
  }
}

/** Returns the warnings about a load that succeeded, without repetitions. */
export function loadWarnings(lines: readonly string[], options: { gpuLayers: number }): string[] {
  return warnings.flatMap(({ pattern, sentence, unlessRequested }) => {
    if (unlessRequested && options.gpuLayers === 0) return []
    const match = lines.map(line => line.match(pattern)).find(found => found !== null)
    if (!match) return []
    return [sentence.replace(/\$(\d)/g, (_, number) => match[Number(number)] ?? '')]
  })
}

type LogLevel = 'error' | 'warn' | 'info' | 'debug'

export type EngineLine =
  | {
      type: 'text'
      text: string
      level: LogLevel | undefined
      /** A further line of a message. llama-server's own messages have one line each. */
      continued?: true
    }
  /** The share of the model that is loaded, 0 to 1. Undefined if the line does not report it. */
  | { type: 'loading'; fraction: number | undefined }
  | { type: 'ready' }
  | { type: 'state' }
  | { type: 'memory'; use: MemoryUse }

const STATE_PREFIX = 'cmd_child_to_router:state:'
const MAIN_STAGE = 'text_model'
/** The main model's part of the load compared with a draft model or a projector. */
const MAIN_WEIGHT = 8
const LEVELS: Record<string, LogLevel> = { E: 'error', W: 'warn', I: 'info', D: 'debug' }
/** `[port] ` of a router's child, time since the start, level. */
const PLAIN_PREFIX = /^(?:\[\d+\] )?(?:\d+\.\d\d\.\d{3}\.\d{3} )?([EWID]) /

function parseObject(text: string): Record<string, unknown> | undefined {
  const value = parseAnyJson(text)
  return isObject(value) ? value : undefined
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
    // Memory that is not on a device is the machine's, such as weights repacked for the processor.
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
    .map((text, index) => ({
      type: 'text',
      text: text.trimEnd(),
      level,
      ...(index > 0 && { continued: true as const })
    }))
}

/** Parses a line of output: plain or JSON log lines, or messages of the child protocol. A blank line has none. */
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

const MAX_LINE_LENGTH = 2000
/** Quoted text after a head has ended after this many milliseconds without a line. */
const QUOTE_END = 1000
/** Lines before llama-server repeats a grammar or a model's output. The client controls the lines that follow. */
const HEADS = /error (?:parsing|printing) grammar: |^AST for |^WARNING: JSON schema conversion/

/**
 * Reads the output of one engine and separates its own words from clients' words. Clients' words must not report a
 * state or memory use, or be taken for the reason of a failure. A build that logs JSON lines writes them to stdout,
 * with clients' newlines escaped, and writes everything outside its log to stderr. Lines are limited in length and
 * stripped of control characters. Clients' lines are marked (`isQuoted`).
 */
export function createOutputReader(now = () => performance.now()) {
  let logsJson = false
  let quotesUntil = 0

  /** Whether a line belongs to the quoted text after a head. */
  function continues(text: string): boolean {
    const at = now()
    const inside = at < quotesUntil
    if (inside || HEADS.test(text)) quotesUntil = at + QUOTE_END
    return inside
  }

  return (line: string, stream: 'stdout' | 'stderr'): EngineLine[] => {
    const lines = parseLine(line)
    const isText = lines.every(({ type }) => type === 'text')
    const isAsIs = lines.some(each => each.type === 'text' && each.text === line.trimEnd())
    const isJson = line.startsWith('{') && !isAsIs
    if (stream === 'stdout' && isJson) logsJson = true
    const past = logsJson && (stream === 'stderr' || (isText && !isJson))
    const read: EngineLine[] = past ? [{ type: 'text', text: line, level: undefined }] : lines
    return read.map(each => {
      if (each.type !== 'text') return each
      // On stdout, this is a piece of a message that was too long for one line.
      const foreign = each.continued || ((past || !isJson) && continues(each.text)) || (past && stream === 'stdout')
      const text = printable(each.text, MAX_LINE_LENGTH)
      return { ...each, text: foreign ? markAsClientText(text) : text }
    })
  }
}

/**
 * Measures an engine's memory from llama-server's own tables (`common_memory_breakdown_print` in common/fit.cpp,
 * v0.5.0). The tables printed while loading come from `--fit`, which estimates before anything is allocated. The first
 * is of the model with its initial parameters. Then comes one of the draft model, if any, and one for each attempt to
 * put fewer layers on the devices. The last of these matches the result, give or take a layer. Without devices there
 * are no attempts. The table at the engine's end shows the model as it was.
 */
export class MemoryReport {
  readonly #drafts: boolean
  readonly #tables: MemoryUse[] = []
  #final: MemoryUse | undefined

  /** @param drafts whether a draft model is loaded too */
  constructor(drafts: boolean) {
    this.#drafts = drafts
  }

  note(use: MemoryUse, loading: boolean): void {
    if (loading) this.#tables.push(use)
    else this.#final = use
  }

  use(): MemoryUse | undefined {
    const draft = this.#drafts ? this.#tables[1] : undefined
    const model = this.#final ?? (draft && this.#tables.length === 2 ? this.#tables[0] : this.#tables.at(-1))
    return model && addUse(model, draft ?? {})
  }
}
