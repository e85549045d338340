import { CorralError, type ErrorCode } from '../../core/errors.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import type { LogTail } from '../../core/system/log-tail.ts'
import { isQuoted, withoutFolders } from './engine-logs.ts'
import type { ProcessExit } from './engine-process.ts'
import FACTS from './failure-causes.json' with { type: 'json' }
/** What memory was for, and its bytes, in the wordings of several back ends. */
import MEMORY from './memory-failures.json' with { type: 'json' }

/** The names of causes are stable, because programs read them in `details.cause`. See `docs/failures.md`. */
export type FailureCause = keyof typeof FACTS

/**
 * How corral reacts to a failure.
 * - `retry`: repeat the load immediately.
 * - `evict`: repeat it after other models have made room.
 * - `other_build`: try the next best llama.cpp build.
 * - `give_up`: fail the request. The next request tries again, after growing pauses.
 * - `ask_again`: fail the request before anything is loaded. The next request tries again immediately.
 */
export type Reaction = 'retry' | 'evict' | 'other_build' | 'give_up' | 'ask_again'

/** The source of a regular expression. `(?i)` at its beginning ignores case. */
type Pattern = string | { pattern: string; sentence: string }

interface CauseFacts {
  /** The error code for an engine that failed while loading. `runtime_missing` blames the build. */
  code: ErrorCode
  reaction: Reaction
  /** The problem and its solution. `$1` and so on stand for the groups of the pattern that matched. */
  sentence: string
  /** Signals, exit codes of shells (128 plus the signal, 126, 127) and Windows statuses, if no line explains the end. */
  endings?: readonly string[]
  /** Lines that are a cause by themselves. A pattern may have its own sentence. */
  lines?: readonly Pattern[]
  /** Lines that are also printed when llama-server continues, or after a failure that has its own line. */
  hints?: readonly Pattern[]
  /** A file is to blame, which may not be the model's own. */
  ofFile?: boolean
}

/** Every cause of an engine's failure. If several match a line, the first wins, so specific causes come first. */
export const CAUSES: Record<FailureCause, CauseFacts> = FACTS as Record<FailureCause, CauseFacts>

/** Returns how to react to an engine's failure. Unknown causes are given up. */
export function reactionTo(cause: FailureCause | (string & {}) | undefined): Reaction {
  return cause !== undefined && Object.hasOwn(CAUSES, cause) ? CAUSES[cause as FailureCause].reaction : 'give_up'
}

/** How an engine ended. Both fields are null while it runs or if unknown. */
export interface ExitFacts extends ProcessExit {
  /** Whether the kernel counted a process killed for memory while the engine ran. Undefined if unknown. */
  oomKilled?: boolean
}

export type Failure = ReturnType<typeof failureAt>

export interface FailureDetails {
  stage?: string
  /** As llama-server names it, such as CUDA0. */
  device?: string
  /** Bytes of the allocation that failed. */
  wanted?: number
}

/** Errors before such a line are irrelevant: llama-server recovered or serves. It prints the reason of its end last. */
const FRESH_START =
  /retrying without pipeline parallelism|server is listening on|all slots are idle|starting the main loop|: id +\d+ \| task -?\d+ \| (?:selected slot|processing task|prompt |stop processing|n_gen =| *(?:eval|total) time)|: cancel task, id_task/
/** llama-server's own lines that repeat text of a client or model. They follow a rejected request, never an exit. */
const REPEATS =
  /got exception:|send_error: |unparsed \S+ output|Ignoring content part|Tool call mismatch|failed to apply template|unable to match sampler|unknown completion id|failed to parse (?:tool use )?chat template|error parsing grammar/
/** Lines printed when nothing is wrong, when llama-server continues in another way, or by a debugger at its end. */
const HARMLESS =
  /try reducing --n-gpu-layers|of pinned memory|host memory fallback|falling back|skipping reorder|fit params to free device memory|retrying|defaulting to chatml|normal during memory fitting|failed to measure|ignoring|cudaMemGetInfo failed|posix_f?m?advise|PrefetchVirtualMemory|munmap failed|failed to munlock|\/proc\/meminfo|process priority|\.c: No such file or directory|environment variable is set, but|tool call example/i
/** llama.cpp retries without pipeline parallelism when the compute buffers do not fit. */
const WILL_RETRY = /pipeline parallelism enabled/
const MAY_BE_RETRIED = /failed to allocate compute buffers/
const ERROR_LINE = /^(?:\[\d+\] )?(?:[\d.]+ )?E |\b(?:error|failed|fatal)\b/i

type Finding = NonNullable<ReturnType<typeof find>>

/** Compiles the patterns of all causes, in the order of their table. */
function listRules(kind: 'lines' | 'hints') {
  return Object.entries(CAUSES).flatMap(([name, { sentence, [kind]: patterns = [] }]) =>
    patterns.map(entry => {
      const { pattern: text, ...own } = typeof entry === 'string' ? { pattern: entry } : entry
      const source = text.replace(/^\(\?i\)/, '')
      return { cause: name as FailureCause, pattern: new RegExp(source, source === text ? '' : 'i'), sentence, ...own }
    })
  )
}
/** Compiled for the first failure, because most runs have none. */
let rules: Record<'lines' | 'hints', ReturnType<typeof listRules>> | undefined

/** Finds the first line that is a cause by itself, otherwise a line that hints at a cause (`weak`). */
function find(lines: readonly string[]) {
  rules ??= { lines: listRules('lines'), hints: listRules('hints') }
  const counted = [...lines.entries()].filter(([, line]) => !HARMLESS.test(line))
  for (const [index, line] of counted) {
    const rule = rules.lines.find(({ pattern }) => pattern.test(line))
    if (rule) return { rule, index, weak: false }
  }
  for (const rule of rules.hints) {
    const found = counted.find(([, line]) => rule.pattern.test(line))
    if (found) return { rule, index: found[0], weak: true }
  }
  return undefined
}

/** The cause of a file error if a line shows that the file is not the model's own. */
const PARTS: { failed: RegExp; cause: FailureCause; missing?: FailureCause }[] = [
  { failed: /failed to load draft model/i, cause: 'draft_unusable' },
  { failed: /failed to (?:load|apply) (?:lora adapter|control vector)/i, cause: 'adapter_unusable' },
  {
    failed: /clip_init: failed|failed to load (?:CLIP|multimodal) model|mtmd_init_from_file: error/i,
    cause: 'projector_damaged',
    missing: 'projector_missing'
  }
]
function causeFromPart(cause: FailureCause, lines: readonly string[]): FailureCause | undefined {
  const part = CAUSES[cause].ofFile ? PARTS.find(({ failed }) => lines.some(line => failed.test(line))) : undefined
  return cause === 'file_missing' || cause === 'file_unreadable' ? (part?.missing ?? part?.cause) : part?.cause
}

/** Fills these words into `$1` and so on. A missing word leaves no trace. */
function fill(sentence: string, words: readonly string[]): string {
  return sentence
    .replace(/\$(\d)/g, (_, number) => words[Number(number) - 1]?.trim() ?? '')
    .replace(/ \(\)| ""/g, '')
    .replace(/: \./g, '.')
    .replace(/ {2,}/g, ' ')
}

/** Strips the log prefix from a line, and all but the last part of every path. */
function presentable(line: string, paths: readonly string[]): string {
  const text = line.replace(/^(?:\[\d+\] )?(?:\d+\.\d\d\.\d{3}\.\d{3} )?(?:[EWID] )?/, '')
  return withoutFolders(text, paths).slice(0, 500).trim()
}

/** Returns the lines that may explain the end: after the last sign of health, and without clients' text. */
function decisiveLines(lines: readonly string[]): string[] {
  const own = lines.filter(line => !isQuoted(line) && !REPEATS.test(line))
  return own.slice(own.findLastIndex(line => FRESH_START.test(line)) + 1)
}

/** Finds the failure that the lines reveal, or undefined. Unless it has `ended`, llama-server may still recover. */
export function findFailure(
  lines: readonly string[],
  paths: readonly string[] = [],
  ended = true
): Failure | undefined {
  const counted = decisiveLines(lines)
  const last = counted.findLast(line => line.trim() !== '')
  if (!ended && last && MAY_BE_RETRIED.test(last) && counted.some(line => WILL_RETRY.test(line))) return undefined
  const finding = find(counted)
  return finding && failureAt(counted, finding, paths)
}

function failureAt(counted: readonly string[], { rule, index }: Finding, paths: readonly string[]) {
  const raw = counted[index]!
  const line = presentable(raw, paths)
  // The words of the sentence come from the printable line. A rule with alternatives has its one word in the group that
  // matched.
  const match = rule.pattern.exec(line) ?? rule.pattern.exec(raw)!
  const words = match.slice(1).filter(word => word !== undefined && word !== '')
  const sentence = presentable(fill(rule.sentence, words), paths)
  const part = causeFromPart(rule.cause, counted)
  const cause = part ?? rule.cause
  const about = part && `${sentence.split(/\. /)[0]!.replace(/\.?$/, '.')} ${fill(CAUSES[part].sentence, [])}`
  const { details, remark } = factsAt(cause, counted, index)
  return {
    /** The error code if the engine failed while loading. */
    code: CAUSES[cause].code,
    cause,
    /** The problem and its solution, without the model's name. */
    sentence: [about ?? sentence, remark].filter(text => text !== undefined).join(' '),
    /** The decisive line without folders, if there is one. */
    line: line as string | undefined,
    details
  }
}

/**
 * Whether the way a process ended explains more than a line. No output explains a signal from outside. A hint gives way
 * to the signal of a crash, but not to that of llama-server's own `abort`, which follows such lines.
 */
function outranks({ signal, oomKilled }: ExitFacts, byExit: FailureCause, { rule, weak }: Finding): boolean {
  if (oomKilled) return true
  if (byExit === 'killed' || byExit === 'terminated') return rule.cause !== 'oom_killed'
  return weak && signal !== null && signal !== 'SIGABRT'
}

/**
 * Finds out why an engine failed. Its last lines outrank an exit code, and a signal outranks weak hints.
 * @param paths absolute paths that the lines may contain. Only their last part is shown
 */
export function classifyFailure(
  lines: readonly string[],
  exit: ExitFacts = { code: null, signal: null },
  paths: readonly string[] = []
): Failure {
  const counted = decisiveLines(lines)
  const cause = causeFromExit(exit)
  const finding = find(counted)
  if (finding && !outranks(exit, cause, finding)) {
    const found = findFailure(lines, paths, exit.code !== null || exit.signal !== null)
    if (found) return found
  }
  const last = counted.findLast(line => ERROR_LINE.test(line) && !HARMLESS.test(line)) ?? counted.at(-1)
  const ending = exit.signal ?? (exit.code === null ? '' : `exit code ${exit.code}`)
  return {
    code: CAUSES[cause].code,
    cause,
    sentence: fill(CAUSES[cause].sentence, [ending]),
    line: last === undefined ? undefined : presentable(last, paths),
    details: {}
  }
}

/** Whether a line of a running engine shows that its GPU has failed for good, which llama-server survives on Metal. */
export function isFatal(line: string): boolean {
  return line.includes('kIOGPUCommandBufferCallbackErrorOutOfMemory')
}

/** Lines after the decisive line that may still belong to it. */
const MAX_FOLLOWING_LINES = 8

function stageOf(lines: readonly string[], index: number): FailureDetails['stage'] {
  const around = lines.slice(index, index + MAX_FOLLOWING_LINES)
  const found = MEMORY.stages.find(({ pattern }) => pattern && around.some(line => line.match(pattern)))
  if (found) return found.stage
  const before = lines.slice(Math.max(0, index - MAX_FOLLOWING_LINES), index)
  if (before.some(line => /warming up/.test(line))) return 'warmup'
  return before.some(line => /load_tensors/.test(line)) ? 'weights' : undefined
}

function memoryFacts(lines: readonly string[], index: number): { details: FailureDetails; remark?: string } {
  const details: FailureDetails = {}
  const stage = stageOf(lines, index)
  if (stage !== undefined) details.stage = stage
  for (const line of lines.slice(index, index + 3)) {
    const device = /allocate (\w*\d) buffer/.exec(line)?.[1]
    if (device !== undefined) details.device ??= device
    for (const { pattern, unit } of MEMORY.sizes) {
      const match = line.match(pattern)
      if (match) details.wanted ??= Math.round(Number(match[1]) * unit)
    }
  }
  const { wanted, device } = details
  if (wanted === undefined && stage === undefined) return { details }
  const what = wanted === undefined ? 'This memory was not available:' : `${formatBytes(wanted)} were not available`
  const purpose = stage === undefined ? '' : ` ${MEMORY.stages.find(each => each.stage === stage)!.purpose}`
  return { details, remark: `${what}${purpose}${device === undefined ? '' : ` on ${device}`}.` }
}

/** Returns the device that an error names by its number, as described in the list at the start. */
function deviceAtFault(lines: readonly string[], index: number): string | undefined {
  const number = /current device: (\d+)/.exec(lines.slice(index, index + 4).join('\n'))?.[1]
  const pattern =
    number === undefined ? /for GPU arch ?: ?(gfx\w+)/ : new RegExp(`Device ${number}: (.+?), (?:VMM|Wave)`)
  return pattern.exec(lines.join('\n'))?.[1]
}

function factsAt(
  cause: FailureCause,
  lines: readonly string[],
  index: number
): { details: FailureDetails; remark?: string } {
  if (cause === 'out_of_gpu_memory' || cause === 'out_of_memory') return memoryFacts(lines, index)
  const device = cause === 'gpu_not_supported_by_build' ? deviceAtFault(lines, index) : undefined
  if (device === undefined) return { details: {} }
  const several = lines.filter(line => /^\s*(?:[EWID] )?Device \d+: /.test(line)).length > 1
  const advice = several ? '; leave that device out (--device) if the others are enough' : ''
  return { details: { device }, remark: `It is ${device}${advice}.` }
}

function causeFromExit({ code, signal, oomKilled }: ExitFacts): FailureCause {
  const isEnding = (each: string) => each === signal || (code !== null && Number(each) === code >>> 0)
  const found = Object.entries(CAUSES).find(([, { endings }]) => endings?.some(isEnding))?.[0] as
    | FailureCause
    | undefined
  if (found === 'killed' && oomKilled) return 'oom_killed'
  return found ?? (signal === null ? 'unknown' : 'terminated')
}

/** Makes the error for an engine that failed: while loading it has the code of the cause, later `engine_crashed`. */
export function engineFailure(alias: string, ready: boolean, tail: LogTail, paths: readonly string[], exit: ExitFacts) {
  const lines = ready ? tail.sinceMark() : tail.all()
  const { code, cause, line, sentence, details: more } = classifyFailure(lines, exit, paths)
  // The output of a serving engine may be about any client's request, so its log is for admins.
  const details = { cause, ...(!ready && { line }), exitCode: exit.code, signal: exit.signal, ...more }
  return ready
    ? new CorralError('engine_crashed', `The engine of "${alias}" exited while in use. ${sentence}`, { details })
    : new CorralError(code, `The model "${alias}" could not be loaded. ${sentence}`, { details })
}

/**
 * Makes the error for an engine that corral ended.
 * @param ready whether it served
 * @param texts what happened to the engine: while serving, and while loading
 */
export function endedFailure(
  alias: string,
  ready: boolean,
  cause: FailureCause,
  [serving, loading]: readonly [string, string],
  facts: object = { signal: 'SIGKILL' }
): CorralError {
  const details = { cause, ...facts }
  if (ready) return new CorralError('engine_crashed', `The engine of "${alias}" ${serving}`, { details })
  return new CorralError('load_failed', `The model "${alias}" could not be loaded: its ${loading}`, { details })
}

const seconds = (ms: number) => `${Math.max(1, Math.round(ms / 1000))} s`

export function hungFailure(alias: string, limit: number): CorralError {
  const text = `hung: for ${seconds(limit)} it neither sent anything nor answered nor used the processor, so corral ended it. Send the request again to reload the model.`
  return endedFailure(alias, true, 'hung', [text, ''])
}

export function stuckFailure(alias: string, limit: number, ready: boolean): CorralError {
  return endedFailure(alias, ready, 'stuck', [
    `was stuck: for ${seconds(limit)} it used the processor without progress on any request, so corral ended it. The next request reloads the model.`,
    `engine did not finish reading the chat template within ${seconds(limit)}, so corral ended it. Create the model again with a simpler template.`
  ])
}

export function overMemoryFailure(alias: string, reserved: number, ready: boolean): CorralError {
  const what = `used far more memory than the ${formatBytes(reserved)} reserved for it, so corral ended it.`
  const advice = 'If its chat template has a long loop, create the model again with a simpler one.'
  const texts = [`${what} The next request reloads the model.`, `engine ${what} ${advice}`] as const
  return endedFailure(alias, ready, 'over_memory', texts, { signal: 'SIGKILL', reserved })
}

export function startFailure(executable: string, error: NodeJS.ErrnoException): CorralError {
  const { code, sentence } = CAUSES.executable_missing
  return new CorralError(code, fill(sentence, [`${error.code}: ${executable}`]), {
    cause: error,
    details: { cause: 'executable_missing' satisfies FailureCause }
  })
}
