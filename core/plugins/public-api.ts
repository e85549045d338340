/*
 * The entry `corral/plugin` of the package, for authors of plugins. A plugin does not need it at runtime, since its
 * definition is plain data. It provides types, classes for those who build on them, and what corral's own APIs are made
 * of: the APIs of LM Studio and llama-server import nothing else.
 */
export { reportIgnoredTools } from '../answers/answer-headers.ts'
export { type ApiDependencies, apiDependencies } from '../answers/api-dependencies.ts'
export { callerLease } from '../answers/caller-lease.ts'
export { embedChunked, type Vector, vectorReply } from '../answers/embedding.ts'
export { passedFields, withModelDefaults } from '../answers/engine-fields.ts'
export { eventChannel, namedEvents } from '../answers/event-channel.ts'
export { withUsableMedia } from '../answers/media-parts.ts'
export type { Answers, Channel, ModelRequest, Preparation, Question } from '../answers/question.ts'
export { readThinking, thinkingFields } from '../answers/thinking.ts'
export { Timeout } from '../config/setting-types.ts'
export type * from '../contracts/answers.ts'
export type { Caller, RequestBounds } from '../contracts/callers.ts'
export type * from '../contracts/engines.ts'
export type * from '../contracts/hooks.ts'
export type * from '../contracts/hubs.ts'
export type { Lease, LeaseRequest, LoadingModel, RunningModel, Scheduler } from '../contracts/leases.ts'
export type * from '../contracts/models.ts'
export type { OnProgress, Progress, Waiting } from '../contracts/progress.ts'
export type * from '../contracts/services.ts'
export type { ServiceName, Services } from '../contracts/services.ts'
export { hasFiles, requireFiles, type Storage, type StoredFile, type StoredVariant } from '../contracts/storage.ts'
export { CorralError, type ErrorCode, type ErrorOptions, errorMessage, invalidRequest } from '../errors.ts'
export { ClientDisconnected, clientSignal } from '../http/client-disconnect.ts'
export { contextMessage } from '../http/context-message.ts'
export { sendErrors, useErrorFormat } from '../http/error-format.ts'
export { bodyObject } from '../http/json-body.ts'
export { errorTypes } from '../http/openai-error.ts'
export { openReplyStream, type ReplyStream, type ReplyStreamOptions, sendUntilEnd } from '../http/reply-stream.ts'
export {
  each,
  Given,
  ignored,
  keep_alive,
  ListOf,
  Loose,
  loose,
  named,
  OrNull,
  Titled
} from '../http/request-fields.ts'
export { reroute } from '../http/reroute.ts'
export {
  ANSWER_ERRORS,
  DOWNLOAD_ERRORS,
  errorsWithin,
  FILE_ERRORS,
  HUB_ERRORS,
  json,
  jsonOrStream,
  MODEL_ERRORS,
  routerWith,
  routesWith,
  WITH_BODY
} from '../http/response-schemas.ts'
export { hasRole, type Role } from '../http/roles.ts'
export { clientError } from '../http/server-folders.ts'
export { catalogFor, findListed, isAllowed, listedModels } from '../models/allowed-models.ts'
export { type LoadState, loadStates } from '../models/load-state.ts'
export { deleteModel, listedVariant, nameToDelete } from '../models/model-deletion.ts'
export {
  type ModelName,
  parseModelName,
  parseRequestedName,
  publicModelName,
  type RequestedName
} from '../models/model-name.ts'
export { defaultMode } from '../models/model-operations.ts'
export { requestOptions } from '../models/options.ts'
export { isObject } from '../system/json-object.ts'
export { version } from '../system/package-info.ts'
export { definePlugin, PLUGIN_API, type PluginContext, type PluginDefinition, type PluginOffer } from './plugin.ts'
export type { PluginReport } from './plugin-report.ts'
