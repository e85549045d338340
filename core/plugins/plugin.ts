import type { FastifyBaseLogger, FastifyPluginAsync, FastifyReply } from 'fastify'
import type { Static, TObject } from 'typebox'
import type { Answers } from '../answers/question.ts'
import type { AnswerStream, PassedQuestion } from '../contracts/answers.ts'
import type { AnswerSink } from '../contracts/engines.ts'
import type { Hooks, PluginHooks } from '../contracts/hooks.ts'
import type { ServiceName, Services } from '../contracts/services.ts'
import type { CorralError, ErrorCode, ErrorOptions } from '../errors.ts'
import type { DataPaths } from '../system/data-paths.ts'
import type { PluginReport } from './plugin-report.ts'

declare module 'fastify' {
  /** Properties of a route for the API document, in addition to the schemas of requests and replies. */
  interface FastifySchema {
    summary?: string
    description?: string
    tags?: readonly string[]
    /** Unique among all routes. */
    operationId?: string
    /** Media types of the request's body; `application/json` if absent. */
    consumes?: readonly string[]
    /** Whether the body may be omitted. */
    bodyOptional?: boolean
    /** The required credentials, if they differ from the usual ones. An empty list means none. */
    security?: readonly Record<string, string[]>[]
    /** Not in the document. */
    hide?: boolean
  }
}

/** The version of the plugin contract that this version of corral supports. */
export const PLUGIN_API = 1

/** The settings of `config.yaml` that do not belong to a plugin. Built-in plugins see all of them. */
export interface CoreSettings {
  host: string
  port: number
}

/** The context that a plugin gets in its setup. */
export interface PluginContext {
  readonly log: FastifyBaseLogger
  /** Settings that do not belong to a plugin; frozen. */
  readonly config: Readonly<CoreSettings>
  readonly paths: DataPaths
  /** Aborted when corral shuts down. */
  readonly signal: AbortSignal
  service<Name extends ServiceName>(name: Name): Services[Name]
  /** Calls the `on` hooks of all plugins. It is for plugins that answer requests, load models or pull them. */
  readonly hooks: Hooks
  /**
   * Lets a model answer a request to one of the plugin's own routes, by the rules of every API: aliases, the models and
   * limits of the caller's key, budgets, usage, filters, queues. The answer ends when the client disconnects.
   * @param render either takes the engine's deltas after all filters, and the engine waits for the promise that it
   * returns. Or it says how to stream them, with heartbeats, a retry and a last event if the answer fails. If absent, the
   * reply is the result of an operation: its text or bytes
   * @returns once the answer is complete: the fields of a result in JSON, if `render` is absent
   * @throws CorralError if the answer fails before anything was sent
   */
  answer(
    reply: FastifyReply,
    question: PassedQuestion,
    render?: AnswerSink['take'] | AnswerStream
  ): Promise<Record<string, unknown> | undefined>
  /**
   * The service that `answer` and all built-in APIs use, for APIs with more to say about requests and answers. Needs the
   * services `catalog`, `scheduler` and `engines`.
   * @param options.optionsAtTop whether sampling options may be outside of `options`, so that unknown ones are reported
   */
  answers(options?: { optionsAtTop?: boolean }): Answers
  /** The current state of all plugins. */
  plugins(): PluginReport[]
  /** Creates a failure that each API renders in its own format, for plugins that cannot import `CorralError`. */
  error(code: ErrorCode, message: string, options?: ErrorOptions): CorralError
}

/** The offer of a plugin after its setup. */
export interface PluginOffer {
  /** Available to other plugins through `context.service(name)`, and as decorators of the application. */
  services?: Partial<Services>
  /** Registered on the application itself before any routes: for hooks of all routes, such as access control. */
  hooks?: FastifyPluginAsync
  /** Hooks to observe or change requests, events of answers, loads, and pulls. */
  on?: PluginHooks
  /** Registered as an encapsulated Fastify plugin. It must only register routes, hooks and handlers. */
  routes?: FastifyPluginAsync
  /** A page (one of the `routes`) that the server's page links to and shows in a frame, without permissions or key. */
  web?: { title: string; path: string }
  /** Runs after all plugins are registered and before the server listens. It must not do long work. */
  start?(): Promise<void> | void
  /**
   * Runs before `reload`, for all plugins before the `reload` of any plugin. If it throws because these options cannot
   * be used, nothing changes anywhere. It must not change anything itself.
   */
  // biome-ignore lint/suspicious/noExplicitAny: what a plugin's own schema says
  check?(options: any): Promise<void> | void
  /**
   * Takes the section's new options, validated like those of `setup`, while the server runs. Runs at each configuration
   * reload that changed its section or settings of the core. It must not do long work. If it throws, it gets the
   * previous options. Without this method, a changed section needs a restart. So do single settings whose schema says
   * `restart: true`. They keep their values here.
   */
  // biome-ignore lint/suspicious/noExplicitAny: what a plugin's own schema says
  reload?(options: any): Promise<void> | void
  /**
   * Runs once at shutdown, in reverse order of start, when no more requests arrive. It also runs when the plugin is
   * left out or the start ends early, before `start` ran.
   */
  stop?(): Promise<void> | void
}

/** A plugin module's default export: plain data, so that a plugin does not depend on corral's code. */
export interface PluginDefinition<Options extends TObject = TObject> {
  /** Key of its section in `config.yaml` and name of its child logger. */
  name: string
  api: typeof PLUGIN_API
  /** One line for `config.yaml` and the documents. */
  description: string
  offers?: ServiceName[]
  /** Services that it requires; they are set up before it. */
  needs?: ServiceName[]
  /**
   * An optional plugin that fails is left out and shown as failed; `enabled: false` disables it. A ConfigError or a
   * ListenError ends the start nevertheless, because the configuration cannot be applied.
   */
  optional?: boolean
  /** Schema of its section; every property has a default. */
  options: Options
  /**
   * Request options that its engines know (`EngineProvider.knownOptions`). Options in the configuration are checked
   * against those of all plugins, to find misspelled ones. If no plugin lists any, they are not checked.
   */
  engineOptions?: readonly string[]
  /**
   * Names of the models that a section of this plugin adds, as written in the file. Their options are not checked,
   * because engines on other servers may have any options.
   */
  models?(section: Readonly<Record<string, unknown>>): readonly string[]
  setup(context: PluginContext, options: Static<Options>): Promise<PluginOffer> | PluginOffer
}

export interface FoundPlugin extends PluginDefinition {
  /** Built-in: tests check the schema of its options. */
  builtIn?: boolean
  /** File that it was loaded from; absent for built-in plugins. */
  path?: string
  /** Why an optional plugin cannot run, if known before its setup. */
  fault?: string
}

/** A plugin whose options are a plain JSON schema; `Options` is their type. */
export interface PlainPlugin<Options> extends Omit<PluginDefinition, 'description' | 'options' | 'setup'> {
  description?: string
  options?: { type: 'object'; properties?: object; additionalProperties?: unknown; required?: readonly string[] }
  setup(context: PluginContext, options: Options): Promise<PluginOffer> | PluginOffer
}

/** Types a plugin module's default export; `definePlugin<Options>({…})` if its options are a plain JSON schema. */
export function definePlugin<Options extends TObject>(definition: PluginDefinition<Options>): PluginDefinition
export function definePlugin<Options = Record<string, unknown>>(definition: PlainPlugin<Options>): PluginDefinition
export function definePlugin(definition: unknown): PluginDefinition {
  return { description: '', options: { type: 'object', properties: {} }, ...(definition as object) } as PluginDefinition
}
