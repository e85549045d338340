import type { FastifyPluginAsync, FastifyReply, FastifyRequest } from 'fastify'
import { type ModelName, parseModelName } from '../models/model-name.ts'
import type { Model } from './models.ts'

export type Framing = 'sse' | 'ndjson'

/**
 * How one mount of the native API writes the names of models and their details, and names new ones. What a name means
 * that is to be found, the catalog knows.
 */
export interface ModelNaming {
  /** The name that records show. */
  shown(variant: Model): string
  /** The record of an alias in lists of models, by the name that it is shown under; none where absent. */
  shownAlias?(alias: string): string
  /** Whether `details` in records have Ollama's own fields only: some of its clients refuse a reply that has more. */
  plainDetails?: boolean
  /** The name that a new model gets. @throws CorralError `invalid_model_name` */
  toCreate(requested: unknown): ModelName
  /**
   * What is deleted under a name, where that is not all of it.
   * @throws CorralError `model_not_found`
   */
  toDelete?(name: ModelName): ModelName
  /**
   * The name that a pull sends to hubs, where that is not the requested one; undefined when the model is here and came
   * from no hub.
   * @throws CorralError `repo_not_found` saying how models at hubs are named
   */
  atHub?(requested: string): string | undefined
}

/** Names as the native API has them: always with their owner, the default variant without a tag. */
export const NATIVE_NAMING: ModelNaming = { shown: ({ publicName }) => publicName, toCreate: parseModelName }

/** What sets one mount of the native API apart. */
export interface NativeMount {
  defaultFraming: Framing
  naming?: ModelNaming
  /** The reply of `GET /version`; corral's own version where absent. */
  version?: string
  /** Whether what is too long is cut where the request does not say: the oldest turns, the ends of texts to embed. */
  truncates?: boolean
  /** Whether `generate` gives the `context` that continues a conversation. */
  givesContext?: boolean
  /** The Modelfile that `POST /show` gives for a model; empty where absent. */
  modelfile?: (variant: Model) => string
}

/** A stream of events, in the framing that its client wants. */
export interface EventStream {
  /** What heartbeats say. */
  status: string
  /** Sends events; wait for the promise before sending more, so that a slow reader is not buffered for. */
  send(...events: unknown[]): Promise<void> | undefined
}

/** How one mount streams events. */
export interface EventStreams {
  /** Types of streams that there are, the default one first. */
  types: readonly ('text/event-stream' | 'application/x-ndjson')[]
  /**
   * Replies with a stream of what `work` sends; the last event is what it returns. Its failure is a status code while
   * nothing has been sent, and the last event after that.
   */
  reply(request: FastifyRequest, reply: FastifyReply, work: (stream: EventStream) => Promise<unknown>): Promise<void>
}

export interface NativeApi {
  /** The routes of the native API without a prefix, for mounting under another one with habits of its own. */
  routes(mount: NativeMount): FastifyPluginAsync
  /** The streams of a mount that has this framing by default. */
  streams(defaultFraming: Framing): EventStreams
}
