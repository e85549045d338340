import { Ajv } from 'ajv'
import type { FastifyInstance, FastifyRequest, RouteOptions } from 'fastify'
import type { Services } from '../contracts/services.ts'
import { CorralError } from '../errors.ts'
import { VALIDATION_OPTIONS } from '../http/application.ts'
import type { FoundPlugin, PluginOffer } from './plugin.ts'
import { within } from './plugin-error.ts'
import type { PluginReport } from './plugin-report.ts'

declare module 'fastify' {
  /** The services of the plugins that take part; plugins reach them through `context.service(name)`. */
  interface FastifyInstance extends Partial<Services> {}

  interface FastifyContextConfig {
    /** Name of the plugin whose route it is. */
    plugin?: string
  }
}

/** A plugin that takes part. */
export interface PluginEntry {
  readonly definition: FoundPlugin
  state: PluginReport['state']
  /** Why it failed. */
  reason?: string
  /** Known once it is set up. */
  offer?: PluginOffer
  readonly routes: RouteOptions[]
  /** Ends what the plugin's setup has begun when it is left out. */
  readonly controller: AbortController
  stopped: boolean
}

/** Hooks that run for a request, each with a callback as its last argument. */
const REQUEST_HOOKS = new Set<string>([
  'onRequest',
  'preParsing',
  'preValidation',
  'preHandler',
  'preSerialization',
  'onSend',
  'onResponse',
  'onError',
  'onTimeout',
  'onRequestAbort'
])

type AnyFunction = (this: unknown, ...values: unknown[]) => unknown

/**
 * Puts what plugins offer on the application, each plugin once. Nothing can be taken off a Fastify application again, and
 * any error that reaches its boot ends it. So errors are caught behind each plugin before the next one is registered, and
 * what a plugin that fails has already put there is switched off by looking at its state.
 */
const noSuchPage = (path: string) => new Error(`its page is said to be at ${path}, but it has no route GET ${path}`)

export class PluginRegistrar {
  readonly #app: FastifyInstance
  readonly #deadline: number
  /** Fastify's own `addHook`. */
  readonly #addHook: AnyFunction
  /** The plugin that is being registered: Fastify loads one after another. */
  #current: PluginEntry | undefined
  /** Where the current plugin's routes were registered, in the order of its `routes`. */
  #scopes: FastifyInstance[] = []

  /**
   * @param deadline milliseconds that one plugin may take
   * @param onLateFailure called when a plugin fails after its registration; rejects where that ends the start
   */
  constructor(
    app: FastifyInstance,
    deadline: number,
    onLateFailure: (entry: PluginEntry, error: unknown) => Promise<void>
  ) {
    this.#app = app
    this.#deadline = deadline
    const registrar = this
    app.addHook('onRoute', function (route) {
      const plugin = registrar.#current
      if (plugin) {
        plugin.routes.push(route)
        route.config = { ...route.config, plugin: plugin.definition.name }
      }
      registrar.#scopes.push(this)
    })
    // Scopes inherit from the application, so that these two are theirs as well.
    const { addHook, register } = app as unknown as Record<'addHook' | 'register', AnyFunction>
    this.#addHook = addHook
    Object.assign(app, {
      addHook(this: unknown, name: string, hook: AnyFunction) {
        const owner = registrar.#current
        const mayFail = owner && (owner.definition.optional || owner.definition.path !== undefined)
        if (!mayFail) return addHook.call(this, name, hook)
        const onFailure = (error: unknown) => onLateFailure(owner, error)
        return addHook.call(this, name, guardedHook(owner, name, hook, onFailure, deadline))
      },
      register(this: unknown, plugin: unknown, options: unknown) {
        const inner = registrar.#current && typeof plugin === 'function' ? rejecting(plugin as AnyFunction) : plugin
        return register.call(this, inner, options)
      }
    })
  }

  /** @throws what keeps the application from having the plugin's services under their names */
  addServices({ offer }: PluginEntry): void {
    for (const [name, service] of Object.entries(offer?.services ?? {})) this.#app.decorate<unknown>(name, service)
  }

  /** Registers the plugin's hooks on the application itself. @throws the error of the plugin */
  async addHooks(entry: PluginEntry): Promise<void> {
    const { hooks } = entry.offer ?? {}
    if (!hooks) return
    const onApplication = async (app: FastifyInstance) => within(this.#deadline, () => hooks(app, {}))
    await this.#load(entry, Object.assign(onApplication, { [Symbol.for('skip-override')]: true }))
  }

  /** Registers the plugin's routes in a scope of its own. @throws the error of the plugin */
  async addRoutes(entry: PluginEntry): Promise<void> {
    const { routes, web } = entry.offer ?? {}
    if (web && !routes) throw noSuchPage(web.path)
    if (!routes) return
    const { name, optional } = entry.definition
    await this.#load(entry, async scope => {
      if (optional) {
        this.#addHook.call(scope, 'onRequest', async (request: FastifyRequest) => {
          if (entry.state !== 'failed') return
          throw new CorralError(
            'route_not_found',
            `${request.url.split('?')[0]} belongs to the plugin "${name}", which failed; the server's log says why.`
          )
        })
      }
      await within(this.#deadline, () => routes(scope, {}))
    })
    const isPage = ({ url, method }: RouteOptions) => url === web?.path && [method].flat().includes('GET')
    if (web && !entry.routes.some(isPage)) throw noSuchPage(web.path)
  }

  /** Takes a plugin's routes out of the API document, and keeps Fastify from compiling their schemas. */
  retire({ routes }: PluginEntry): void {
    for (const route of routes) {
      delete route.schema
      route.config = { ...route.config, leftOut: true }
    }
  }

  async #load(entry: PluginEntry, plugin: (scope: FastifyInstance) => Promise<unknown>): Promise<void> {
    this.#current = entry
    this.#scopes = []
    const before = entry.routes.length
    let failure: unknown
    try {
      void this.#app.register(plugin as Parameters<FastifyInstance['register']>[0])
      // Whoever takes the error here keeps it from the boot.
      void this.#app.after(error => {
        failure = error
      })
      await this.#app.after()
      if (failure) throw failure
      if (entry.definition.path === undefined) return
      for (const [at, route] of entry.routes.slice(before).entries()) checkSchemas(route, this.#scopes[at]!)
    } finally {
      this.#current = undefined
    }
  }
}

/**
 * Compiles the schemas that requests are checked by, as Fastify does at the end of its boot, which an unusable one would
 * end. @throws Error naming the route
 */
function checkSchemas({ method, url, schema = {}, validatorCompiler }: RouteOptions, scope: FastifyInstance): void {
  const own = () => {
    const ajv = new Ajv({ ...VALIDATION_OPTIONS, validateFormats: false })
    for (const shared of Object.values(scope.getSchemas())) ajv.addSchema(shared as object)
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

/** A Fastify plugin that rejects where the original throws, which would be an uncaught exception. */
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
  // Its length and the marks of fastify-plugin.
  return Object.defineProperties(wrapped, Object.getOwnPropertyDescriptors(plugin))
}

/** A hook that does nothing once its plugin has failed, and whose own failures name the plugin. */
function guardedHook(
  entry: PluginEntry,
  name: string,
  hook: AnyFunction,
  onLateFailure: (error: unknown) => Promise<void>,
  deadline: number
): AnyFunction {
  const onReady = name === 'onReady'
  if (typeof hook !== 'function' || !(onReady || REQUEST_HOOKS.has(name))) return hook
  // As Fastify does: a hook calls `done`, or returns a promise. One that sends the reply itself may do neither.
  const call = (self: unknown, values: unknown[]) =>
    new Promise((resolve, reject) => {
      const done = (error?: unknown, value?: unknown) => (error ? reject(error) : resolve(value))
      const result = hook.call(self, ...values, done)
      if (result instanceof Promise) result.then(resolve, reject)
      else if (onReady && hook.length === 0) resolve(undefined)
    })
  return async function (this: unknown, ...values) {
    if (entry.state === 'failed') return undefined
    if (onReady) return await within(deadline, () => call(this, values)).catch(onLateFailure)
    // The last one is Fastify's own `done`, which a hook that returns a promise must not call.
    if (typeof values.at(-1) === 'function') values.pop()
    try {
      return await call(this, values)
    } catch (error) {
      if (error instanceof CorralError || typeof (error as { statusCode?: unknown })?.statusCode === 'number')
        throw error
      const { name: plugin } = entry.definition
      const message = `The plugin "${plugin}" failed in its hook "${name}". The server's log says why.`
      throw new CorralError('internal', message, { cause: error })
    }
  }
}
