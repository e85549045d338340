import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { engineBuildFolder } from '../support/engine-build.ts'
import { readCases } from '../support/fixture.ts'
import { newFolder } from '../support/folder.ts'

/** The bundle: it starts in half the time of the compiled files. Stack traces need `NODE_OPTIONS=--enable-source-maps`. */
export const MAIN = join(packageRoot, 'dist', 'bundle', 'main.js')

export interface Ended {
  code: number | null
  signal: string | null
  stdout: string
  stderr: string
}

export interface CommandOptions {
  home: string
  /** The program to start, by default the bundle. */
  program?: string
  env?: Record<string, string>
  /** Text for standard input (default: none). */
  input?: string
  /** Sends SIGINT once, when standard error contains this. A second one would end the command immediately. */
  interruptAt?: string
  /** Stops reading standard output immediately, like `| head -0`. */
  closeStdout?: boolean
  /** User id of the command (default: that of the tests). */
  uid?: number
}

/** An empty data directory, removed after the test. */
export const newHome = newFolder

/** The environment of a command, without the developer's own corral. */
export function commandEnvironment({ home, env }: Pick<CommandOptions, 'home' | 'env'>): NodeJS.ProcessEnv {
  const own = Object.entries(process.env).filter(([name]) => !/^(CORRAL_|NO_COLOR|FORCE_COLOR)/.test(name))
  return { ...Object.fromEntries(own), CORRAL_HOME: home, CORRAL_LLAMA_CPP: engineBuildFolder(), ...env }
}

/** Runs the built command line in its own process and waits for its end. */
export async function corral(args: string[], options: CommandOptions): Promise<Ended> {
  const child = spawn(process.execPath, [options.program ?? MAIN, ...args], {
    cwd: options.home,
    env: commandEnvironment(options),
    stdio: ['pipe', 'pipe', 'pipe'],
    ...(options.uid !== undefined && { uid: options.uid })
  })
  let stdout = ''
  let stderr = ''
  let { interruptAt } = options
  if (options.closeStdout) child.stdout.destroy()
  else child.stdout.setEncoding('utf8').on('data', text => (stdout += text))
  child.stderr.setEncoding('utf8').on('data', text => {
    stderr += text
    if (interruptAt === undefined || !stderr.includes(interruptAt)) return
    interruptAt = undefined
    child.kill('SIGINT')
  })
  child.stdin.on('error', () => {
    // A command that needs no input may end before the input arrives.
  })
  child.stdin.end(options.input ?? '')
  const [code, signal] = await once(child, 'close')
  return { code, signal, stdout, stderr }
}

/**
 * Runs the commands of a table in `test/fixtures/commands.yaml` one after the other, and checks how they end.
 * @param run runs the words of a command
 * @param values what $names stand for
 */
export async function checkCommands(
  t: Test,
  table: string,
  run: (words: string[]) => Promise<Ended>,
  values: Record<string, string> = {}
): Promise<void> {
  const fill = (text: string) => text.replace(/\$(\w+)/g, (whole, name) => values[name] ?? whole)
  const filled = (value: unknown) => (value instanceof RegExp ? new RegExp(fill(value.source), value.flags) : value)
  for (const [command, expected, why] of readCases<[string, object, string?][]>('commands.yaml', table)) {
    const words = fill(command)
      .match(/'[^']*'|\S+/g)!
      .map(word => word.replaceAll("'", ''))
    const ends = Object.fromEntries(Object.entries(expected).map(([name, value]) => [name, filled(value)]))
    t.match(await run(words), ends, why ?? command)
  }
}

/** Writes a program for /bin/sh into a folder. @returns its path */
export function writeScript(folder: string, name: string, text: string): string {
  const path = join(folder, name)
  writeFileSync(path, `#!/bin/sh\n${text}\n`, { mode: 0o755 })
  return path
}
