import type { FastifyBaseLogger } from 'fastify'
import type { ReloadReport, SettingChangeRecord } from '../contracts/native-records.ts'
import { CorralError, messageOf } from '../errors.ts'
import type { PluginDefinition } from '../plugins/plugin.ts'
import { changesBetween, overriddenChanges, type SettingChange, withoutRestarts } from './changes.ts'
import { ConfigError, unknownWarning } from './config-error.ts'
import type { LiveConfig } from './live-config.ts'
import type { LoadedConfig } from './load.ts'
import { composeConfigSchema } from './setting-schema.ts'

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
  /** Reads the configuration again, from `file` where there was one. */
  load(file: string | undefined): Promise<LoadedConfig>
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
    const done = this.#last.then(() => this.#reload())
    this.#last = done.catch(() => undefined)
    return done
  }

  async #reload(): Promise<ReloadReport> {
    const { log } = this.#options
    try {
      const report = await this.#carryOut()
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
    if (signal.aborted)
      throw new CorralError('shutting_down', 'corral is shutting down; its settings stay as they are.')
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

  async #load(file: string | undefined): Promise<LoadedConfig> {
    try {
      return await this.#options.load(file)
    } catch (error) {
      throw invalid(error)
    }
  }

  async #apply(before: LoadedConfig, next: LoadedConfig): Promise<void> {
    const { live, plugins, applyCore } = this.#options
    try {
      await plugins.check(next)
    } catch (error) {
      throw invalid(error)
    }
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
      throw new CorralError('reload_failed', `${messageOf(error)} ${left}`, { cause: error })
    }
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
