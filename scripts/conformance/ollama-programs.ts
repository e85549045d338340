import { execFileSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, renameSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { Value } from 'typebox/value'
import { OLLAMA_VERSION } from '../../plugins/apis/ollama/routes.ts'
import { RuntimesOptions } from '../../runtimes/llama-cpp/options.ts'
import { fetchSource } from '../../runtimes/llama-cpp/sources/llama-source.ts'
import { ollamaFolder, ollamaSource } from '../../test/support/ollama-command-line.ts'
import { log } from '../cached-engine.ts'

/** Enables all of Ollama's integration tests, except tests with special requirements. */
const TAGS = 'integration,models,library,perf'
const EXAMPLES = ['chat', 'generate', 'generate-streaming', 'multimodal', 'pull-progress']

export interface ClientPrograms {
  /** The binary with all integration tests. */
  tests: string
  /** Working directory of the tests, which contains their data. */
  directory: string
  /** Ollama's module, unpacked. */
  module: string
  /** Example programs, and the benchmark `bench`, by name. */
  examples: Record<string, string>
}

/** Builds Ollama's tests and example programs in about two minutes, or uses those in `.cache`. */
export function clientPrograms(): ClientPrograms | { missing: string } {
  const folder = join(ollamaFolder, `tests-${OLLAMA_VERSION}`)
  const module = join(folder, 'module')
  const programs = {
    tests: join(folder, 'integration.test'),
    directory: join(module, 'integration'),
    module,
    examples: Object.fromEntries([...EXAMPLES, 'bench'].map(name => [name, join(folder, name)]))
  }
  if (existsSync(folder)) return programs
  const source = ollamaSource('tests.unfinished')
  if ('missing' in source) return source
  const { go, directory, env } = source
  const made = `${folder}.unfinished`
  rmSync(made, { recursive: true, force: true })
  mkdirSync(made)
  const build = (...args: string[]) =>
    execFileSync(go, args, { cwd: directory, env, stdio: ['ignore', 'ignore', 'inherit'] })
  build('test', '-c', '-tags', TAGS, '-o', join(made, 'integration.test'), './integration')
  for (const name of EXAMPLES) build('build', '-o', join(made, name), `./api/examples/${name}`)
  build('build', '-o', join(made, 'bench'), './cmd/bench')
  cpSync(join(directory, 'integration'), join(made, 'module', 'integration'), { recursive: true })
  rmSync(directory, { recursive: true, force: true })
  renameSync(made, folder)
  return programs
}

/**
 * Builds Ollama itself in ten minutes or more, or uses the one in `.cache`. Go's copy of the module lacks three
 * libraries of llama.cpp, which are copied from llama.cpp's source.
 * @returns its path, or the reason why it is missing
 */
export async function ollamaServer(): Promise<{ path: string } | { missing: string }> {
  const path = join(ollamaFolder, `server-${OLLAMA_VERSION}`)
  if (existsSync(path)) return { path }
  const source = ollamaSource('server.unfinished')
  if ('missing' in source) return source
  const { go, directory, env } = source
  const { package: name, version } = (Value.Create(RuntimesOptions) as RuntimesOptions).source
  try {
    const llama = await fetchSource({ name, version, work: ollamaFolder, env, log }, {})
    const vendor = join(directory, 'llama', 'llama.cpp', 'vendor')
    for (const library of ['nlohmann', 'stb', 'miniaudio']) {
      cpSync(join(llama.directory, 'vendor', library), join(vendor, library), { recursive: true })
    }
    execFileSync(go, ['build', '-o', `${path}.new`, '.'], {
      cwd: directory,
      env: { ...env, CGO_ENABLED: '1' },
      stdio: ['ignore', 'ignore', 'inherit']
    })
  } catch (error) {
    return { missing: `it cannot be built: ${String(error)}` }
  }
  renameSync(`${path}.new`, path)
  rmSync(directory, { recursive: true, force: true })
  return { path }
}
