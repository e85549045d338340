import type { Attempt, BuildSource, RankedCandidate } from '../../core/contracts/builds.ts'
import { messageOf } from '../../core/errors.ts'
import { ToolError } from '../../core/system/child-process.ts'

export interface SearchLog {
  debug(object: object, message: string): void
  info(object: object, message: string): void
  warn(object: object, message: string): void
}

/** What a search tried, in the order it did. */
export interface SearchAttempts {
  explain(source: BuildSource, runtime: string | undefined, reason: string): void
  settle(
    source: BuildSource,
    runtime: string | undefined,
    outcome: Attempt['outcome'],
    ...reasons: readonly string[]
  ): void
  /** Adds what was not tried any more. */
  close(ranking: readonly RankedCandidate[]): void
}

/** Keeps `list` current, which belongs to the caller. */
export function keepAttempts(list: Attempt[], sources: readonly BuildSource[], log: SearchLog): SearchAttempts {
  const of = (source: BuildSource, runtime: string | undefined): Attempt => {
    const known = list.find(attempt => attempt.source === source.name && attempt.runtime === runtime)
    if (known) return known
    const { name, description } = source
    const made: Attempt = { ...(runtime && { runtime }), source: name, description, outcome: 'not tried', reasons: [] }
    list.push(made)
    return made
  }
  return {
    explain(source, runtime, reason) {
      const { reasons } = of(source, runtime)
      if (!reasons.includes(reason)) reasons.push(reason)
    },
    settle(source, runtime, outcome, ...reasons) {
      const attempt = of(source, runtime)
      attempt.outcome = outcome
      // The decisive reason comes first, then what was explained on the way.
      attempt.reasons = [...reasons.slice(0, 1), ...attempt.reasons, ...reasons.slice(1)]
      const what = `source "${source.name}"${runtime === undefined ? '' : `, ${runtime}`}`
      const why = attempt.reasons.length > 0 ? ` (${attempt.reasons[0]})` : ''
      log[outcome === 'failed' ? 'warn' : 'info'](
        { source: source.name, runtime, outcome, reasons: attempt.reasons },
        `llama.cpp, ${what}: ${outcome}${why}`
      )
    },
    close(ranking) {
      for (const source of sources.filter(({ instant }) => instant)) of(source, undefined)
      for (const { runtime } of ranking.filter(({ usable }) => usable)) {
        for (const source of sources.filter(({ instant }) => !instant)) of(source, runtime)
      }
    }
  }
}

/** The reasons in an error, one line each, with a failed tool's last lines. */
export function reasonsOf(error: unknown): string[] {
  const reasons = [messageOf(error)]
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    if (cause instanceof ToolError) return [...reasons, ...cause.tail.filter(line => line.trim() !== '').slice(-15)]
  }
  return reasons
}

/** What was tried, in one sentence an attempt, and what keeps the rest from working. Pure. */
export function missingText(attempts: readonly Attempt[], ranking: readonly RankedCandidate[] = []): string {
  const tried = attempts.filter(({ outcome }) => outcome !== 'not tried')
  const sentences = (tried.length > 0 ? tried : attempts).map(({ runtime, source, outcome, reasons }) => {
    const what = runtime === undefined ? source : `${runtime} from ${source}`
    return `${what}: ${reasons.length > 0 ? reasons[0]!.replace(/\.$/, '') : outcome}`
  })
  for (const { title, missing } of ranking.filter(({ usable }) => !usable)) {
    const lacks = missing.map(({ what, fix }) => (fix === undefined ? what : `${what} (${fix})`)).join(', ')
    sentences.push(`${title} cannot work on this machine: ${lacks || 'it has no such GPU'}`)
  }
  return (
    `No llama.cpp build was found that works here. ${sentences.join('; ')}. ` +
    'Set CORRAL_LLAMA_CPP to a folder with llama-server, or cure one of these; "corral doctor" tells more.'
  )
}
