import { basename } from 'node:path'
import { CAUSES, type FailureCause, type FailureCode } from './failure-causes.ts'
import { type FailureDetails, factsAt } from './failure-facts.ts'
import { FAILURE_RULES } from './failure-rules/index.ts'
import type { FailureRule } from './failure-rules/rule.ts'
import { type ExitFacts, failureOfExit } from './process-exit.ts'

/** What is left of an engine that has gone. */
export interface Remains {
  /** Its last lines, oldest first. */
  lines: readonly string[]
  /** How it ended; absent, or both null, while it runs or where nobody knows. */
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
  /** The line that tells, without folders; undefined when no line does. */
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

/** A text in which only the last part of every path is left. */
export function withoutFolders(text: string, paths: readonly string[]): string {
  let result = text
  for (const path of paths) result = result.replaceAll(path, basename(path))
  return result
    .replace(/'[^']*[\\/]([^'\\/]+)'/g, "'$1'")
    .replace(/(?:[A-Za-z]:)?(?:[\\/][^\s\\/:'"`,()]+)+[\\/]([^\s\\/:'"`,()]+)/g, '$1')
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
export function classifyFailure({ lines, exit, paths = [] }: Remains): Failure {
  const known = exit !== undefined && (exit.code !== null || exit.signal !== null)
  const told = findFailure(lines, paths, known)
  // That the kernel ended it is certain, and explains a log that stops anywhere.
  if (told && !exit?.oomKilled) return told
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
