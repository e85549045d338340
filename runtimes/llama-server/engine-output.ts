import type { MemoryUse } from '../../core/contracts/builds.ts'
import { isFatal } from './failure.ts'
import type { Loading } from './loading.ts'
import { parseLine } from './log-lines.ts'
import type { LogTail } from './log-tail.ts'
import { createMemoryReport } from './memory-report.ts'

export interface EngineLog {
  debug(object: object, message: string): void
  warn(object: object, message: string): void
}

/** Reads what an engine prints: progress and state for its load, memory, and lines for its log. */
export function createEngineOutput(deps: {
  names: { engine: string; model: string }
  loading: Loading
  tail: LogTail
  log: EngineLog
  /** Whether it loads a draft model too. */
  drafts: boolean
  /** The process lives on, but its GPU will not work again. */
  onFatal: () => void
}): { onLine(line: string): void; memory(): MemoryUse | undefined } {
  const { loading, tail, log, names } = deps
  const memory = createMemoryReport(deps.drafts)
  let fatal = false
  return {
    onLine(line) {
      loading.noteOutput()
      for (const said of parseLine(line)) {
        if (said.type === 'loading') loading.noteFraction(said.fraction)
        else if (said.type === 'ready') loading.noteReady()
        else if (said.type === 'memory') memory.note(said.use, loading.active)
        else if (said.type === 'text') {
          tail.push(said.level === undefined ? said.text : `${said.level[0]!.toUpperCase()} ${said.text}`)
          if (!fatal && isFatal(said.text)) {
            fatal = true
            deps.onFatal()
          }
          const grave = loading.active && (said.level === 'error' || said.level === 'warn')
          log[grave ? 'warn' : 'debug'](names, said.text)
        }
      }
    },
    memory: memory.use
  }
}
