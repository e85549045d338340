import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import type { AnswerDependencies } from '../answers/model-request.ts'
import { answerForPlugin, createAnswers } from '../answers/pipeline.ts'
import { ConfigError } from '../config/config-error.ts'
import type { LoadedConfig } from '../config/load.ts'
import type { ServiceName, Services } from '../contracts/services.ts'
import { CorralError, errorMessage } from '../errors.ts'
import { ListenError } from '../http/listening.ts'
import { parseDuration } from '../system/duration.ts'
import type { LogLevels } from '../system/log-levels.ts'
import { HookRegistry } from './hook-registry.ts'
import type { FoundPlugin, PluginContext, PluginOffer } from './plugin.ts'
import { DeadlineError, PluginError, type PluginErrorCode, within } from './plugin-error.ts'
import { offerFaults } from './plugin-keys.ts'
import { type LeftOut, planPlugins } from './plugin-order.ts'
import { isOut, type PluginEntry, PluginRegistrar } from './plugin-registrar.ts'
import type { PluginReport } from './plugin-report.ts'
import { Registrations } from './registrations.ts'
import { runAs, runningAs } from './running-plugin.ts'

export interface PluginHostOptions {
  definitions: readonly FoundPlugin[]
  config: LoadedConfig
  logs: LogLevels
  signal: AbortSignal
  /** Maximum milliseconds that one plugin may take for each step. */
  deadlines?: Partial<typeof DEADLINES>
}

const DEADLINES = {
  setup: 60_000,
  /** A little less than Fastify's own. */
  register: 9_000,
  start: 30_000,
  reload: 10_000,
  /** How long a plugin's stop may take after the requests in progress have ended. */
  stop: 5_000
}

const VERBS = {
  plugin_setup_failed: 'could not be set up',
  plugin_register_failed: 'could not be registered',
  plugin_start_failed: 'could not be started'
} as const

/** The configuration asks for something unavailable, so corral does not start. */
const refusesStart = (error: unknown) => error instanceof ConfigError || error instanceof ListenError

const NEEDS_RESTART = 'It has hooks for all routes, which only a restart of the server can add, replace or remove.'

function newEntry(definition: FoundPlugin, isDeferred = false): PluginEntry {
  const added = new Registrations(definition.name, isDeferred)
  const controller = new AbortController()
  return { definition, state: 'waiting', routes: [], added, controller, stopped: false }
}

function notReplaced({ name, path }: FoundPlugin, why: string, cause?: unknown): CorralError {
  const message = `The plugin "${name}" (${path}) cannot be loaded: ${why.replace(/\.$/, '')}.`
  return new CorralError('reload_failed', message, { cause })
}

function pluginError(entry: PluginEntry, code: keyof typeof VERBS, error: unknown): Error {
  if (error instanceof PluginError || refusesStart(error)) return error as Error
  const { name } = entry.definition
  const actual: PluginErrorCode = error instanceof DeadlineError ? 'plugin_timeout' : code
  const why = errorMessage(error).replace(/\.$/, '')
  return new PluginError(actual, name, `Plugin "${name}" ${VERBS[code]}: ${why}.`, error)
}

/** Runs the built-in and outside plugins. Their setup runs outside Fastify's boot, which would end at any failure. */
export class PluginHost {
  readonly #options: PluginHostOptions
  #entries: PluginEntry[]
  #leftOut: LeftOut[] = []
  /** The plugins after the change that is being prepared, whose services new plugins get. */
  #next: readonly PluginEntry[] | undefined
  /** Replaced plugins that still have requests in progress. */
  readonly #leaving = new Set<PluginEntry>()
  /** Plugins that were switched off, whose routes say so. */
  #off: PluginEntry[] = []
  readonly #hooks: HookRegistry
  readonly #log: FastifyBaseLogger
  readonly #deadlines: typeof DEADLINES
  readonly #hookTimeout = () => parseDuration(this.#options.config.core.limits.hook_timeout)!
  #registrar: PluginRegistrar | undefined
  #starting: Promise<void> | undefined
  #stopping: Promise<void> | undefined

  /** @throws PluginError if the list of plugins cannot work, see `planPlugins` */
  constructor(options: PluginHostOptions) {
    const { definitions, config, logs, deadlines } = options
    const log = logs.part('plugins')
    const grace = parseDuration(config.core.shutdown_grace) ?? 0
    this.#deadlines = { ...DEADLINES, stop: DEADLINES.stop + grace, ...deadlines }
    const { order, leftOut } = planPlugins(definitions, ({ name }) => config.sections[name]?.enabled !== false)
    this.#options = options
    this.#log = log
    this.#hooks = new HookRegistry(log, this.#hookTimeout)
    this.#entries = order.map(definition => newEntry(definition))
    this.#report(leftOut)
  }

  /** Remembers and logs the plugins that are left out. */
  #report(leftOut: LeftOut[]): void {
    const before = new Set(this.#leftOut.map(({ reason }) => reason))
    this.#leftOut = leftOut
    for (const { definition, state, reason } of leftOut) {
      const { name: plugin } = definition
      if (before.has(reason)) continue
      this.#log[state === 'failed' ? 'error' : 'debug']({ plugin }, `Plugin "${plugin}" is left out: ${reason}`)
    }
  }

  /**
   * Sets up all plugins and registers their offers: first all services, then all hooks, then all routes.
   * @throws PluginError if a required plugin fails, ConfigError if any plugin finds a mistake in its settings. `stop`
   * must still be called then.
   */
  async register(app: FastifyInstance): Promise<void> {
    const code = 'plugin_register_failed'
    const failed = (entry: PluginEntry, error: unknown) => this.#leaveOut(entry, pluginError(entry, code, error))
    await this.#each('plugin_setup_failed', async entry => {
      await this.#setUp(entry)
      this.#addHooks(entry)
    })
    const { register } = this.#deadlines
    const registrar = new PluginRegistrar(app, { register, hook: this.#hookTimeout }, failed)
    this.#registrar = registrar
    await this.#each(code, entry => registrar.addServices(entry))
    await this.#each(code, entry => registrar.addHooks(entry))
    // If two plugins have the same route, a built-in one keeps it, then a required one.
    const rank = ({ definition: { optional, path } }: PluginEntry) => (path === undefined ? 0 : 2) + (optional ? 1 : 0)
    const ranked = this.#entries.toSorted((a, b) => rank(a) - rank(b))
    await this.#each(code, entry => registrar.addRoutes(entry), ranked)
    void registrar.use(this.#entries)
  }

  /** Starts them, in the order of their needs. @throws as `register`, and ListenError. */
  start(): Promise<void> {
    this.#starting ??= this.#each('plugin_start_failed', async entry => {
      await this.#start(entry)
    })
    return this.#starting
  }

  canReload(name: string): boolean {
    return this.#reloadable().some(({ definition }) => definition.name === name)
  }

  async #start(entry: PluginEntry): Promise<void> {
    const start = () => within(this.#deadlines.start, () => runAs(entry.definition, () => entry.offer?.start?.()))
    await this.#registrar?.during(entry, start)
    entry.state = 'active'
  }

  /** These plugins, but outside plugins with hooks for all routes as they are: only a restart can change them. */
  withFixed(found: readonly FoundPlugin[]) {
    const fixed = this.#entries.flatMap(({ definition, offer }) =>
      definition.path !== undefined && offer?.hooks && !found.includes(definition) ? [definition] : []
    )
    const waiting = fixed.map(({ name }) => name)
    return { definitions: [...found.filter(({ name }) => !waiting.includes(name)), ...fixed], waiting }
  }

  /** Compares the outside plugins with the plugins found at a reload. @throws as `planPlugins` */
  compare(found: readonly FoundPlugin[], sections: LoadedConfig['sections']) {
    // Outside plugins with hooks for all routes, and built-in ones, keep their state.
    const isFixed = ({ definition: { path }, offer }: PluginEntry) => path === undefined || offer?.hooks
    const isOn = (definition: FoundPlugin) => {
      const entry = this.#entries.find(known => known.definition.name === definition.name)
      if (entry ? isFixed(entry) : definition.path === undefined) return entry !== undefined
      return sections[definition.name]?.enabled !== false
    }
    const { order, leftOut } = planPlugins(found, isOn)
    const lost = new Set<string>()
    const next = order.map(definition => {
      const entry = this.#entries.find(known => known.definition === definition)
      if (entry && !definition.needs?.some(need => lost.has(need))) return entry
      // Plugins that use its services get the new ones.
      for (const service of definition.offers ?? []) lost.add(service)
      return newEntry(definition, true)
    })
    const added = next.filter(entry => !this.#entries.includes(entry))
    return { next, leftOut, added, ended: this.#entries.filter(entry => !next.includes(entry)) }
  }

  /**
   * Adds, replaces and removes outside plugins all at once, or changes nothing. Requests in progress continue with the
   * plugins that they began with.
   * @throws CorralError `reload_failed`, which names the plugin
   */
  async #replace(found: readonly FoundPlugin[], sections: LoadedConfig['sections']): Promise<void> {
    const { next, leftOut, added, ended } = this.compare(found, sections)
    const isNew = ({ reason }: LeftOut) => !this.#leftOut.some(known => known.reason === reason)
    const failed = leftOut.find(left => left.state === 'failed' && isNew(left))
    if (failed) throw notReplaced(failed.definition, failed.reason)
    const registrar = this.#registrar!
    const running = ended.filter(entry => !isOut(entry))
    const ignore = () => undefined
    const each = async (step: (entry: PluginEntry) => unknown) => {
      for (const entry of added) {
        await (async () => step(entry))().catch(error => {
          throw notReplaced(entry.definition, errorMessage(error), error)
        })
      }
    }
    this.#next = next
    try {
      await each(async entry => {
        await this.#setUp(entry)
        if (entry.offer?.hooks) throw new Error(NEEDS_RESTART)
      })
      await each(entry => registrar.addRoutes(entry, ended))
      await each(entry => this.#start(entry))
      // Without a pause, so that no request finds only a part of the plugins.
      for (const entry of running) entry.added.undo(ignore)
      for (const entry of added) {
        try {
          entry.added.commit()
        } catch (error) {
          for (const other of added) other.added.undo(ignore)
          for (const other of running) other.added.commit()
          throw notReplaced(entry.definition, errorMessage(error), error)
        }
      }
    } catch (error) {
      void registrar.use([...this.#entries, ...this.#off], added)
      for (const entry of added) await this.#end(entry, 'failed', errorMessage(error))
      throw error
    } finally {
      this.#next = undefined
    }
    this.#entries = next
    this.#report(leftOut)
    for (const { definition, offer } of running) if (offer?.on) this.#hooks.add(definition.name, {})
    for (const entry of added) this.#addHooks(entry)
    const isOff = ({ definition }: PluginEntry) => leftOut.some(left => left.definition === definition)
    this.#off = [...this.#off, ...running].filter(isOff)
    const gone = ended.filter(entry => !this.#off.includes(entry))
    for (const entry of this.#off) registrar.retire(Object.assign(entry, { isOff: true }))
    const answered = registrar.use([...next, ...this.#off], gone)
    const grace = parseDuration(this.#options.config.core.shutdown_grace) ?? 0
    for (const entry of running) {
      this.#leaving.add(entry)
      void within(grace, () => answered)
        .catch(ignore)
        .then(() => this.#end(entry, 'disabled', 'It was replaced or switched off.'))
        .then(() => this.#leaving.delete(entry))
    }
  }

  /** Lets all plugins that take new options check these. @throws ConfigError or CorralError of the first that refuses */
  async check({ sections }: LoadedConfig): Promise<void> {
    for (const entry of this.#reloadable()) await this.#handOver('check', entry, sections)
  }

  /** Applies new options, in the order of the plugins' needs. @throws as `check`, of the first that fails */
  async reload({ sections, file }: LoadedConfig, found = this.#options.definitions): Promise<void> {
    for (const entry of this.#reloadable()) await this.#handOver('reload', entry, sections)
    await this.#replace(found, sections)
    this.#hooks.administered({ change: 'config_reloaded', target: file ?? 'environment', by: 'reload' })
  }

  /** Restores the previous options. @returns the names of plugins that did not accept them */
  async restore({ sections }: LoadedConfig): Promise<string[]> {
    const failed: string[] = []
    for (const entry of this.#reloadable()) {
      await this.#handOver('reload', entry, sections).catch(() => failed.push(entry.definition.name))
    }
    return failed
  }

  #reloadable(): PluginEntry[] {
    return this.#stopping ? [] : this.#usable().filter(({ offer }) => offer?.reload !== undefined)
  }

  async #handOver(
    step: 'check' | 'reload',
    { definition, offer, stopped }: PluginEntry,
    sections: LoadedConfig['sections']
  ): Promise<void> {
    if (stopped) return
    const { name } = definition
    try {
      const call = () => runAs(definition, () => offer?.[step]?.(sections[name] ?? {}))
      await within(this.#deadlines.reload, call)
    } catch (error) {
      if (error instanceof ConfigError) throw error
      this.#log.error({ err: error, plugin: name }, `Plugin "${name}" failed in its ${step}: ${errorMessage(error)}`)
      const why = errorMessage(error).replace(/\.$/, '')
      const message = `The plugin "${name}" does not accept the new settings: ${why}.`
      throw new CorralError('reload_failed', message, { cause: error })
    }
  }

  /** Stops every plugin that was set up, in reverse order, each once. Never rejects: failures are logged. */
  stop(): Promise<void> {
    this.#stopping ??= (async () => {
      await this.#starting?.catch(() => undefined)
      for (const entry of [...this.#leaving, ...this.#entries.toReversed()]) await this.#stop(entry)
    })()
    return this.#stopping
  }

  report(): PluginReport[] {
    return [...this.#entries, ...this.#leftOut].map(reportOf)
  }

  /** @throws PluginError if no active plugin offers it. */
  service<Name extends ServiceName>(name: Name): Services[Name] {
    const found = this.#find(name)
    if (found !== undefined) return found
    throw new PluginError('plugin_service_missing', name, `No active plugin offers the service "${name}".`)
  }

  #find<Name extends ServiceName>(name: Name): Services[Name] | undefined {
    const entries = (this.#next ?? this.#entries).filter(entry => !isOut(entry))
    const offering = entries.find(({ offer }) => offer?.services?.[name] !== undefined)
    return offering?.offer?.services?.[name] as Services[Name] | undefined
  }

  #usable(): PluginEntry[] {
    return this.#entries.filter(entry => !isOut(entry))
  }

  /** Runs a step of each plugin that has not failed. A plugin that fails is left out. */
  async #each(
    code: keyof typeof VERBS,
    step: (entry: PluginEntry) => Promise<void> | void,
    entries: readonly PluginEntry[] = this.#entries
  ): Promise<void> {
    for (const entry of entries) {
      if (isOut(entry)) continue
      if (this.#options.signal.aborted) {
        throw new CorralError('shutting_down', 'corral had to shut down while it started.')
      }
      try {
        await step(entry)
      } catch (error) {
        await this.#leaveOut(entry, pluginError(entry, code, error))
      }
    }
  }

  async #stop(entry: PluginEntry): Promise<void> {
    if (entry.stopped || !entry.offer) return
    entry.stopped = true
    const { name } = entry.definition
    entry.removeHooks?.()
    try {
      await within(this.#deadlines.stop, async () => {
        await runAs(entry.definition, () => entry.offer?.stop?.())
        await entry.fork?.app.close()
      })
    } catch (error) {
      this.#log.error({ err: error, plugin: name }, `Plugin "${name}" did not stop cleanly: ${errorMessage(error)}`)
    }
  }

  /** Leaves out an optional plugin, after those that need it. A required plugin ends the start. */
  async #leaveOut(entry: PluginEntry, error: Error): Promise<void> {
    const { name, optional, offers } = entry.definition
    if (!optional || refusesStart(error)) throw error
    entry.state = 'failed'
    this.#log.error({ err: error, plugin: name }, `${error.message} It is left out.`)
    const offered = new Set<string>(offers)
    for (const other of this.#usable().reverse()) {
      const lost = other.definition.needs?.find(need => offered.has(need))
      if (lost === undefined) continue
      const needs = `Plugin "${other.definition.name}" needs the service "${lost}" of "${name}", which failed`
      const reason = `${needs}: ${error.message}`
      await this.#leaveOut(other, new PluginError('plugin_service_missing', other.definition.name, reason, error))
    }
    await this.#end(entry, 'failed', error.message, error)
  }

  /** Ends a plugin: its routes and hooks do nothing from now on, and what it added to services is removed. */
  async #end(entry: PluginEntry, state: 'failed' | 'disabled', reason: string, error?: Error): Promise<void> {
    const { name } = entry.definition
    Object.assign(entry, { state, reason })
    entry.controller.abort(error ?? new Error(reason))
    this.#registrar?.retire(entry)
    entry.added.undo(cause =>
      this.#log.error({ err: cause, plugin: name }, `Parts of what plugin "${name}" added stay`)
    )
    await this.#stop(entry)
  }

  #contextFor({ definition: { name, needs, optional, path }, controller, added }: PluginEntry): PluginContext {
    const { config, logs, signal } = this.#options
    const asking = (): AnswerDependencies => ({
      ...{ catalog: this.service('catalog'), scheduler: this.service('scheduler'), engines: this.service('engines') },
      ...{ hooks: this.#hooks, config: config.core, surface: name, tools: () => this.#find('tools')?.host }
    })
    return {
      log: logs.part(name),
      logLevels: logs,
      config: config.core,
      paths: config.paths,
      signal: AbortSignal.any([signal, controller.signal]),
      hooks: this.#hooks,
      answer: async (reply, question, render) => await answerForPlugin(asking(), reply, question, render),
      answers: options => createAnswers({ ...asking(), ...options }),
      plugins: () => this.report(),
      service: wanted => {
        const mayLeave = optional || path !== undefined
        if (needs?.includes(wanted)) return mayLeave ? added.view(this.service(wanted)) : this.service(wanted)
        const message = `Plugin "${name}" asks for the service "${wanted}" without naming it in "needs"; add it there.`
        throw new PluginError('plugin_service_undeclared', name, message)
      },
      error: (code, message, options) => new CorralError(code, message, options)
    }
  }

  #addHooks(entry: PluginEntry): void {
    const { definition, offer } = entry
    if (offer?.on) entry.removeHooks = this.#hooks.add(definition.name, runningAs(definition, offer.on))
  }

  async #setUp(entry: PluginEntry): Promise<void> {
    const { definition, controller } = entry
    const { name, offers = [] } = definition
    const { config } = this.#options
    const setup = async () => definition.setup(this.#contextFor(entry), config.sections[name] ?? {})
    const work = runAs(definition, setup)
    try {
      entry.offer = (await within(this.#deadlines.setup, () => work)) ?? {}
    } catch (error) {
      controller.abort(error)
      if (error instanceof DeadlineError) {
        // A late offer is stopped immediately, because nothing would stop it later.
        const stopLate = (late: PluginOffer) => {
          entry.offer = late
          return this.#stop(entry)
        }
        work.then(stopLate).catch(cause => this.#log.debug({ err: cause, plugin: name }, 'late failure of a plugin'))
      }
      throw error
    }
    const refuse = (what: string) => new PluginError('plugin_offer_mismatch', name, `Plugin "${name}" ${what}`)
    const mistakes = offerFaults(entry.offer)
    if (mistakes.length > 0) throw refuse(`has unknown members: ${mistakes.join('; ')}. Correct its module.`)
    const { services = {} } = entry.offer
    const offered = Object.entries(services).flatMap(([key, value]) => (value === undefined ? [] : [key]))
    const missing = offers.filter(one => !offered.includes(one))
    const undeclared = offered.filter(one => !(offers as string[]).includes(one))
    const faults = [
      ...missing.map(one => `"${one}" is named in "offers" but was not returned`),
      ...undeclared.map(one => `"${one}" was returned but is not named in "offers"`)
    ]
    if (faults.length > 0) throw refuse(`offers other services than it declares: ${faults.join('; ')}.`)
  }
}

function reportOf({
  definition: { name, description, api, path, optional = false, needs = [], offers = [] },
  state,
  reason,
  offer,
  routes = []
}: Pick<PluginEntry, 'definition' | 'state' | 'reason'> & Partial<PluginEntry>): PluginReport {
  const on = Object.entries(offer?.on ?? {})
  // Fastify answers HEAD wherever it answers GET.
  const lines = routes.flatMap(route => [route.method].flat().map(method => `${method} ${route.url}`))
  return {
    name,
    description,
    api,
    ...(path !== undefined && { path }),
    optional,
    state,
    ...(reason !== undefined && { reason }),
    needs: [...needs],
    services: [...offers],
    routes: [...new Set(lines)].filter(line => !line.startsWith('HEAD ')),
    ...(offer?.web && { web: { title: offer.web.title, path: offer.web.path } }),
    hooks: on.flatMap(([hook, run]) => (run ? [hook] : []))
  }
}
