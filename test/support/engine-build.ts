import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../../core/system/package-info.ts'

/** Threads of an engine wait actively for each other, which takes all processors if several tests run at once. */
export const ONE_THREAD = ['--threads', '1', '--threads-batch', '1']

/**
 * The folder with the llama-server for tests: CORRAL_LLAMA_CPP, or the build of `npm run prepare:engine`.
 * @throws if there is none: a test that needs an engine never passes without one
 */
export function engineBuildFolder(): string {
  const named = process.env.CORRAL_LLAMA_CPP
  if (named) return named
  try {
    return JSON.parse(readFileSync(join(packageRoot, '.cache', 'engine', 'path.json'), 'utf8')).directory
  } catch (error) {
    throw new Error('No llama-server to test with. Run "npm run prepare:engine", or set CORRAL_LLAMA_CPP.', {
      cause: error
    })
  }
}
