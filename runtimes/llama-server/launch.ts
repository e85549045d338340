import { writeFile } from 'node:fs/promises'
import { totalmem } from 'node:os'
import { join } from 'node:path'
import type { Build } from '../../core/contracts/builds.ts'
import { processStartTime } from '../../core/system/processes.ts'
import { type EngineAddress, makePrivateFolder } from './address.ts'
import { engineArguments, promptCacheSize } from './arguments.ts'
import { knownFlags } from './build-flags.ts'
import { engineEnvironment } from './environment.ts'
import type { LaunchSpec } from './launch-spec.ts'
import { type EngineProcess, startEngineProcess } from './process.ts'
import { removeRunRecord, writeRunRecord } from './run-records.ts'

/**
 * Starts the process of an engine in a private folder of its own, and writes both down so that the next start of corral
 * can clean up after it. When it fails nothing is left.
 * @throws CorralError when the folder cannot be made; the signal's reason
 */
export async function launchEngine(options: {
  id: string
  build: Build
  spec: LaunchSpec
  address: EngineAddress
  runDirectory: string
  extraArguments: readonly string[] | undefined
  environment: Readonly<Record<string, string>> | undefined
  signal: AbortSignal
  onLine: (line: string) => void
  warn: (message: string) => void
}): Promise<EngineProcess> {
  const { id, build, spec, address, runDirectory } = options
  const environment = engineEnvironment(process.env, {
    configHome: address.folder,
    apiKey: address.key,
    more: { ...options.environment, ...spec.settings?.environment }
  })
  try {
    await writeRunRecord(runDirectory, id, { folder: address.folder })
    await makePrivateFolder(address)
    const templateFile = await writeTemplate(spec, address)
    const flags = await knownFlags(build, environment)
    options.signal.throwIfAborted()
    return await startEngineProcess({
      executable: build.executables.server,
      arguments: engineArguments(spec, {
        listen: address.listen,
        promptCache: promptCacheSize(Math.min(totalmem(), process.constrainedMemory() || Number.POSITIVE_INFINITY)),
        ...(templateFile !== undefined && { templateFile }),
        knownFlags: flags,
        extra: options.extraArguments
      }),
      environment,
      onLine: options.onLine,
      warn: options.warn
    })
  } catch (error) {
    await removeRunRecord(runDirectory, id, address.folder)
    throw error
  }
}

/** The chat template that was laid down for the model, in a file: it may be longer than an argument can be. */
async function writeTemplate({ mode, variant }: LaunchSpec, { folder }: EngineAddress): Promise<string | undefined> {
  const template = variant.defaults?.template
  if (template === undefined || mode !== 'chat') return undefined
  const path = join(folder, 'chat-template.jinja')
  await writeFile(path, template, { mode: 0o600 })
  return path
}

/** Adds the process to what was written down. */
export async function recordProcess(
  runDirectory: string,
  id: string,
  { folder }: EngineAddress,
  pid: number | undefined
): Promise<void> {
  const startTime = pid === undefined ? undefined : await processStartTime(pid)
  if (startTime === undefined) return
  await writeRunRecord(runDirectory, id, { folder, pid, startTime })
}
