import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import { execa } from 'execa'
import { pino } from 'pino'
import { Value } from 'typebox/value'
import { freePort } from '../../core/system/free-port.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { RuntimesOptions } from '../../runtimes/llama-cpp/options.ts'
import { fetchSource } from '../../runtimes/llama-cpp/sources/llama-source.ts'
import { pngBytes } from '../../test/plugins/apis/openai/media/support.ts'
import { engineBuildFolder } from '../../test/support/engine-build.ts'
import { startHubEmulator } from '../../test/support/hub-emulator/hub-emulator.ts'
import type { EmulatedRepository } from '../../test/support/hub-emulator/repositories.ts'
import { startIn, startLauncher } from './llama-launcher.ts'
import { OF_ROUTER, ROUTER_HOME, STAND_INS, type StandIn, writeDownloads, writeStandIns } from './llama-models.ts'

const WORK = join(packageRoot, '.cache', 'llama-tests')
const TESTS = join('tools', 'server', 'tests')
export const PYTHON = join(packageRoot, '.cache', 'clients-python', 'llama-server', 'bin', 'python')
const OWN = join(packageRoot, 'scripts', 'conformance')
/** Time limit of one test in seconds. */
const TEST_TIMEOUT_SECONDS = 120
/** Number of parallel test processes per server. */
const PROCESSES = 2
/** Images that the tests download from the hub. */
const PICTURES = { 'test/11_truck.png': 3, 'test/91_cat.png': 5 }

export interface Outcome {
  id: string
  outcome: 'passed' | 'failed' | 'skipped'
  message: string
  seconds: number
}

export type Outcomes = Map<string, Outcome>

export interface Sitting {
  /** The llama.cpp release of the tests. */
  release: string
  engine: Outcomes
  corral: Outcomes
}

/**
 * Runs llama.cpp's server tests unchanged against llama-server and corral.
 * @param only files and tests to run, as pytest accepts them. Empty runs all
 * @throws Error if llama.cpp's source is not available, or a run ends early
 */
export async function runLlamaTests(only: readonly string[], say: (text: string) => void): Promise<Sitting> {
  const { directory: source, release } = await llamaSource()
  const build = engineBuildFolder()
  const hubFolder = join(WORK, 'hub')
  rmSync(hubFolder, { recursive: true, force: true })
  writeStandIns(hubFolder, join(build, 'llama-gguf-split'))
  for (const [file, seed] of Object.entries(PICTURES)) {
    const path = join(hubFolder, STAND_INS.seeing.repository, file)
    mkdirSync(join(path, '..'), { recursive: true })
    writeFileSync(path, pngBytes(64, 64, seed))
  }
  const ending: (() => unknown)[] = []
  try {
    const hub = await startHubEmulator(
      { teardown: end => void ending.push(end as () => unknown) },
      { repositories: repositoriesBelow(hubFolder), huggingFace: { delivery: 'direct' } }
    )
    say('Importing the models')
    const homes = join(WORK, 'homes')
    await importAll(homes, hubFolder, build)
    const program = join(WORK, 'corral-as-llama-server')
    writeFileSync(program, `#!/bin/sh\nexec "${PYTHON}" -S "${join(OWN, 'as_llama_server.py')}" "$@"\n`)
    chmodSync(program, 0o755)
    // Socket paths are limited to about a hundred characters.
    const work = mkdtempSync(join(tmpdir(), 'corral-llama-tests-'))
    ending.push(() => rmSync(work, { recursive: true, force: true, maxRetries: 3 }))
    const launcher = join(work, 'launcher')
    const listening = await startLauncher(launcher, { homes, work, build, hub: hub.url })
    ending.push(() => listening.close())
    const common = { HF_ENDPOINT: hub.url, CORRAL_LAUNCHER: launcher }
    // corral's models are already in its data directories.
    const run = (server: string, path: string, more = {}) =>
      runAll({ server, source, only, env: { ...common, ...more, LLAMA_SERVER_BIN_PATH: path }, say })
    const [engine, corral] = await Promise.all([
      run('llama-server', join(build, 'llama-server')),
      run('corral', program, { MODELS_ARE_THERE: '1' })
    ])
    return { release, engine, corral }
  } finally {
    for (const end of ending.reverse()) await end()
  }
}

const KEPT = join(WORK, 'outcomes.json')

/** Saves results and merges them with earlier results of the same release. @returns all results */
export function keepOutcomes({ release, engine, corral }: Sitting): Sitting {
  const kept = existsSync(KEPT) ? (JSON.parse(readFileSync(KEPT, 'utf8')) as KeptOutcomes) : undefined
  const earlier = kept?.release === release ? kept : { engine: [], corral: [] }
  const together = (before: readonly Outcome[], now: Outcomes): Outcomes =>
    new Map([...before.map(one => [one.id, one] as const), ...now])
  const all = { release, engine: together(earlier.engine, engine), corral: together(earlier.corral, corral) }
  const record = { release, engine: [...all.engine.values()], corral: [...all.corral.values()] }
  writeFileSync(KEPT, JSON.stringify(record satisfies KeptOutcomes))
  return all
}

interface KeptOutcomes {
  release: string
  engine: Outcome[]
  corral: Outcome[]
}

/** The source in the npm package from which corral compiles llama.cpp. */
async function llamaSource() {
  const { source } = Value.Create(RuntimesOptions) as RuntimesOptions
  mkdirSync(WORK, { recursive: true })
  return await fetchSource(
    { name: source.package, version: source.version, work: WORK, env: process.env, log: pino({ level: 'warn' }) },
    {}
  )
}

function repositoriesBelow(folder: string): Record<string, EmulatedRepository> {
  const repositories: Record<string, EmulatedRepository> = {}
  for (const entry of readdirSync(folder, { withFileTypes: true, recursive: true })) {
    if (!entry.isFile()) continue
    const from = join(entry.parentPath, entry.name)
    const [owner, name, ...path] = relative(folder, from).split(/[\\/]/)
    repositories[`${owner}/${name}`] ??= { files: {} }
    repositories[`${owner}/${name}`]!.files[path.join('/')] = { from }
  }
  return repositories
}

/** Creates a data directory for each model, and one for the router's models. */
async function importAll(homes: string, hubFolder: string, build: string): Promise<void> {
  rmSync(homes, { recursive: true, force: true })
  const sets: [string, StandIn[]][] = Object.entries(STAND_INS).map(([key, one]) => [key, [one]])
  for (const [name, models] of [...sets, [ROUTER_HOME, OF_ROUTER] as [string, StandIn[]]]) {
    const home = join(homes, name)
    mkdirSync(home, { recursive: true })
    const config = { port: 0, storage: { demo_model: false, import_roots: [hubFolder] } }
    const server = await startIn(home, config, { build })
    for (const { repository, file, name } of models) {
      const body = JSON.stringify({ path: join(hubFolder, repository, file), name, stream: false })
      const reply = await fetch(`${server.address}/api/import`, { method: 'POST', body })
      if (!reply.ok) throw new Error(`${name} cannot be imported: ${await reply.text()}`)
    }
    await server.close()
  }
}

interface Run {
  server: string
  source: string
  only: readonly string[]
  env: Record<string, string>
  say: (text: string) => void
}

/** Runs the tests against one server, in several parallel processes. */
async function runAll({ server, source, only, env, say }: Run): Promise<Outcomes> {
  const parts = only.length > 0 ? [only] : shared(join(source, TESTS), PROCESSES)
  const all = await Promise.all(
    parts.map((files, index) => runPytest({ name: `${server}-${index + 1}`, source, files, env }))
  )
  const outcomes: Outcomes = new Map(all.flatMap(part => [...part]))
  const passed = [...outcomes.values()].filter(({ outcome }) => outcome === 'passed').length
  say(`${server}: ${passed} of ${outcomes.size} passed`)
  return outcomes
}

/** Splits the test files into parts of similar length. */
function shared(tests: string, count: number): string[][] {
  const files = readdirSync(join(tests, 'unit'))
    .filter(name => /^test_.*\.py$/.test(name))
    .map(name => ({ name: `unit/${name}`, size: statSync(join(tests, 'unit', name)).size }))
    .sort((a, b) => b.size - a.size)
  const parts = Array.from({ length: count }, () => ({ size: 0, names: [] as string[] }))
  for (const { name, size } of files) {
    const least = parts.reduce((a, b) => (b.size < a.size ? b : a))
    least.size += size
    least.names.push(name)
  }
  return parts.map(({ names }) => names)
}

interface Part extends Pick<Run, 'source' | 'env'> {
  /** Name of its folder below `WORK`. */
  name: string
  files: readonly string[]
}

async function runPytest({ name, source, files, env }: Part): Promise<Outcomes> {
  const copy = join(WORK, name)
  rmSync(copy, { recursive: true, force: true })
  for (const part of [TESTS, join('models', 'templates'), join('tools', 'mtmd', 'test-1.jpeg')]) {
    cpSync(join(source, part), join(copy, part), { recursive: true })
  }
  const folder = join(copy, TESTS)
  writeDownloads(join(folder, 'tmp'))
  const temporary = join(copy, 'tmp')
  mkdirSync(temporary)
  const outcomes = join(copy, 'outcomes.jsonl')
  const log = join(copy, 'pytest.log')
  const args = ['-m', 'pytest', '-p', 'outcomes', '-p', 'no:cacheprovider', '-m', 'not slow', '-q', '--tb=short']
  const limits = ['-o', 'timeout_func_only=true', `--timeout=${TEST_TIMEOUT_SECONDS}`]
  const { exitCode } = await execa(PYTHON, [...args, ...limits, ...files], {
    cwd: folder,
    reject: false,
    stdin: 'ignore',
    stdout: { file: log },
    stderr: { file: log },
    env: {
      ...env,
      OUTCOMES: outcomes,
      PORT: `${await freePort()}`,
      TMPDIR: temporary,
      LLAMA_CACHE: join(copy, 'cache'),
      PYTHONPATH: OWN,
      PYTHONDONTWRITEBYTECODE: '1'
    }
  })
  // 1 means failed tests. All other codes mean an incomplete run.
  if ((exitCode !== 0 && exitCode !== 1) || !existsSync(outcomes)) {
    throw new Error(`pytest ended with ${exitCode}. See ${log}`)
  }
  rmSync(temporary, { recursive: true, force: true })
  return readOutcomes(readFileSync(outcomes, 'utf8'))
}

/** A test fails if any of its phases fails. */
function readOutcomes(text: string): Outcomes {
  const all: Outcomes = new Map()
  for (const line of text.trim().split('\n')) {
    const one = JSON.parse(line) as Outcome
    if (all.get(one.id)?.outcome !== 'failed') all.set(one.id, one)
  }
  return all
}
