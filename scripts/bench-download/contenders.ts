import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { basename, dirname } from 'node:path'
import { findExecutable } from '../../core/system/child-process.ts'
import { processorTime } from '../bench/measuring.ts'

export interface Source {
  size: number
  sha256: string
}

export interface Contender {
  name: string
  /** Programs with their arguments, run one after the other. */
  commands(url: string, target: string): [program: string, ...args: string[]][]
}

/** Programs that do not verify the file. corral is compared with these. */
export const OTHERS = ['curl', 'aria2c -x4 -s4']

export interface Run {
  seconds: number
  processor: number
  /** Memory in MiB at the start of the transfer, if the program reports it, and the maximum. */
  before: number
  memory: number
}

/** Interval between two samples of a process. */
const POLL_INTERVAL_MS = 10

/** @param certificate file with the certificate to trust over TLS */
export function contenders({ aria2c, ...tools }: Tools, source: Source, certificate: string): Contender[] {
  const curl = (url: string, target: string): [string, ...string[]] => {
    return [tools.curl, '-sf', '--cacert', certificate, '-o', target, url]
  }
  const all: (Contender | false)[] = [
    { name: 'curl', commands: (url, target) => [curl(url, target)] },
    aria2c !== undefined && {
      name: 'aria2c -x4 -s4',
      commands: (url, target) => {
        const options = ['-q', '-x4', '-s4', '--file-allocation=none', `--ca-certificate=${certificate}`]
        return [[aria2c, ...options, '-d', dirname(target), '-o', basename(target), url]]
      }
    },
    { name: 'curl, then sha256sum', commands: (url, target) => [curl(url, target), [tools.sha256sum, target]] },
    {
      name: 'corral',
      commands: (url, target) => [
        [process.execPath, process.argv[1]!, '--fetch', url, target, String(source.size), source.sha256]
      ]
    }
  ]
  return all.filter(contender => contender !== false)
}

function peakMemory(pid: number): number {
  return Number(/^VmHWM:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0) / 1024
}

export async function measure(contender: Contender, url: string, target: string, env: NodeJS.ProcessEnv): Promise<Run> {
  const run: Run = { seconds: 0, processor: 0, before: Number.NaN, memory: 0 }
  for (const [program, ...args] of contender.commands(url, target)) {
    const began = performance.now()
    const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'inherit'], env })
    const exit = once(child, 'exit')
    let text = ''
    child.stdout.on('data', (bytes: Buffer) => {
      text += bytes
    })
    let processor = 0
    const timer = setInterval(() => {
      try {
        processor = processorTime(child.pid!) / 1e6
        run.memory = Math.max(run.memory, peakMemory(child.pid!))
      } catch {
        // The process has just ended.
      }
    }, POLL_INTERVAL_MS)
    const [code] = await exit
    clearInterval(timer)
    if (code !== 0) throw new Error(`${contender.name} failed with ${code}`)
    // Excludes the start of Node.js, which a running gateway has behind it.
    const own: { seconds?: number; before?: number } = text.startsWith('{') ? JSON.parse(text) : {}
    run.seconds += own.seconds ?? (performance.now() - began) / 1000
    run.before = own.before ?? run.before
    run.processor += processor
  }
  return run
}

const TOOLS = ['nginx', 'curl', 'sha256sum'] as const
export type Tools = Record<(typeof TOOLS)[number], string> & { aria2c: string | undefined }

/** Finds the benchmark's programs. aria2c is optional. @throws Error with the names of missing programs */
export function findTools(): Tools {
  const find = (name: string) => findExecutable(name, process.env, ['/usr/sbin', '/usr/local/sbin'])
  const found = TOOLS.map(name => [name, find(name)] as const)
  const missing = found.filter(([, path]) => path === undefined).map(([name]) => name)
  if (missing.length > 0)
    throw new Error(`${missing.join(', ')} cannot be found. Install the missing programs and run the benchmark again.`)
  return { ...(Object.fromEntries(found) as Record<(typeof TOOLS)[number], string>), aria2c: find('aria2c') }
}
