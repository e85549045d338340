/**
 * Measures corral's transfers against curl and aria2c, and its HTTP client against undici:
 * `npm run bench:download -- [--size MIB] [--rounds N] [--folder PATH] [--clients]`. A local nginx serves one large
 * file; what is measured is written to docs/benchmark-download.md. With `--clients` only the HTTP clients are measured.
 */
import { execFileSync } from 'node:child_process'
import { createHash, randomFillSync } from 'node:crypto'
import { closeSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync, writeSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { packageRoot } from '../core/system/package-info.ts'
import { TransferThread } from '../plugins/download/transfer/transfers.ts'
import { contenders, findTools, measure, type Run, type Source } from './bench-download/contenders.ts'
import { CLIENT_TITLE, clientReport, type LineReport, lineReport } from './bench-download/download-report.ts'
import { compareClients, receiveOne } from './bench-download/http-clients.ts'
import { DELAY, LIMIT, serveDelayed, startLines } from './bench-download/web-server.ts'

const MiB = 1024 * 1024

/** A file of random bytes. */
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
      folder: { type: 'string', default: tmpdir() },
      clients: { type: 'boolean', default: false }
    }
  })
  if (process.platform !== 'linux') throw new Error('The benchmark reads /proc, so it runs on Linux only.')
  const tools = findTools()
  const folder = mkdtempSync(join(values.folder, 'corral-bench-download-'))
  try {
    mkdirSync(join(folder, 'www'))
    // nginx leaves root's rights behind and must still find the file.
    execFileSync('chmod', ['755', folder])
    const source = makeFile(join(folder, 'www', 'file'), Number(values.size) * MiB)
    const lines = await startLines(tools.nginx, folder)
    const rounds = Number(values.rounds)
    const measured: LineReport[] = []
    let clients: Map<string, number[]>
    try {
      const allKinds: [title: string, url: string][] = [
        ['No limit', lines.unlimited],
        [`${LIMIT / 1e6} MB/s for each connection`, lines.limited],
        [`${2 * DELAY} ms there and back, 1 MiB on the way at most for each connection`, lines.delayed]
      ]
      const kinds = values.clients ? [] : allKinds
      const all = contenders(tools, source)
      for (const [title, url] of kinds) {
        const runs = new Map<string, Run[]>(all.map(({ name }) => [name, []]))
        for (let round = 0; round < rounds; round++) {
          for (let turn = 0; turn < all.length; turn++) {
            // Another one begins each round, so that none always runs behind the same one.
            const contender = all[(turn + round) % all.length]!
            const target = join(folder, 'target')
            process.stderr.write(`${title}, round ${round + 1}: ${contender.name} … `)
            execFileSync('sync')
            const result = await measure(contender, url, target)
            process.stderr.write(`${result.seconds.toFixed(2)} s\n`)
            runs.get(contender.name)!.push(result)
            rmSync(target)
          }
        }
        measured.push({ title, runs })
      }
      clients = await compareClients(lines.secure, source.size, lines.certificate, rounds)
    } finally {
      await lines.close()
    }
    const document = join(packageRoot, 'docs', 'benchmark-download.md')
    const lineTables = values.clients
      ? readFileSync(document, 'utf8').split(CLIENT_TITLE)[0]!
      : lineReport(measured, source.size, rounds, values.folder)
    const text = `${lineTables.trimEnd()}\n\n${clientReport(clients, source.size, rounds)}`
    writeFileSync(document, text)
    process.stdout.write(text)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
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

/** Fetches one file with corral's engine, as a gateway does it, and prints how long that took. */
export async function fetchOne([url, target, size, sha256]: string[]): Promise<void> {
  const transfers = new TransferThread({
    connections: 8,
    connectionsPerFile: 4,
    bandwidthLimit: 0,
    stallTimeout: 30_000
  })
  const began = performance.now()
  await transfers.run({
    identity: 'benchmark',
    files: [{ path: 'file', target: target!, size: Number(size), sha256: sha256! }],
    locate: async () => ({ url: url!, headers: {} }),
    signal: new AbortController().signal,
    onProgress: () => {}
  })
  console.log(JSON.stringify({ seconds: (performance.now() - began) / 1000 }))
  await transfers.close()
}
