import { nearest } from '../config/suggestion.ts'
import { isObject } from '../system/json-object.ts'

/** The names of an object's functions, and of its other members. */
type Members = [functions: string, others?: string]

const DEFINITION: Members = ['models setup', 'name api description offers needs optional options engineOptions']
const OFFER: Members = ['hooks routes start check reload stop', 'services on web']
const ON: Members = [
  'request leased again event eventsOf capture modelLoaded modelUnloaded loadFailed pullFinished pullFailed administered stateChanged toolCalled'
]

/** Why members are invalid: unknown keys, or values that are not functions. Each is the end of a sentence. */
function memberFaults(value: object, members: Members, place: string): string[] {
  const [functions = [], others = []] = (members as string[]).map(names => names.split(' '))
  const known = [...others, ...functions]
  return Object.entries(value).flatMap(([key, member]) => {
    if (member === undefined) return []
    const quoted = JSON.stringify(key)
    if (!known.includes(key)) {
      const near = nearest(key, known)
      const advice = near ? `did you mean "${near}"?` : `known are ${known.join(', ')}`
      return [`${quoted} in ${place} is unknown (${advice})`]
    }
    return functions.includes(key) && typeof member !== 'function' ? [`${quoted} in ${place} is not a function`] : []
  })
}

export const definitionKeyFaults = (definition: object) => memberFaults(definition, DEFINITION, 'the definition')

export function offerFaults(offer: unknown): string[] {
  if (!isObject(offer)) return ['its "setup" did not return an object']
  const { on } = offer
  return [
    ...memberFaults(offer, OFFER, 'what "setup" returned'),
    ...(on === undefined ? [] : isObject(on) ? memberFaults(on, ON, '"on"') : ['"on" is not an object'])
  ]
}
