import { type ModelName, parseModelName } from '../../core/model-name.ts'
import {
  type LoadOptions,
  type OverflowPolicy,
  parseKeepAlive,
  parseOptions,
  topLevelOptions
} from '../../core/options.ts'
import type { EngineMode, StoredVariant } from '../../core/services.ts'
import { checkFields, checkMessages } from './fields.ts'

export type Fields = Record<string, unknown>

/** A function of the engine that `/v1` passes on. */
export interface EngineFunction {
  /** The engine's own path. */
  path: string
  /** The field that it cannot work without. */
  required: string
  /** Whether it generates text, so that it can stream and options of generating are sent. */
  generates: boolean
  mode: (variant: StoredVariant) => EngineMode
}

/** A request as it was understood, before the model is known to exist. */
export interface EngineCall {
  model: ModelName
  /** The model's name as it was asked for. */
  asked: string
  stream: boolean
  load: Partial<LoadOptions>
  overflow: OverflowPolicy | undefined
  /** Milliseconds; undefined where none is given. */
  keepAlive: number | undefined
  /** What the client gives for the engine. */
  fields: Fields
}

/** Fields that are corral's own. */
const OWN = new Set(['model', 'name', 'options', 'keep_alive'])

/**
 * Reads a hosted-chat body. A field at the top level counts more than the same in `options`; `null` is not given.
 * @throws CorralError with the field at fault as `param`
 */
export function readCall(body: Fields, target: EngineFunction): EngineCall {
  const asked = body.model ?? body.name
  const model = parseModelName(asked)
  const topLevel = topLevelOptions(body)
  const own = parseOptions(topLevel)
  const nested = parseOptions(body.options)
  const rest = Object.fromEntries(
    Object.entries(body).filter(([name, value]) => value !== null && !OWN.has(name) && !(name in topLevel))
  )
  checkFields(rest, target.required)
  const fields = target.generates ? { ...nested.sampling, ...rest, ...own.sampling } : rest
  checkFields(fields, target.required)
  if (target.required === 'messages') fields.messages = checkMessages(fields.messages as Fields[])
  return {
    model,
    asked: asked as string,
    stream: target.generates && rest.stream === true,
    load: { ...nested.load, ...own.load },
    overflow: own.overflow ?? nested.overflow,
    keepAlive: parseKeepAlive(body.keep_alive),
    fields
  }
}

/** The body for the engine: what the client gives over the defaults, which are the model's and the server's settings. */
export function engineBody(call: EngineCall, target: EngineFunction, defaults: Fields): Fields {
  if (!target.generates) return { ...call.fields, model: call.asked }
  return { ...defaults, ...call.fields, model: call.asked, stream: call.stream }
}
