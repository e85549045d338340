import type { ErrorCode } from '../../errors.ts'
import type { PythonUse } from './find-python.ts'
import FAILURES from './install-failures.json' with { type: 'json' }

export interface FailureRule {
  /** The default of its list if absent. */
  code?: ErrorCode
  /** Source of a regular expression. */
  pattern: string
  /** `$1` is the first group that matched; brackets around it are left out if none did. */
  sentence: string
}

const RULES = FAILURES as FailureRule[]
export const DISK_FULL = RULES[0]!.pattern

export function toSentence({ pattern, sentence }: FailureRule, line: string): string | undefined {
  const match = new RegExp(pattern).exec(line)
  const found = match?.slice(1).find(group => group !== undefined) ?? ''
  return match ? sentence.replace(/ \(\$1\)|\$1/, text => found && text.replace('$1', () => found)) : undefined
}

/** A tool's last output, as a sentence. */
export function lastLines(lines: readonly string[]): string | undefined {
  const last = lines.filter(line => line.trim() !== '').slice(-3)
  return last.length > 0 ? `Its last output: ${last.join(' / ').slice(0, 600)}` : undefined
}

/** Why pip, uv or venv failed, from the last lines. */
export function installFailure(
  lines: readonly string[],
  { section, code }: Pick<PythonUse, 'section' | 'code'>
): { code: ErrorCode; sentence: string } {
  const instead = `or set ${section}.python in config.yaml to a Python that has the packages`
  for (const rule of RULES) {
    for (const line of lines.toReversed()) {
      const sentence = toSentence(rule, line)?.replace('$section', section).replace('$instead', instead)
      if (sentence !== undefined) return { code: rule.code ?? code, sentence }
    }
  }
  return { code, sentence: lastLines(lines) ?? '' }
}
