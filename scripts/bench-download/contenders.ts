import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { findExecutable } from '../../core/system/child-process.ts'
import { processorTime } from '../bench/measuring.ts'

export interface Source {
  size: number
  sha256: string
}

/** One way to get a file. */
export interface Contender {
  name: string
  /** Programs with their arguments, one after the other. */
  commands(url: string, target: string): [program: string, ...args: string[]][]
}

export interface Run {
  seconds: number
  /** Seconds of processor time, and the most memory in MiB. */
  processor: number
  memory: number
}

/** Milliseconds between two looks at a process. */
const LOOK = 10

export function contenders(tools: Tools, source: Source): Contender[] {
  const curl = (url: string, target: string): [string, ...string[]] => [tools.curl, '-sf', '-o', target, url]
  return [
    { name: 'curl', commands: (url, target) => [curl(url, target)] },
    {
      name: 'aria2c -x4 -s4',
      commands: (url, target) => {
        const folder = target.slice(0, target.lastIndexOf('/'))
        const out = target.slice(target.lastIndexOf('/') + 1)
        return [[tools.aria2c, '-q', '-x4', '-s4', '--file-allocation=none', '-d', folder, '-o', out, url]]
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
}

function peakMemory(pid: number): number {
  return Number(/^VmHWM:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0) / 1024
}

/** Runs one contender and looks at its processes until they end. */
export async function measure(contender: Contender, url: string, target: string): Promise<Run> {
  const run: Run = { seconds: 0, processor: 0, memory: 0 }
  for (const [program, ...args] of contender.commands(url, target)) {
    const began = performance.now()
    const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'inherit'] })
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
        // It has just ended.
      }
    }, LOOK)
    const [code] = await exit
    clearInterval(timer)
    if (code !== 0) throw new Error(`${contender.name} failed with ${code}`)
    // A process of Node's takes its time to start, which a gateway that runs has behind it.
    const own = /"seconds":([\d.]+)/.exec(text)?.[1]
    run.seconds += own === undefined ? (performance.now() - began) / 1000 : Number(own)
    run.processor += processor
  }
  return run
}

const TOOLS = ['nginx', 'curl', 'aria2c', 'sha256sum'] as const
export type Tools = Record<(typeof TOOLS)[number], string>

/** The programs that the benchmark needs. @throws Error that names those that are missing */
export function findTools(): Tools {
  const found = TOOLS.map(name => [name, findExecutable(name, process.env, ['/usr/sbin', '/usr/local/sbin'])] as const)
  const missing = found.filter(([, path]) => path === undefined).map(([name]) => name)
  if (missing.length > 0) throw new Error(`The benchmark needs ${missing.join(', ')}. Install them and run it again.`)
  return Object.fromEntries(found) as Tools
}
