import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { dirname } from 'node:path'
import { messageOf } from '../../core/errors.ts'
import { createLineSplitter } from './log-lines.ts'

/** How a process ended: exit code, or null and the signal that ended it. */
export interface ProcessExit {
  code: number | null
  signal: string | null
}

/** A llama-server process that ends when this process does, however that comes about. */
export interface EngineProcess {
  /** Undefined when it could not be started. */
  readonly pid: number | undefined
  /** Settles at once when it ends; never rejects. */
  readonly exited: Promise<ProcessExit>
  /** Settles when all that it printed has been read (or does not come any more). */
  readonly drained: Promise<void>
  /** Why it could not be started. */
  readonly startError: Promise<NodeJS.ErrnoException | undefined>
  /** Asks it to end, which it does once nothing is connected any more. */
  end(): void
  kill(): void
}

/** Milliseconds to wait for the last output of a process that has gone; another process may hold its pipes. */
const DRAIN_LIMIT = 250
const EXIT_COMMAND = 'cmd_router_to_child:exit\n'

function deferred<T>(): { promise: Promise<T>; resolve(value: T): void } {
  let resolve!: (value: T) => void
  const promise = new Promise<T>(settle => {
    resolve = settle
  })
  return { promise, resolve }
}

let pdeathsig: Promise<boolean> | undefined

/** Whether `setpriv --pdeathsig` works here: Linux with util-linux. */
function hasParentDeathSignal(): Promise<boolean> {
  pdeathsig ??= new Promise(resolve => {
    if (process.platform !== 'linux') resolve(false)
    else execFile('setpriv', ['--pdeathsig', 'KILL', '--', 'true'], error => resolve(error === null))
  })
  return pdeathsig
}

/**
 * A shell that kills the engine when this process is gone, which it learns from the end of its input. Needed where the
 * kernel does not do that: llama-server itself heeds the end of its input only after the model is loaded.
 */
function startWatchdog(pid: number, onFailure: (error: Error) => void): ChildProcess {
  const watchdog = spawn('sh', ['-c', 'read -r _; kill -KILL "$1"', 'corral-watchdog', `${pid}`], {
    stdio: ['pipe', 'ignore', 'ignore'],
    detached: true
  })
  watchdog.on('error', onFailure)
  watchdog.stdin?.on('error', () => {
    // It was killed: its work is done.
  })
  watchdog.unref()
  return watchdog
}

/**
 * Starts llama-server. Its output arrives line by line in `onLine`. It must not outlive this process: the kernel or a
 * watchdog kills it, and it reads the end of its input.
 */
export async function startEngineProcess(options: {
  executable: string
  arguments: readonly string[]
  environment: Record<string, string>
  onLine: (line: string) => void
  warn: (message: string) => void
}): Promise<EngineProcess> {
  const guarded = await hasParentDeathSignal()
  const command = guarded
    ? ['setpriv', '--pdeathsig', 'KILL', '--', options.executable, ...options.arguments]
    : [options.executable, ...options.arguments]
  const child = spawn(command[0]!, command.slice(1), {
    cwd: dirname(options.executable),
    env: options.environment,
    stdio: ['pipe', 'pipe', 'pipe'],
    // Ctrl-C in a terminal reaches the whole process group; corral decides when engines end.
    detached: process.platform !== 'win32',
    windowsHide: true
  })

  const exited = deferred<ProcessExit>()
  const drained = deferred<void>()
  const startError = deferred<NodeJS.ErrnoException | undefined>()
  let running = true
  const watchdog =
    !guarded && process.platform !== 'win32' && child.pid !== undefined
      ? startWatchdog(child.pid, error => {
          options.warn(`No watchdog guards llama-server ${child.pid}: ${messageOf(error)}`)
        })
      : undefined

  child.once('spawn', () => startError.resolve(undefined))
  child.on('error', error => {
    // Also given for a signal that could not be sent; only a start that failed ends it.
    if (child.pid !== undefined) return options.warn(`llama-server ${child.pid}: ${error.message}`)
    running = false
    startError.resolve(error)
    exited.resolve({ code: null, signal: null })
    drained.resolve()
  })
  child.once('exit', (code, signal) => {
    running = false
    watchdog?.kill('SIGKILL')
    exited.resolve({ code, signal })
    setTimeout(() => drained.resolve(), DRAIN_LIMIT).unref()
  })
  child.once('close', () => drained.resolve())
  child.stdin.on('error', () => {
    // It has gone; `exit` tells.
  })
  for (const stream of [child.stdout, child.stderr]) {
    const splitter = createLineSplitter(options.onLine)
    stream.on('data', (chunk: Buffer) => splitter.write(chunk))
    stream.once('end', () => splitter.end())
    stream.on('error', error =>
      options.warn(`The output of llama-server ${child.pid} cannot be read: ${error.message}`)
    )
  }

  return {
    pid: child.pid,
    exited: exited.promise,
    drained: drained.promise,
    startError: startError.promise,
    end() {
      if (!running) return
      // As a router's child it waits for this word even after SIGTERM; while it loads it heeds SIGTERM alone.
      child.stdin.write(EXIT_COMMAND)
      // Windows has no SIGTERM: `kill` would end it by force.
      if (process.platform !== 'win32') child.kill('SIGTERM')
    },
    kill() {
      if (running) child.kill('SIGKILL')
    }
  }
}
