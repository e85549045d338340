import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { cpus, loadavg, release, type as systemName, totalmem } from 'node:os'
import { Agent } from 'undici'

/** The machine in a line, with other people's work on it as it is now. */
export function describeMachine(): string {
  const memory = Math.round(totalmem() / 2 ** 30)
  return `${cpus()[0]!.model.trim()}, ${cpus().length} cores, ${memory} GiB, ${systemName()} ${release()}, Node ${process.versions.node}, load average ${loadavg()[0]!.toFixed(1)}`
}

/** The value that a share `p` (0 to 1) of the values does not exceed; NaN of none. */
export function percentile(values: readonly number[], p: number): number {
  const sorted = Float64Array.from(values).sort()
  return sorted[Math.max(0, Math.ceil(p * sorted.length) - 1)] ?? Number.NaN
}

export function median(values: readonly number[]): number {
  return percentile(values, 0.5)
}

export function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0)
}

/** A number with three significant digits, as people read it in a table. */
export function short(value: number): string {
  if (!Number.isFinite(value)) return '-'
  if (Math.abs(value) >= 100) return value.toFixed(0)
  return Number(value.toPrecision(3)).toString()
}

/*
 * What Linux tells of other processes under /proc. Times of a process come in clock ticks (10 ms), so they are only good
 * for differences over seconds.
 */

const MICROSECONDS_PER_TICK = 1e6 / Number(execFileSync('getconf', ['CLK_TCK'], { encoding: 'utf8' }))

/** Microseconds of processor time that a process with all its threads has used so far. */
export function processorTime(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (Number(fields[11]) + Number(fields[12])) * MICROSECONDS_PER_TICK
}

/** MiB of memory that a process has in RAM. */
export function residentMemory(pid: number): number {
  const kilobytes = /^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]
  return Number(kilobytes) / 1024
}

/** How a process was started. */
export function startOf(pid: number): { command: string; args: string[]; env: Record<string, string> } {
  const strings = (file: string) => readFileSync(`/proc/${pid}/${file}`, 'utf8').split('\0').slice(0, -1)
  const [command = '', ...args] = strings('cmdline')
  const env = strings('environ').map(entry => {
    const at = entry.indexOf('=')
    return [entry.slice(0, at), entry.slice(at + 1)] as const
  })
  return { command, args, env: Object.fromEntries(env) }
}

/** Ticks that the processors were busy since boot, and all of them: for differences. */
export function machineTicks(): { busy: number; all: number } {
  const fields = readFileSync('/proc/stat', 'utf8').split('\n')[0]!.split(/\s+/).slice(1).map(Number)
  const all = fields.reduce((total, value) => total + value, 0)
  return { busy: all - fields[3]! - fields[4]!, all }
}

/** Where a request goes: corral, or an engine's own Unix socket. Both are asked by the same code. */
export interface Place {
  origin: string
  socketPath?: string
}

export interface Request {
  method: 'GET' | 'POST'
  path: string
  headers: Record<string, string>
  body?: string
  /** A streamed reply: times of its chunks are taken. Its connection serves no other request. */
  stream: boolean
}

/** What came back. Times are milliseconds since the request was begun. */
export interface Outcome {
  status: number
  /** Time of the first chunk with text of the answer. */
  firstText: number
  /** Times of the chunks with text, the first one included; one for each event, also where several came at once. */
  times: number[]
  /** Events and comments, of whatever kind. */
  events: number
  total: number
  /** The reply, where it is not streamed. */
  text: string
}

export interface Client {
  send(request: Request): Promise<Outcome>
  close(): Promise<void>
}

const LINE_FEED = 10
const TEXT = '"content":"'
const NO_TEXT = '"content":""'

/** Lines of a stream: each event of NDJSON is one, and each of SSE has one that is not empty. */
function eventsIn(chunk: Buffer): number {
  let events = 0
  for (let at = chunk.indexOf(LINE_FEED); at !== -1; at = chunk.indexOf(LINE_FEED, at + 1)) {
    if (chunk[at - 1] !== LINE_FEED && at > 0) events++
  }
  return events
}

/** A small HTTP client that costs little processor time itself: it parses nothing but looks for the text of answers. */
export function createClient({ origin, socketPath }: Place): Client {
  const agent = new Agent({ connect: { socketPath }, pipelining: 1, headersTimeout: 0, bodyTimeout: 0 })
  return {
    send: ({ method, path, headers, body, stream }) =>
      new Promise((resolve, reject) => {
        const began = performance.now()
        const outcome: Outcome = { status: 0, firstText: Number.NaN, times: [], events: 0, total: 0, text: '' }
        const chunks: Buffer[] = []
        agent.dispatch(
          { origin, method, path, headers, body, reset: stream },
          {
            onRequestStart() {},
            onResponseStart(_, status) {
              outcome.status = status
            },
            onResponseData(_, chunk) {
              if (!stream) {
                chunks.push(chunk)
                return
              }
              const now = performance.now() - began
              const events = eventsIn(chunk)
              outcome.events += events
              if (Number.isNaN(outcome.firstText)) {
                if (!chunk.includes(TEXT) || chunk.includes(NO_TEXT)) return
                outcome.firstText = now
              }
              for (let event = 0; event < events; event++) outcome.times.push(now)
            },
            onResponseEnd() {
              outcome.total = performance.now() - began
              outcome.text = Buffer.concat(chunks).toString('utf8')
              resolve(outcome)
            },
            onResponseError: (_, error) => reject(error)
          }
        )
      }),
    close: () => agent.close()
  }
}
