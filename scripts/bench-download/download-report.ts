import { cpus, loadavg, release } from 'node:os'
import { version } from '../../core/system/package-info.ts'
import { median } from '../bench/statistics.ts'
import type { Run } from './contenders.ts'

export interface LineReport {
  title: string
  runs: Map<string, Run[]>
}

/** The programs that corral is held against; checksums are extra for them. */
const OTHERS = ['curl', 'aria2c -x4 -s4']

const today = () => new Date().toISOString().slice(0, 10)

function machine(): string {
  const processor = `${cpus()[0]!.model.trim()}, ${cpus().length} processors`
  return `${processor}, Linux ${release()}, Node ${process.version}; load average ${loadavg()[0]!.toFixed(1)} at the end`
}

/** Each round's speed in proportion to the best of the others in that round. */
function ratios(line: LineReport, name: string): number[] {
  return line.runs.get(name)!.map((run, round) => {
    return Math.min(...OTHERS.map(other => line.runs.get(other)![round]!.seconds)) / run.seconds
  })
}

function lineTable(line: LineReport, size: number): string {
  const rows = [...line.runs].map(([name, runs]) => {
    const seconds = median(runs.map(run => run.seconds))
    return [
      name,
      seconds.toFixed(2),
      (size / 1e6 / seconds).toFixed(0),
      median(ratios(line, name)).toFixed(2),
      median(runs.map(run => run.processor)).toFixed(2),
      Math.max(...runs.map(run => run.memory)).toFixed(0)
    ]
  })
  const head = ['', 'seconds', 'MB/s', 'of the best', 'processor s', 'peak MiB']
  const cells = [head, head.map((_, column) => (column === 0 ? '---' : '---:')), ...rows]
  return `## ${line.title}\n\n${cells.map(row => `| ${row.join(' | ')} |`).join('\n')}\n`
}

/** The figures of all lines, as Markdown. */
export function lineReport(lines: readonly LineReport[], size: number, rounds: number, folder: string): string {
  return `# Benchmark of downloads

Written by \`npm run bench:download\` on ${today()} with corral ${version}: ${machine()}.
One file of ${(size / 1024 / 1024).toFixed(0)} MiB from an nginx on this machine to ${folder}, ${rounds} rounds, the
programs by turns, medians. "Of the best" is the speed in proportion to the faster one of curl and aria2c in the same
round (1 is as fast; the aim is 0.95). corral computes the SHA-256 on the way, verifies it, and flushes the file to the
disk; curl and aria2c do nothing of that, so "curl, then sha256sum" stands beside them. The memory of corral is that of a
whole Node process with its threads; an idle one has about 45 MiB.

${lines.map(line => lineTable(line, size)).join('\n')}
`
}

/** Begins the last section of the document. */
export const CLIENT_TITLE = '## The HTTP client over TLS'

/** What corral's own HTTP client is worth, as Markdown. */
export function clientReport(seconds: ReadonlyMap<string, readonly number[]>, size: number, rounds: number): string {
  const [corral, undici] = [median(seconds.get('corral')!), median(seconds.get('undici')!)]
  const rows = [...seconds].map(
    ([name, all]) => `| ${name} | ${median(all).toFixed(2)} | ${Math.min(...all).toFixed(2)} |`
  )
  return `${CLIENT_TITLE}

Measured on ${today()}: ${machine()};
${rounds} rounds of ${(size / 1024 / 1024).toFixed(0)} MiB.

corral has an HTTP/1.1 client of its own (\`plugins/download/transfer/http\`), because Node lets a socket read straight
into memory that is used again, and client libraries do not use that. Here it is held against undici's \`dispatch\` with a
handler that copies to the same memory: one request for the file over TLS in a fresh process, after a warm-up, by turns.
Nothing is hashed or written. The time is that of the whole process, user and system. The client stays as long as it
saves at least 30 %; it saves **${(100 * (1 - corral / undici)).toFixed(0)} %**.

| | processor s for 1 GB, median | least |
| --- | ---: | ---: |
${rows.join('\n')}
`
}
