import type { TSchema } from 'typebox'
import type { LoadOptions } from '../../core/models/load-options.ts'
import { type ModelName, parseModelName } from '../../core/models/model-name.ts'
import { type OverflowPolicy, parseKeepAlive, parseOptions, topLevelOptions } from '../../core/models/options.ts'
import { checkAgainst } from './check-body.ts'

export type Fields = Record<string, unknown>

/** A request as it was understood, before the model is known to exist. */
export interface EngineCall {
  model: ModelName
  /** The model's name as it was asked for. */
  asked: string
  load: Partial<LoadOptions>
  overflow: OverflowPolicy | undefined
  /** Milliseconds; undefined where none is given. */
  keepAlive: number | undefined
  /** What the client gives for the engine, options among it. */
  fields: Fields
}

/** Fields that are corral's own. `n_cmpl` is llama-server's other word for `n`. */
const OWN = ['model', 'name', 'options', 'keep_alive', 'n_cmpl']

/**
 * Reads a hosted-chat body. A field at the top level counts more than the same in `options`; `null` is not given.
 * @param schema what the fields, those of `options` among them, are checked against once more
 * @throws CorralError with the field at fault as `param`
 */
export function readCall(body: Fields, schema?: TSchema): EngineCall {
  const asked = body.model ?? body.name
  const model = parseModelName(asked)
  const topLevel = topLevelOptions(body)
  const own = parseOptions(topLevel)
  const nested = parseOptions(body.options)
  const given = Object.entries(body).filter(([name, value]) => value !== null && !(name in topLevel))
  const fields: Fields = { ...nested.sampling, ...Object.fromEntries(given), ...own.sampling }
  for (const name of OWN) delete fields[name]
  if (body.stream === undefined) delete fields.stream
  if (schema && body.options) checkAgainst(schema, fields)
  return {
    model,
    asked: asked as string,
    load: { ...nested.load, ...own.load },
    overflow: own.overflow ?? nested.overflow,
    keepAlive: parseKeepAlive(body.keep_alive),
    fields
  }
}
