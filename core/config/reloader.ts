import { access, constants, readFile, rm, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import type { FastifyBaseLogger } from 'fastify'
import writeFileAtomic from 'write-file-atomic'
import type { ReloadReport, SettingChangeRecord } from '../contracts/native-records.ts'
import { CorralError, errorMessage, whenMissing } from '../errors.ts'
import type { FoundPlugin } from '../plugins/plugin.ts'
import { PluginError } from '../plugins/plugin-error.ts'
import type { PluginHost } from '../plugins/plugin-host.ts'
import { isObject } from '../system/json-object.ts'
import type { JsonSchema } from '../system/schema-check.ts'
import { ConfigError, unknownWarning } from './config-error.ts'
import { CoreConfigSchema } from './core-schema.ts'
import { freeze, type LoadedConfig, splitValues } from './load.ts'
import { setAt, valueAt } from './mistakes.ts'
import { composeConfigSchema, hasMark, isGroup, isSecret, listSettings, settingName } from './setting-schema.ts'
import { renewTrust } from './trust.ts'

/** An object with `fixed` properties. Others are read from the current values each time. */
function viewOf<Values extends object>(keys: string[], current: () => Values, fixed: Partial<Values> = {}): Values {
  const getters = keys
    .filter(key => !(key in fixed))
    .map(key => [key, { enumerable: true, get: (): unknown => current()[key as keyof Values] }])
  return Object.freeze(Object.defineProperties({ ...fixed }, Object.fromEntries(getters))) as Values
}

/**
 * The current configuration of a running server. Code that keeps a reference to `view` always sees the current
 * settings. The groups are replaced as a whole, and their values are frozen.
 */
export class LiveConfig {
  current: LoadedConfig
  readonly view: LoadedConfig

  constructor(config: LoadedConfig) {
    this.current = config
    const core = viewOf(Object.keys(CoreConfigSchema.properties), () => this.current.core)
    // A server's folders do not change while it runs.
    this.view = viewOf(Object.keys(config), () => this.current, { core, paths: config.paths })
  }
}

type SettingChange = ReturnType<typeof changesBetween>[number]

const getValues = ({ core, sections }: LoadedConfig): Record<string, unknown> => ({ ...core, ...sections })

/**
 * The differences between two configurations, in the schema's order.
 * @param plugins whether a plugin takes new options while it runs, and whether the reload sets it up or ends it
 */
export function changesBetween(
  root: JsonSchema,
  before: LoadedConfig,
  after: LoadedConfig,
  plugins: { canReload(name: string): boolean; isRenewed(name: string): boolean }
) {
  const [old, next] = [getValues(before), getValues(after)]
  // Empty groups are left out.
  const settings = [...listSettings(root, next), ...listSettings(root, old)].filter(
    ({ value, schema }) => !(isGroup(schema) && isObject(value))
  )
  const paths = new Map(settings.map(({ path }) => [settingName(path), path]))
  return [...paths].flatMap(([name, path]) => {
    const [from, to] = [valueAt(old, path), valueAt(next, path)]
    if (isDeepStrictEqual(from, to)) return []
    const ofPlugin = path[0]! in after.sections || path[0]! in before.sections
    const isSwitch = ofPlugin && path.length === 2 && path[1] === 'enabled'
    const restart =
      !(ofPlugin && plugins.isRenewed(path[0]!)) &&
      (isSwitch || hasMark(root, path, 'restart') || (ofPlugin && !plugins.canReload(path[0]!)))
    return [{ path, name, from, to, isSecret: isSecret(root, path), restart }]
  })
}

/** The configuration `after`, with the values from `before` of settings that need a restart. */
export function withoutRestarts(after: LoadedConfig, changes: readonly SettingChange[]): LoadedConfig {
  const restarts = changes.filter(({ restart }) => restart)
  if (restarts.length === 0) return after
  const values = structuredClone(getValues(after))
  for (const { path, from } of restarts) {
    if (from !== undefined) setAt(values, path, structuredClone(from))
    else delete (valueAt(values, path.slice(0, -1)) as Record<string, unknown>)[path.at(-1)!]
  }
  return freeze({ ...after, ...splitValues(values, name => name in after.sections) })
}

export interface ReloaderOptions {
  live: LiveConfig
  /** Settles when the start has succeeded or failed. Reloads wait for it. */
  begun: Promise<void>
  definitions: readonly FoundPlugin[]
  plugins: Pick<PluginHost, 'canReload' | 'check' | 'compare' | 'reload' | 'restore' | 'withFixed'>
  /** Applies settings of the core that are not read each time they are needed. */
  applyCore(next: LoadedConfig['core'], before: LoadedConfig['core']): void
  /** Reads the configuration again, from `file` if there was one, or from `text` instead of its content. */
  load(file: string | undefined, text: string | undefined, definitions: readonly FoundPlugin[]): Promise<LoadedConfig>
  /** Finds the plugins again. Unchanged plugins are the same objects. Without this function, plugins are not reloaded. */
  find?: (() => Promise<readonly FoundPlugin[]>) | undefined
  log: FastifyBaseLogger
  /** Aborted when the server begins to shut down. */
  signal: AbortSignal
}

/** Reloads the configuration of a running server and applies all changes, or none. */
export class Reloader {
  readonly #options: ReloaderOptions
  /** The configuration that was read last, including settings that wait for a restart. */
  #read: LoadedConfig
  #last: Promise<unknown>
  #definitions: readonly FoundPlugin[]

  constructor(options: ReloaderOptions) {
    this.#options = options
    this.#read = options.live.current
    this.#last = options.begun
    this.#definitions = options.definitions
  }

  /**
   * Reloads one at a time. A call during a reload gets the next one. The outcome is logged.
   * @throws CorralError `invalid_config` with the mistakes, `reload_failed`, `shutting_down`
   */
  reload(): Promise<ReloadReport> {
    return this.#next(() => this.#carryOut())
  }

  /** The file on the disk, or its path in the data directory without a text. @throws CorralError `invalid_config` */
  async file(): Promise<{ path: string; text: string | undefined }> {
    const { live } = this.#options
    const found = await this.#load(live.current.file)
    const path = found.file ?? join(found.paths.home, 'config.yaml')
    return { path, text: await textOf(path) }
  }

  /**
   * Changes the configuration file and reloads it, or changes nothing. The new text is checked before it is written,
   * and if it cannot be applied, the file is restored. Never runs at the same time as another change or reload.
   * @param change returns the new text; it gets an empty text if there is no file yet
   * @throws CorralError as `reload`; `config_not_editable`; `settings_changed` if something else changed the file in
   * between; the errors of `change`
   */
  rewrite(change: (file: { path: string; text: string }) => string): Promise<ReloadReport> {
    return this.#next(() => this.#rewrite(change))
  }

  /** Does this work after the previous work, and logs its outcome. */
  #next(work: () => Promise<ReloadReport>): Promise<ReloadReport> {
    const { log } = this.#options
    const done = this.#last.then(work)
    this.#last = done.then(
      report => {
        for (const problem of report.unknown) log.warn(unknownWarning(problem))
        for (const line of reportLines(report)) log.info(line)
      },
      error => {
        if (error instanceof CorralError) log.error(error.message)
        else log.error({ err: error }, 'The configuration could not be read again; the settings stay as they were.')
      }
    )
    return done
  }

  async #rewrite(change: (file: { path: string; text: string }) => string): Promise<ReloadReport> {
    const { path, text: before } = await this.file()
    const text = change({ path, text: before ?? '' })
    if (text === before) return await this.#carryOut()
    const { next } = this.#plan(await this.#load(path, text))
    await this.#check(next)
    await requireWritable(path, before !== undefined)
    if ((await textOf(path)) !== before) {
      const message = `${path} was just changed by someone else, so nothing was written. Read the settings again.`
      throw new CorralError('settings_changed', message)
    }
    const { home } = this.#options.live.current.paths
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

  async #carryOut(): Promise<ReloadReport> {
    const { live } = this.#options
    const before = live.current
    const { definitions, waiting } = await this.#find()
    const loaded = await this.#load(before.file, undefined, definitions)
    const { changes, next, renewed } = this.#plan(loaded, definitions)
    // Changes in the file have no effect if a flag or the environment overrides the setting.
    const overridden = Object.entries(loaded.overridden).flatMap(([setting, value]) =>
      isDeepStrictEqual(this.#read.overridden[setting], value) ? [] : [{ setting, by: loaded.origins[setting]! }]
    )
    if (renewed.length > 0 || changes.some(({ restart }) => !restart)) await this.#apply(before, next, definitions)
    // Unknown settings and origins come from the current file.
    else live.current = next
    this.#read = loaded
    this.#definitions = definitions
    const records = (restart: boolean) => changes.filter(change => change.restart === restart).map(recordOf)
    return {
      file: loaded.file ?? null,
      applied: records(false),
      restart: records(true),
      overridden,
      plugins: [...renewed, ...waiting.map(name => ({ name, change: 'restart' }) as const)],
      unknown: loaded.unknown.map(({ where, message, passedOn }) => ({ where, message, ...(passedOn && { passedOn }) }))
    }
  }

  /** The changes of a configuration, and its parts that need no restart. @throws CorralError `shutting_down` */
  #plan(loaded: LoadedConfig, definitions = this.#definitions) {
    const { live, plugins, signal } = this.#options
    if (signal.aborted) {
      throw new CorralError('shutting_down', 'corral is shutting down; its settings stay as they are.')
    }
    const { root } = composeConfigSchema(definitions)
    const { added, ended } = asReloadFailure(() => plugins.compare(definitions, loaded.sections))
    const nameOf = ({ definition }: (typeof added)[number]) => definition.name
    const [begin, end] = [new Set(added.map(nameOf)), new Set(ended.map(nameOf))]
    const renewed = [...new Set([...begin, ...end])].map(name => {
      const change = !end.has(name) ? 'added' : begin.has(name) ? 'replaced' : 'removed'
      return { name, change } as const
    })
    const changes = changesBetween(root, live.current, loaded, {
      canReload: name => plugins.canReload(name),
      isRenewed: name => begin.has(name) || end.has(name)
    })
    return { changes, next: withoutRestarts(loaded, changes), renewed }
  }

  /** The plugins that the file lists now. Plugins that only a restart can change stay as they are. */
  async #find() {
    const { find, plugins } = this.#options
    const found = await find?.().catch(error => {
      throw invalid(error)
    })
    return plugins.withFixed(found ?? this.#definitions)
  }

  async #load(file: string | undefined, text?: string, definitions = this.#definitions): Promise<LoadedConfig> {
    return await this.#options.load(file, text, definitions).catch(error => {
      throw text !== undefined && error instanceof ConfigError ? refused(file, error) : invalid(error)
    })
  }

  async #check(next: LoadedConfig): Promise<void> {
    await this.#options.plugins.check(next).catch(error => {
      throw invalid(error)
    })
  }

  async #apply(before: LoadedConfig, next: LoadedConfig, definitions: readonly FoundPlugin[]): Promise<void> {
    const { live, plugins, applyCore } = this.#options
    await this.#check(next)
    live.current = next
    applyCore(next.core, before.core)
    try {
      await plugins.reload(next, definitions)
    } catch (error) {
      live.current = before
      applyCore(before.core, next.core)
      const failed = await plugins.restore(before)
      const left = failed.length === 0 ? '' : `, except those of ${failed.join(', ')}: restart the server`
      const message = `${errorMessage(error)} The previous settings are in effect again${left}.`
      throw new CorralError('reload_failed', message, { cause: error })
    }
  }
}

/** @throws CorralError `reload_failed` if the plugins cannot work together */
function asReloadFailure<Result>(work: () => Result): Result {
  try {
    return work()
  } catch (error) {
    if (!(error instanceof PluginError)) throw error
    throw new CorralError('reload_failed', `${error.message} The settings stay as they were.`, { cause: error })
  }
}

const textOf = (path: string) => orNotWritable(path, readFile(path, 'utf8').catch(whenMissing))

async function orNotWritable<Result>(path: string, work: Promise<Result>): Promise<Result> {
  return await work.catch(error => {
    throw notWritable(path, errorMessage(error))
  })
}

const notWritable = (path: string, why: string) =>
  new CorralError(
    'config_not_editable',
    `${path} cannot be changed from here: ${why.replace(/\.$/, '')}. Nothing was written. Change it on the server's machine, then "corral reload".`
  )

/** The error for a change with an unusable result. It has no line number, because the text is not in any file. */
function refused(file: string | undefined, { problems }: ConfigError): CorralError {
  const said = problems.map(({ message }) => message)
  return new CorralError('invalid_config', `Nothing was written to ${file}: ${said.join(' ')}`, {
    details: { problems: problems.map(({ setting, message }) => ({ where: setting ?? file, setting, message })) }
  })
}

/** A file without write permission is never replaced, even if the permissions of its folder would allow that. */
async function requireWritable(path: string, exists: boolean): Promise<void> {
  if (!exists) return
  await orNotWritable(path, access(path, constants.W_OK))
  // Root can write anything, but a file without any write permission is protected on purpose.
  if (((await stat(path)).mode & 0o222) === 0) throw notWritable(path, 'the file is read-only')
}

/** Writes the file as a whole, with its previous permissions and owner. */
const written = (path: string, text: string, isNew: boolean) =>
  orNotWritable(path, writeFileAtomic(path, text, isNew ? { mode: 0o600 } : {}))

function invalid(error: unknown): unknown {
  if (!(error instanceof ConfigError)) return error
  return new CorralError('invalid_config', `${error.message}\nThe settings stay as they were.`, {
    details: { problems: error.problems }
  })
}

const recordOf = ({ name, from, to, isSecret }: SettingChange): SettingChangeRecord =>
  isSecret ? { setting: name, secret: true } : { setting: name, from: from ?? null, to: to ?? null }

const shown = ({ setting, secret, from, to }: SettingChangeRecord) =>
  secret ? `${setting} (its value is not shown)` : `${setting}: ${JSON.stringify(from)} → ${JSON.stringify(to)}`

/** The result of a reload as human-readable lines. */
export function reportLines({ file, applied, restart, overridden, plugins }: ReloadReport): string[] {
  const source = file === null ? 'The settings were reloaded' : `${file} was reloaded`
  const nothing = applied.length + restart.length + plugins.length === 0 ? ': no setting has changed' : ''
  return [
    `${source}${nothing}.`,
    ...applied.map(change => `Now in effect: ${shown(change)}`),
    ...plugins.map(({ name, change }) =>
      change === 'restart' ? `Needs a restart of the server: plugin "${name}"` : `The plugin "${name}" was ${change}.`
    ),
    ...restart.map(change => `Needs a restart of the server: ${shown(change)}`),
    ...overridden.map(({ setting, by }) => `No effect, because ${by} sets it: ${setting}`)
  ]
}
