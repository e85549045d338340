/*
 * The entry `corral/plugin` of the package, for authors of plugins. A plugin does not need it at runtime, since its
 * definition is plain data. It provides types, and classes for those who build on them.
 */
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
export { CorralError, type ErrorCode, type ErrorOptions } from '../errors.ts'
export { ClientDisconnected, clientSignal } from '../http/client-disconnect.ts'
export { openReplyStream, type ReplyStream, type ReplyStreamOptions } from '../http/reply-stream.ts'
export { type ModelName, parseModelName, parseRequestedName, type RequestedName } from '../models/model-name.ts'
export {
  definePlugin,
  type PassedQuestion,
  PLUGIN_API,
  type PluginContext,
  type PluginDefinition,
  type PluginOffer
} from './plugin.ts'
export type { PluginReport } from './plugin-report.ts'
