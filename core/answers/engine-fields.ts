import type { EngineFields } from '../contracts/engines.ts'
import type { ModelDefaults } from '../contracts/models.ts'
import { isOwnOption, type ParsedOptions } from '../models/options.ts'

/** The body for the engine: its options and other fields without `own` ones. `null` counts as absent. */
export function passedFields(body: EngineFields, { sampling }: ParsedOptions, own: readonly string[]): EngineFields {
  const fields: EngineFields = {}
  for (const name in sampling) if (!own.includes(name)) fields[name] = sampling[name]
  for (const name in body) {
    const value = body[name]
    if (value !== null && !isOwnOption(name) && !own.includes(name)) fields[name] = value
  }
  return fields
}

interface Message {
  role?: unknown
}

const isSystem = ({ role }: Message) => role === 'system' || role === 'developer'

/** The system message, then the model's example messages, then the request's, with the engine's roles. */
export function withModelDefaults<T extends Message>(messages: readonly T[], defaults: ModelDefaults | undefined) {
  if (!defaults?.system && !defaults?.messages?.length) return [...messages]
  const hasSystem = messages.some(isSystem)
  const begin = messages.findIndex(message => !isSystem(message))
  const head = messages.slice(0, begin === -1 ? messages.length : begin)
  // A system message in the request overrides the model's.
  const examples = (defaults.messages ?? []).filter(message => !hasSystem || !isSystem(message))
  const system = defaults.system && !hasSystem && !examples.some(isSystem)
  return [
    ...(system ? [{ role: 'system', content: defaults.system! }] : []),
    ...head,
    ...examples,
    ...messages.slice(head.length)
  ]
}
