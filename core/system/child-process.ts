import { accessSync, constants, statSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { constants as osConstants } from 'node:os'
import { basename, delimiter, dirname, join, resolve } from 'node:path'
import type { Writable } from 'node:stream'
import { formatBytes } from './bytes.ts'
import { type ToolPurpose, toolEnvironment } from './tool-environment.ts'

/** Number of a tool's last lines that are kept. */
const TAIL_LINES = 200
/** Maximum characters of a line: output without line ends must not fill the memory. */
const MAX_LINE_LENGTH = 2 ** 18
/** Milliseconds that the output of an ended tool may stay open, because another process may hold its pipes. */
const DRAIN_LIMIT = 1000
/** Milliseconds that a tool has to end when asked to. */
const GRACE_MS = 1000
/** Milliseconds between checks of a tool's memory. */
const MEMORY_INTERVAL = 100

/**
 * Runs a tool so that it cannot outlive corral. The shell leads a process group. A helper in the group waits for the
 * end of standard input, which comes when corral closes it or dies, even by `kill -9`. The helper first asks the group
 * to end, and the shell waits for the tool to end. This matters for ninja, which puts its compilers into their own
 * groups, so only ninja can end those.
 * @param talks whether the tool uses standard input itself, so that the end of descriptor 3 ends it instead
 */
const watchdog = (grace: number, talks: boolean) => `
${talks ? '' : 'exec 3<&0 </dev/null'}
(
  trap '' TERM
  while read -r _ <&3; do :; done
  kill -s TERM -- -$$
  sleep ${grace / 1000}
  kill -s KILL -- -$$
) >/dev/null 2>&1 &
watcher=$!
exec 3<&-
trap : TERM
"$@"
status=$?
kill -KILL $watcher 2>/dev/null
exit $status
`

export type ToolLog = { debug(object: object, message: string): void }

export interface ToolOptions {
  /**
   * The folder of Node.js by default, and never the working directory of corral: Python imports modules from there, and
   * uv and npm read settings, and it may belong to another user.
   */
  cwd?: string
  /** The environment that it inherits from, filtered by `toolEnvironment`; corral's own by default. */
  env?: NodeJS.ProcessEnv
  /** Additional variables that it inherits. */
  purpose?: ToolPurpose
  /** Variables that it always gets; they take precedence. */
  variables?: Readonly<Record<string, string>>
  signal?: AbortSignal
  /** Milliseconds after which the tool is ended. */
  timeout?: number
  /** Milliseconds that it and all that it started may take to end when asked to, before they are killed; 1000 by default. */
  grace?: number
  /** Called with the id of the process group that it leads, except on Windows. */
  onStart?: (group: number | undefined) => void
  /** Bytes of memory above which the tool is ended. Works on Linux only. */
  maxMemory?: number
  /** Called with each line as it arrives; a progress display that rewrites its line gives a line each time. */
  onLine?: (line: string, stream: 'stdout' | 'stderr') => void
  /** Also gets every line. */
  log?: ToolLog
  /** Instead of reading its output line by line, exchanges bytes with it over its standard input and output. */
  talk?: { begin(input: Writable): void; take(output: Buffer): void }
}

type ToolOutput = { stdout: string[]; stderr: string[] }

/** A tool could not be started, failed, or took too long. */
export class ToolError extends Error {
  override readonly name = 'ToolError'
  /** Undefined if it could not be started or was ended by a signal. */
  readonly exitCode: number | undefined
  readonly exitSignal: string | undefined
  /** Its last lines, from both streams in order. */
  readonly tail: string[]

  constructor(command: string, what: string, facts: Partial<Omit<ToolError, keyof Error>> & { cause?: unknown } = {}) {
    super(`${basename(command)} ${what}`, facts.cause === undefined ? undefined : { cause: facts.cause })
    this.exitCode = facts.exitCode
    this.exitSignal = facts.exitSignal
    this.tail = facts.tail ?? []
  }
}

/** Splits text that arrives in pieces into lines. `\r` ends a line too, and so does excessive length. */
export function lineSplitter(onLine: (line: string) => void): { push(text: string): void; end(): void } {
  let rest = ''
  // A final \r may be the first half of \r\n, and is left for the next piece.
  let halfEnd = false
  return {
    push(text) {
      if (halfEnd || /[\r\n]/.test(text)) {
        const lines = (rest + text).split(/\r\n|\n|\r(?!$)/)
        rest = lines.pop()!
        halfEnd = rest.endsWith('\r')
        for (const line of lines) onLine(line)
      } else {
        // Searches only the new text. Otherwise a long line in small pieces would take forever.
        rest += text
      }
      if (rest.length > MAX_LINE_LENGTH) {
        const line = rest
        rest = ''
        halfEnd = false
        onLine(line)
      }
    },
    end() {
      const last = rest.replace(/\r$/, '')
      if (last !== '') onLine(last)
      rest = ''
    }
  }
}

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return statSync(path).isFile()
  } catch {
    return false
  }
}

/** The absolute path of a program on PATH or in `more` folders. A name with a folder is used unchanged. */
export function findExecutable(
  name: string,
  env: NodeJS.ProcessEnv = process.env,
  more: readonly string[] = []
): string | undefined {
  const windows = process.platform === 'win32'
  const endings = windows ? ['', ...(env.PATHEXT ?? '.EXE;.CMD;.BAT').toLowerCase().split(';')] : ['']
  const path = (windows ? (env.Path ?? env.PATH) : env.PATH) ?? ''
  const folders = /[\\/]/.test(name) ? [''] : [...path.split(delimiter).filter(folder => folder !== ''), ...more]
  for (const folder of folders) {
    for (const ending of endings) {
      const file = resolve(join(folder, name + ending))
      if (isExecutable(file)) return file
    }
  }
  return undefined
}

const signalName = (exitCode = 0) =>
  Object.entries(osConstants.signals).find(([, number]) => number === exitCode - 128)?.[0]

/**
 * Runs a tool to its end, without input. If `signal` is aborted or corral dies, the tool and everything it started end.
 * On Windows they survive corral's death.
 * @throws ToolError if it cannot be started, fails or takes too long; the signal's reason if that was aborted
 */
export async function runTool(command: string, args: readonly string[], options: ToolOptions = {}) {
  // Loaded lazily: tools are rare, and this would slow down the start.
  const { execa } = await import('execa')
  const { signal, onLine, log, talk } = options
  signal?.throwIfAborted()
  const env = options.env ?? process.env
  const program = findExecutable(command, env)
  if (program === undefined) throw new ToolError(command, 'could not be started: it was not found.')

  const windows = process.platform === 'win32'
  const [file, fileArguments] = windows
    ? [program, [...args]]
    : ['/bin/sh', ['-c', watchdog(options.grace ?? GRACE_MS, talk !== undefined), 'corral-tool', program, ...args]]
  const child = execa(file, fileArguments, {
    cwd: options.cwd ?? dirname(process.execPath),
    env: { ...toolEnvironment(env, options.purpose), ...options.variables },
    extendEnv: false,
    stdio: ['pipe', 'pipe', 'pipe', ...(talk && !windows ? (['pipe'] as const) : [])],
    buffer: false,
    reject: false,
    detached: !windows,
    cleanup: windows,
    windowsHide: true
  })
  const lifeline = (talk && !windows ? child.stdio[3] : child.stdin) as unknown as Writable
  if (windows && !talk) child.stdin.end()
  options.onStart?.(windows ? undefined : child.pid)

  const output: ToolOutput = { stdout: [], stderr: [] }
  const tail: string[] = []
  const keep = (lines: string[], line: string) => {
    lines.push(line)
    if (lines.length > TAIL_LINES) lines.shift()
  }
  let listenerFailure: unknown
  talk?.begin(child.stdin)
  if (talk) child.stdout.on('data', (bytes: Buffer) => talk.take(bytes))
  const splitters = (talk ? (['stderr'] as const) : (['stdout', 'stderr'] as const)).map(name => {
    const splitter = lineSplitter(line => {
      keep(output[name], line)
      keep(tail, line)
      log?.debug({ tool: basename(program) }, line)
      try {
        onLine?.(line, name)
      } catch (error) {
        listenerFailure ??= error
        end()
      }
    })
    child[name].setEncoding('utf8')
    child[name].on('data', (text: string) => splitter.push(text))
    return splitter
  })

  function end(): void {
    if (!windows) lifeline.destroy()
    else
      void execa(findExecutable('taskkill', env) ?? 'taskkill', ['/T', '/F', '/PID', `${child.pid}`], { reject: false })
  }
  let excess: string | undefined
  const { timeout = 0, maxMemory = 0 } = options
  const expire = () => {
    excess = `${timeout / 1000} s without a result`
    end()
  }
  const checkMemory = async () => {
    if ((await memoryBelow(child.pid)) <= maxMemory) return
    excess = `it took more than ${formatBytes(maxMemory)} of memory`
    if (child.pid !== undefined) killGroup(child.pid)
  }
  const timer = timeout ? setTimeout(expire, timeout) : undefined
  const watch = maxMemory ? setInterval(checkMemory, MEMORY_INTERVAL) : undefined
  signal?.addEventListener('abort', end, { once: true })
  for (const stream of new Set([child.stdin, lifeline])) {
    stream.on('error', () => {
      // The tool has ended without reading its input.
    })
  }
  child.once('exit', () => {
    // Processes that the tool left running, such as a daemon, must not keep the pipes open forever.
    setTimeout(() => {
      child.stdout.destroy()
      child.stderr.destroy()
    }, DRAIN_LIMIT).unref()
    if (child.pid !== undefined && !windows) killGroup(child.pid)
  })

  const result = await child
  clearTimeout(timer)
  clearInterval(watch)
  signal?.removeEventListener('abort', end)
  for (const splitter of splitters) splitter.end()

  if (signal?.aborted) throw signal.reason
  if (listenerFailure !== undefined) throw listenerFailure
  if (excess !== undefined) throw new ToolError(command, `was ended after ${excess}.`, { tail })
  if (result.exitCode === 0) return output
  const exitSignal = result.signal ?? signalName(result.exitCode)
  if (exitSignal !== undefined) throw new ToolError(command, `was ended by ${exitSignal}.`, { exitSignal, tail })
  if (result.exitCode === undefined) {
    throw new ToolError(command, 'could not be started.', { cause: result.cause, tail })
  }
  throw new ToolError(command, `failed with exit code ${result.exitCode}.`, { exitCode: result.exitCode, tail })
}

/** Returns the bytes of memory that a watchdog's tool uses for itself, or 0 if unknown. */
async function memoryBelow(watchdog: number | undefined): Promise<number> {
  const children = await readFile(`/proc/${watchdog}/task/${watchdog}/children`, 'utf8').catch(() => '')
  let sum = 0
  for (const pid of children.split(' ').filter(Boolean)) {
    const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '')
    sum += 1024 * Number(/^RssAnon:\s+(\d+) kB$/m.exec(status)?.[1] ?? 0)
  }
  return sum
}

function killGroup(leader: number): void {
  try {
    process.kill(-leader, 'SIGKILL')
  } catch {
    // The group has already ended.
  }
}
