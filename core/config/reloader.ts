import { access, constants, readFile, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import writeFileAtomic from 'write-file-atomic'
import type { ReloadReport, SettingChangeRecord } from '../contracts/native-records.ts'
import { CorralError, errorMessage, isSystemError } from '../errors.ts'
import type { PluginDefinition } from '../plugins/plugin.ts'
import { changesBetween, overriddenChanges, type SettingChange, withoutRestarts } from './changes.ts'
import { ConfigError, unknownWarning } from './config-error.ts'
import type { LiveConfig } from './live-config.ts'
import type { LoadedConfig } from './load.ts'
import { composeConfigSchema } from './setting-schema.ts'
import { renewTrust } from './trust.ts'

/** What takes the settings that changed. */
export interface Reloadable {
  /** Whether the plugin of this name takes new options while it runs. */
  canReload(plugin: string): boolean
  /** @throws what a plugin has against it; nothing has changed then */
  check(next: LoadedConfig): Promise<void>
  /** Hands each plugin its options of the configuration in force. @throws what a plugin could not do */
  reload(next: LoadedConfig): Promise<void>
  /** Hands them those that held before. @returns the names of plugins that did not take them */
  restore(before: LoadedConfig): Promise<string[]>
}

export interface ReloaderOptions {
  live: LiveConfig
  /** Settles when the server has started, or does not: what is to be reloaded before waits until then. */
  begun: Promise<void>
  definitions: readonly PluginDefinition[]
  plugins: Reloadable
  /** Takes over settings of the core that are not looked at each time they are needed. */
  applyCore(next: LoadedConfig['core'], before: LoadedConfig['core']): void
  /** Reads the configuration again, from `file` where there was one; with `text`, as if that stood in the file. */
  load(file: string | undefined, text?: string): Promise<LoadedConfig>
  log: FastifyBaseLogger
  /** Aborted when the server begins to shut down. */
  signal: AbortSignal
}

/** Reads the configuration again while the server runs, and puts what changed in force: all of it, or nothing. */
export class Reloader {
  readonly #options: ReloaderOptions
  /** The configuration as it was last read, with settings that wait for a restart. */
  #read: LoadedConfig
  #last: Promise<unknown>

  constructor(options: ReloaderOptions) {
    this.#options = options
    this.#read = options.live.current
    this.#last = options.begun
  }

  /**
   * One at a time; who asks meanwhile gets one that begins afterwards. The log says what became of it.
   * @throws CorralError `invalid_config` with the mistakes, `reload_failed`, `shutting_down`
   */
  reload(): Promise<ReloadReport> {
    return this.#queued(() => this.#logged(() => this.#carryOut()))
  }

  /**
   * The configuration file as it is on the disk; where there is none, that of the data directory, whose text is undefined.
   * @throws CorralError `invalid_config` with the mistakes in it
   */
  async file(): Promise<ConfigText> {
    const { live } = this.#options
    const found = await this.#load(live.current.file)
    const path = found.file ?? join(found.paths.home, 'config.yaml')
    return { path, text: await textOf(path) }
  }

  /**
   * Changes the configuration file and reads it again: all of it, or nothing. What would be in it is checked before it is
   * written, and where it cannot be put in force, the file is as it was. One at a time, with reloads.
   * @param change makes its text of the one that is there; it is empty where there is no file yet
   * @throws CorralError as `reload`; `config_not_editable`; `settings_changed` where somebody else changed it meanwhile;
   * what `change` throws
   */
  rewrite(change: (file: { path: string; text: string }) => string): Promise<ReloadReport> {
    return this.#queued(() => this.#logged(() => this.#rewrite(change)))
  }

  #queued<T>(work: () => Promise<T>): Promise<T> {
    const done = this.#last.then(work)
    this.#last = done.catch(() => undefined)
    return done
  }

  async #rewrite(change: (file: { path: string; text: string }) => string): Promise<ReloadReport> {
    const { live, definitions, plugins, signal } = this.#options
    if (signal.aborted) throw closing()
    const { path, text: before } = await this.file()
    const text = change({ path, text: before ?? '' })
    if (text === before) return await this.#carryOut()
    const loaded = await this.#load(path, text)
    const { root } = composeConfigSchema(definitions)
    const changes = changesBetween(root, live.current, loaded, name => plugins.canReload(name))
    await this.#check(withoutRestarts(loaded, changes))
    await requireWritable(path, before !== undefined)
    if ((await textOf(path)) !== before) {
      throw new CorralError(
        'settings_changed',
        `${path} was changed by somebody else in this moment; nothing was written. Read the settings again.`
      )
    }
    const { home } = live.current.paths
    await written(path, text, before === undefined)
    await renewTrust(home, path, before ?? '', text)
    try {
      return await this.#carryOut()
    } catch (error) {
      if ((await textOf(path)) === text) {
        if (before === undefined) await rm(path)
        else {
          await written(path, before, false)
          await renewTrust(home, path, text, before)
        }
      }
      throw error
    }
  }

  async #logged(work: () => Promise<ReloadReport>): Promise<ReloadReport> {
    const { log } = this.#options
    try {
      const report = await work()
      for (const problem of report.unknown) log.warn(unknownWarning(problem))
      for (const line of reportLines(report)) log.info(line)
      return report
    } catch (error) {
      if (error instanceof CorralError) log.error(error.message)
      else log.error({ err: error }, 'The configuration could not be read again; the settings stay as they were.')
      throw error
    }
  }

  async #carryOut(): Promise<ReloadReport> {
    const { live, definitions, plugins, signal } = this.#options
    if (signal.aborted) throw closing()
    const before = live.current
    const loaded = await this.#load(before.file)
    const { root } = composeConfigSchema(definitions)
    const changes = changesBetween(root, before, loaded, name => plugins.canReload(name))
    const next = withoutRestarts(loaded, changes)
    const overridden = overriddenChanges(this.#read, loaded)
    if (changes.some(({ restart }) => !restart)) await this.#apply(before, next)
    // The mistakes of unknown settings and the places of all are those of the file as it is now.
    else live.replace(next)
    this.#read = loaded
    const records = (restart: boolean) => changes.filter(change => change.restart === restart).map(recordOf)
    return {
      file: loaded.file ?? null,
      applied: records(false),
      restart: records(true),
      overridden,
      unknown: loaded.unknown.map(({ where, message, passedOn }) => ({ where, message, ...(passedOn && { passedOn }) }))
    }
  }

  async #load(file: string | undefined, text?: string): Promise<LoadedConfig> {
    try {
      return await this.#options.load(file, text)
    } catch (error) {
      if (text !== undefined && error instanceof ConfigError) throw refused(file, error)
      throw invalid(error)
    }
  }

  async #check(next: LoadedConfig): Promise<void> {
    try {
      await this.#options.plugins.check(next)
    } catch (error) {
      throw invalid(error)
    }
  }

  async #apply(before: LoadedConfig, next: LoadedConfig): Promise<void> {
    const { live, plugins, applyCore } = this.#options
    await this.#check(next)
    live.replace(next)
    applyCore(next.core, before.core)
    try {
      await plugins.reload(next)
    } catch (error) {
      live.replace(before)
      applyCore(before.core, next.core)
      const failed = await plugins.restore(before)
      const left =
        failed.length === 0
          ? 'The settings are again as they were.'
          : `The settings are as they were, but not those of ${failed.join(', ')}: restart the server.`
      throw new CorralError('reload_failed', `${errorMessage(error)} ${left}`, { cause: error })
    }
  }
}

/** The configuration file; its text is undefined where it is not there. */
interface ConfigText {
  path: string
  text: string | undefined
}

const closing = () => new CorralError('shutting_down', 'corral is shutting down; its settings stay as they are.')

async function textOf(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, 'utf8')
  } catch (error) {
    if (isSystemError(error, 'ENOENT')) return undefined
    throw notWritable(path, errorMessage(error))
  }
}

const notWritable = (path: string, why: string) =>
  new CorralError(
    'config_not_editable',
    `${path} cannot be changed from here: ${why.replace(/\.$/, '')}. Nothing was written. Change it on the server's machine, then "corral reload".`
  )

/** What is said of a change whose outcome could not be used: it is on no line of any file. */
function refused(file: string | undefined, { problems }: ConfigError): CorralError {
  const said = problems.map(({ message }) => message)
  return new CorralError('invalid_config', `Nothing was written to ${file}: ${said.join(' ')}`, {
    details: { problems: problems.map(({ setting, message }) => ({ where: setting ?? file, setting, message })) }
  })
}

/** A file that nobody may write is left alone, though its folder would let it be replaced. */
async function requireWritable(path: string, exists: boolean): Promise<void> {
  if (!exists) return
  try {
    await access(path, constants.W_OK)
  } catch (error) {
    throw notWritable(path, errorMessage(error))
  }
  // Root may write anything; a file without a single right to write was made so on purpose.
  if (((await stat(path)).mode & 0o222) === 0) throw notWritable(path, 'the file is read-only')
}

/** Writes it whole or not at all, with the rights and the owner that it had. */
async function written(path: string, text: string, isNew: boolean): Promise<void> {
  try {
    await writeFileAtomic(path, text, isNew ? { mode: 0o600 } : {})
  } catch (error) {
    throw notWritable(path, errorMessage(error))
  }
}

/** What is said of a configuration that cannot be used. */
function invalid(error: unknown): unknown {
  if (!(error instanceof ConfigError)) return error
  return new CorralError('invalid_config', `${error.message}\nThe settings stay as they were.`, {
    details: { problems: error.problems }
  })
}

function recordOf({ name, from, to, isSecret }: SettingChange): SettingChangeRecord {
  if (isSecret) return { setting: name, secret: true }
  return { setting: name, from: from ?? null, to: to ?? null }
}

const shown = ({ setting, secret, from, to }: SettingChangeRecord) =>
  secret ? `${setting} (its value is not shown)` : `${setting}: ${JSON.stringify(from)} → ${JSON.stringify(to)}`

/** What a reload did, as lines for people. */
export function reportLines({ file, applied, restart, overridden }: ReloadReport): string[] {
  const source = file === null ? 'The settings were read again' : `${file} was read again`
  const nothing = applied.length === 0 && restart.length === 0 ? ': no setting has changed' : ''
  return [
    `${source}${nothing}.`,
    ...applied.map(change => `Now in force: ${shown(change)}`),
    ...restart.map(change => `Needs a restart of the server: ${shown(change)}`),
    ...overridden.map(({ setting, by }) => `Without effect, since ${by} decides it: ${setting}`)
  ]
}
