import { Ajv } from 'ajv'
import type { FastifyInstance, FastifyReply, FastifyRequest, RouteOptions } from 'fastify'
import type { Services } from '../contracts/services.ts'
import { CorralError } from '../errors.ts'
import { VALIDATION_OPTIONS } from '../http/application.ts'
import type { Fork } from '../http/forks.ts'
import type { FoundPlugin, PluginOffer } from './plugin.ts'
import { DeadlineError, hookFailure, hookTimeout, within } from './plugin-error.ts'
import type { PluginReport } from './plugin-report.ts'
import type { Registrations } from './registrations.ts'
import { runAs } from './running-plugin.ts'

declare module 'fastify' {
  /** The services of the active plugins. Plugins use `context.service(name)`. */
  interface FastifyInstance extends Partial<Services> {}

  interface FastifyContextConfig {
    /** Name of the plugin that the route belongs to. */
    plugin?: string
  }
}

export interface PluginEntry {
  readonly definition: FoundPlugin
  state: PluginReport['state']
  reason?: string
  /** Set once its setup has ended. */
  offer?: PluginOffer
  readonly routes: RouteOptions[]
  /** Additions to the services of other plugins. */
  added: Registrations
  /** Aborted when the plugin is left out or switched off, to end what its setup began. */
  controller: AbortController
  stopped: boolean
  /** Whether it was switched off, and its routes say so. */
  isOff?: boolean
  /** Removes its `on` hooks. */
  removeHooks?: () => void
  /** Answers its routes, if it is an outside plugin. */
  fork?: Fork
}

/** Hooks that run for a request, each with a callback as its last argument. */
const REQUEST_HOOKS = new Set(
  'onRequest preParsing preValidation preHandler preSerialization onSend onResponse onError onTimeout onRequestAbort'.split(
    ' '
  )
)

/** Whether a plugin has failed or was switched off. */
export const isOut = ({ state }: Pick<PluginEntry, 'state'>) => state === 'failed' || state === 'disabled'

type AnyFunction = (this: unknown, ...values: unknown[]) => unknown

const noSuchPage = (path: string) => new Error(`its page is declared as ${path}, but it has no route GET ${path}`)

/** Outside plugins, and plugins that the server can run without, may fail at any time. */
const mayFail = ({ optional, path }: FoundPlugin) => optional || path !== undefined

/** Milliseconds that a plugin may take to register, and for one hook of a request. */
type Deadlines = { register: number; hook(): number }

/**
 * Registers the offers of plugins with the application, one plugin at a time. Nothing can be removed from a Fastify
 * application, and any error that reaches its boot stops the boot. Errors are therefore caught after each plugin,
 * before the next one is registered. The routes and hooks of a plugin that has failed or was switched off check its
 * state and do nothing. The routes of outside plugins are in forks, which can be replaced.
 */
export class PluginRegistrar {
  readonly #app: FastifyInstance
  readonly #deadlines: Deadlines
  readonly #onLateFailure: (entry: PluginEntry, error: unknown) => Promise<void>
  /** The plugin that is being registered: Fastify loads one after another. */
  #current: PluginEntry | undefined
  /** The scope of each of the current plugin's routes, in the order of `routes`. */
  #scopes: FastifyInstance[] = []

  /** @param onLateFailure called when a plugin fails after its registration; rejects if that ends the start */
  constructor(
    app: FastifyInstance,
    deadlines: Deadlines,
    onLateFailure: (entry: PluginEntry, error: unknown) => Promise<void>
  ) {
    this.#app = app
    this.#deadlines = deadlines
    this.#onLateFailure = onLateFailure
    const registrar = this
    app.addHook('onRoute', function (route) {
      registrar.#scopes.push(this)
      if (!registrar.#current) return
      const { definition, routes } = registrar.#current
      const { handler } = route
      routes.push(route)
      route.config = { ...route.config, plugin: definition.name }
      if (definition.path === undefined) return
      route.handler = function (...values) {
        return runAs(definition, () => handler.apply(this, values))
      }
    })
    this.#guard(app)
  }

  /** Lets hooks and additions to an application, and to its scopes, belong to the plugin that is being registered. */
  #guard(app: FastifyInstance): void {
    const registrar = this
    // Scopes inherit from the application, including these.
    const { addHook, decorate, register } = app as unknown as Record<'addHook' | 'decorate' | 'register', AnyFunction>
    Object.assign(app, {
      addHook(this: unknown, name: string, hook: AnyFunction) {
        const owner = registrar.#current
        if (!owner || !mayFail(owner.definition)) return addHook.call(this, name, hook)
        const onFailure = async (error: unknown) => {
          // A fork can fail by itself.
          if (owner.fork) throw error
          await registrar.#onLateFailure(owner, error)
        }
        const guarded = guardedHook(owner, name, hook, onFailure, registrar.#deadlines)
        if (name === 'onSend') addHook.call(this, 'onRequest', collected(this, guarded))
        return addHook.call(this, name, guarded)
      },
      decorate(this: FastifyInstance, name: string, ...values: unknown[]) {
        const result = decorate.call(this, name, ...values)
        if (registrar.#current?.definition.optional)
          registrar.#current.added.add(() => Reflect.deleteProperty(this, name))
        return result
      },
      register(this: unknown, plugin: unknown, options: unknown) {
        const inner = registrar.#current && typeof plugin === 'function' ? rejecting(plugin as AnyFunction) : plugin
        return register.call(this, inner, options)
      }
    })
  }

  /**
   * Offers the plugin's services to other plugins. If another plugin adds something to a service through a decorator,
   * the addition is recorded for the plugin whose code runs.
   * @throws if the application cannot have the services under their names
   */
  addServices(entry: PluginEntry): void {
    for (const [name, service] of Object.entries(entry.offer?.services ?? {})) {
      const getter = () => {
        if (isOut(entry)) return undefined
        return this.#current?.definition.optional ? this.#current.added.view(service) : service
      }
      this.#app.decorate<unknown>(name, { getter })
    }
  }

  /** Runs a step of a plugin. Everything that is added to the application during the step belongs to the plugin. */
  async during<Result>(entry: PluginEntry, step: () => Promise<Result>): Promise<Result> {
    this.#current = entry
    try {
      return await step()
    } finally {
      this.#current = undefined
    }
  }

  /** Registers the plugin's hooks on the application itself. @throws the error of the plugin */
  async addHooks(entry: PluginEntry): Promise<void> {
    const { hooks } = entry.offer ?? {}
    if (!hooks) return
    const onApplication = (app: FastifyInstance) => this.#run(entry, () => hooks(app, {}))
    await this.#load(this.#app, entry, Object.assign(onApplication, { [Symbol.for('skip-override')]: true }))
  }

  /**
   * Registers the plugin's routes in their own scope, or in a fork that gets no requests before `use`.
   * @param replaced plugins whose routes may be repeated
   * @throws the error of the plugin
   */
  async addRoutes(entry: PluginEntry, replaced: readonly PluginEntry[] = []): Promise<void> {
    const { routes, web } = entry.offer ?? {}
    if (web && !routes) throw noSuchPage(web.path)
    if (!routes) return
    const { name, optional, path } = entry.definition
    const isOutside = path !== undefined
    if (isOutside) entry.fork = this.#app.forks.create()
    const app = entry.fork?.app ?? this.#app
    if (isOutside) this.#guard(app)
    await this.#load(app, entry, async scope => {
      if (optional) {
        this.#current = undefined
        scope.addHook('onRequest', async (request: FastifyRequest) => {
          if (!isOut(entry) && !entry.isOff) return
          const why = entry.state === 'failed' ? "failed; the server's log says why" : 'is switched off'
          const message = `${request.url.split('?')[0]} belongs to the plugin "${name}", which ${why}.`
          throw new CorralError('route_not_found', message)
        })
        this.#current = entry
      }
      await this.#run(entry, () => routes(scope, {}))
    })
    if (isOutside) {
      const known = replaced.flatMap(({ routes }) => routes)
      for (const route of entry.routes) {
        const other = this.#sameRoute(route, other => other.config?.plugin !== name && !known.includes(other))
        if (other) throw repeated(route, other, name)
      }
      await this.during(entry, async () => await app.ready())
    }
    const isPage = ({ url, method }: RouteOptions) => url === web?.path && [method].flat().includes('GET')
    if (web && !entry.routes.some(isPage)) throw noSuchPage(web.path)
  }

  /**
   * Lets these plugins answer new requests, and forgets the routes of others.
   * @returns a promise for the end of all earlier requests
   */
  use(entries: readonly PluginEntry[], gone: readonly PluginEntry[] = []): Promise<unknown> {
    const ended = this.#app.forks.use(entries.flatMap(({ fork }) => fork ?? []))
    for (const entry of gone) this.retire(entry)
    const { allRoutes } = this.#app
    const old = new Set(gone.flatMap(({ routes }) => routes))
    allRoutes.splice(0, allRoutes.length, ...allRoutes.filter(route => !old.has(route)))
    return ended
  }

  /** Removes a plugin's routes from the API document, and prevents Fastify from compiling their schemas. */
  retire({ routes }: PluginEntry): void {
    for (const route of routes) {
      delete route.schema
      route.config = { ...route.config, leftOut: true }
    }
  }

  #run({ definition }: PluginEntry, register: () => unknown): Promise<unknown> {
    return within(this.#deadlines.register, () => runAs(definition, register))
  }

  async #load(
    app: FastifyInstance,
    entry: PluginEntry,
    plugin: (scope: FastifyInstance) => Promise<unknown>
  ): Promise<void> {
    this.#scopes = []
    const before = entry.routes.length
    let failure: unknown
    await this.during(entry, async () => {
      // If Fastify saw the error, incomplete routes would stay, and a request to such a route would end the process.
      const caught = (scope: FastifyInstance) =>
        plugin(scope).catch(error => {
          failure = error ?? new Error('it threw nothing')
        })
      void app.register(Object.assign(caught, plugin))
      // Handling the error here hides it from the boot.
      void app.after(error => {
        failure ??= error
      })
      await app.after()
      if (failure) throw this.#explained(failure, entry)
      if (entry.definition.path === undefined) return
      for (const [at, route] of entry.routes.slice(before).entries()) checkSchemas(route, this.#scopes[at]!)
    })
  }

  /** Explains Fastify's error for a duplicate route, which does not say to which plugin the existing route belongs. */
  #explained(failure: unknown, { routes, definition: { name } }: PluginEntry): unknown {
    const route = routes.at(-1)
    if ((failure as { code?: unknown }).code !== 'FST_ERR_DUPLICATED_ROUTE' || !route) return failure
    return repeated(route, this.#sameRoute(route), name, failure)
  }

  #sameRoute(route: RouteOptions, counts = (_: RouteOptions) => true): RouteOptions | undefined {
    return this.#app.allRoutes.find(
      known =>
        known !== route && shapeOf(known) === shapeOf(route) && sharedMethods(known, route).length > 0 && counts(known)
    )
  }
}

function repeated(route: RouteOptions, other: RouteOptions | undefined, name: string, cause?: unknown): Error {
  const owner = other?.config?.plugin
  const whose = owner === undefined ? 'corral itself' : owner === name ? 'this same plugin' : `the plugin "${owner}"`
  const [method] = other ? sharedMethods(other, route) : [route.method].flat()
  return new Error(`its route ${method} ${route.url} belongs to ${whose}; give it another path`, { cause })
}

/** The path of a route without the names of its parameters, which do not distinguish routes. */
const shapeOf = ({ url }: RouteOptions) => url.replace(/:[^/-]+/g, ':').replace(/(.)\/$/, '$1')

const sharedMethods = (one: RouteOptions, other: RouteOptions) =>
  [one.method].flat().filter(method => [other.method].flat().includes(method))

/**
 * Compiles the schemas of requests. Fastify does the same at the end of its boot, and an unusable schema would stop
 * that.
 * @throws Error that names the route
 */
function checkSchemas({ method, url, schema = {}, validatorCompiler }: RouteOptions, scope: FastifyInstance): void {
  const own = () => {
    const schemas = Object.values(scope.getSchemas()) as object[]
    const ajv = new Ajv({ ...VALIDATION_OPTIONS, validateFormats: false, schemas })
    return ({ schema }: { schema: unknown }) => ajv.compile(schema as object)
  }
  const compile = validatorCompiler ?? scope.validatorCompiler ?? own()
  for (const httpPart of ['body', 'querystring', 'params', 'headers'] as const) {
    const part = schema[httpPart] as { content?: Record<string, { schema: unknown }> } | undefined
    if (part === undefined) continue
    const schemas = part.content ? Object.values(part.content).map(entry => entry.schema) : [part]
    for (const one of schemas) {
      try {
        compile({ schema: one as never, method: String(method), url, httpPart })
      } catch (error) {
        throw new Error(`the schema of ${method} ${url} (${httpPart}) cannot be used: ${(error as Error).message}`)
      }
    }
  }
}

/** Wraps a Fastify plugin so that it rejects instead of throwing, which would be an uncaught exception. */
function rejecting(plugin: AnyFunction): AnyFunction {
  const wrapped = function (this: unknown, ...values: unknown[]) {
    try {
      return plugin.apply(this, values)
    } catch (error) {
      const done = values[2]
      if (plugin.length < 3 || typeof done !== 'function') return Promise.reject(error)
      return done(error)
    }
  }
  // Copies its length and the marks of fastify-plugin.
  return Object.defineProperties(wrapped, Object.getOwnPropertyDescriptors(plugin))
}

/** Records an `onSend` hook for replies that are streamed. */
function collected(scope: unknown, hook: AnyFunction): AnyFunction {
  return (request, reply, done) => {
    const { sendHooks } = request as FastifyRequest
    const run = async () => await hook.call(scope, request, reply, null)
    if (sendHooks) sendHooks.push(run)
    else (request as FastifyRequest).sendHooks = [run]
    ;(done as () => void)()
  }
}

/** Wraps a hook so that it does nothing once its plugin has failed, and so that its errors name the plugin. */
function guardedHook(
  entry: PluginEntry,
  name: string,
  hook: AnyFunction,
  onLateFailure: (error: unknown) => Promise<void>,
  deadlines: Deadlines
): AnyFunction {
  const onReady = name === 'onReady'
  if (typeof hook !== 'function' || !(onReady || REQUEST_HOOKS.has(name))) return hook
  // As in Fastify, a hook calls `done` or returns a promise. A hook that sends the reply itself need not do either.
  const call = (self: unknown, values: unknown[]) =>
    new Promise((resolve, reject) => {
      const done = (error?: unknown, value?: unknown) => (error ? reject(error) : resolve(value))
      const result = runAs(entry.definition, () => hook.call(self, ...values, done))
      if (result instanceof Promise) result.then(resolve, reject)
      else if (onReady && hook.length === 0) resolve(undefined)
    })
  return async function (this: unknown, ...values) {
    if (isOut(entry)) return undefined
    if (onReady) return await within(deadlines.register, () => call(this, values)).catch(onLateFailure)
    // The last one is Fastify's own `done`, which a hook that returns a promise must not call.
    if (typeof values.at(-1) === 'function') values.pop()
    const limit = entry.definition.path === undefined ? 0 : deadlines.hook()
    try {
      return await within(limit || Number.POSITIVE_INFINITY, () => call(this, values))
    } catch (error) {
      if (error instanceof DeadlineError) {
        const [, reply] = values as [unknown, FastifyReply | undefined]
        // A hook that sends the reply itself need not call `done`.
        if (reply?.sent || reply?.raw?.headersSent) return await new Promise(() => {})
        throw hookTimeout(entry.definition.name, name, limit)
      }
      if (error instanceof CorralError || typeof (error as { statusCode?: unknown })?.statusCode === 'number')
        throw error
      throw hookFailure(entry.definition.name, name, error)
    }
  }
}
