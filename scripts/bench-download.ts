/**
 * Measures corral's transfers against curl and aria2c: `npm run bench:download -- [--size MIB] [--rounds N]
 * [--folder PATH]`. A local nginx serves one large file over three kinds of line; what is measured is written to
 * docs/benchmark-download.md.
 */
import { execFileSync } from 'node:child_process'
import { createHash, randomFillSync } from 'node:crypto'
import { closeSync, mkdirSync, mkdtempSync, openSync, rmSync, writeFileSync, writeSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { packageRoot } from '../core/system/package-info.ts'
import { contenders, measure, type Run, type Source } from './bench-download/contenders.ts'
import { fetchOne } from './bench-download/fetch-one.ts'
import { type LineReport, report } from './bench-download/report.ts'
import { DELAY, LIMIT, serveDelayed, startLines } from './bench-download/server.ts'
import { findTools } from './bench-download/tools.ts'

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
      folder: { type: 'string', default: tmpdir() }
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
    const measured: LineReport[] = []
    try {
      const kinds: [title: string, url: string][] = [
        ['No limit', lines.unlimited],
        [`${LIMIT / 1e6} MB/s for each connection`, lines.limited],
        [`${2 * DELAY} ms there and back, 1 MiB on the way at most for each connection`, lines.delayed]
      ]
      const all = contenders(tools, source)
      for (const [title, url] of kinds) {
        const runs = new Map<string, Run[]>(all.map(({ name }) => [name, []]))
        for (let round = 0; round < Number(values.rounds); round++) {
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
    } finally {
      await lines.close()
    }
    const text = report(measured, source.size, Number(values.rounds), values.folder)
    writeFileSync(join(packageRoot, 'docs', 'benchmark-download.md'), text)
    process.stdout.write(text)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

const [mode, ...rest] = process.argv.slice(2)
if (mode === '--delay') serveDelayed(Number(rest[0]), Number(rest[1]))
else if (mode === '--fetch') await fetchOne(rest)
else {
  try {
    await run()
  } catch (error) {
    console.error(error instanceof Error ? error.message : error)
    process.exitCode = 2
  }
}
