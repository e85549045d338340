import { basename } from 'node:path'
import { generatedBy } from '../../../core/answers/generated-tokens.ts'
import type { ModelLimits } from '../../../core/contracts/answers.ts'
import type { PoolsInUse, SchedulerStats } from '../../../core/contracts/built-in-services.ts'
import type { Engines, Speculation, StoredConversations } from '../../../core/contracts/engines.ts'
import type { LoadingModel, RunningModel } from '../../../core/contracts/leases.ts'
import type { Model, ModelAlias } from '../../../core/contracts/models.ts'
import type { ModelNaming } from '../../../core/contracts/native-api.ts'
import type * as contract from '../../../core/contracts/native-records.ts'
import { progressText } from '../../../core/contracts/progress.ts'
import { hasFiles } from '../../../core/contracts/storage.ts'
import type { CorralError } from '../../../core/errors.ts'
import { hasRole, type Role } from '../../../core/http/roles.ts'

/** Expiry date of a model that is never unloaded. Ollama's clients print "Forever" for a date this far away. */
const NEVER = '2999-12-31T23:59:59.000Z'

const SIZES = [
  ['T', 1e12],
  ['B', 1e9],
  ['M', 1e6],
  ['K', 1e3]
] as const

export function parameterSize(parameters: number | undefined): string {
  if (parameters === undefined) return ''
  for (const [unit, size] of SIZES) {
    if (parameters >= size) return `${Number((parameters / size).toPrecision(3))}${unit}`
  }
  return String(parameters)
}

export function modelDetails({ format, label, metadata }: Model, { plainDetails }: ModelNaming): contract.ModelDetails {
  const family = metadata.architecture ?? ''
  const details: contract.ModelDetails = {
    parent_model: '',
    format,
    family,
    families: family ? [family] : [],
    parameter_size: parameterSize(metadata.parameters),
    quantization_level: metadata.quantization ?? label
  }
  if (plainDetails) return details
  if (metadata.contextLength !== undefined) details.context_length = metadata.contextLength
  if (metadata.embeddingLength !== undefined) details.embedding_length = metadata.embeddingLength
  return details
}

/** The name of a model of the plugin `remote` on its server. */
function remoteName({ metadata: { info } }: Model): Pick<contract.LocalModel, 'remote_model'> {
  const name = info['remote.model']
  return typeof name === 'string' ? { remote_model: name } : {}
}

export function aliasRecord({ alias, model }: ModelAlias, naming: ModelNaming): contract.LocalModel | undefined {
  const name = naming.shownAlias?.(alias)
  if (name === undefined) return undefined
  const record = localRecord(model, naming)
  // The model is already listed under this name.
  if (record.name === name) return undefined
  return { ...record, name, model: name, details: { ...record.details, parent_model: record.name } }
}

export function localRecord(variant: Model, naming: ModelNaming, aliases?: readonly string[]): contract.LocalModel {
  const name = naming.shown(variant)
  const others = aliases?.filter(alias => alias !== name)
  const record: contract.LocalModel = {
    name,
    model: name,
    size: variant.size,
    format: variant.format,
    modified_at: variant.modifiedAt,
    digest: variant.digest,
    details: modelDetails(variant, naming),
    capabilities: variant.metadata.capabilities
  }
  if (others && others.length > 0) record.aliases = others
  return { ...record, ...remoteName(variant) }
}

/** Returns the reply of `/api/show`. Only admins see from which path a model was imported. */
export function showRecord(
  variant: Model,
  naming: ModelNaming,
  modelfile: string,
  role: Role,
  { window }: Pick<ModelLimits, 'window'>
): contract.ShownModel | contract.OllamaShownModel {
  const { kind, from, ...origin } = variant.origin
  const isPath = kind === 'import' && !hasRole(role, 'admin')
  const { options, system, messages, license } = variant.defaults ?? {}
  const { details, ...record } = localRecord(variant, naming)
  return {
    modelfile,
    details: naming.plainDetails ? details : { ...record, ...details },
    model_info: variant.metadata.info,
    capabilities: variant.metadata.capabilities,
    context_window: window,
    template: variant.metadata.chatTemplate ?? '',
    parameters: parametersText(options),
    ...(system && { system }),
    ...(messages && { messages }),
    license: license ?? String(variant.metadata.info['general.license'] ?? ''),
    modified_at: variant.modifiedAt,
    origin: { kind, from: isPath ? basename(from) : from, ...origin },
    files: hasFiles(variant) ? variant.files : []
  }
}

/** Whether the model is in this server's memory. Other nodes report their own models. */
export const isHere =
  (engines: Pick<Engines, 'providerOf'>) =>
  ({ variant, mode }: Pick<RunningModel, 'variant' | 'mode'>) =>
    engines.providerOf(variant, mode)?.elsewhere === undefined

export function promptCacheRecord({
  restoredTokens,
  restoreTime,
  ...others
}: Omit<StoredConversations, 'model'>): contract.PromptCacheRecord {
  return { ...others, restored_tokens: restoredTokens, restore_ms: Math.round(restoreTime) }
}

export function runningRecord(
  { variant, mode, engine, reserved, options, expiresAt, running, queued }: RunningModel,
  naming: ModelNaming
): contract.RunningRecord {
  const pools = Object.entries(reserved)
  const sum = (list: typeof pools) => list.reduce((total, [, bytes]) => total + bytes, 0)
  const size = sum(pools) || variant.size
  const name = naming.shown(variant)
  return {
    name,
    model: name,
    size,
    format: variant.format,
    expires_at: expiresAt?.toISOString() ?? NEVER,
    digest: variant.digest,
    details: modelDetails(variant, naming),
    size_vram: Math.min(sum(pools.filter(([pool]) => pool !== 'host')), size),
    context_length: engine.contextSize,
    mode,
    options: { ...options, num_ctx: engine.contextSize },
    running,
    queued,
    slots: engine.slots,
    generated_tokens: generatedBy(engine),
    ...(engine.storedConversations && { prompt_cache: promptCacheRecord(engine.storedConversations) }),
    ...(engine.speculation && { speculation: speculationRecord(engine.speculation) }),
    ...(pools.length > 0 && { memory: { ...reserved } }),
    ...remoteName(variant)
  }
}

function speculationRecord({ method, tokensPerSecond }: Speculation): contract.RunningRecord['speculation'] {
  const rates = Object.entries(tokensPerSecond).map(([name, rate]) => [name, Math.round(rate * 10) / 10])
  return { method, tokens_per_second: Object.fromEntries(rates) }
}

export function poolRecords(
  { memory: { reserved, budget } }: Pick<SchedulerStats, 'memory'>,
  inUse: PoolsInUse
): contract.PoolRecord[] {
  const pools = new Set([...Object.keys(budget), ...Object.keys(reserved), ...Object.keys(inUse)])
  return [...pools].sort().map(pool => {
    const limit = budget[pool]
    const known = limit !== undefined && Number.isFinite(limit)
    const held = Math.round(reserved[pool] ?? 0)
    const limits = known && { budget: Math.round(limit), free: Math.max(0, Math.round(limit) - held) }
    return { pool, reserved: held, ...limits, ...inUse[pool] }
  })
}

export function loadingRecord(
  { variant, mode, state, progress, queued }: LoadingModel,
  naming: ModelNaming
): contract.LoadingRecord {
  const name = naming.shown(variant)
  return {
    name,
    model: name,
    format: variant.format,
    mode,
    state,
    ...(progress ? { status: progressText(progress) } : {}),
    ...(progress?.fraction === undefined ? {} : { progress: progress.fraction }),
    queued
  }
}

/** Formats options as Ollama's `show` does: one line each, with the value as JSON after column 31. */
export function parametersText(options: Readonly<Record<string, unknown>> | undefined): string {
  return Object.entries(options ?? {})
    .flatMap(([name, value]) => (Array.isArray(value) ? value : [value]).map(entry => [name, entry] as const))
    .map(([name, value]) => `${name.padEnd(30)} ${JSON.stringify(value)}`)
    .join('\n')
}

export function requestedName(request: { model?: string | null; name?: string | null }): string {
  // Ollama's Go client sends both fields, the unused one empty.
  return request.model || request.name || ''
}

/** Returns the last event of an answer that failed after its stream had started. */
export function answerFailure(model: string, failure: CorralError): Record<string, unknown> {
  return {
    model,
    created_at: new Date().toISOString(),
    done: true,
    done_reason: 'error',
    ...failure.details,
    error: failure.message,
    errorCode: failure.status,
    code: failure.code
  }
}
