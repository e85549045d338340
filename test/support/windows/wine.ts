import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Test } from 'tap'
import { packageRoot } from '../../../core/system/package-info.ts'
import type { Ended } from '../../command-line/command.ts'
import { until } from '../corral.ts'
import { fetch } from '../quick-fetch.ts'
import { WINDOWS_PARTS, WINDOWS_SOURCES, WINE_ENVIRONMENT } from './windows-parts.ts'

/** The path on drive Z:, which is the root of this machine. */
export const onZ = (path: string) => `Z:${path.replaceAll('/', '\\')}`
const SCRIPT = onZ(join(packageRoot, 'scripts', 'corral.mjs'))
export const WINDOWS_NODE = join(WINDOWS_PARTS.node, 'node.exe')
const SHIM = onZ(join(WINDOWS_SOURCES, 'wine-shim.cjs')).replaceAll('\\', '/')

/** Starts of Node.js sometimes end like this under Wine 8. */
const CRASH = /^wine: Unhandled /m
const MAX_CRASHES = 4

/** A folder on drive C:, removed after the tests, with programs of Windows that work on it. */
export interface WindowsFolder {
  /** On this machine. */
  path: string
  /** On Windows. */
  windows: string
  /** Runs a program of Windows to its end. Paths among its arguments are Windows'. */
  run(program: string, args: string[], env?: Record<string, string>): Promise<Ended>
  /** Runs corral with this data directory. */
  corral(args: string[], env?: Record<string, string>): Promise<Ended>
  /** Starts a server with this data directory, and waits until it listens. */
  serve(env?: Record<string, string>): Promise<WindowsServer>
  /** The same on a terminal that passes on what is typed. */
  serveOnTerminal(env?: Record<string, string>): Promise<WindowsServer & { type(keys: string): void }>
}

export interface WindowsServer {
  url: string
  process: ChildProcess
  log(): string
  /** Resolves with the exit code. */
  exited: Promise<number | null>
  send(path: string, body?: unknown, method?: string): ReturnType<typeof fetch>
  json(path: string, body?: unknown, method?: string): Promise<{ status: number; body: any }>
}

/** @param name such as a folder that a user may have chosen, with letters that need care */
export function windowsFolder(t: Pick<Test, 'teardown'>, name: string): WindowsFolder {
  const drive = join(WINDOWS_PARTS.prefix, 'drive_c')
  const path = mkdtempSync(join(drive, `${name}-`))
  const windows = `C:${path.slice(drive.length).replaceAll('/', '\\')}`
  const outputs = mkdtempSync(join(tmpdir(), 'corral-test-'))
  const running = new Set<ChildProcess>()
  t.teardown(async () => {
    for (const child of running) child.kill('SIGKILL')
    await until('all programs have ended', () => running.size === 0)
    for (const folder of [path, outputs]) rmSync(folder, { recursive: true, force: true })
  })
  let count = 0

  /** The output goes to files: with a pipe, Node.js ends with EBADF under Wine. */
  function start(program: string, args: string[], env: Record<string, string> = {}, onTerminal = false) {
    const files = ['out', 'err'].map(kind => join(outputs, `${count}.${kind}`))
    count++
    const line = `exec wine ${[program, ...args].map(word => `'${word}'`).join(' ')} >> ${files[0]} 2>> ${files[1]}`
    const [command, words] = onTerminal ? ['script', ['-qec', line, '/dev/null']] : ['wine', [program, ...args]]
    const child = spawn(command as string, words as string[], {
      // In a working directory with letters beyond ASCII, half of the starts of Node.js crash under Wine 8.
      cwd: outputs,
      env: {
        PATH: process.env.PATH,
        HOME: process.env.HOME,
        ...WINE_ENVIRONMENT,
        WINEPATH: onZ(WINDOWS_PARTS.programs),
        NODE_OPTIONS: `--require ${SHIM}`,
        CORRAL_HOME: windows,
        CORRAL_LLAMA_CPP: onZ(WINDOWS_PARTS.engine),
        ...env
      },
      stdio: [onTerminal ? 'pipe' : 'ignore', ...files.map(file => openSync(file, 'w'))]
    })
    running.add(child)
    const exited = once(child, 'exit').then(([code, signal]) => {
      running.delete(child)
      return { code: code as number | null, signal: signal as string | null }
    })
    const texts = () => files.map(file => readFileSync(file, 'utf8').replaceAll('\r\n', '\n')) as [string, string]
    return { child, exited, texts }
  }

  const run = async (program: string, args: string[], env?: Record<string, string>): Promise<Ended> => {
    for (let crashes = 0; ; crashes++) {
      const { exited, texts } = start(program, args, env)
      const end = await exited
      const [stdout, stderr] = texts()
      if (crashes === MAX_CRASHES || !CRASH.test(stderr)) return { ...end, stdout, stderr }
    }
  }

  async function serve(env?: Record<string, string>, onTerminal = false): Promise<WindowsServer> {
    const begin = () => start(WINDOWS_NODE, [SCRIPT, 'serve', '--port', '0'], env, onTerminal)
    let started = begin()
    const log = () => started.texts().join('')
    const isListening = () => {
      const { child } = started
      if (child.exitCode === null) return /listens on (https?:[^"\s]+)/.exec(log())?.[1]
      if (!CRASH.test(log())) throw new Error(`corral ended at its start:\n${log()}`)
      started = begin()
      return undefined
    }
    const url = await until('corral listens', isListening, 120_000)
    const { child, exited } = started
    const send: WindowsServer['send'] = (path, body, method = body === undefined ? 'GET' : 'POST') =>
      fetch(url + path, {
        method,
        ...(body !== undefined && { body: JSON.stringify(body), headers: { 'content-type': 'application/json' } })
      })
    return {
      url,
      process: child,
      log,
      exited: exited.then(({ code }) => code),
      send,
      async json(path, body, method) {
        const reply = await send(path, body, method)
        const text = await reply.text()
        return { status: reply.status, body: /^[{[]/.test(text) ? JSON.parse(text) : text }
      }
    }
  }

  return {
    path,
    windows,
    run,
    corral: (args, env) => run(WINDOWS_NODE, [SCRIPT, ...args], env),
    serve: env => serve(env),
    async serveOnTerminal(env) {
      const server = await serve(env, true)
      return { ...server, type: keys => void server.process.stdin!.write(keys) }
    }
  }
}

/** Writes a file as an editor of Windows may do: with a mark of its encoding and with CRLF. */
export function writeAsNotepad(path: string, text: string): void {
  mkdirSync(join(path, '..'), { recursive: true })
  writeFileSync(path, `\uFEFF${text.replaceAll('\n', '\r\n')}`)
}
