/**
 * Gets a working llama.cpp build into `.cache/engine` and writes its folder to `.cache/engine/path.json` for the tests.
 * The first run may take minutes; later ones only check the build.
 */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { pino } from 'pino'
import pretty from 'pino-pretty'
import { Value } from 'typebox/value'
import { CorralError } from '../core/errors.ts'
import { dataPaths } from '../core/system/data-paths.ts'
import { formatDuration } from '../core/system/duration.ts'
import { writeJsonFile } from '../core/system/json-file.ts'
import { packageRoot } from '../core/system/package-info.ts'
import { createHardware } from '../plugins/hardware/hardware-service.ts'
import { createConfiguredRuntimes } from '../runtimes/llama-cpp/configured-runtimes.ts'
import { RuntimesOptions } from '../runtimes/llama-cpp/options.ts'

const folder = join(packageRoot, '.cache', 'engine')
const pathFile = join(folder, 'path.json')
mkdirSync(folder, { recursive: true })

const log = pino(
  { level: process.env.CORRAL_LOG_LEVEL ?? 'info' },
  pretty({ sync: true, ignore: 'pid,hostname', hideObject: true })
)
const hardware = createHardware({ sysroot: '', probeTimeout: 5000, env: process.env, log })
const options = { ...(Value.Create(RuntimesOptions) as RuntimesOptions), llama_cpp: process.env.CORRAL_LLAMA_CPP ?? '' }
const runtimes = createConfiguredRuntimes({
  options,
  paths: dataPaths(folder, undefined),
  env: process.env,
  log,
  hardware
})
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => void runtimes.stop())

const begun = performance.now()
try {
  const build = await runtimes.build()
  const { directory, version, kind, source, origin } = build
  await writeJsonFile(pathFile, { directory, version, kind, source, origin }, { pretty: true })
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
