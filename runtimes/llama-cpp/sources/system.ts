import { createHash } from 'node:crypto'
import { realpathSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import type { BuildCandidate, BuildSource } from '../../../core/contracts/builds.ts'
import { CorralError } from '../../../core/errors.ts'
import { findExecutable } from '../../../core/system/child-process.ts'
import { PROGRAMS, programFile, programFolder, programsIn } from '../programs.ts'

export interface SystemOptions {
  /** Folder of a llama.cpp build that the user names. Empty if none is named. */
  path: string
  /** The setting that names it, for messages: `CORRAL_LLAMA_CPP` or `runtimes.llama_cpp`. */
  namedBy: string
  env: NodeJS.ProcessEnv
}

/** Builds from the same folder have the same id at each start. */
function candidateAt(directory: string, origin: string, required: boolean): BuildCandidate | undefined {
  const executables = programsIn(directory)
  if (!executables) return undefined
  const id = `system-${createHash('sha256').update(directory).digest('hex').slice(0, 8)}`
  return { id, kind: 'unknown', source: 'system', directory, executables, origin, required }
}

/** Finds a llama-server that is already on this machine: in a folder that the user names, or on PATH. */
export function systemSource({ path, namedBy, env }: SystemOptions): BuildSource {
  const server = programFile(PROGRAMS.server)
  return {
    name: 'system',
    instant: true,
    description: path ? `${server} in ${path} (${namedBy})` : `${server} on PATH`,
    async provide({ explain }) {
      if (path) {
        const folder = programFolder(resolve(path))
        const candidate = folder === undefined ? undefined : candidateAt(folder, folder, true)
        if (candidate) return candidate
        throw new CorralError(
          'runtime_missing',
          `${namedBy} names ${resolve(path)}, which has no executable ${server}. ` +
            'Correct the setting, or remove it to let corral get a llama.cpp build.'
        )
      }
      const found = findExecutable(PROGRAMS.server, env)
      if (found === undefined) {
        explain(`there is no ${server} on PATH, and CORRAL_LLAMA_CPP is not set`)
        return undefined
      }
      // The companions are beside the file itself, not beside a link to it.
      return candidateAt(dirname(realpathSync(found)), found, false) ?? candidateAt(dirname(found), found, false)
    }
  }
}
