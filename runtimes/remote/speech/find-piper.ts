import { createHash } from 'node:crypto'
import { realpathSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { findExecutable, runTool, type ToolError } from '../../../core/system/child-process.ts'
import { packageRoot } from '../../../core/system/package-info.ts'
import type { PythonUse } from '../../../core/system/python/find-python.ts'
import { lastLines } from '../../../core/system/python/install-failure.ts'
import { configuredPython, environmentPython, PYTHON_VARIABLES } from '../../../core/system/python/python-packages.ts'
import type { FindOptions } from '../find-server.ts'

/** piper and its dependencies with the hashes of all wheels, written by `npm run lock:packages`. */
export const PIPER_LOCK = join(packageRoot, 'runtimes', 'remote', 'speech', 'packages', 'piper.lock')
/** Bytes that the environment needs on disk during its installation. */
const INSTALLED_BYTES = 3e8
const USE: PythonUse = { name: 'speech', work: 'Speaking with piper', section: 'speech', code: 'runtime_missing' }

/**
 * Returns a Python that has piper and its server: the configured one, that of `piper` on PATH, or one of corral's own.
 * piper is under the GPL, so it always runs as a program of its own.
 * @throws CorralError `runtime_missing`
 */
export async function findPiper(
  { named, packageIndex, directory, env, log }: Omit<FindOptions, 'release'> & { packageIndex: string },
  waiting: Waiting
): Promise<string> {
  if (named !== '') return configuredPython(named, USE, env)
  const prove = async (executable: string, signal?: AbortSignal) => {
    await runTool(executable, ['-c', 'import piper.http_server'], { env, variables: PYTHON_VARIABLES, signal, log })
    return {}
  }
  const script = findExecutable('piper', env)
  const beside = script && findExecutable(join(dirname(realpathSync(script)), 'python'), env)
  // Other programs are called piper too, and a piper may lack the packages of its server.
  if (beside && (await prove(beside, waiting.signal).catch(() => undefined))) return beside
  const text = await readFile(PIPER_LOCK, 'utf8')
  const wanted = {
    use: USE,
    environment: join(directory, `piper-${createHash('sha256').update(text).digest('hex').slice(0, 12)}`),
    packageIndex,
    env,
    log,
    packages: () => ({ text, size: INSTALLED_BYTES }),
    prove,
    faultOf: ({ tail }: ToolError) => lastLines(tail) ?? 'They print nothing.'
  }
  return await environmentPython(wanted, waiting)
}
