/**
 * Compares corral's transfers with curl and aria2c, and its HTTP client with undici: `npm run bench:download -- [--size
 * MIB] [--rounds N] [--fast]`. A local nginx serves one large file. Writes the results to docs/measurements/downloads.md.
 * `--fast` measures only connections without a speed limit, and writes nothing.
 */
import { execFileSync } from 'node:child_process'
import { createHash, randomFillSync } from 'node:crypto'
import { closeSync, mkdirSync, mkdtempSync, openSync, rmSync, writeFileSync, writeSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { packageRoot, version } from '../core/system/package-info.ts'
import { TransferThread } from '../plugins/models/download/transfer/transfers.ts'
import { describeMachine, median } from './bench/measuring.ts'
import { contenders, findTools, measure, OTHERS, type Run, type Source } from './bench-download/contenders.ts'
import { clientReport, compareClients, receiveOne } from './bench-download/http-clients.ts'
import { DELAY_MS, LIMIT_BYTES_PER_SECOND, serveDelayed, startLines } from './bench-download/web-server.ts'

const MiB = 1024 * 1024
/** Time for a hub to list a repository. */
const HUB_DELAY_MS = 300

function makeFile(path: string, size: number): Source {
  const hash = createHash('sha256')
  const piece = Buffer.alloc(4 * MiB)
  const descriptor = openSync(path, 'w')
  for (let at = 0; at < size; at += piece.length) {
    const bytes = randomFillSync(piece).subarray(0, size - at)
    hash.update(bytes)
    writeSync(descriptor, bytes)
  }
  closeSync(descriptor)
  return { size, sha256: hash.digest('hex') }
}

async function run(): Promise<void> {
  const { values } = parseArgs({
    options: {
      size: { type: 'string', default: '1024' },
      rounds: { type: 'string', default: '5' },
      fast: { type: 'boolean', default: false }
    }
  })
  if (process.platform !== 'linux') throw new Error('The benchmark reads /proc, so it runs only on Linux.')
  const rounds = Number(values.rounds)
  const machine = describeMachine()
  const tools = findTools()
  if (!tools.aria2c)
    process.stderr.write('aria2c is not installed (apt-get install aria2), so corral is compared with curl only.\n')
  const folder = mkdtempSync(join(tmpdir(), 'corral-bench-download-'))
  try {
    mkdirSync(join(folder, 'www'))
    // nginx drops root's privileges and must still be able to read the file.
    execFileSync('chmod', ['755', folder])
    const source = makeFile(join(folder, 'www', 'file'), Number(values.size) * MiB)
    const lines = await startLines(tools.nginx, folder)
    const tables: string[] = []
    const fast = [
      ['No limit', lines.unlimited],
      ['No limit, over TLS', lines.secure]
    ] as const
    const slow = [
      [`${LIMIT_BYTES_PER_SECOND / 1e6} MB/s per connection`, lines.limited],
      [`${2 * DELAY_MS} ms round trip, at most 1 MiB in flight per connection`, lines.delayed]
    ] as const
    const env = { ...process.env, NODE_EXTRA_CA_CERTS: lines.certificate }
    try {
      for (const [title, url] of values.fast ? fast : [...fast, ...slow]) {
        const all = contenders(tools, source, lines.certificate)
        const runs = new Map<string, Run[]>(all.map(({ name }) => [name, []]))
        for (let round = 0; round < rounds; round++) {
          for (let turn = 0; turn < all.length; turn++) {
            // Each round starts with another contender, so that none always runs after the same one.
            const contender = all[(turn + round) % all.length]!
            const target = join(folder, 'target')
            process.stderr.write(`${title}, round ${round + 1}: ${contender.name} … `)
            useMemory(target, source.size)
            execFileSync('sync')
            const result = await measure(contender, url, target, env)
            process.stderr.write(`${result.seconds.toFixed(2)} s\n`)
            runs.get(contender.name)!.push(result)
            rmSync(target)
          }
        }
        tables.push(lineTable(title, runs, source.size))
      }
      const text = [introduction(machine, source.size, rounds, folder, tools.aria2c !== undefined), ...tables]
      if (!values.fast) {
        const clients = await compareClients(lines.secure, source.size, lines.certificate, rounds)
        text.push(clientReport(clients, source.size, rounds))
        writeFileSync(join(packageRoot, 'docs', 'measurements', 'downloads.md'), text.join('\n'))
      }
      process.stdout.write(text.join('\n'))
    } finally {
      await lines.close()
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

/**
 * Writes a file as large as the next one and removes it. A virtual machine returns unused memory to its host, and the
 * next program to need it waits up to a second per GiB. This keeps that wait out of the measurement.
 */
function useMemory(path: string, size: number): void {
  const piece = Buffer.alloc(MiB, 1)
  const descriptor = openSync(path, 'w')
  for (let at = 0; at < size; at += piece.length) writeSync(descriptor, piece)
  closeSync(descriptor)
  rmSync(path)
}

function introduction(machine: string, size: number, rounds: number, folder: string, aria2: boolean): string {
  return `# Benchmark of downloads

Measured by \`npm run bench:download\` on ${new Date().toISOString().slice(0, 10)} with corral ${version}: ${machine} before.
A file of ${(size / MiB).toFixed(0)} MiB from nginx on this machine to ${folder}, ${rounds} rounds,
alternating programs, medians${aria2 ? '' : ' (aria2c is not installed)'}. "Of the best" is the speed relative to the faster of curl and aria2c in the same
round (1 is as fast, the goal is 0.95). corral computes and verifies the SHA-256 during the transfer, and flushes the file
to disk. curl and aria2c do neither, so the table also has "curl, then sha256sum". corral's time starts with the transfer,
because a pull starts its threads while it asks the hub for the file list. Its memory is that of a whole Node process,
before the transfer and at its peak.
`
}

function lineTable(title: string, all: Map<string, Run[]>, size: number): string {
  const others = OTHERS.flatMap(other => (all.has(other) ? [all.get(other)!] : []))
  const rows = [...all].map(([name, runs]) => {
    const seconds = median(runs.map(run => run.seconds))
    // Speed of each round relative to the best of the others in that round.
    const ratios = runs.map((run, round) => Math.min(...others.map(other => other[round]!.seconds)) / run.seconds)
    return [
      name,
      seconds.toFixed(2),
      (size / 1e6 / seconds).toFixed(0),
      median(ratios).toFixed(2),
      median(runs.map(run => run.processor)).toFixed(2),
      Number.isNaN(runs[0]!.before) ? '' : Math.max(...runs.map(run => run.before)).toFixed(0),
      Math.max(...runs.map(run => run.memory)).toFixed(0)
    ]
  })
  const head = ['', 'seconds', 'MB/s', 'of the best', 'processor s', 'MiB before', 'max MiB']
  const cells = [head, head.map((_, column) => (column === 0 ? '---' : '---:')), ...rows]
  return `## ${title}\n\n${cells.map(row => `| ${row.join(' | ')} |`).join('\n')}\n`
}

const [mode, ...rest] = process.argv.slice(2)
if (mode === '--delay') serveDelayed(Number(rest[0]), Number(rest[1]))
else if (mode === '--fetch') await fetchOne(rest)
else if (mode === '--receive') await receiveOne(rest)
else {
  try {
    await run()
  } catch (error) {
    console.error(error instanceof Error ? error.message : error)
    process.exitCode = 2
  }
}

/** Fetches one file with corral's engine, as the gateway does, and prints the duration. */
async function fetchOne([url, target, size, sha256]: string[]): Promise<void> {
  const transfers = new TransferThread({
    connections: 8,
    connectionsPerFile: 4,
    bandwidthLimit: 0,
    stallTimeout: 30_000
  })
  // A pull does this while it requests the list of files.
  transfers.prepare()
  await sleep(HUB_DELAY_MS)
  const before = process.memoryUsage.rss() / MiB
  const began = performance.now()
  await transfers.run({
    identity: 'benchmark',
    files: [{ path: 'file', target: target!, size: Number(size), sha256: sha256! }],
    locate: async () => ({ url: url!, headers: {} }),
    signal: new AbortController().signal,
    onProgress: () => {}
  })
  console.log(JSON.stringify({ seconds: (performance.now() - began) / 1000, before }))
  await transfers.close()
}
