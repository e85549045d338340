import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { ClientPrograms } from './ollama-programs.ts'

export interface Outcome {
  result: 'passed' | 'failed' | 'skipped'
  /** Message of the failure, or reason for skipping. */
  said: string
}
export type Outcomes = Map<string, Outcome>

/** Ends a test that hangs. Tests of contexts and of many models take minutes. */
const TIMEOUT_MS = 600_000
const RESULT = { PASS: 'passed', FAIL: 'failed', SKIP: 'skipped' } as const
const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=='

async function run(program: string, args: string[], host: string, directory: string) {
  const child = spawn(program, args, {
    cwd: directory,
    env: { ...process.env, OLLAMA_HOST: host, OLLAMA_TEST_EXISTING: '1', OLLAMA_MAX_VRAM: '' },
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: TIMEOUT_MS,
    killSignal: 'SIGKILL'
  })
  const text = { out: '', err: '' }
  child.stdout.setEncoding('utf8').on('data', chunk => {
    text.out += chunk
  })
  child.stderr.setEncoding('utf8').on('data', chunk => {
    text.err += chunk
  })
  const [code] = (await once(child, 'close')) as [number | null]
  return { code, ...text }
}

/**
 * Runs Ollama's integration tests against a server, each in its own process, because a panic ends all tests of a
 * process.
 * @param host value of OLLAMA_HOST. The tests do not support a path
 * @param isRun selects tests by name
 */
export async function runTests(
  { tests, directory }: ClientPrograms,
  host: string,
  isRun: (test: string) => boolean,
  progress: (line: string) => void
): Promise<Outcomes> {
  const list = await run(tests, ['-test.list', '.'], host, directory)
  const outcomes: Outcomes = new Map()
  for (const name of list.out.split('\n').filter(line => line.startsWith('Test') && isRun(line))) {
    const began = Date.now()
    const { out } = await run(tests, ['-test.v', '-test.timeout=20m', `-test.run=^${name}$`], host, directory)
    const found = readOutcomes(out)
    if (!found.has(name)) found.set(name, { result: 'failed', said: 'It did not end.' })
    for (const [test, outcome] of found) outcomes.set(test, outcome)
    const failed = [...found.values()].filter(({ result }) => result === 'failed').length
    progress(
      `${name}: ${found.size - failed} of ${found.size} did not fail (${Math.round((Date.now() - began) / 1000)} s)`
    )
  }
  return outcomes
}

/** Parses the results in the output of a Go test, including its subtests, by name. */
export function readOutcomes(output: string): Outcomes {
  const outcomes: Outcomes = new Map()
  const said = new Map<string, string>()
  let current = ''
  for (const line of output.split('\n')) {
    const turn = /^=== (?:RUN|NAME|CONT) +(\S+)/.exec(line)
    const message = /^ {4,}\w+_test\.go:\d+: (.*)/.exec(line)
    const end = /^ *--- (PASS|FAIL|SKIP): (\S+)/.exec(line)
    if (turn) current = turn[1]!
    else if (message && !said.has(current)) said.set(current, message[1]!)
    else if (/^panic: /.test(line)) said.set(current, line)
    if (!end) continue
    outcomes.set(end[2]!, { result: RESULT[end[1] as keyof typeof RESULT], said: said.get(end[2]!) ?? '' })
  }
  // After a panic, the parts before it are the only output.
  if (said.get(current)?.startsWith('panic: ')) outcomes.set(current, { result: 'failed', said: said.get(current)! })
  return outcomes
}

/**
 * Runs Ollama's example programs and benchmark against a server. They pass if they exit successfully and print
 * something.
 */
export async function runExamples({ examples }: ClientPrograms, host: string, folder: string): Promise<Outcomes> {
  const picture = join(folder, 'picture.png')
  writeFileSync(picture, Buffer.from(PNG, 'base64'))
  const args: Record<string, string[]> = {
    multimodal: [picture],
    bench: ['-model', 'llama3.2:1b', '-epochs', '2', '-max-tokens', '20']
  }
  const outcomes: Outcomes = new Map()
  for (const [name, program] of Object.entries(examples)) {
    const { code, out, err } = await run(program, args[name] ?? [], host, folder)
    const isWell = code === 0 && out.trim() !== '' && !/\berror\b/i.test(err)
    outcomes.set(name, { result: isWell ? 'passed' : 'failed', said: (err || out).trim().split('\n').at(-1) ?? '' })
  }
  return outcomes
}
