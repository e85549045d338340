import { CorralError } from '../../core/errors.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import type { ProcessExit } from './engine-process.ts'
import { CAUSES, type FailureCause, type FailureCode } from './failure-causes.ts'
import { isQuoted, type LogTail, withoutFolders } from './log-book.ts'

/** How an engine ended; both null while it runs or where that is unknown. */
export interface ExitFacts extends ProcessExit {
  /** Whether the kernel counted a process killed for memory while it ran; undefined where it does not say. */
  oomKilled?: boolean
}

/** Why an engine failed, for programs and for people. */
export interface Failure {
  /** The error's code when it failed while loading. */
  code: FailureCode
  /** Stable; see `docs/failures.md`. */
  cause: FailureCause
  /** What happened and what the reader can do, without the model's name. */
  sentence: string
  /** The decisive line, without folders; undefined when there is none. */
  line: string | undefined
  details: FailureDetails
}

/** Facts of a failure for programs; only those in the log. */
export interface FailureDetails {
  /** What the memory was for. */
  stage?: keyof typeof PURPOSES
  /** As llama-server names it, such as CUDA0. */
  device?: string
  /** Bytes that could not be had in one piece. */
  wanted?: number
}

/**
 * After such a line what went wrong before it does not count: llama-server got over it, or serves, or goes on with a
 * request. What ends it is the last thing that it says.
 */
const FRESH_START =
  /retrying without pipeline parallelism|server is listening on|all slots are idle|starting the main loop|: id +\d+ \| task -?\d+ \| (?:selected slot|processing task|prompt |stop processing|n_gen =| *(?:eval|total) time)|: cancel task, id_task/
/**
 * llama-server's own lines that repeat a client's text, such as a part of a schema, or what the model has written. They
 * follow a refused request, never an end.
 */
const REPEATS =
  /got exception:|send_error: |unparsed \S+ output|Ignoring content part|Tool call mismatch|failed to apply template|unable to match sampler|unknown completion id|failed to parse (?:tool use )?chat template|error parsing grammar/
/** Lines that are printed where nothing is wrong, where llama-server goes on another way, or by a debugger at its end. */
const HARMLESS =
  /try reducing --n-gpu-layers|of pinned memory|host memory fallback|falling back|skipping reorder|fit params to free device memory|retrying|defaulting to chatml|normal during memory fitting|failed to measure|ignoring|cudaMemGetInfo failed|posix_f?m?advise|PrefetchVirtualMemory|munmap failed|failed to munlock|\/proc\/meminfo|process priority|\.c: No such file or directory|environment variable is set, but|tool call example/i
/** llama.cpp tries once more without pipeline parallelism when the compute buffers of a load that has it do not fit. */
const WILL_RETRY = /pipeline parallelism enabled/
const MAY_BE_RETRIED = /failed to allocate compute buffers/
const ERROR_LINE = /^(?:\[\d+\] )?(?:[\d.]+ )?E |\b(?:error|failed|fatal)\b/i

interface Rule {
  cause: FailureCause
  pattern: RegExp
  sentence: string
}

interface Finding {
  rule: Rule
  /** Of the decisive line. */
  index: number
  /** It only hints at its cause. */
  weak: boolean
}

/** The patterns of all causes, in the order of their table. */
function rulesOf(kind: 'lines' | 'hints'): Rule[] {
  return Object.entries(CAUSES).flatMap(([name, facts]) =>
    [facts[kind]].flat().map(entry => {
      const { pattern, sentence } = entry instanceof RegExp ? { pattern: entry, sentence: facts.sentence } : entry
      return { cause: name as FailureCause, pattern, sentence }
    })
  )
}
const RULES = rulesOf('lines')
const HINTS = rulesOf('hints')

/** The first line that is a cause of its own; else one that hints at a cause. */
function find(lines: readonly string[]): Finding | undefined {
  const counted = [...lines.entries()].filter(([, line]) => !HARMLESS.test(line))
  for (const [index, line] of counted) {
    const rule = RULES.find(({ pattern }) => pattern.test(line))
    if (rule) return { rule, index, weak: false }
  }
  for (const rule of HINTS) {
    const found = counted.find(([, line]) => rule.pattern.test(line))
    if (found) return { rule, index: found[0], weak: true }
  }
  return undefined
}

/** What a fault of a file means where a line says that the file is not the model's own. */
const PARTS: { failed: RegExp; cause: FailureCause; missing?: FailureCause }[] = [
  { failed: /failed to load draft model/i, cause: 'draft_unusable' },
  { failed: /failed to (?:load|apply) (?:lora adapter|control vector)/i, cause: 'adapter_unusable' },
  {
    failed: /clip_init: failed|failed to load (?:CLIP|multimodal) model|mtmd_init_from_file: error/i,
    cause: 'projector_damaged',
    missing: 'projector_missing'
  }
]
function causeOfPart(cause: FailureCause, lines: readonly string[]): FailureCause | undefined {
  const part = CAUSES[cause].ofFile ? PARTS.find(({ failed }) => lines.some(line => failed.test(line))) : undefined
  return cause === 'file_missing' || cause === 'file_unreadable' ? (part?.missing ?? part?.cause) : part?.cause
}

/** A sentence with these words for `$1` and so on; a word that is missing leaves no trace. */
function fill(sentence: string, words: readonly string[]): string {
  return sentence
    .replace(/\$(\d)/g, (_, number) => words[Number(number) - 1]?.trim() ?? '')
    .replace(/ \(\)| ""/g, '')
    .replace(/: \./g, '.')
    .replace(/ {2,}/g, ' ')
}

/** A line without log prefix and, of every path in it, only the last part. */
function presentable(line: string, paths: readonly string[]): string {
  const text = line.replace(/^(?:\[\d+\] )?(?:\d+\.\d\d\.\d{3}\.\d{3} )?(?:[EWID] )?/, '')
  return withoutFolders(text, paths).slice(0, 500).trim()
}

/** Lines that may say why it ended: after its last sign of health, and none with the words of a client. */
function decisiveLines(lines: readonly string[]): string[] {
  const own = lines.filter(line => !isQuoted(line) && !REPEATS.test(line))
  return own.slice(own.findLastIndex(line => FRESH_START.test(line)) + 1)
}

/**
 * What the lines alone say of a failure; undefined where they say nothing, or nothing that llama-server may not get
 * over yet (`ended` is false).
 */
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

/** The failure of which this line speaks. */
function failureAt(counted: readonly string[], { rule, index }: Finding, paths: readonly string[]): Failure {
  const raw = counted[index]!
  const line = presentable(raw, paths)
  // The words of the sentence come from the line that people may see. A rule with alternatives has its one word in
  // whichever group matched.
  const match = rule.pattern.exec(line) ?? rule.pattern.exec(raw)!
  const words = match.slice(1).filter(word => word !== undefined && word !== '')
  const sentence = presentable(fill(rule.sentence, words), paths)
  const part = causeOfPart(rule.cause, counted)
  const cause = part ?? rule.cause
  const about = part && `${sentence.split(/\. /)[0]!.replace(/\.?$/, '.')} ${fill(CAUSES[part].sentence, [])}`
  const { details, remark } = factsAt(cause, counted, index)
  return {
    code: CAUSES[cause].code,
    cause,
    sentence: [about ?? sentence, remark].filter(text => text !== undefined).join(' '),
    line,
    details
  }
}

/**
 * Whether how a process ended says more than a line. Nothing that it prints explains a signal from outside; what only
 * hints at a cause gives way to the signal of a crash, except to that of its own `abort`, which follows such lines.
 */
function outranks({ signal, oomKilled }: ExitFacts, byExit: FailureCause, { rule, weak }: Finding): boolean {
  if (oomKilled) return true
  if (byExit === 'killed' || byExit === 'terminated') return rule.cause !== 'oom_killed'
  return weak && signal !== null && signal !== 'SIGABRT'
}

/**
 * Finds out why an engine failed. What its last lines say goes before an exit code, and a signal before weak words; a
 * line of a failure that it got over does not count, nor does what repeats a client's text.
 * @param end.lines its last lines, oldest first
 * @param end.paths absolute paths that the lines may contain; only their last part is shown
 */
export function classifyFailure({
  lines,
  exit = { code: null, signal: null },
  paths = []
}: {
  lines: readonly string[]
  exit?: ExitFacts
  paths?: readonly string[]
}): Failure {
  const counted = decisiveLines(lines)
  const cause = causeOfExit(exit)
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

/** Whether a line of a living engine says that its GPU has failed for good, which llama-server survives on Metal. */
export function isFatal(line: string): boolean {
  return line.includes('kIOGPUCommandBufferCallbackErrorOutOfMemory')
}

/** How many lines after the decisive one still speak of it. */
const REACH = 8
const MIB = 2 ** 20

const STAGES: [keyof typeof PURPOSES, RegExp][] = [
  ['projector', /clip_|mtmd|mmproj|CLIP model/],
  ['kv_cache', /kv[ _-]?cache|KV buffer|kv cache/i],
  ['compute', /graph_reserve|sched_reserve|gallocr_reserve|compute (?:pp |tg )?buffers?/],
  ['weights', /load_tensors|alloc_tensor_range|error loading model|unable to allocate/]
]
const PURPOSES = {
  weights: 'for the weights',
  kv_cache: 'for the KV cache (num_ctx × num_parallel)',
  compute: 'for computing',
  warmup: 'at the first evaluation',
  projector: 'for the projector'
}

function stageOf(lines: readonly string[], index: number): FailureDetails['stage'] {
  const around = lines.slice(index, index + REACH)
  for (const [stage, pattern] of STAGES) if (around.some(line => pattern.test(line))) return stage
  const before = lines.slice(Math.max(0, index - REACH), index)
  if (before.some(line => /warming up/.test(line))) return 'warmup'
  return before.some(line => /load_tensors/.test(line)) ? 'weights' : undefined
}

/** Bytes that could not be had, in the wordings of several back ends. */
const SIZES: [RegExp, number][] = [
  [/(?:allocation|buffer) of size (\d+)/, 1],
  [/allocating ([\d.]+) MiB on device/, MIB],
  [/allocate (\d+) bytes/i, 1],
  [/size = +([\d.]+) MiB/, MIB],
  [/attempted to allocate +([\d.]+) MB/, MIB]
]

function memoryFacts(lines: readonly string[], index: number): { details: FailureDetails; remark?: string } {
  const details: FailureDetails = {}
  const stage = stageOf(lines, index)
  if (stage !== undefined) details.stage = stage
  for (const line of lines.slice(index, index + 3)) {
    const device = /allocate (\w*\d) buffer/.exec(line)?.[1]
    if (device !== undefined) details.device ??= device
    for (const [pattern, unit] of SIZES) {
      const match = pattern.exec(line)
      if (match) details.wanted ??= Math.round(Number(match[1]) * unit)
    }
  }
  const { wanted, device } = details
  if (wanted === undefined && stage === undefined) return { details }
  const what = wanted === undefined ? 'This memory was not available:' : `${formatBytes(wanted)} were not available`
  const purpose = stage === undefined ? '' : ` ${PURPOSES[stage]}`
  return { details, remark: `${what}${purpose}${device === undefined ? '' : ` on ${device}`}.` }
}

/** The device that an error names by its number, as the list at the start describes it. */
function deviceAtFault(lines: readonly string[], index: number): string | undefined {
  const number = /current device: (\d+)/.exec(lines.slice(index, index + 4).join('\n'))?.[1]
  const pattern =
    number === undefined ? /for GPU arch ?: ?(gfx\w+)/ : new RegExp(`Device ${number}: (.+?), (?:VMM|Wave)`)
  return pattern.exec(lines.join('\n'))?.[1]
}

/** What the lines around the decisive one add. */
function factsAt(
  cause: FailureCause,
  lines: readonly string[],
  index: number
): { details: FailureDetails; remark?: string } {
  if (cause === 'out_of_gpu_memory' || cause === 'out_of_memory') return memoryFacts(lines, index)
  const device = cause === 'gpu_not_supported_by_build' ? deviceAtFault(lines, index) : undefined
  if (device === undefined) return { details: {} }
  const several = lines.filter(line => /^\s*(?:[EWID] )?Device \d+: /.test(line)).length > 1
  const advice = several ? '; leave that one out (--device) if the others are enough' : ''
  return { details: { device }, remark: `It is ${device}${advice}.` }
}

/**
 * What the end of a process says where its lines say nothing: signals, the codes that shells give (128 and the signal's
 * number; 126 and 127 for what could not be started) and the statuses of Windows.
 */
const ENDINGS: [FailureCause, ...(string | number)[]][] = [
  ['executable_missing', 126],
  ['library_missing', 127, 0xc000007b, 0xc0000135, 0xc0000138, 0xc0000139, 0xc0000142],
  ['illegal_instruction', 'SIGILL', 132, 0xc000001d],
  ['out_of_memory', 0xc0000017, 0xc000012d],
  ['read_failed', 'SIGBUS', 135, 0xc0000006],
  ['killed', 'SIGKILL', 137],
  ['crashed', 'SIGSEGV', 139, 'SIGABRT', 134, 'SIGFPE', 136, 'SIGTRAP', 133, 'SIGSYS', 159],
  ['crashed', 0xc0000005, 0xc00000fd, 0xc0000374, 0xc0000409],
  ['terminated', 129, 130, 143]
]

function causeOfExit({ code, signal, oomKilled }: ExitFacts): FailureCause {
  const ending = signal ?? (code === null ? undefined : code >>> 0)
  const found = ENDINGS.find(([, ...endings]) => endings.some(each => each === ending))?.[0]
  if (found === 'killed' && oomKilled) return 'oom_killed'
  return found ?? (signal === null ? 'unknown' : 'terminated')
}

/** The error for an engine that failed: its code while loading is that of the cause, later `engine_crashed`. */
export function engineFailure(
  alias: string,
  ready: boolean,
  tail: LogTail,
  paths: readonly string[],
  exit: ExitFacts
): CorralError {
  const lines = ready ? tail.sinceMark() : tail.all()
  const { code, cause, line, sentence, details: more } = classifyFailure({ lines, exit, paths })
  // What an engine prints while it serves may be about anybody's request: its log is for admins.
  const details = { cause, ...(!ready && { line }), exitCode: exit.code, signal: exit.signal, ...more }
  return ready
    ? new CorralError('engine_crashed', `The engine of "${alias}" ended while in use. ${sentence}`, { details })
    : new CorralError(code, `The model "${alias}" could not be loaded. ${sentence}`, { details })
}

/** The error for an engine that corral ended since it showed no sign of life. */
export function hungFailure(alias: string, limit: number): CorralError {
  return new CorralError(
    'engine_crashed',
    `The engine of "${alias}" hung: for ${seconds(limit)} it neither sent anything nor answered nor used the processor, and was ended. Send the request again; the model is loaded again.`,
    { details: { cause: 'hung' satisfies FailureCause, signal: 'SIGKILL' } }
  )
}

const seconds = (ms: number) => `${Math.max(1, Math.round(ms / 1000))} s`

/**
 * The error for an engine that corral ended since it computed without getting on.
 * @param ready whether it served; else it was reading its chat template
 */
export function stuckFailure(alias: string, limit: number, ready: boolean): CorralError {
  const details = { cause: 'stuck' satisfies FailureCause, signal: 'SIGKILL' }
  return ready
    ? new CorralError(
        'engine_crashed',
        `The engine of "${alias}" was stuck: for ${seconds(limit)} it used the processor without getting on with any request, and was ended. The model is loaded again.`,
        { details }
      )
    : new CorralError(
        'load_failed',
        `The model "${alias}" could not be loaded: its engine did not come to an end with the chat template for ${seconds(limit)}, and was ended. Make the model again with a simpler template.`,
        { details }
      )
}

/** The error for an engine that corral ended since it took far more memory than was reserved. */
export function overMemoryFailure(alias: string, reserved: number, ready: boolean): CorralError {
  const what = `took far more memory than the ${formatBytes(reserved)} that are reserved for it, and was ended.`
  const details = { cause: 'over_memory' satisfies FailureCause, signal: 'SIGKILL', reserved }
  return ready
    ? new CorralError('engine_crashed', `The engine of "${alias}" ${what} The model is loaded again.`, { details })
    : new CorralError(
        'load_failed',
        `The model "${alias}" could not be loaded: its engine ${what} If its chat template is a long loop, make the model again with a simpler one.`,
        { details }
      )
}

/** The error for a llama-server that could not be started at all. */
export function startFailure(executable: string, error: NodeJS.ErrnoException): CorralError {
  const { code, sentence } = CAUSES.executable_missing
  return new CorralError(code, fill(sentence, [`${error.code}: ${executable}`]), {
    cause: error,
    details: { cause: 'executable_missing' satisfies FailureCause }
  })
}
