/**
 * Runs compiled test files, each in its own process, and prints one line per file and all failures.
 *
 *     node dist/scripts/run-tests.js [--all | --thorough] [--jobs=N] [--timeout=SECONDS] [--within=SECONDS [--turn=N]]
 *                                   [FILE OR FOLDER…]
 *
 * Without paths it runs the everyday tests. --all also runs the thorough tests and ten times as many random trials.
 * --thorough runs only the files with thorough tests. With --within, it starts no file after that time and lists the files left
 * out. --turn=N then starts at another tenth of the files for each N, so that ten runs in a row run every file. The `tap`
 * command can run single files too, but it makes every Node.js process of a test record the modules that it loads, which
 * doubles corral's start time.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { SourceMap } from 'node:module'
import { availableParallelism } from 'node:os'
import { basename, dirname, join, relative, resolve, sep } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { parseArgs } from 'node:util'
import { formatDuration } from '../core/system/duration.ts'
import { packageRoot } from '../core/system/package-info.ts'

const compiled = join(packageRoot, 'dist')
const tests = join(compiled, 'test')
const outputs = join(packageRoot, '.cache', 'failed-tests')
/** Time limit of a test in seconds, unless it sets its own. */
const TIMEOUT = '300'
/** A file is killed after this time. All of its tests have timed out long before. */
const FILE_TIMEOUT_MS = 3_600_000
/** The output of an ended test may stay open for this long. */
const OUTPUT_TIMEOUT_MS = 2000
/** Maximum number of lines printed per failure. */
const MAX_FAILURE_LINES = 40

const { values: flags, positionals: paths } = parseArgs({
  options: {
    all: { type: 'boolean', default: false },
    thorough: { type: 'boolean', default: false },
    // Most tests wait for other processes half of their time.
    jobs: { type: 'string', default: String(2 * availableParallelism()) },
    timeout: { type: 'string', default: TIMEOUT },
    within: { type: 'string', default: 'Infinity' },
    turn: { type: 'string', default: '0' }
  },
  allowPositionals: true
})

function filesIn(folder: string): string[] {
  const names = readdirSync(folder, { recursive: true, encoding: 'utf8' })
  return names.filter(name => name.endsWith('.test.js')).map(name => join(folder, name))
}

/** Finds test files by a path in the source or in `dist`. */
function filesAt(path: string): string[] {
  const inSource = relative(packageRoot, resolve(path)).replace(/\.ts$/, '.js')
  const file = inSource.startsWith('dist') ? join(packageRoot, inSource) : join(compiled, inSource)
  const found = statSync(file, { throwIfNoEntry: false })
  if (found) return found.isDirectory() ? filesIn(file) : [file]
  console.error(
    `There is no test ${path}: ${file} does not exist. Name a file or folder in test, and compile it first: npm run prepare:test`
  )
  process.exit(2)
}

function chosenFiles(): string[] {
  if (paths.length > 0) return paths.flatMap(filesAt)
  const files = filesIn(tests).filter(file => !file.startsWith(join(tests, 'long')))
  if (flags.all) return files
  const isThorough = (file: string) => file.endsWith('.thorough.test.js')
  if (!flags.thorough) return files.filter(file => !isThorough(file))
  return files.filter(file => isThorough(file) || readFileSync(file, 'utf8').includes('support/thorough.js'))
}

const isEveryday = !flags.all && !flags.thorough && paths.length === 0

interface Result {
  name: string
  passed: boolean
  assertions: number
  skipped: string[]
  output: string
  milliseconds: number
}

const running = new Set<ChildProcess>()
/** Ends a test and all processes that it started. It leads a process group. */
const end = (child: ChildProcess, signal: NodeJS.Signals) => {
  try {
    process.kill(-child.pid!, signal)
  } catch {
    // The process has ended.
  }
}
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, () => {
    for (const child of running) end(child, 'SIGKILL')
    process.exit(1)
  })
}

async function runFile(file: string, bundle: string): Promise<Result> {
  const begun = performance.now()
  const child = spawn(process.execPath, [bundle], {
    cwd: packageRoot,
    env: {
      ...process.env,
      // Makes tap print only the results of a test, without a report.
      TAP: '1',
      TAP_CHILD_ID: basename(file),
      TAP_TIMEOUT: flags.timeout,
      // tap would remove them before the test's teardowns, while servers still write to them.
      TAP_SAVE_FIXTURE: '1',
      ...(flags.all || flags.thorough ? { CORRAL_TEST_TRIALS: process.env.CORRAL_TEST_TRIALS ?? '10' } : {}),
      // Everyday tests reach no other machine, and parsing more authorities can double the time that Node.js takes to start.
      ...(isEveryday ? { CORRAL_TEST_EVERYDAY: '1', NODE_EXTRA_CA_CERTS: undefined } : {})
    },
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true
  })
  running.add(child)
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', text => {
      output += text
    })
  }
  const killing = setTimeout(() => end(child, 'SIGKILL'), FILE_TIMEOUT_MS)
  const closed = once(child, 'close')
  const [code] = (await once(child, 'exit')) as [number | null]
  clearTimeout(killing)
  // Processes left behind would keep the output open.
  end(child, 'SIGKILL')
  await Promise.race([closed, sleep(OUTPUT_TIMEOUT_MS, undefined, { ref: false })])
  running.delete(child)
  removeFixtures(bundle)
  const passed = code === 0
  const lines = output.split('\n')
  return {
    name: relative(tests, file).replace(/\.js$/, '.ts'),
    passed,
    assertions:
      lines.filter(line => /^ *(not )?ok \d/.test(line)).length -
      lines.filter(line => /^ *# Subtest/.test(line)).length,
    skipped: lines.flatMap(line => / # SKIP (?!thorough)(.*)/.exec(line)?.[1] ?? []),
    output: passed ? output : withSourcePositions(output),
    milliseconds: performance.now() - begun
  }
}

/** Removes the folders that `t.testdir` created for a file. */
function removeFixtures(file: string): void {
  const folder = join(packageRoot, '.tap', 'fixtures')
  const prefix = `${relative(packageRoot, file).replaceAll(sep, '-')}-`
  const names = existsSync(folder) ? readdirSync(folder) : []
  for (const name of names) if (name.startsWith(prefix)) rmSync(join(folder, name), { recursive: true, force: true })
}

/** Replaces positions in bundles by positions in the source. */
function withSourcePositions(output: string): string {
  const maps = new Map<string, SourceMap>()
  return output.replace(
    /(?:file:\/\/)?[^\s(]*(dist\/bundled-tests\/[^\s:]+):(\d+):(\d+)/g,
    (all, name, line, column) => {
      const file = join(packageRoot, name)
      const map = maps.get(file) ?? new SourceMap(JSON.parse(readFileSync(`${file}.map`, 'utf8')))
      maps.set(file, map)
      const found = map.findEntry(Number(line) - 1, Number(column) - 1)
      if (!('originalSource' in found)) return all
      const source = relative(packageRoot, join(dirname(file), found.originalSource))
      return `${source}:${found.originalLine + 1}:${found.originalColumn + 1}`
    }
  )
}

function failuresIn(output: string): string {
  const lines = output.split('\n')
  const failures = lines.flatMap((line, index) => {
    if (!/^ *not ok/.test(line)) return []
    const end = lines.findIndex((later, at) => at > index && /^ *(\.\.\.$|(not )?ok )/.test(later))
    return lines.slice(index, Math.min(end === -1 ? lines.length : end, index + MAX_FAILURE_LINES))
  })
  return (failures.length > 0 ? failures : lines.slice(-MAX_FAILURE_LINES)).join('\n')
}

const begun = performance.now()
// Large files first: they tend to take longest, and one at the end would keep a single processor busy.
const files = chosenFiles().sort((a, b) => statSync(b).size - statSync(a).size)
const first = Math.floor(((Number(flags.turn) % 10) / 10) * files.length)
const waiting = [...files.slice(first), ...files.slice(0, first)]
const isInTime = () => performance.now() - begun < Number(flags.within) * 1000
const results: Result[] = []
const { bundleTests } = await import(pathToFileURL(join(packageRoot, 'scripts', 'bundle-tests.mjs')).href)
const bundles: string[] = await bundleTests(files)
rmSync(outputs, { recursive: true, force: true })

async function work(): Promise<void> {
  for (let file = isInTime() && waiting.shift(); file; file = isInTime() && waiting.shift()) {
    const result = await runFile(file, bundles[files.indexOf(file)]!)
    results.push(result)
    const { name, passed, assertions, skipped, milliseconds } = result
    console.log(`${passed ? '✔' : '✘'} ${name} (${assertions} assertions, ${formatDuration(milliseconds)})`)
    for (const reason of skipped) console.log(`    skipped: ${reason}`)
    if (passed) continue
    mkdirSync(outputs, { recursive: true })
    writeFileSync(join(outputs, `${name.replaceAll(/[\\/]/g, '-')}.txt`), result.output)
  }
}
await Promise.all(Array.from({ length: Math.max(1, Number(flags.jobs)) }, work))

for (const file of waiting) console.log(`- ${relative(tests, file)} was left out because the time is over`)
const failed = results.filter(({ passed }) => !passed)
for (const { name, output } of failed) console.log(`\n✘ ${name}\n${failuresIn(output)}`)
const assertions = results.reduce((sum, result) => sum + result.assertions, 0)
const time = formatDuration(performance.now() - begun)
console.log(`\nFiles: ${results.length}, assertions: ${assertions}, failed files: ${failed.length} (${time})`)
if (failed.length > 0) console.log(`Their complete output is in ${outputs}.`)
if (failed.length > 0 || results.length === 0) process.exitCode = 1
