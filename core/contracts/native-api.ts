import type { FastifyPluginAsync, FastifyReply } from 'fastify'
import { type ModelName, parseModelName } from '../models/model-name.ts'
import type { Model } from './models.ts'

export type Framing = 'sse' | 'ndjson'

/** How one mount writes the names and details of models, and names new models. The catalog resolves names. */
export interface ModelNaming {
  shown(variant: Model): string
  /** The name of an alias's record in lists of models; absent to list no aliases. */
  shownAlias?(alias: string): string
  /** Whether `details` in records have only Ollama's own fields: some of its clients refuse others. */
  plainDetails?: boolean
  /** The name for a new model. @throws CorralError `invalid_model_name` */
  toCreate(requested: unknown): ModelName
  /** The name to delete, if it is not the requested one. @throws CorralError `model_not_found` */
  toDelete?(name: ModelName): ModelName
  /** The name for hubs, if it differs. Undefined for a model without a hub. @throws CorralError `repo_not_found` */
  atHub?(requested: string): string | undefined
}

/** Names as in the native API: always with their owner, the default variant without a tag. */
export const NATIVE_NAMING: ModelNaming = { shown: ({ publicName }) => publicName, toCreate: parseModelName }

export interface NativeMount {
  defaultFraming: Framing
  naming?: ModelNaming
  /** The reply of `GET /version`; corral's own version if absent. */
  version?: string
  /** Whether input that is too long is truncated by default: the oldest turns, the ends of texts to embed. */
  truncates?: boolean
  /** Whether `generate` returns the `context` that continues a conversation. */
  givesContext?: boolean
  /** The Modelfile that `POST /show` returns for a model; empty if absent. */
  modelfile?: (variant: Model) => string
}

/** A stream of events in the client's framing. */
export interface EventStream {
  /** The text of heartbeats. */
  status: string
  /** Sends events. Wait for the promise before sending more, so that nothing is buffered for a slow reader. */
  send(...events: unknown[]): Promise<void> | undefined
}

/** How one mount streams events. */
export interface EventStreams {
  /** The supported content types of streams, the default first. */
  types: readonly ('text/event-stream' | 'application/x-ndjson')[]
  /** Streams the events of `work`, then its result. An early failure sets the status, a later one is the last event. */
  reply(reply: FastifyReply, work: (stream: EventStream) => Promise<unknown>): Promise<void>
}

export interface NativeApi {
  /** The routes of the native API without a prefix, for mounting under another prefix with other properties. */
  routes(mount: NativeMount): FastifyPluginAsync
  streams(defaultFraming: Framing): EventStreams
}
