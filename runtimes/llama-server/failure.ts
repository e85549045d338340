import { CorralError } from '../../core/errors.ts'
import { formatBytes } from '../../core/system/bytes.ts'
import type { ProcessExit } from './engine-process.ts'
import { CAUSES, type FailureCause, type FailureCode } from './failure-causes.ts'
import { FAILURE_RULES, type FailureRule, LESS_MEMORY, OTHER_BUILD } from './failure-rules.ts'
import { type LogTail, withoutFolders } from './log-book.ts'

/** What is known of an engine that has ended. */
export interface EngineEnd {
  /** Its last lines, oldest first. */
  lines: readonly string[]
  /** How it ended; absent, or both null, while it runs or where that is unknown. */
  exit?: ExitFacts
  /** Absolute paths that the lines may hold; only their last part is shown. */
  paths?: readonly string[]
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
  /** More facts for programs, such as which memory was too small. */
  details: FailureDetails
}

/** After such a line what went wrong before it does not count: llama-server got over it, or serves. */
const FRESH_START =
  /retrying without pipeline parallelism|server is listening on|all slots are idle|starting the main loop/
/** Lines that are printed where nothing is wrong, where llama-server goes on another way, or by a debugger at its end. */
const HARMLESS =
  /try reducing --n-gpu-layers|of pinned memory|host memory fallback|falling back|skipping reorder|fit params to free device memory|retrying|defaulting to chatml|normal during memory fitting|failed to measure|ignoring|cudaMemGetInfo failed|posix_f?m?advise|PrefetchVirtualMemory|munmap failed|failed to munlock|\/proc\/meminfo|process priority|\.c: No such file or directory|environment variable is set, but|tool call example/i
/** llama.cpp tries once more without pipeline parallelism when the compute buffers of a load that has it do not fit. */
const WILL_RETRY = /pipeline parallelism enabled/
const MAY_BE_RETRIED = /failed to allocate compute buffers/
const ERROR_LINE = /^(?:\[\d+\] )?(?:[\d.]+ )?E |\b(?:error|failed|fatal)\b/i

/** What a file fault means where the file is not the model's own. */
const PARTS: {
  failed: RegExp
  causes: Partial<Record<FailureCause, FailureCause>>
  others: FailureCause
  what: string
}[] = [
  {
    failed: /failed to load draft model/i,
    causes: {},
    others: 'draft_unusable',
    what: 'The draft model cannot be used. Choose another one in the settings, or leave it out.'
  },
  {
    failed: /failed to (?:load|apply) (?:lora adapter|control vector)/i,
    causes: {},
    others: 'adapter_unusable',
    what: 'A LoRA adapter or control vector cannot be used. Check its file in the settings.'
  },
  {
    failed: /clip_init: failed|failed to load (?:CLIP|multimodal) model|mtmd_init_from_file: error/i,
    causes: { file_missing: 'projector_missing', file_unreadable: 'projector_missing' },
    others: 'projector_damaged',
    what: 'It is the projector file. Fetch the model and its projector again, or load it without, for text alone.'
  }
]
const FILE_CAUSES = new Set<FailureCause>([
  'file_missing',
  'file_unreadable',
  'missing_shard',
  'bad_split',
  'not_gguf',
  'file_damaged',
  'unsupported_file_version',
  'unsupported_architecture',
  'unsupported_tokenizer',
  'unsupported_tensor_type',
  'missing_tensor',
  'bad_metadata'
])

/** A line without log prefix and, of every path in it, only the last part. */
function presentable(line: string, paths: readonly string[]): string {
  const text = line.replace(/^(?:\[\d+\] )?(?:\d+\.\d\d\.\d{3}\.\d{3} )?(?:[EWID] )?/, '')
  return withoutFolders(text, paths).slice(0, 500).trim()
}

function fill(sentence: string, match: RegExpExecArray): string {
  // A rule with alternatives has its one word in whichever group matched.
  const words = match.slice(1).filter(word => word !== undefined && word !== '')
  return sentence
    .replace(/\$(\d)/g, (_, number) => words[Number(number) - 1]?.trim() ?? '')
    .replace(/ \(\)| ""/g, '')
    .replace(/ {2,}/g, ' ')
}

interface Finding {
  rule: FailureRule
  index: number
}

/** The first line that is a cause of its own; else one that follows from a cause, or need not be one. */
function find(lines: readonly string[]): Finding | undefined {
  const counted = [...lines.entries()].filter(([, line]) => !HARMLESS.test(line))
  for (const [index, line] of counted) {
    const rule = FAILURE_RULES.find(({ weak, pattern }) => !weak && pattern.test(line))
    if (rule) return { rule, index }
  }
  for (const rule of FAILURE_RULES) {
    const found = rule.weak ? counted.find(([, line]) => rule.pattern.test(line)) : undefined
    if (found) return { rule, index: found[0] }
  }
  return undefined
}

function adjustToPart(cause: FailureCause, lines: readonly string[]): { cause: FailureCause; what?: string } {
  if (!FILE_CAUSES.has(cause)) return { cause }
  const part = PARTS.find(({ failed }) => lines.some(line => failed.test(line)))
  return part ? { cause: part.causes[cause] ?? part.others, what: part.what } : { cause }
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
  const start = lines.findLastIndex(line => FRESH_START.test(line)) + 1
  const counted = lines.slice(start)
  const last = counted.findLast(line => line.trim() !== '')
  if (!ended && last && MAY_BE_RETRIED.test(last) && counted.some(line => WILL_RETRY.test(line))) return undefined
  const finding = find(counted)
  if (!finding) return undefined
  const raw = counted[finding.index]!
  const line = presentable(raw, paths)
  // The words of the sentence come from the line that people may see.
  const match = finding.rule.pattern.exec(line) ?? finding.rule.pattern.exec(raw)!
  const { cause, what } = adjustToPart(finding.rule.cause, counted)
  const { details, remark } = factsAt(cause, counted, finding.index)
  const own = presentable(fill(finding.rule.sentence, match), paths)
  const sentence = [what === undefined ? own : `${own.split(/\. /)[0]!.replace(/\.?$/, '.')} ${what}`, remark]
  return {
    code: CAUSES[cause].code,
    cause,
    sentence: sentence.filter(part => part !== undefined).join(' '),
    line,
    details
  }
}

/**
 * Finds out why an engine failed. What its last lines say goes before how it ended; a line of a failure that it got
 * over does not count.
 */
export function classifyFailure({ lines, exit, paths = [] }: EngineEnd): Failure {
  const known = exit !== undefined && (exit.code !== null || exit.signal !== null)
  const found = findFailure(lines, paths, known)
  // That the kernel ended it is certain, and explains a log that stops anywhere.
  if (found && !exit?.oomKilled) return found
  const start = lines.findLastIndex(line => FRESH_START.test(line)) + 1
  const candidates = lines.slice(start)
  const last = candidates.findLast(line => ERROR_LINE.test(line) && !HARMLESS.test(line)) ?? candidates.at(-1)
  const { cause, sentence } = failureOfExit(exit ?? { code: null, signal: null })
  return {
    code: CAUSES[cause].code,
    cause,
    sentence,
    line: last === undefined ? undefined : presentable(last, paths),
    details: {}
  }
}

/** Whether a line of a living engine says that its GPU has failed for good, which llama-server survives on Metal. */
export function isFatal(line: string): boolean {
  return line.includes('kIOGPUCommandBufferCallbackErrorOutOfMemory')
}

/** Facts of a failure for programs; only those in the log. */
export interface FailureDetails {
  /** What the memory was for. */
  stage?: 'weights' | 'kv_cache' | 'compute' | 'warmup' | 'projector'
  /** As llama-server names it, such as CUDA0. */
  device?: string
  /** Bytes that could not be had in one piece. */
  wanted?: number
}

/** How many lines after the decisive one still speak of it. */
const REACH = 8
const MIB = 2 ** 20

const STAGES: [NonNullable<FailureDetails['stage']>, RegExp][] = [
  ['projector', /clip_|mtmd|mmproj|CLIP model/],
  ['kv_cache', /kv[ _-]?cache|KV buffer|kv cache/i],
  ['compute', /graph_reserve|sched_reserve|gallocr_reserve|compute (?:pp |tg )?buffers?/],
  ['weights', /load_tensors|alloc_tensor_range|error loading model|unable to allocate/]
]

function stageOf(lines: readonly string[], index: number): FailureDetails['stage'] {
  const around = lines.slice(index, index + REACH)
  for (const [stage, pattern] of STAGES) if (around.some(line => pattern.test(line))) return stage
  const before = lines.slice(Math.max(0, index - REACH), index)
  if (before.some(line => /warming up/.test(line))) return 'warmup'
  if (before.some(line => /load_tensors/.test(line))) return 'weights'
  return undefined
}

const BUFFER = /allocate (\w+?\d*) buffer(?: of size (\d+))?/
const NUMBERED = /allocating ([\d.]+) MiB on device (\d+)/
const SIZES: [RegExp, number][] = [
  [/(?:allocation|buffer) of size (\d+)/, 1],
  [/allocate (\d+) bytes/i, 1],
  [/size = +([\d.]+) MiB/, MIB],
  [/attempted to allocate +([\d.]+) MB/, MIB]
]

function memoryFacts(lines: readonly string[], index: number): FailureDetails {
  const details: FailureDetails = {}
  const stage = stageOf(lines, index)
  if (stage !== undefined) details.stage = stage
  for (const line of lines.slice(index, index + 3)) {
    const buffer = BUFFER.exec(line)
    if (buffer && /\d$/.test(buffer[1]!)) details.device ??= buffer[1]!
    if (buffer?.[2]) details.wanted ??= Number(buffer[2])
    const numbered = NUMBERED.exec(line)
    if (numbered) details.wanted ??= Math.round(Number(numbered[1]) * MIB)
    for (const [pattern, unit] of SIZES) {
      const match = pattern.exec(line)
      if (match) details.wanted ??= Math.round(Number(match[1]) * unit)
    }
  }
  return details
}

const PURPOSES: Record<NonNullable<FailureDetails['stage']>, string> = {
  weights: 'for the weights',
  kv_cache: 'for the KV cache (num_ctx × num_parallel)',
  compute: 'for computing',
  warmup: 'at the first evaluation',
  projector: 'for the projector'
}

function memoryRemark({ wanted, stage, device }: FailureDetails): string | undefined {
  if (wanted === undefined && stage === undefined) return undefined
  const parts = [
    wanted === undefined ? 'This memory was not available:' : `${formatBytes(wanted)} were not available`,
    stage === undefined ? undefined : PURPOSES[stage],
    device === undefined ? undefined : `on ${device}`
  ]
  return `${parts.filter(part => part !== undefined).join(' ')}.`
}

/** The device that an error names by its number, as the list at the start describes it. */
function deviceAtFault(lines: readonly string[], index: number): string | undefined {
  const number = lines
    .slice(index, index + 4)
    .map(line => /current device: (\d+)/.exec(line)?.[1])
    .find(found => found !== undefined)
  const pattern =
    number === undefined ? /for GPU arch ?: ?(gfx\w+)/ : new RegExp(`Device ${number}: (.+?), (?:VMM|Wave)`)
  return lines.map(line => pattern.exec(line)?.[1]).find(found => found !== undefined)
}

/** What the lines around the decisive one add. */
export function factsAt(
  cause: FailureCause,
  lines: readonly string[],
  index: number
): { details: FailureDetails; remark?: string } {
  if (cause === 'out_of_gpu_memory' || cause === 'out_of_memory') {
    const details = memoryFacts(lines, index)
    return { details, remark: memoryRemark(details) }
  }
  if (cause === 'gpu_not_supported_by_build') {
    const device = deviceAtFault(lines, index)
    if (device === undefined) return { details: {} }
    const several = lines.filter(line => /^\s*(?:[EWID] )?Device \d+: /.test(line)).length > 1
    const remark = several
      ? `It is ${device}; leave that one out (--device) if the others are enough.`
      : `It is ${device}.`
    return { details: { device }, remark }
  }
  return { details: {} }
}

export interface ExitFacts extends ProcessExit {
  /** Whether the kernel counted a process killed for memory while it ran; undefined where it does not say. */
  oomKilled?: boolean
}

/** Windows gives these where others give a signal. */
const WINDOWS_STATUS: Record<number, string> = {
  3221225477: 'SIGSEGV',
  3221225478: 'SIGBUS',
  3221225495: 'NO_MEMORY',
  3221225501: 'SIGILL',
  3221225595: 'MISSING_LIBRARY',
  3221225725: 'SIGSEGV',
  3221225773: 'NO_MEMORY',
  3221225781: 'MISSING_LIBRARY',
  3221225784: 'MISSING_LIBRARY',
  3221225785: 'MISSING_LIBRARY',
  3221225794: 'MISSING_LIBRARY',
  3221226356: 'SIGSEGV',
  3221226505: 'SIGABRT'
}
/** What shells give: 128 and the number of the signal that ended their child; 127 for one that could not start. */
const SHELL_STATUS: Record<number, string> = {
  126: 'NOT_EXECUTABLE',
  127: 'MISSING_LIBRARY',
  129: 'SIGHUP',
  130: 'SIGINT',
  132: 'SIGILL',
  133: 'SIGTRAP',
  134: 'SIGABRT',
  135: 'SIGBUS',
  136: 'SIGFPE',
  137: 'SIGKILL',
  139: 'SIGSEGV',
  143: 'SIGTERM',
  159: 'SIGSYS'
}

/** What the end of a process says where its lines say nothing. */
export function failureOfExit({ code, signal, oomKilled }: ExitFacts): { cause: FailureCause; sentence: string } {
  const unsigned = code === null ? 0 : code >>> 0
  const ending = signal ?? WINDOWS_STATUS[unsigned] ?? SHELL_STATUS[unsigned]
  switch (ending) {
    case 'NOT_EXECUTABLE':
      return { cause: 'executable_missing', sentence: `llama-server cannot be executed. ${OTHER_BUILD}` }
    case 'SIGILL':
      return {
        cause: 'illegal_instruction',
        sentence: `This llama.cpp build uses instructions that this processor does not have. ${OTHER_BUILD}`
      }
    case 'MISSING_LIBRARY':
      return { cause: 'library_missing', sentence: `A library that llama-server needs is missing. ${OTHER_BUILD}` }
    case 'NO_MEMORY':
      return { cause: 'out_of_memory', sentence: `The memory of this machine is too small for it. ${LESS_MEMORY}` }
    case 'SIGKILL':
      if (oomKilled) {
        return {
          cause: 'oom_killed',
          sentence: `The system ended llama-server because memory had run out. ${LESS_MEMORY}`
        }
      }
      return {
        cause: 'killed',
        sentence:
          oomKilled === false
            ? 'llama-server was killed from outside (SIGKILL). Load the model again; if it keeps happening, find out what kills processes here.'
            : `llama-server was killed (SIGKILL), which systems do when memory runs out. ${LESS_MEMORY}`
      }
    case 'SIGBUS':
      return {
        cause: 'read_failed',
        sentence:
          'The model file could not be read while it was in use (SIGBUS): it was cut short, or its disk or network drive failed. Check the disk, and fetch the model again if the file is damaged.'
      }
    case 'SIGSEGV':
    case 'SIGFPE':
    case 'SIGTRAP':
    case 'SIGSYS':
    case 'SIGABRT':
      return {
        cause: 'crashed',
        sentence: `llama-server crashed (${ending}). Load the model again; if it crashes again, try another llama.cpp build.`
      }
    case undefined:
      return {
        cause: 'unknown',
        sentence: `llama-server ended${code === null ? '' : ` with exit code ${code}`}. See the end of its log (corral logs).`
      }
    default:
      return {
        cause: 'terminated',
        sentence: `llama-server was ended from outside (${ending}). Load the model again.`
      }
  }
}

/** The error for an engine that failed: its code while loading is that of the cause, later `engine_crashed`. */
export function engineFailure(engine: {
  alias: string
  ready: boolean
  tail: LogTail
  paths: readonly string[]
  exit: ExitFacts
}): CorralError {
  const { alias, ready, tail, paths, exit } = engine
  const failure = classifyFailure({ lines: ready ? tail.sinceMark() : tail.all(), exit, paths })
  const details = {
    cause: failure.cause,
    line: failure.line,
    exitCode: exit.code,
    signal: exit.signal,
    ...failure.details
  }
  return ready
    ? new CorralError('engine_crashed', `The engine of "${alias}" ended while in use. ${failure.sentence}`, { details })
    : new CorralError(failure.code, `The model "${alias}" could not be loaded. ${failure.sentence}`, { details })
}

/** The error for an engine that corral ended since it showed no sign of life. */
export function hungFailure(alias: string, limit: number): CorralError {
  return new CorralError(
    'engine_crashed',
    `The engine of "${alias}" hung: for ${Math.max(1, Math.round(limit / 1000))} s it neither sent anything nor answered nor used the processor, and was ended. Send the request again; the model is loaded again.`,
    { details: { cause: 'hung' satisfies FailureCause, signal: 'SIGKILL' } }
  )
}

/** The error for a llama-server that could not be started at all. */
export function startFailure(executable: string, error: NodeJS.ErrnoException): CorralError {
  return new CorralError(
    CAUSES.executable_missing.code,
    `llama-server could not be started (${error.code}: ${executable}). Choose another llama.cpp build (corral doctor shows which there are).`,
    { cause: error, details: { cause: 'executable_missing' satisfies FailureCause } }
  )
}
