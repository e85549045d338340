import { randomBytes } from 'node:crypto'
import { mkdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { basename, dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Static, Type } from 'typebox'
import type { Build, EngineRunSettings } from '../../core/contracts/builds.ts'
import { CorralError, errorMessage } from '../../core/errors.ts'
import { namesIn } from '../../core/system/folder-names.ts'
import { freePort } from '../../core/system/free-port.ts'
import { readJsonFile, writeJsonFile } from '../../core/system/json-file.ts'
import { processStartTime } from '../../core/system/processes.ts'
import { engineArguments, httpThreads, type Listen } from './arguments.ts'
import { type EngineProcess, engineEnvironment, startEngineProcess } from './engine-process.ts'
import type { LaunchSpec } from './launch-spec.ts'
import { knownFlags } from './server-facts.ts'

export interface EngineLog {
  debug(object: object, message: string): void
  warn(object: object, message: string): void
}

export interface LaunchDeps extends Pick<EngineRunSettings, 'runDirectory' | 'extraArguments'> {
  /** Variables that the build's kind needs on this machine. Variables of the model take precedence. */
  environment?: Readonly<Record<string, string>>
}

/** Starts an engine's process in a private folder, and records both for a later cleanup. Leaves nothing on failure. */
export async function launchEngine(
  { id, build, spec, address }: { id: string; build: Build; spec: LaunchSpec; address: EngineAddress },
  deps: LaunchDeps,
  output: Pick<Parameters<typeof startEngineProcess>[0], 'onLine' | 'warn'>,
  signal: AbortSignal
): Promise<{ child: EngineProcess; httpThreads: number }> {
  const { folder, key, listen } = address
  const more = { ...deps.environment, ...spec.settings?.environment }
  const environment = engineEnvironment(process.env, { configHome: folder, apiKey: key, more })
  try {
    await writeRunRecord(deps.runDirectory, id, { folder })
    await makePrivateFolder(address)
    const templateFile = await writeTemplate(spec, address)
    const { server: executable } = build.executables
    const flags = await knownFlags(build, executable, { environment: more, signal })
    signal.throwIfAborted()
    const settings = { listen, folder: dirname(executable), templateFile, knownFlags: flags }
    const list = engineArguments(spec, { ...settings, extra: deps.extraArguments })
    const child = startEngineProcess({ executable, arguments: list, environment, ...output })
    const { pid } = child
    const startTime = pid === undefined ? undefined : await processStartTime(pid)
    if (startTime !== undefined) {
      await writeRunRecord(deps.runDirectory, id, { folder, pid, startTime }).catch(error => {
        output.warn(`llama-server ${pid} could not be recorded: ${errorMessage(error)}`)
      })
    }
    return { child, httpThreads: httpThreads(list) }
  } catch (error) {
    await removeRunRecord(deps.runDirectory, id, folder)
    throw error
  }
}

/** Writes the model's configured chat template to a file, because it may be too long for an argument. */
async function writeTemplate({ mode, variant }: LaunchSpec, { folder }: EngineAddress): Promise<string | undefined> {
  const template = variant.defaults?.template
  if (template === undefined || mode !== 'chat') return undefined
  const path = join(folder, 'chat-template.jinja')
  await writeFile(path, template, { mode: 0o600 })
  return path
}

export interface EngineAddress {
  listen: Listen
  /** Required in every request. */
  key: string
  /** The engine's private folder: its socket, and an empty home for configuration. */
  folder: string
}

export const FOLDER_PREFIX = 'corral-'

/** Systems accept 103 to 107 bytes. Some room is left. */
const MAX_SOCKET_PATH = 100

/** Whether llama-server can listen at this path: it is short enough, and has no comma, at which `--host` splits. */
export function isUsableSocketPath(path: string): boolean {
  return Buffer.byteLength(path) <= MAX_SOCKET_PATH && !path.includes(',')
}

/**
 * Allocates a fresh address: a Unix socket in a folder that only this user can enter. If that is impossible (Windows, a
 * long temporary folder) or `tcp` is set, allocates a free loopback port, which another process may take before the
 * engine listens. The folder is only named here. It is created after its later removal has been recorded.
 */
export async function allocateAddress(
  socketRoot = tmpdir(),
  platform = process.platform,
  tcp = false
): Promise<EngineAddress> {
  const folder = join(socketRoot, FOLDER_PREFIX + randomBytes(6).toString('hex'))
  const key = randomBytes(24).toString('base64url')
  const socketPath = join(folder, 'engine.sock')
  if (!tcp && platform !== 'win32' && isUsableSocketPath(socketPath)) return { listen: { socketPath }, key, folder }
  return { listen: { host: '127.0.0.1', port: await freePort() }, key, folder }
}

/** Creates the engine's folder. An existing one would not be private. @throws CorralError `load_failed` */
export async function makePrivateFolder({ folder }: EngineAddress): Promise<void> {
  try {
    await mkdir(folder, { mode: 0o700 })
  } catch (error) {
    const reason = (error as NodeJS.ErrnoException).code ?? errorMessage(error)
    const message = `No private folder for the engine could be created in ${dirname(folder)} (${reason}). Free some space and let the user that runs corral write to it, or set TMPDIR to another folder.`
    throw new CorralError('load_failed', message, { cause: error, details: { cause: 'cannot_listen' } })
  }
}

const RunRecordSchema = Type.Object({
  folder: Type.String(),
  pid: Type.Optional(Type.Number()),
  /** From `processStartTime`, because process ids are reused. */
  startTime: Type.Optional(Type.String())
})
export type RunRecord = Static<typeof RunRecordSchema>

const SUFFIX = '.engine.json'
const KILL_LIMIT_MS = 2000

/** Records an engine so that the next start can clean up after it. Call it again when more is known. */
export async function writeRunRecord(runDirectory: string, id: string, record: RunRecord): Promise<void> {
  // Engines end with the machine, and every load waits for this write.
  await writeJsonFile(join(runDirectory, id + SUFFIX), record, { fsync: false })
}

export async function removeRunRecord(runDirectory: string, id: string, folder: string): Promise<void> {
  await rm(folder, { recursive: true, force: true })
  await rm(join(runDirectory, id + SUFFIX), { force: true })
}

async function killStray({ pid, startTime }: RunRecord): Promise<boolean> {
  if (pid === undefined || startTime === undefined || startTime === 'unknown') return false
  // When in doubt, it is another process, which must live.
  const runs = async () => (await processStartTime(pid)) === startTime
  if (!(await runs())) return false
  process.kill(pid, 'SIGKILL')
  for (let waited = 0; waited < KILL_LIMIT_MS && (await runs()); waited += 20) await sleep(20)
  return true
}

/**
 * Cleans up after a killed gateway, before the owner of the data directory starts engines. Returns the ended engines.
 */
export async function reapStrayEngines(runDirectory: string, log: Pick<EngineLog, 'warn'>): Promise<number> {
  let ended = 0
  for (const name of (await namesIn(runDirectory)).filter(name => name.endsWith(SUFFIX))) {
    const path = join(runDirectory, name)
    try {
      const record = (await readJsonFile(path, RunRecordSchema))?.value
      if (!record || !basename(record.folder).startsWith(FOLDER_PREFIX))
        log.warn({ path }, 'Removing an unreadable record of an engine.')
      else {
        if (await killStray(record)) {
          ended++
          log.warn({ pid: record.pid }, 'Ended a llama-server that an earlier corral left running.')
        }
        await rm(record.folder, { recursive: true, force: true })
      }
      await rm(path, { force: true })
    } catch (error) {
      log.warn({ path, reason: errorMessage(error) }, 'Could not clean up after an engine of an earlier corral.')
    }
  }
  return ended
}
