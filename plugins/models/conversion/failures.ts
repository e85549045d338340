import type { ErrorCode } from '../../../core/errors.ts'
import type { ToolError } from '../../../core/system/child-process.ts'
import { DISK_FULL, type FailureRule, lastLines, toSentence } from '../../../core/system/python/install-failure.ts'
import FAILURES from './failures.json' with { type: 'json' }

export interface FailureCause {
  /** Such as `unsupported-architecture`: one in failures.json, or `disk-full`, `out-of-memory`, `unknown`. */
  cause: string
  code: ErrorCode
  sentence: string
}

interface Rule extends FailureRule {
  cause: string
  /** Match the code lines of a Python traceback, if the message itself is not specific enough. */
  inCode?: true
}

const STOP_OTHERS = 'Stop loaded models or other programs, or import a GGUF that was made elsewhere.'

/** Failures of the converter and of llama-quantize. The first match wins, so specific rules come first. */
const CONVERSION_RULES: Rule[] = [
  {
    cause: 'disk-full',
    code: 'insufficient_storage',
    pattern: `${DISK_FULL}|\\d+ requested and \\d+ written|iostream error`,
    sentence: 'The disk is full. Remove models that are not needed, then try again.'
  },
  ...(FAILURES as Rule[])
]

export function classifyFailure({ tail: lines, exitSignal }: Pick<ToolError, 'tail' | 'exitSignal'>): FailureCause {
  // The converter prints warnings that do not matter before the actual failure.
  const start = lines.findIndex(line => line.startsWith('Traceback'))
  const relevant = start === -1 ? lines.filter(line => !line.startsWith('WARNING:')) : lines.slice(start)
  for (const rule of CONVERSION_RULES) {
    const { cause, code = 'conversion_failed', inCode = false } = rule
    for (const line of relevant.filter(line => line.startsWith('  ') === inCode)) {
      const sentence = toSentence(rule, line)
      if (sentence !== undefined) return { cause, code, sentence }
    }
  }
  const code = 'conversion_failed'
  if (exitSignal === 'SIGKILL') {
    const sentence = `It was killed, most likely because this machine does not have enough memory. ${STOP_OTHERS}`
    return { cause: 'out-of-memory', code, sentence }
  }
  const output = lines.filter(line => !/^\s*(Writing|File ")|^[\s^~]+$/.test(line))
  return { cause: 'unknown', code, sentence: lastLines(output) ?? 'It printed nothing.' }
}
