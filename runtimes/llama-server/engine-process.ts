import { spawn } from 'node:child_process'
import { readFile } from 'node:fs/promises'
import { basename, dirname } from 'node:path'
import { errorMessage } from '../../core/errors.ts'
import { lineSplitter } from '../../core/system/child-process.ts'
import { toolEnvironment } from '../../core/system/tool-environment.ts'

/** How a process ended: its exit code, or null and the signal that ended it. */
export interface ProcessExit {
  code: number | null
  signal: string | null
}

export type EngineProcess = ReturnType<typeof startEngineProcess>

const STOP_GRACE_MS = 2000
/** Milliseconds to wait for the last output of an exited process. Another process may keep its pipes open. */
const DRAIN_LIMIT = 250
const EXIT_COMMAND = 'cmd_router_to_child:exit\n'

/** Starts a server of a build. A watchdog or the end of its input ends it if this process dies. */
export function startEngineProcess(options: {
  executable: string
  arguments: readonly string[]
  environment: Record<string, string>
  onLine: (line: string, stream: 'stdout' | 'stderr') => void
  warn: (message: string) => void
}) {
  const program = basename(options.executable)
  const child = spawn(options.executable, options.arguments, {
    cwd: dirname(options.executable),
    env: options.environment,
    stdio: ['pipe', 'pipe', 'pipe'],
    // Ctrl-C in a terminal reaches the whole process group, but corral decides when engines end.
    detached: process.platform !== 'win32',
    windowsHide: true
  })

  let running = true
  // A shell kills the engine when its own input ends because this process has died. llama-server itself notices the
  // end of its input only after the model is loaded.
  const watchdog =
    process.platform === 'win32' || child.pid === undefined
      ? undefined
      : spawn('sh', ['-c', 'read -r _; kill -KILL "$1"', 'corral-watchdog', `${child.pid}`], {
          stdio: ['pipe', 'ignore', 'ignore'],
          env: toolEnvironment(process.env),
          detached: true
        })
  watchdog?.on('error', error => options.warn(`No watchdog guards ${program} ${child.pid}: ${errorMessage(error)}`))
  watchdog?.stdin.on('error', () => {
    // The watchdog was killed because its work is done.
  })
  watchdog?.unref()
  child.on('error', error => {
    // Also emitted if a signal could not be sent. Only a failed start ends the process.
    if (child.pid !== undefined) options.warn(`${program} ${child.pid}: ${error.message}`)
  })
  const startError = new Promise<NodeJS.ErrnoException | undefined>(resolve => {
    child.once('spawn', () => resolve(undefined))
    child.once('error', error => resolve(child.pid === undefined ? error : undefined))
  })
  const exited = new Promise<ProcessExit>(resolve => {
    child.once('exit', (code, signal) => resolve({ code, signal }))
    void startError.then(error => error && resolve({ code: null, signal: null }))
  })
  void exited.then(() => {
    running = false
    watchdog?.kill('SIGKILL')
  })
  const drained = new Promise<void>(resolve => {
    child.once('close', () => resolve())
    void startError.then(error => error && resolve())
    // Waits for an event loop iteration that reads. If the gateway was busy, output is still in the pipe.
    void exited.then(() => setTimeout(() => setImmediate(resolve), DRAIN_LIMIT).unref())
  })
  child.stdin.on('error', () => {
    // The process has ended. `exit` reports that.
  })
  for (const name of ['stdout', 'stderr'] as const) {
    const stream = child[name]
    const splitter = lineSplitter(line => options.onLine(line, name))
    stream.setEncoding('utf8')
    stream.on('data', (text: string) => splitter.push(text))
    stream.once('end', () => splitter.end())
    stream.on('error', error => options.warn(`The output of ${program} ${child.pid} cannot be read: ${error.message}`))
  }

  function kill(): void {
    if (running) child.kill('SIGKILL')
  }

  return {
    /** Undefined if the process could not be started. */
    pid: child.pid,
    /** Settles as soon as the process ends. Never rejects. */
    exited,
    /** Settles when all output has been read, or is given up. */
    drained,
    startError,
    kill,
    /** Asks the process to exit, which it does when no connection is open, and kills it if it takes too long. */
    async stop(): Promise<void> {
      if (!running) return
      // As a router's child, llama-server waits for this command even after SIGTERM. While it loads, it reacts only to
      // SIGTERM.
      child.stdin.write(EXIT_COMMAND)
      // Windows has no SIGTERM, and `kill` would end the process by force.
      if (process.platform !== 'win32') child.kill('SIGTERM')
      const timer = setTimeout(kill, STOP_GRACE_MS)
      await exited
      clearTimeout(timer)
    }
  }
}

/**
 * Returns the environment of an engine. Other variables and configuration files would change it behind corral's back.
 * @param configHome an empty folder, in which llama-server looks for its configuration file
 * @param apiKey required in every request. It is passed here because all users can see command lines
 */
export function engineEnvironment(
  ambient: NodeJS.ProcessEnv,
  { configHome, apiKey, more }: { configHome: string; apiKey: string; more?: Readonly<Record<string, string>> }
): Record<string, string> {
  return {
    ...toolEnvironment(ambient),
    ...more,
    XDG_CONFIG_HOME: configHome,
    APPDATA: configHome,
    PROGRAMDATA: configHome,
    LLAMA_API_KEY: apiKey,
    // Makes llama-server behave as a router's child: it reports progress on stdout and exits when stdin ends. The
    // number is not used.
    LLAMA_SERVER_ROUTER_PORT: '1'
  }
}

/** Lists the files in which the Linux kernel counts processes that it killed because memory ran out. */
async function counterFiles(): Promise<string[]> {
  const groups = await readFile('/proc/self/cgroup', 'utf8').catch(() => '')
  const ofGroups = [...groups.matchAll(/^\d+:([^:]*):(\/.*)$/gm)].flatMap(([, controllers, group]) => {
    // A path with ".." is outside the container's view. The root of its mount is then its own group.
    const path = group!.includes('..') ? '/' : group
    if (controllers === '') return `/sys/fs/cgroup${path}/memory.events`
    return controllers!.split(',').includes('memory') ? `/sys/fs/cgroup/memory${path}/memory.oom_control` : []
  })
  return ['/proc/vmstat', ...ofGroups]
}

/** Counts the processes that the kernel has killed for memory, in this process's groups and on the machine. */
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

/** Returns a function that reports whether the kernel has killed for memory since. Undefined if unknown. */
export async function watchOomKills(): Promise<() => Promise<boolean | undefined>> {
  const before = await countOomKills()
  return async () => {
    const after = before === undefined ? undefined : await countOomKills()
    return after === undefined ? undefined : after > before!
  }
}
