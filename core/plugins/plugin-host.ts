import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import type { LoadedConfig } from '../config/load.ts'
import { ConfigError } from '../config/problems.ts'
import type { ServiceName, Services } from '../contracts/services.ts'
import { CorralError, type ErrorCode, type ErrorOptions, messageOf } from '../errors.ts'
import { ListenError } from '../http/listening.ts'
import { parseDuration } from '../system/duration.ts'
import { DeadlineError, within } from './deadline.ts'
import { HookRegistry } from './hook-registry.ts'
import type { FoundPlugin, PluginContext, PluginOffer } from './plugin.ts'
import { PluginError, type PluginErrorCode } from './plugin-error.ts'
import { planPlugins } from './plugin-order.ts'
import { type Participant, PluginRegistrar } from './plugin-registrar.ts'
import type { PluginReport } from './plugin-report.ts'

export interface PluginHostOptions {
  definitions: readonly FoundPlugin[]
  config: LoadedConfig
  log: FastifyBaseLogger
  /** Aborted when corral shuts down. */
  signal: AbortSignal
  /** Longest time that one plugin may take for each step, in milliseconds. */
  deadlines?: { setup?: number; register?: number; start?: number; stop?: number }
}

export interface PluginHost {
  /**
   * Sets all plugins up and registers what they offer: services, then hooks, then routes.
   * @throws PluginError when a required plugin fails, ConfigError when any finds a mistake in its settings; `stop` is
   * still to be called then.
   */
  register(app: FastifyInstance): Promise<void>
  /** Starts them, in the order of their needs. @throws as `register`, and ListenError. */
  start(): Promise<void>
  /** Stops every plugin that was set up, in reverse, each once. Never rejects: failures are logged. */
  stop(): Promise<void>
  report(): PluginReport[]
  /** @throws PluginError when no active plugin offers it. */
  service<Name extends ServiceName>(name: Name): Services[Name]
}

interface Entry extends Participant {
  state: PluginReport['state']
  reason?: string
  offer?: PluginOffer
  /** Ends what the plugin's setup has begun when it is left out. */
  controller: AbortController
  stopped: boolean
}

const SETUP_DEADLINE = 60_000
/** A little less than Fastify's own. */
const REGISTER_DEADLINE = 9_000
const START_DEADLINE = 30_000
/** How much longer than the running requests a plugin's stop may last. */
const STOP_MARGIN = 5_000

const VERBS = {
  plugin_setup_failed: 'could not be set up',
  plugin_register_failed: 'could not be registered',
  plugin_start_failed: 'could not be started'
} as const

/** What is asked for in the configuration and cannot be: corral does not start as if it had not been asked. */
const refusesStart = (error: unknown) => error instanceof ConfigError || error instanceof ListenError

function pluginError(entry: Entry, code: keyof typeof VERBS, error: unknown): Error {
  if (error instanceof PluginError || refusesStart(error)) return error as Error
  const { name } = entry.definition
  const actual: PluginErrorCode = error instanceof DeadlineError ? 'plugin_timeout' : code
  const why = messageOf(error).replace(/\.$/, '')
  return new PluginError(actual, name, `Plugin "${name}" ${VERBS[code]}: ${why}.`, error)
}

/**
 * Runs plugins: built-in and outside ones alike. Setup runs outside Fastify's boot, which any failure would end.
 * @throws PluginError when the list cannot work, see `planPlugins`.
 */
export function createPluginHost({ definitions, config, log, signal, deadlines = {} }: PluginHostOptions): PluginHost {
  const grace = parseDuration(config.core.shutdown_grace) ?? 0
  const stopDeadline = deadlines.stop ?? (grace < 0 ? Number.POSITIVE_INFINITY : grace + STOP_MARGIN)
  const plan = planPlugins(definitions, ({ name }) => config.sections[name]?.enabled !== false)
  const entries: Entry[] = plan.order.map(definition => {
    return { definition, state: 'waiting', routes: [], controller: new AbortController(), stopped: false }
  })
  for (const { definition, state, reason } of plan.leftOut) {
    const { name } = definition
    log[state === 'failed' ? 'error' : 'debug']({ plugin: name }, `Plugin "${name}" is left out: ${reason}`)
  }
  let retire = (_entry: Entry) => {}
  const hooks = new HookRegistry(log)
  const usable = () => entries.filter(({ state }) => state !== 'failed')

  function service<Name extends ServiceName>(name: Name): Services[Name] {
    for (const { offer } of usable()) {
      const found = offer?.services?.[name]
      if (found !== undefined) return found as Services[Name]
    }
    throw new PluginError('plugin_service_missing', name, `No active plugin offers the service "${name}".`)
  }

  async function stopEntry(entry: Entry): Promise<void> {
    if (entry.stopped || !entry.offer) return
    entry.stopped = true
    const { name } = entry.definition
    hooks.remove(name)
    try {
      await within(stopDeadline, () => entry.offer?.stop?.())
    } catch (error) {
      log.error({ err: error, plugin: name }, `Plugin "${name}" did not stop cleanly: ${messageOf(error)}`)
    }
  }

  /** Leaves an optional plugin out, and those that need it before it; a required one ends the start. */
  async function leaveOut(entry: Entry, error: Error): Promise<void> {
    if (!entry.definition.optional || refusesStart(error)) throw error
    entry.state = 'failed'
    entry.reason = error.message
    log.error({ err: error, plugin: entry.definition.name }, `${error.message} It is left out.`)
    const offered = new Set<string>(entry.definition.offers)
    for (const other of usable().reverse()) {
      const lost = other.definition.needs?.find(need => offered.has(need))
      if (lost === undefined) continue
      const { name } = other.definition
      const reason = `Plugin "${name}" needs the service "${lost}" of "${entry.definition.name}", which failed: ${error.message}`
      await leaveOut(other, new PluginError('plugin_service_missing', name, reason, error))
    }
    entry.controller.abort(error)
    retire(entry)
    await stopEntry(entry)
  }

  const report = () => [...entries, ...plan.leftOut].map(reportOf)

  function contextFor({ definition: { name, needs }, controller }: Entry): PluginContext {
    return {
      log: log.child({ plugin: name }),
      config: config.core,
      paths: config.paths,
      signal: AbortSignal.any([signal, controller.signal]),
      hooks,
      plugins: report,
      service<Name extends ServiceName>(wanted: Name): Services[Name] {
        if (needs?.includes(wanted)) return service(wanted)
        throw new PluginError(
          'plugin_service_undeclared',
          name,
          `Plugin "${name}" asks for the service "${wanted}" without naming it in "needs"; add it there.`
        )
      },
      error: (code: ErrorCode, message: string, options?: ErrorOptions) => new CorralError(code, message, options)
    }
  }

  async function setUp(entry: Entry): Promise<void> {
    const { name, offers = [] } = entry.definition
    const options = config.sections[name] ?? {}
    const work = (async () => entry.definition.setup(contextFor(entry), options))()
    let offer: PluginOffer
    try {
      offer = await within(deadlines.setup ?? SETUP_DEADLINE, () => work)
    } catch (error) {
      entry.controller.abort(error)
      if (error instanceof DeadlineError) {
        // What it hands over too late is stopped at once: nobody else will.
        const stopLate = (late: PluginOffer) => {
          entry.offer = late
          return stopEntry(entry)
        }
        work.then(stopLate).catch(cause => log.debug({ err: cause, plugin: name }, 'late failure of a plugin'))
      }
      throw error
    }
    entry.offer = offer ?? {}
    if (entry.offer.on) hooks.add(name, entry.offer.on)
    const given = Object.entries(entry.offer.services ?? {}).flatMap(([key, value]) =>
      value === undefined ? [] : [key]
    )
    const missing = offers.filter(service => !given.includes(service))
    const surplus = given.filter(service => !(offers as string[]).includes(service))
    if (missing.length + surplus.length > 0) {
      const faults = [
        ...missing.map(service => `"${service}" is named in "offers" but was not given`),
        ...surplus.map(service => `"${service}" was given but is not named in "offers"`)
      ]
      throw new PluginError(
        'plugin_offer_mismatch',
        name,
        `Plugin "${name}" offers other services than it says: ${faults.join('; ')}.`
      )
    }
  }

  /** Registers what the plugins offer: services of all, then hooks of all, then routes of all. */
  async function register(app: FastifyInstance): Promise<void> {
    const failed = (entry: Entry, error: unknown) =>
      leaveOut(entry, pluginError(entry, 'plugin_register_failed', error))
    const registrar = new PluginRegistrar(app, deadlines.register ?? REGISTER_DEADLINE, failed)
    const each = async (list: readonly Entry[], step: (entry: Entry) => Promise<void> | void) => {
      for (const entry of list) {
        if (entry.state === 'failed') continue
        try {
          await step(entry)
        } catch (error) {
          await failed(entry, error)
        }
      }
    }
    retire = entry => registrar.retire(entry)
    await each(entries, entry => registrar.addServices(entry))
    await each(entries, entry => registrar.addHooks(entry))
    // Where two have the same route, a required plugin keeps it, and one that comes with corral.
    const rank = ({ definition: { optional, path } }: Entry) => (optional ? 2 : 0) + (path === undefined ? 0 : 1)
    await each(
      entries.toSorted((a, b) => rank(a) - rank(b)),
      entry => registrar.addRoutes(entry)
    )
  }

  function checkRunning(): void {
    if (signal.aborted) throw new CorralError('shutting_down', 'corral was told to shut down while it started.')
  }

  async function start(): Promise<void> {
    for (const entry of entries) {
      if (entry.state === 'failed') continue
      checkRunning()
      try {
        await within(deadlines.start ?? START_DEADLINE, () => entry.offer?.start?.())
        entry.state = 'active'
      } catch (error) {
        await leaveOut(entry, pluginError(entry, 'plugin_start_failed', error))
      }
    }
  }

  let starting: Promise<void> | undefined
  let stopping: Promise<void> | undefined
  return {
    async register(app) {
      for (const entry of entries) {
        if (entry.state === 'failed') continue
        checkRunning()
        try {
          await setUp(entry)
        } catch (error) {
          await leaveOut(entry, pluginError(entry, 'plugin_setup_failed', error))
        }
      }
      await register(app)
    },
    start() {
      starting ??= start()
      return starting
    },
    stop() {
      stopping ??= (async () => {
        await starting?.catch(() => undefined)
        for (const entry of [...entries].reverse()) await stopEntry(entry)
      })()
      return stopping
    },
    report,
    service
  }
}

function reportOf({
  definition: { name, description, api, path, optional = false, needs = [], offers = [] },
  state,
  reason,
  offer,
  routes = []
}: Pick<Entry, 'definition' | 'state' | 'reason'> & Partial<Entry>): PluginReport {
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
    hooks: on.flatMap(([hook, run]) => (run ? [hook] : []))
  }
}
