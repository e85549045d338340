import { join } from 'node:path'
import { pino } from 'pino'
import pretty from 'pino-pretty'
import { Value } from 'typebox/value'
import { dataPaths } from '../core/system/data-paths.ts'
import { packageRoot } from '../core/system/package-info.ts'
import { createHardware } from '../plugins/running/hardware/index.ts'
import { createConfiguredRuntimes } from '../runtimes/llama-cpp/index.ts'
import { RuntimesOptions } from '../runtimes/llama-cpp/options.ts'

export const log = pino(
  { level: process.env.CORRAL_LOG_LEVEL ?? 'info' },
  pretty({ sync: true, ignore: 'pid,hostname', hideObject: true })
)

export const engineFolder = join(packageRoot, '.cache', 'engine')

/** Finds, downloads or compiles the llama.cpp build for tests. A signal aborts it. */
export function cachedRuntimes() {
  const hardware = createHardware({ sysroot: '', probeTimeout: 5000, env: process.env, log })
  const llama_cpp = process.env.CORRAL_LLAMA_CPP ?? ''
  const options = { ...(Value.Create(RuntimesOptions) as RuntimesOptions), llama_cpp }
  const paths = dataPaths(engineFolder, undefined)
  const runtimes = createConfiguredRuntimes({ options, paths, env: process.env, log, hardware })
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => void runtimes.stop())
  return runtimes
}
