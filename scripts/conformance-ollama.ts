/**
 * Runs Ollama's own integration tests and example programs unchanged against corral, and against Ollama itself if it
 * can be built. Writes the results to `docs/measurements/compatibility-ollama.md`.
 *
 *     npm run conformance:ollama -- [--without-ollama] [--all-models]
 *
 * It needs Go, and network access to Go's module proxy on the first run. Building Ollama needs a C++ compiler and takes
 * half an hour the first time. `--all-models` also runs the chat test for 160 more models and the measurements of 38,
 * which repeat the same test for each name.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { packageRoot } from '../core/system/package-info.ts'
import { OLLAMA_VERSION } from '../plugins/apis/ollama/routes.ts'
import { findExplanation, isShort, wholeTests } from './conformance/ollama-explained.ts'
import { modelNames } from './conformance/ollama-models.ts'
import { type Outcomes, runExamples, runTests } from './conformance/ollama-outcomes.ts'
import { clientPrograms, ollamaServer } from './conformance/ollama-programs.ts'
import { renderReport, type Sitting } from './conformance/ollama-report.ts'
import { corralWithModels, ollamaWithModels } from './conformance/ollama-servers.ts'

const { values } = parseArgs({
  options: { 'without-ollama': { type: 'boolean', default: false }, 'all-models': { type: 'boolean', default: false } }
})
const progress = (line: string) => void process.stderr.write(`${line}\n`)

progress("Ollama's tests …")
const programs = clientPrograms()
if ('missing' in programs) {
  console.error(`Ollama's tests cannot be run: ${programs.missing}.`)
  process.exit(2)
}
const names = modelNames(programs.module)
const endings: (() => unknown)[] = []
const owner = { teardown: (ending: () => unknown) => void endings.unshift(ending) }
const folder = mkdtempSync(join(tmpdir(), 'corral-conformance-'))

async function runAll(name: string, start: () => Promise<string>): Promise<Sitting> {
  progress(`${name} …`)
  const began = Date.now()
  try {
    const url = await start()
    const isRun = (test: string) => !/LibraryModelsPerf/.test(test) && (values['all-models'] || isShort(test))
    const tests = await runTests(programs as Exclude<typeof programs, { missing: string }>, url, isRun, progress)
    const examples = await runExamples(programs as Exclude<typeof programs, { missing: string }>, url, folder)
    return { name, tests, examples, seconds: Math.round((Date.now() - began) / 1000) }
  } finally {
    for (const ending of endings.splice(0)) await ending()
  }
}

try {
  const sittings = [await runAll('corral', () => corralWithModels(owner, names))]
  const server = values['without-ollama'] ? { missing: 'it was left out' } : await ollamaServer()
  if ('path' in server) {
    sittings.push(await runAll(`Ollama ${OLLAMA_VERSION}`, () => ollamaWithModels(owner, server.path, names)))
  } else progress(`Ollama itself cannot be run: ${server.missing}.`)
  const path = join(packageRoot, 'docs', 'measurements', 'compatibility-ollama.md')
  writeFileSync(path, renderReport(sittings))
  console.log(`Wrote ${path}`)
  const [{ tests }] = sittings as [Sitting]
  const unexplained = failures(tests).filter(test => findExplanation(test) === undefined)
  if (unexplained.length > 0) {
    console.error(
      `These tests fail on corral without an explanation: ${unexplained.join(', ')}. Fix corral, or explain them in ollama-explained.ts.`
    )
    process.exitCode = 1
  }
} finally {
  rmSync(folder, { recursive: true, force: true })
}

function failures(outcomes: Outcomes): string[] {
  return wholeTests(outcomes).filter(name => outcomes.get(name)!.result === 'failed')
}
