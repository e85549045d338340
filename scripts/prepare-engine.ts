/**
 * Installs a working llama.cpp build in `.cache/engine` and writes its folder to `.cache/engine/path.json` for the
 * tests. The first run may take minutes. Later runs only check the build.
 */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { CorralError } from '../core/errors.ts'
import { formatDuration } from '../core/system/duration.ts'
import { writeJsonFile } from '../core/system/json-file.ts'
import { cachedRuntimes, engineFolder } from './cached-engine.ts'

mkdirSync(engineFolder, { recursive: true })
const runtimes = cachedRuntimes()
const begun = performance.now()
try {
  const { directory, version, kind, source, origin } = await runtimes.build()
  await writeJsonFile(join(engineFolder, 'path.json'), { directory, version, kind, source, origin }, { pretty: true })
  console.log(`llama.cpp ${version} in ${directory} (${formatDuration(performance.now() - begun)})`)
} catch (error) {
  if (!(error instanceof CorralError)) throw error
  console.error(error.message)
  for (const { runtime, source, outcome, reasons } of runtimes.report().attempts) {
    console.error(`  ${runtime === undefined ? '' : `${runtime} from `}${source}: ${outcome}`)
    for (const reason of reasons) console.error(`    ${reason}`)
  }
  process.exitCode = 1
}
