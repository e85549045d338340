import type { FastifyPluginAsync, FastifyRequest } from 'fastify'
import type { ModelName } from '../models/model-name.ts'
import type { Model } from './models.ts'

export type Framing = 'sse' | 'ndjson'

/** How one mount of the native API reads and writes the names of models. */
export interface ModelNaming {
  /** A name as a request gives it. @throws CorralError `invalid_model_name` */
  parse(asked: unknown): ModelName
  /** The name that records show. */
  shown(variant: Model): string
  /**
   * What is deleted under this name, where that is not all that `parse` makes of it.
   * @throws CorralError `invalid_model_name`, `model_not_found`
   */
  toDelete?(asked: string): ModelName
  /**
   * What a pull of this name asks hubs for; undefined when the model is here and came from none of them. What was asked
   * for itself, where absent.
   * @throws CorralError `repo_not_found` saying how models at hubs are named
   */
  atHub?(asked: string): string | undefined
}

/** The habits of one mount of the native API. */
export interface NativeMount {
  defaultFraming: Framing
  naming?: ModelNaming
  /** What `GET /version` tells; corral's own version where absent. */
  version?: string
  /** What `POST /show` tells as the Modelfile of a model; nothing where absent. */
  modelfile?: (variant: Model) => string
}

export interface NativeApi {
  /** The routes of the native API without a prefix, for mounting under another one with habits of its own. */
  routes(mount: NativeMount): FastifyPluginAsync
  /** The framing that a request wants streams in, at a mount that has this one by default. */
  framingOf(request: FastifyRequest, defaultFraming: Framing): Framing
}
