import { basename } from 'node:path'
import { FAILURE_RULES, type FailureCode, LESS_MEMORY, OTHER_BUILD } from './failure-rules.ts'

/** What is left of an engine that has gone. */
export interface Remains {
  /** Its last lines, oldest first. */
  lines: readonly string[]
  /** How it ended; both null when it has not. */
  exit: { code: number | null; signal: string | null }
  /** Absolute paths that the lines may hold; only their last part is shown. */
  paths?: readonly string[]
}

/** Why an engine failed, for programs and for people. */
export interface Failure {
  /** The error's code when it failed while loading. */
  code: FailureCode
  /** Short and stable, such as `out_of_gpu_memory`. */
  cause: string
  /** What happened and what the reader can do, without the model's name. */
  sentence: string
  /** The line that tells, without folders; undefined when no line does. */
  line: string | undefined
}

/** After such a line the memory that could not be had before it was not needed. */
const RECOVERED = /retrying without pipeline parallelism/
const ERROR_LINE = /^(?:\[\d+\] )?(?:[\d.]+ )?E |\b(?:error|failed|fatal)\b/i

/** Windows gives these where others give a signal. */
const WINDOWS_STATUS: Record<number, string> = {
  3221225501: 'SIGILL',
  3221225477: 'SIGSEGV',
  3221225781: 'MISSING_DLL'
}

function ending({ code, signal }: Remains['exit']): Omit<Failure, 'line'> {
  const cause = signal ?? WINDOWS_STATUS[code ?? 0]
  switch (cause) {
    case 'SIGILL':
      return {
        code: 'runtime_missing',
        cause: 'illegal_instruction',
        sentence: `This llama.cpp build uses instructions that this processor does not have. ${OTHER_BUILD}`
      }
    case 'MISSING_DLL':
      return {
        code: 'runtime_missing',
        cause: 'library_missing',
        sentence: `A library that llama-server needs is missing. ${OTHER_BUILD}`
      }
    case 'SIGKILL':
      return {
        code: 'load_failed',
        cause: 'killed',
        sentence: `llama-server was killed (SIGKILL), which systems do when memory runs out. ${LESS_MEMORY}`
      }
    case 'SIGSEGV':
    case 'SIGBUS':
    case 'SIGFPE':
    case 'SIGABRT':
      return {
        code: 'load_failed',
        cause: 'crashed',
        sentence: `llama-server crashed (${cause}). Load the model again; if it crashes again, try another llama.cpp build.`
      }
    default:
      return {
        code: 'load_failed',
        cause: signal === null ? 'unknown' : 'terminated',
        sentence:
          signal === null
            ? `llama-server ended${code === null ? '' : ` with exit code ${code}`}. The log of corral has its last words.`
            : `llama-server was ended from outside (${signal}). Load the model again.`
      }
  }
}

/** A line for people outside: no log prefix, and of every path only the last part. */
function presentable(line: string, paths: readonly string[]): string {
  let text = line.replace(/^(?:\[\d+\] )?(?:\d+\.\d\d\.\d{3}\.\d{3} )?(?:[EWID] )?/, '')
  for (const path of paths) text = text.replaceAll(path, basename(path))
  return text
    .replace(/'[^']*[\\/]([^'\\/]+)'/g, "'$1'")
    .replace(/(?:[A-Za-z]:)?(?:[\\/][^\s\\/:'"`,()]+)+[\\/]([^\s\\/:'"`,()]+)/g, '$1')
    .slice(0, 500)
    .trim()
}

function fill(sentence: string, match: RegExpExecArray): string {
  // A rule with alternatives has its one word in whichever group matched.
  const words = match.slice(1).filter(word => word !== undefined)
  return sentence.replace(/\$(\d)/g, (_, number) => words[Number(number) - 1] ?? 'see the log')
}

/**
 * Finds out why an engine failed. What its last lines say goes before how it ended; a line of a failure that it got
 * over does not count.
 */
export function classifyFailure({ lines, exit, paths = [] }: Remains): Failure {
  const start = lines.findLastIndex(line => RECOVERED.test(line)) + 1
  const candidates = lines.slice(start)
  for (const rule of FAILURE_RULES) {
    for (const raw of candidates) {
      if (!rule.pattern.test(raw)) continue
      const line = presentable(raw, paths)
      // The words of the sentence come from the line that people may see.
      const match = rule.pattern.exec(line) ?? rule.pattern.exec(raw)!
      return {
        code: rule.code ?? 'load_failed',
        cause: rule.cause,
        sentence: presentable(fill(rule.sentence, match), paths),
        line
      }
    }
  }
  const last = candidates.findLast(line => ERROR_LINE.test(line)) ?? candidates.at(-1)
  return { ...ending(exit), line: last === undefined ? undefined : presentable(last, paths) }
}

/** Whether a line of a living engine says that its GPU has failed for good, which llama-server survives on Metal. */
export function isFatal(line: string): boolean {
  return line.includes('kIOGPUCommandBufferCallbackErrorOutOfMemory')
}
