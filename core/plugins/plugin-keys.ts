import { nearest } from '../config/suggestion.ts'
import type { PluginHooks } from '../contracts/hooks.ts'
import { isObject } from '../system/json-object.ts'
import type { PluginDefinition, PluginOffer } from './plugin.ts'

type Kinds<Of> = Record<keyof Of, 'function' | 'other'>

const DEFINITION: Kinds<PluginDefinition> = {
  name: 'other',
  api: 'other',
  description: 'other',
  offers: 'other',
  needs: 'other',
  optional: 'other',
  options: 'other',
  engineOptions: 'other',
  models: 'function',
  setup: 'function'
}
const OFFER: Kinds<PluginOffer> = {
  services: 'other',
  hooks: 'function',
  on: 'other',
  routes: 'function',
  web: 'other',
  start: 'function',
  check: 'function',
  reload: 'function',
  stop: 'function'
}
const ON: Kinds<PluginHooks> = {
  request: 'function',
  leased: 'function',
  event: 'function',
  eventsOf: 'function',
  capture: 'function',
  modelLoaded: 'function',
  modelUnloaded: 'function',
  loadFailed: 'function',
  pullFinished: 'function',
  pullFailed: 'function',
  administered: 'function',
  stateChanged: 'function'
}

/** Why members are invalid: unknown keys, or values that are not functions. Each is the end of a sentence. */
function memberFaults(value: object, known: Record<string, 'function' | 'other'>, place: string): string[] {
  return Object.entries(value).flatMap(([key, member]) => {
    if (member === undefined) return []
    const quoted = JSON.stringify(key)
    if (!Object.hasOwn(known, key)) {
      const near = nearest(key, Object.keys(known))
      const advice = near ? `did you mean "${near}"?` : `known are ${Object.keys(known).join(', ')}`
      return [`${quoted} in ${place} is unknown (${advice})`]
    }
    return known[key] === 'function' && typeof member !== 'function' ? [`${quoted} in ${place} is not a function`] : []
  })
}

/** What is wrong with the keys of a definition. */
export const definitionKeyFaults = (definition: object) => memberFaults(definition, DEFINITION, 'the definition')

/** What is wrong with the result of `setup`. */
export function offerFaults(offer: unknown): string[] {
  if (!isObject(offer)) return ['its "setup" did not return an object']
  const { on } = offer
  return [
    ...memberFaults(offer, OFFER, 'what "setup" returned'),
    ...(on === undefined ? [] : isObject(on) ? memberFaults(on, ON, '"on"') : ['"on" is not an object'])
  ]
}
