import type { FailureCause } from './failure-causes.ts'
import { LESS_MEMORY, OTHER_BUILD } from './failure-rules/rule.ts'

/** How a process ended: exit code, or null and the signal that ended it. */
export interface ExitFacts {
  code: number | null
  signal: string | null
  /** Whether the kernel counted a process killed for memory while it ran; undefined where it does not tell. */
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
      return { cause: 'executable_missing', sentence: `llama-server may not be started. ${OTHER_BUILD}` }
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
            ? 'llama-server was killed from outside (SIGKILL). Load the model again; look for what ends processes here if it goes on.'
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
        sentence: `llama-server ended${code === null ? '' : ` with exit code ${code}`}. Its log has its last words (corral logs).`
      }
    default:
      return {
        cause: 'terminated',
        sentence: `llama-server was ended from outside (${ending}). Load the model again.`
      }
  }
}
