import { rm } from 'node:fs/promises'
import { ToolError } from '../core/child-process.ts'
import { CorralError, messageOf } from '../core/errors.ts'
import type { OnProgress } from '../core/progress.ts'
import type { Attempt, Build, BuildCandidate, BuildSource } from '../core/runtimes.ts'
import { type BuildRecord, damageOf, isOwn, readRecords, removeRecord, writeRecord } from './build-records.ts'
import { lockDirectory, removeLeftovers } from './builds-directory.ts'

export interface SearchLog {
  debug(object: object, message: string): void
  info(object: object, message: string): void
  warn(object: object, message: string): void
}

export interface SearchDeps {
  /** Asked in this order. */
  sources: readonly BuildSource[]
  /** Where builds and their records lie. */
  directory: string
  log: SearchLog
  signal: AbortSignal
  onProgress: OnProgress
  /** One entry for each source, kept current. */
  reports: Attempt[]
  /** Proves a build that was found or made; `own` when corral made or downloaded it. */
  prove(candidate: BuildCandidate, own: boolean, signal: AbortSignal): Promise<Build>
}

/** The reasons in an error, one line each, with a failed tool's last lines. */
function reasonsOf(error: unknown): string[] {
  const reasons = [messageOf(error)]
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    if (cause instanceof ToolError) return [...reasons, ...cause.tail.filter(line => line.trim() !== '').slice(-15)]
  }
  return reasons
}

/**
 * Finds a build that works: one that a source has at hand or that was proven before, else what the sources bring.
 * @throws CorralError `runtime_missing` with what was tried; the signal's reason when that was aborted
 */
export async function searchBuild(deps: SearchDeps): Promise<Build> {
  const { sources, directory, reports, log, signal } = deps
  const reportOf = (source: BuildSource) => reports.find(report => report.source === source.name)!

  const settle = (source: BuildSource, outcome: Attempt['outcome'], ...reasons: string[]) => {
    const report = reportOf(source)
    report.outcome = outcome
    // The decisive reason comes first, then what was explained on the way.
    report.reasons = [...reasons.slice(0, 1), ...report.reasons, ...reasons.slice(1)]
    log[outcome === 'failed' ? 'warn' : 'info'](
      { source: source.name, outcome, reasons: report.reasons },
      `llama.cpp, source "${source.name}": ${outcome}${report.reasons.length > 0 ? ` (${report.reasons[0]})` : ''}`
    )
  }

  async function recorded(source: BuildSource, fits: (record: BuildRecord) => boolean): Promise<Build | undefined> {
    for (const record of await readRecords(directory)) {
      if (record.build.source !== source.name || !fits(record)) continue
      const damage = await damageOf(record, { signal, log })
      if (damage === undefined) {
        settle(source, 'chosen', `${record.build.directory}, proven on ${record.provenAt}, still works`)
        return record.build
      }
      const text = `${record.build.directory}, proven on ${record.provenAt}, is not reused: ${damage}`
      reportOf(source).reasons.push(text)
      log.warn({ source: source.name, build: record.build.id }, `llama.cpp: ${text}`)
      await removeRecord(directory, record)
    }
    return undefined
  }

  async function ask(source: BuildSource): Promise<Build | undefined> {
    let required = false
    let candidate: BuildCandidate | undefined
    try {
      const explain = (reason: string) => reportOf(source).reasons.push(reason)
      candidate = await source.provide({ signal, onProgress: deps.onProgress, explain })
      if (candidate === undefined) {
        settle(source, 'unavailable')
        return undefined
      }
      required = candidate.required ?? false
      const { server } = candidate.executables
      const known = await recorded(source, ({ build }) => build.executables.server === server)
      if (known) return known
      deps.onProgress({ phase: 'proving', subject: 'llama.cpp' })
      const build = await deps.prove(candidate, isOwn(candidate, directory), signal)
      await writeRecord(directory, build)
      for (const record of await readRecords(directory)) {
        if (record.build.source === source.name && !wanted(source, record)) await removeRecord(directory, record)
      }
      settle(source, 'chosen', `${build.version}, ${build.origin}`)
      return build
    } catch (error) {
      if (signal.aborted) throw signal.reason
      settle(source, 'failed', ...reasonsOf(error))
      if (candidate && isOwn(candidate, directory)) await rm(candidate.directory, { recursive: true, force: true })
      if (required) throw new CorralError('runtime_missing', messageOf(error), { cause: error })
      if (error instanceof CorralError && error.code === 'runtime_missing') throw error
      return undefined
    }
  }

  const wanted = (source: BuildSource, { build }: BuildRecord) => source.wants?.(build) ?? true

  for (const source of sources) {
    const build = source.instant ? await ask(source) : await recorded(source, record => wanted(source, record))
    if (build) return build
  }
  const slow = sources.filter(source => !source.instant)
  if (slow.length > 0) {
    const release = await lockDirectory(directory, signal, log)
    try {
      for (const source of slow) {
        // Another process may have made one while this one waited for it.
        const made = await recorded(source, record => wanted(source, record))
        if (made) return made
        await removeLeftovers(directory)
        const build = await ask(source)
        if (build) return build
      }
      for (const source of slow) {
        const former = await recorded(source, () => true)
        if (former) return former
      }
    } finally {
      await release()
    }
  }
  throw new CorralError('runtime_missing', missingText(reports), { details: { sources: reports } })
}

/** What was tried, in one sentence a source. Pure. */
export function missingText(reports: readonly Attempt[]): string {
  const tried = reports.map(({ source, outcome, reasons }) => {
    return `${source}: ${reasons.length > 0 ? reasons[0]!.replace(/\.$/, '') : outcome}`
  })
  return (
    `No llama.cpp build was found that works here. ${tried.join('; ')}. ` +
    'Set CORRAL_LLAMA_CPP to a folder with llama-server, or cure one of these; "corral doctor" tells more.'
  )
}
