import { cpus, loadavg, release } from 'node:os'
import { version } from '../../core/system/package-info.ts'
import type { Run } from './contenders.ts'

export interface LineReport {
  title: string
  runs: Map<string, Run[]>
}

/** The programs that corral is held against; checksums are extra for them. */
const OTHERS = ['curl', 'aria2c -x4 -s4']

function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b)
  const middle = Math.floor(sorted.length / 2)
  return sorted.length % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2
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

/** The figures as Markdown. */
export function report(lines: readonly LineReport[], size: number, rounds: number, folder: string): string {
  const machine = `${cpus()[0]!.model.trim()}, ${cpus().length} processors, Linux ${release()}, Node ${process.version}`
  return `# Benchmark of downloads

Written by \`npm run bench:download\` on ${new Date().toISOString().slice(0, 10)} with corral ${version}: ${machine}; load average
${loadavg()[0]!.toFixed(1)} at the end. One file of ${(size / 1024 / 1024).toFixed(0)} MiB from an nginx on this machine to ${folder}, ${rounds} rounds, the
programs by turns, medians. "Of the best" is the speed in proportion to the faster one of curl and aria2c in the same
round (1 is as fast; the aim is 0.95). corral computes the SHA-256 on the way, verifies it, and flushes the file to the
disk; curl and aria2c do nothing of that, so "curl, then sha256sum" stands beside them. The memory of corral is that of a
whole Node process with its threads; an idle one has about 45 MiB.

${lines.map(line => lineTable(line, size)).join('\n')}`
}
