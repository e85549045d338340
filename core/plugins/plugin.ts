import type { FastifyBaseLogger, FastifyPluginAsync, FastifyReply } from 'fastify'
import type { Static, TObject } from 'typebox'
import type { AnswerSink } from '../contracts/engines.ts'
import type { Hooks, PluginHooks } from '../contracts/hooks.ts'
import type { ServiceName, Services } from '../contracts/services.ts'
import type { CorralError, ErrorCode, ErrorOptions } from '../errors.ts'
import type { DataPaths } from '../system/data-paths.ts'
import type { PluginReport } from './plugin-report.ts'

declare module 'fastify' {
  /** What the API document says of a route beside the shapes of requests and replies. */
  interface FastifySchema {
    summary?: string
    description?: string
    tags?: readonly string[]
    /** Unique among all routes. */
    operationId?: string
    /** Media types of the request's body; `application/json` where absent. */
    consumes?: readonly string[]
    /** The body may be left out. */
    bodyOptional?: boolean
    /** What the caller must show in the place of what all routes ask for; an empty list is nothing. */
    security?: readonly Record<string, string[]>[]
    /** Left out of the document. */
    hide?: boolean
  }
}

/** The number of the plugin contract that this version of corral speaks. */
export const PLUGIN_API = 1

/** The settings of `config.yaml` that belong to no plugin; those that come with corral see all of them. */
export interface CoreSettings {
  host: string
  port: number
}

/** What a plugin asks a model for a client. */
export interface PassedQuestion {
  operation: 'chat' | 'completion'
  /** In the OpenAI chat format: `model` as the client named it, `messages` or `prompt`, `max_tokens`, `temperature` … */
  body: Record<string, unknown>
}

/** What a plugin gets when it is set up. */
export interface PluginContext {
  readonly log: FastifyBaseLogger
  /** Settings that belong to no plugin; frozen. */
  readonly config: Readonly<CoreSettings>
  readonly paths: DataPaths
  /** Aborted when corral shuts down. */
  readonly signal: AbortSignal
  /** A service named in `needs`. */
  service<Name extends ServiceName>(name: Name): Services[Name]
  /** Calls what plugins offer as `on`; for plugins that answer requests, load models or pull them. */
  readonly hooks: Hooks
  /**
   * Has a model answer a request to one of the plugin's own routes, by the rules of every API: aliases, the models and
   * limits of the caller's key, budgets, usage, filters, queues. The answer ends when the client leaves.
   * @param take gets what the engine adds, as filters left it; the engine waits for the promise that it returns
   * @returns once the answer is complete
   * @throws CorralError why there is no answer, or no end of it
   */
  answer(reply: FastifyReply, question: PassedQuestion, take: AnswerSink['take']): Promise<void>
  /** What has become of all plugins so far. */
  plugins(): PluginReport[]
  /** A failure that each surface renders in its own shape, for plugins that cannot import `CorralError`. */
  error(code: ErrorCode, message: string, options?: ErrorOptions): CorralError
}

/** What a plugin offers once it is set up. */
export interface PluginOffer {
  /** Reached by other plugins through `context.service(name)`, and as decorators of the application. */
  services?: Partial<Services>
  /** Registered on the application itself before any routes: for what concerns all of them, such as access control. */
  hooks?: FastifyPluginAsync
  /** What the plugin wants to see or change while the server runs: requests, events of answers, loads, pulls. */
  on?: PluginHooks
  /** Registered as an encapsulated Fastify plugin; must only register routes, hooks and handlers. */
  routes?: FastifyPluginAsync
  /**
   * A page of its own that the server's page links to, and shows in a frame without any rights of its own: `path` is one of
   * its `routes` (GET). Nobody's key is handed to it.
   */
  web?: { title: string; path: string }
  /** Runs after all plugins are registered and before the server listens; must not do long work. */
  start?(): Promise<void> | void
  /**
   * Runs before `reload`, of all plugins before the `reload` of any: throws where these options cannot be carried out,
   * and then nothing changes anywhere. It must not change anything itself.
   */
  // biome-ignore lint/suspicious/noExplicitAny: what a plugin's own schema says
  check?(options: any): Promise<void> | void
  /**
   * Takes the options that its section has now, validated as those of `setup`, while the server runs. Runs at each reload
   * of the configuration in which its section or settings of the core have changed; must not do long work. One that throws
   * gets the options that held before. Without it, a changed section needs a restart; so do single settings whose schema
   * says `restart: true`, which keep their values here.
   */
  // biome-ignore lint/suspicious/noExplicitAny: what a plugin's own schema says
  reload?(options: any): Promise<void> | void
  /**
   * Runs once at shutdown, in reverse order of start, when no more requests come in; also when the plugin is left out or
   * the start ends early, before `start` ran.
   */
  stop?(): Promise<void> | void
}

/** A plugin module's default export; plain data, so that a plugin needs nothing of corral's to be written. */
export interface PluginDefinition<Options extends TObject = TObject> {
  /** Key of its section in `config.yaml` and name of its child logger. */
  name: string
  api: typeof PLUGIN_API
  /** One line for `config.yaml` and the documents. */
  description: string
  /** Services that it offers. */
  offers?: ServiceName[]
  /** Services that it cannot work without; they are set up before it. */
  needs?: ServiceName[]
  /**
   * An optional plugin that fails is left out and shown as failed; `enabled: false` switches it off. One that throws a
   * ConfigError or a ListenError ends the start nevertheless: the configuration cannot be carried out.
   */
  optional?: boolean
  /** Schema of its section; every property has a default. */
  options: Options
  /**
   * Options of requests that its engines know (`EngineProvider.knownOptions`). What the configuration sets as options is
   * held against those of all plugins, so that misspelt ones are found; where no plugin has any, nothing is.
   */
  engineOptions?: readonly string[]
  /**
   * Names of the models that a section of this plugin brings, as it stands in the file. Their options are not checked:
   * engines elsewhere may know any.
   */
  models?(section: Readonly<Record<string, unknown>>): readonly string[]
  setup(context: PluginContext, options: Static<Options>): Promise<PluginOffer> | PluginOffer
}

/** A plugin as it was found. */
export interface FoundPlugin extends PluginDefinition {
  /** It comes with corral: the tests have looked at the schema of its options. */
  builtIn?: boolean
  /** File that it was loaded from; absent for those that come with corral. */
  path?: string
  /** Why an optional plugin cannot take part, where that shows before it is set up. */
  fault?: string
}

/** A plugin whose options are a plain JSON schema; `Options` is what they hold. */
export interface PlainPlugin<Options> extends Omit<PluginDefinition, 'description' | 'options' | 'setup'> {
  description?: string
  options?: { type: 'object'; properties?: object; additionalProperties?: unknown; required?: readonly string[] }
  setup(context: PluginContext, options: Options): Promise<PluginOffer> | PluginOffer
}

/** Types a plugin module's default export; `definePlugin<Options>({…})` where its options are a plain JSON schema. */
export function definePlugin<Options extends TObject>(definition: PluginDefinition<Options>): PluginDefinition
export function definePlugin<Options = Record<string, unknown>>(definition: PlainPlugin<Options>): PluginDefinition
export function definePlugin(definition: unknown): PluginDefinition {
  return { description: '', options: { type: 'object', properties: {} }, ...(definition as object) } as PluginDefinition
}
