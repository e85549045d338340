import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { readFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { StringDecoder } from 'node:string_decoder'
import { messageOf } from '../../core/errors.ts'

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
 * kernel does not do that: llama-server itself reacts to the end of its input only after the model is loaded.
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
    // After a turn of the event loop that reads: where the gateway was busy for longer, the output is still in the pipe.
    setTimeout(() => setImmediate(() => drained.resolve()), DRAIN_LIMIT).unref()
  })
  child.once('close', () => drained.resolve())
  child.stdin.on('error', () => {
    // It has ended; `exit` reports that.
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
      // As a router's child it waits for this command even after SIGTERM; while it loads it reacts to SIGTERM only.
      child.stdin.write(EXIT_COMMAND)
      // Windows has no SIGTERM: `kill` would end it by force.
      if (process.platform !== 'win32') child.kill('SIGTERM')
    },
    kill() {
      if (running) child.kill('SIGKILL')
    }
  }
}

/** Variables that an engine may inherit: what the system, drivers and libraries need, and nothing that sets llama.cpp up. */
const NAMES = new Set(
  `PATH HOME USER LOGNAME TMPDIR TMP TEMP LANG TZ LD_LIBRARY_PATH XDG_CACHE_HOME XDG_RUNTIME_DIR DRI_PRIME
  SYSTEMROOT SYSTEMDRIVE WINDIR COMSPEC PATHEXT USERPROFILE LOCALAPPDATA PROGRAMFILES NUMBER_OF_PROCESSORS`.split(/\s+/)
)
const PREFIXES =
  `LC_ DYLD_ CUDA_ NVIDIA_ HIP_ ROCR_ ROCM_ HSA_ GPU_ GGML_ VK_ MESA_ RADV_ SYCL_ ONEAPI_ ZE_ OMP_ GOMP_ KMP_
  PROCESSOR_`.split(/\s+/)

export interface EngineEnvironment {
  /** An empty folder: where llama-server looks for its configuration file. */
  configHome: string
  /** Every request must carry it. Given here since command lines are visible to all users. */
  apiKey: string
  /** What the build and the model's settings add. */
  more?: Readonly<Record<string, string>>
}

/**
 * The environment of an engine. `LLAMA_ARG_*` and configuration files would change an engine behind corral's back, so
 * only harmless variables pass.
 */
export function engineEnvironment(
  ambient: NodeJS.ProcessEnv,
  { configHome, apiKey, more }: EngineEnvironment
): Record<string, string> {
  const environment: Record<string, string> = {}
  for (const [name, value] of Object.entries(ambient)) {
    // Names are case-insensitive on Windows.
    const upper = name.toUpperCase()
    const allowed = NAMES.has(upper) || PREFIXES.some(prefix => upper.startsWith(prefix))
    if (allowed && value !== undefined) environment[name] = value
  }
  return {
    ...environment,
    ...more,
    XDG_CONFIG_HOME: configHome,
    APPDATA: configHome,
    PROGRAMDATA: configHome,
    LLAMA_API_KEY: apiKey,
    // Makes llama-server behave as a router's child: progress on stdout, and it exits when stdin ends. The number is
    // not used.
    LLAMA_SERVER_ROUTER_PORT: '1'
  }
}

/** Files in which the Linux kernel counts processes that it killed because memory had run out. */
async function counterFiles(): Promise<string[]> {
  const groups = await readFile('/proc/self/cgroup', 'utf8').catch(() => '')
  const files = ['/proc/vmstat']
  for (const line of groups.split('\n')) {
    const match = /^\d+:([^:]*):(\/.*)$/.exec(line)
    // A path with ".." lies outside what this container sees; the root of its mount is its own group then.
    const path = match?.[2]?.includes('..') ? '/' : match?.[2]
    if (!match || path === undefined) continue
    if (match[1] === '') files.push(`/sys/fs/cgroup${path}/memory.events`)
    else if (match[1]!.split(',').includes('memory')) files.push(`/sys/fs/cgroup/memory${path}/memory.oom_control`)
  }
  return files
}

/** How many processes the kernel has killed for memory so far, in the groups of this process and on the machine. */
async function countOomKills(): Promise<number | undefined> {
  if (process.platform !== 'linux') return undefined
  let count: number | undefined
  for (const file of await counterFiles()) {
    const content = await readFile(file, 'utf8').catch(() => '')
    const found = /^oom_kill (\d+)$/m.exec(content)?.[1]
    if (found !== undefined) count = (count ?? 0) + Number(found)
  }
  return count
}

/**
 * Remembers now how often the kernel has killed for memory. The returned function says whether it has since; undefined
 * where that is unknown.
 */
export async function watchOomKills(): Promise<() => Promise<boolean | undefined>> {
  const before = await countOomKills()
  return async () => {
    const after = before === undefined ? undefined : await countOomKills()
    return after === undefined ? undefined : after > before!
  }
}

/** Longest line that is read whole, in characters; the rest of a longer one is dropped. */
const MAX_LINE = 256 * 1024

/** Cuts a stream of bytes into lines, however it is chunked. Invalid UTF-8 becomes replacement characters. */
export function createLineSplitter(onLine: (line: string) => void): { write(chunk: Buffer): void; end(): void } {
  const decoder = new StringDecoder('utf8')
  let pending = ''
  let skipping = false
  const take = (text: string) => {
    const lines = text.split('\n')
    const last = lines.pop()!
    for (const line of lines) {
      const whole = pending + line
      pending = ''
      if (!skipping) onLine((whole.endsWith('\r') ? whole.slice(0, -1) : whole).slice(0, MAX_LINE))
      skipping = false
    }
    if (skipping) return
    pending += last
    if (pending.length > MAX_LINE) {
      onLine(pending.slice(0, MAX_LINE))
      pending = ''
      skipping = true
    }
  }
  return {
    write: chunk => take(decoder.write(chunk)),
    end() {
      take(decoder.end())
      if (pending !== '' && !skipping) onLine(pending)
      pending = ''
    }
  }
}
