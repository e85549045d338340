import type { FastifyBaseLogger, FastifyInstance, FastifyRequest } from 'fastify'
import fp from 'fastify-plugin'
import pino from 'pino'
import type { LoadedConfig } from '../config/load.ts'
import { ConfigError } from '../config/problems.ts'
import type { ServiceName, Services } from '../contracts/services.ts'
import { CorralError, type ErrorCode, type ErrorOptions, messageOf } from '../errors.ts'
import { createApplication } from '../http/application.ts'
import { ListenError } from '../http/listening.ts'
import { formatDuration, parseDuration } from '../system/duration.ts'
import { HookRegistry } from './hook-registry.ts'
import type { PluginDefinition, PluginOffer } from './plugin.ts'
import { PluginError, type PluginErrorCode } from './plugin-error.ts'
import { planPlugins } from './plugin-order.ts'

/** What became of one plugin. */
export interface PluginReport {
  name: string
  description: string
  state: 'waiting' | 'active' | 'disabled' | 'failed'
  /** Why it is disabled or failed. */
  reason?: string
}

export interface PluginHostOptions {
  definitions: readonly PluginDefinition[]
  config: LoadedConfig
  log: FastifyBaseLogger
  /** Aborted when corral shuts down. */
  signal: AbortSignal
  /** Longest time that one plugin may take for each step, in milliseconds. */
  deadlines?: { setup?: number; start?: number; stop?: number }
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

interface Entry {
  definition: PluginDefinition
  state: PluginReport['state']
  reason?: string
  offer?: PluginOffer
  /** Ends what the plugin's setup has begun when it is left out. */
  controller: AbortController
  stopped: boolean
}

const SETUP_DEADLINE = 60_000
const START_DEADLINE = 30_000
/** How much longer than the running requests a plugin's stop may last. */
const STOP_MARGIN = 5_000

class DeadlineError extends Error {}

/** Waits for the work, but not for ever. */
async function within<T>(deadline: number, work: () => T | Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const expired = new Promise<never>((_, reject) => {
    const late = () => reject(new DeadlineError(`it took longer than ${formatDuration(deadline)}`))
    // Timers beyond 2^31 ms fire at once; such a deadline is none.
    if (deadline < 2 ** 31) timer = setTimeout(late, deadline)
  })
  try {
    return await Promise.race([(async () => work())(), expired])
  } finally {
    clearTimeout(timer)
  }
}

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

/** Registers entries on an application; failures name the plugin at fault. */
async function registerOn(app: FastifyInstance, entries: readonly Entry[]): Promise<void> {
  const guarded = async (entry: Entry, work: () => unknown) => {
    try {
      await work()
    } catch (error) {
      throw pluginError(entry, 'plugin_register_failed', error)
    }
  }
  for (const entry of entries) {
    const decorate = async (instance: FastifyInstance) =>
      guarded(entry, () => {
        for (const [name, service] of Object.entries(entry.offer?.services ?? {}))
          instance.decorate<unknown>(name, service)
      })
    await app.register(fp(decorate, { name: `${entry.definition.name}-services` }))
  }
  for (const entry of entries) {
    const { hooks } = entry.offer ?? {}
    if (!hooks) continue
    const addHooks = async (instance: FastifyInstance) => guarded(entry, () => hooks(instance, {}))
    await app.register(fp(addHooks, { name: `${entry.definition.name}-hooks` }))
  }
  for (const entry of entries) {
    const { routes } = entry.offer ?? {}
    if (!routes) continue
    await app.register(async scope => {
      // Routes cannot be taken back once the application is ready: those of a plugin whose start fails answer nothing.
      const { name, optional } = entry.definition
      const refuseIfFailed = async (request: FastifyRequest) => {
        if (entry.state === 'failed') {
          throw new CorralError(
            'route_not_found',
            `${request.url.split('?')[0]} belongs to the plugin "${name}", which failed; the server's log says why.`
          )
        }
      }
      if (optional) scope.addHook('onRequest', refuseIfFailed)
      await guarded(entry, () => routes(scope, {}))
    })
  }
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
    return { definition, state: 'waiting', controller: new AbortController(), stopped: false }
  })
  const leftOut: PluginReport[] = plan.leftOut.map(({ definition: { name, description }, state, reason }) => {
    log[state === 'failed' ? 'error' : 'debug']({ plugin: name }, `Plugin "${name}" is left out: ${reason}`)
    return { name, description, state, reason }
  })
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
    await stopEntry(entry)
  }

  function contextFor({ definition: { name, needs }, controller }: Entry) {
    return {
      log: log.child({ plugin: name }),
      config: config.core,
      paths: config.paths,
      signal: AbortSignal.any([signal, controller.signal]),
      hooks,
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

  /** The error that registering these plugins causes, tried on an application that is thrown away. */
  async function registrationError(candidates: readonly Entry[]): Promise<unknown> {
    const probe = await createApplication(config.core, pino({ level: 'silent' }))
    try {
      await registerOn(probe, candidates)
      await probe.ready()
      return undefined
    } catch (error) {
      return error
    }
  }

  /** Finds the optional plugins whose registration fails, before they can spoil the real application. */
  async function probeOptional(): Promise<void> {
    const isOptional = ({ definition }: Entry) => definition.optional === true
    if (!usable().some(isOptional) || (await registrationError(usable())) === undefined) return
    const accepted = new Set(usable().filter(entry => !isOptional(entry)))
    // A required plugin that fails does so on the real application too, which tells.
    if ((await registrationError([...accepted])) !== undefined) return
    for (const entry of usable().filter(isOptional)) {
      // An earlier failure may have taken it along.
      if (entry.state === 'failed') continue
      accepted.add(entry)
      const error = await registrationError(usable().filter(other => accepted.has(other)))
      if (error === undefined) continue
      accepted.delete(entry)
      await leaveOut(entry, pluginError(entry, 'plugin_register_failed', error))
    }
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
      await probeOptional()
      await registerOn(app, usable())
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
    report() {
      const running = entries.map(({ definition: { name, description }, state, reason }) => {
        return { name, description, state, ...(reason === undefined ? {} : { reason }) }
      })
      return [...running, ...leftOut]
    },
    service
  }
}
