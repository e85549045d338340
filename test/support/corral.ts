import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
import type { Dispatcher } from 'undici'
import { SseParser } from '../../core/answers/openai-events.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { getMemoryPath } from '../../runtimes/llama-server/prompt-cache/memory-directory.ts'
import { MAIN } from '../command-line/command.ts'
import { engineBuildFolder } from './engine-build.ts'
import { Agent, fetch } from './quick-fetch.ts'

/** The program that `npm start` and the installed command run. */
export const COMMAND = join(packageRoot, 'scripts', 'corral.mjs')
export const DEMO = 'corral/tiny-chat'
export const CAPITAL_QUESTION = { role: 'user', content: 'What is the capital of France?' }
export const CAPITAL_ANSWER = 'The capital of France is Paris.'

/** A real corral server: the built command line in its own process, with its own data directory. */
export interface Corral {
  url: string
  home: string
  process: ChildProcess
  /** The log so far. */
  log(): string
  /** Sends JSON without time limits. */
  send(path: string, body?: unknown, init?: SendOptions): ReturnType<typeof fetch>
  json(path: string, body?: unknown, init?: SendOptions): Promise<{ status: number; body: any }>
  /** The events of a streamed reply. */
  events(path: string, body: unknown, init?: SendOptions): Promise<any[]>
  /** Rewrites its config.yaml. The server does not notice by itself. */
  configure(config: string, importRoots?: string[]): void
  /**
   * Rewrites its config.yaml and reloads it, which is much faster than another server. Returns the report.
   * @throws if the server refuses it or needs a restart
   */
  reload(config: string, importRoots?: string[]): Promise<any>
  /** Ends it with a signal and returns its exit code. */
  end(signal?: NodeJS.Signals): Promise<number | null>
  /** Process ids of the llama-servers that it started for models, without those it starts to examine a build. */
  enginePids(): number[]
}

export interface SendOptions {
  method?: string
  headers?: Record<string, string>
  signal?: AbortSignal
  /** Uses the private socket, so that the caller is an admin. */
  local?: boolean
}

export interface CorralOptions {
  env?: Record<string, string>
  flags?: string[]
  /** Text of its config.yaml, without the section `runtimes`. */
  config?: string
  /** Folders that models may be imported from over the network. Defaults to the folders of test files. */
  importRoots?: string[]
  /** Lines of the section `runtimes`, indented by two spaces. */
  runtimes?: string
  /**
   * Threads of each engine, 1 by default: several servers run side by side in tests, and engines that each use all
   * cores mostly wait for each other.
   */
  threads?: number
  /** The program to start, by default the bundle. */
  program?: string
  /** A command that runs the program, such as `ip netns exec <name>`. */
  launcher?: string[]
  /** A certificate that the test trusts. */
  ca?: string
  /** A data directory to reuse. Defaults to a new one that is removed at the end. */
  home?: string
}

/** The section `runtimes` of a config.yaml for engines with this many threads. */
export function runtimesConfig(threads: number, more = ''): string {
  return `runtimes:\n  engine_arguments: [--threads, "${threads}", --threads-batch, "${threads}"]\n${more}\n`
}

function withImportRoots(config: string, roots: string[]): string {
  const line = `  import_roots: ${JSON.stringify(roots)}`
  if (/^storage:$/m.test(config)) return config.replace(/^storage:$/m, `storage:\n${line}`)
  return `${config}\nstorage:\n${line}`
}

/** Processes below `pid` that are llama-servers (Linux only, from /proc). */
export function llamaServersBelow(pid: number): number[] {
  const parents = new Map<number, number>()
  const engines: number[] = []
  for (const entry of readdirSync('/proc')) {
    if (!/^\d+$/.test(entry)) continue
    try {
      const stat = readFileSync(`/proc/${entry}/stat`, 'utf8')
      const rest = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
      parents.set(Number(entry), Number(rest[1]))
      // The program's name in the command line: Node.js 22 and later name their processes MainThread.
      const [program = ''] = readFileSync(`/proc/${entry}/cmdline`, 'utf8').split('\0')
      const isEngine = stat.includes('(llama-server') || basename(program).startsWith('llama-server')
      if (rest[0] !== 'Z' && isEngine) engines.push(Number(entry))
    } catch {
      // The process ended in between.
    }
  }
  return engines.filter(engine => {
    for (let at: number | undefined = engine; at !== undefined && at > 1; at = parents.get(at)) {
      if (at === pid) return true
    }
    return false
  })
}

function servesModel(pid: number): boolean {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0').includes('--model')
  } catch {
    // The process has ended.
    return false
  }
}

export function alive(pid: number): boolean {
  try {
    return !readFileSync(`/proc/${pid}/stat`, 'utf8').includes(') Z ')
  } catch {
    return false
  }
}

/** Waits until `check` returns something truthy. Fails with `what` after `limit` milliseconds. */
export async function until<T>(what: string, check: () => T | Promise<T>, limit = 60_000): Promise<NonNullable<T>> {
  const end = Date.now() + limit
  // Many tests wait at the same time, and most checks are requests.
  for (let pause = 10; ; pause = Math.min(pause * 1.3, 60)) {
    const value = await check()
    if (value) return value
    if (Date.now() > end) throw new Error(`Waited in vain: ${what}`)
    await sleep(pause)
  }
}

/** Creates a key through the private socket, which is faster than the command line. */
export async function newKey(corral: Corral, name: string, more: object = {}): Promise<string> {
  const { status, body } = await corral.json('/api/keys', { name, ...more }, { local: true })
  if (status !== 200) throw new Error(JSON.stringify(body))
  return body.key
}

/** The number of running and queued requests. */
export async function activeRequests(corral: Corral): Promise<number> {
  const { models } = (await corral.json('/api/ps')).body
  return models.reduce((sum: number, { running = 0, queued = 0 }) => sum + running + queued, 0)
}

export async function startCorral(t: Pick<Test, 'teardown'>, options: CorralOptions = {}): Promise<Corral> {
  const home = options.home ?? mkdtempSync(join(tmpdir(), 'corral-test-'))
  const configure = (config: string, importRoots = options.importRoots ?? [tmpdir(), packageRoot]) =>
    writeFileSync(
      join(home, 'config.yaml'),
      `${withImportRoots(config, importRoots)}\n${runtimesConfig(options.threads ?? 1, options.runtimes)}`
    )
  configure(options.config ?? '')
  const [command, ...words] = [...(options.launcher ?? []), process.execPath, options.program ?? MAIN]
  const child = spawn(command!, [...words, 'serve', '--port', '0', ...(options.flags ?? [])], {
    // A working directory without a config.yaml, so that the data directory's file is used.
    cwd: home,
    env: { ...process.env, CORRAL_LLAMA_CPP: engineBuildFolder(), CORRAL_HOME: home, ...options.env },
    stdio: ['ignore', 'pipe', 'pipe']
  })
  let log = ''
  child.stdout.setEncoding('utf8').on('data', text => {
    log += text
  })
  child.stderr.setEncoding('utf8').on('data', text => {
    log += text
  })
  const trust = options.ca === undefined ? {} : { connect: { ca: options.ca } }
  const dispatcher: Dispatcher = new Agent({ headersTimeout: 0, bodyTimeout: 0, pipelining: 0, ...trust })
  let bySocket: Dispatcher | undefined
  const local = async () => {
    // The file is written shortly after the server reports its address.
    const path = join(home, 'owner.json')
    const socket = await until('the private socket', () => JSON.parse(readFileSync(path, 'utf8')).socket as string)
    bySocket ??= new Agent({ headersTimeout: 0, bodyTimeout: 0, pipelining: 0, connect: { socketPath: socket } })
    return bySocket
  }
  const exited = once(child, 'exit').then(([code]) => code as number | null)
  const end = async (signal: NodeJS.Signals = 'SIGTERM') => {
    if (child.exitCode === null && child.signalCode === null) child.kill(signal)
    return await exited
  }
  t.teardown(async () => {
    const engines = llamaServersBelow(child.pid!)
    await end('SIGKILL')
    await dispatcher.destroy()
    await bySocket?.destroy()
    await until('engines end with their gateway', () => engines.every(pid => !alive(pid)), 10_000)
    rmSync(getMemoryPath(join(home, 'cache', 'prompts')), { recursive: true, force: true })
    if (options.home === undefined) rmSync(home, { recursive: true, force: true })
  })
  const address = await until('corral listens', () => {
    if (child.exitCode !== null || child.signalCode !== null) throw new Error(`corral ended at its start:\n${log}`)
    return /listens on (https?:[^"\s]+)/.exec(log)?.[1]
  })

  const corral: Corral = {
    url: address,
    home,
    process: child,
    configure,
    async reload(config, importRoots) {
      configure(config, importRoots)
      const { status, body } = await corral.json('/api/reload', {}, { local: true })
      if (status !== 200 || body.restart.length > 0) throw new Error(JSON.stringify(body))
      return body
    },
    log: () => log,
    send: async (path, body, init) =>
      fetch((init?.local ? 'http://localhost' : address) + path, {
        method: init?.method ?? (body === undefined ? 'GET' : 'POST'),
        ...(body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
        headers: { ...(body === undefined ? {} : { 'content-type': 'application/json' }), ...init?.headers },
        ...(init?.signal ? { signal: init.signal } : {}),
        dispatcher: init?.local ? await local() : dispatcher
      }),
    async json(path, body, init) {
      const response = await corral.send(path, body, init)
      const text = await response.text()
      return { status: response.status, body: text.startsWith('{') || text.startsWith('[') ? JSON.parse(text) : text }
    },
    async events(path, body, init) {
      const response = await corral.send(path, body, init)
      if (response.status !== 200) throw new Error(`${path} answered ${response.status}: ${await response.text()}`)
      const lines = new SseParser()
      const events: any[] = []
      for await (const chunk of response.body!) {
        for (const payload of lines.push(chunk)) events.push(payload === '[DONE]' ? payload : JSON.parse(payload))
      }
      return events
    },
    end,
    enginePids: () => llamaServersBelow(child.pid!).filter(servesModel)
  }
  return corral
}

/** Joins the fragments of a native stream. */
export function joined(events: any[]): string {
  return events
    .map(event => event.message?.content ?? event.response ?? event.choices?.[0]?.delta?.content ?? '')
    .join('')
}

/** The last event in the text of an event stream. */
export function lastEvent(text: string): any {
  return JSON.parse(
    text
      .trim()
      .split('\n\n')
      .at(-1)!
      .replace(/^data: /, '')
  )
}

/** A chat that is answered with CAPITAL_ANSWER. */
export const capital = (model = DEMO, options: object = {}) => ({
  model,
  messages: [CAPITAL_QUESTION],
  options: { temperature: 0, ...options },
  stream: false
})

/** Starts a stream and waits for its first content. Events that say that the server works on it may come first. */
export async function begin(corral: Corral, path: string, body: unknown) {
  const response = await corral.send(path, body)
  if (response.status !== 200) throw new Error(await response.text())
  return await beginReading(response)
}

/** Reads a stream up to its first content. */
export async function beginReading({ body }: Response) {
  const reader = body!.getReader()
  const decoder = new TextDecoder()
  let text = ''
  async function read(): Promise<boolean> {
    const { done, value } = await reader.read()
    if (!done) text += decoder.decode(value, { stream: true })
    return !done
  }
  while (!/"(content|response|text)":"[^"]/.test(text)) {
    if (!(await read())) throw new Error(`The stream has no content: ${text}`)
  }
  return {
    async rest(): Promise<string> {
      while (await read());
      return text
    },
    leave: () => reader.cancel()
  }
}

/** A chat that is answered until max_tokens. */
export function endless(model: string, more: object = {}) {
  return {
    model,
    messages: [{ role: 'user', content: 'Count to 30.' }],
    options: { temperature: 0, max_tokens: 20_000, num_ctx: 32_000, ignore_eos: true, ...more }
  }
}

/** The same for the OpenAI chat API. */
export function endlessHosted(model: string) {
  const { options, ...chat } = endless(model)
  return { ...chat, ...options, stream: true }
}
