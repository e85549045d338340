import { type TSchema, Type } from 'typebox'
import { RequestOptionsSchema } from '../models/options.ts'

/** Schemas of what requests of several surfaces have in common. */

/** For objects that may have more fields than are named. */
export const loose = { additionalProperties: true }

/** A field that may be left out, or sent as `null` as some clients do for "not given". */
export const Given = <Schema extends TSchema>(schema: Schema) => Type.Optional(Type.Union([schema, Type.Null()]))

/** `model`, or `name` as some clients send it. */
export const named = {
  model: Given(Type.String({ description: '<owner>/<name> or <owner>/<name>:<variant>' })),
  name: Given(Type.String({ description: 'The same as model' }))
}

/** `parseOptions` says what is wrong with them. */
export const options = Given(Type.Object({}, { ...loose, documented: RequestOptionsSchema }))

/** `parseKeepAlive` reads it. */
export const keep_alive = Given(
  Type.Union([Type.Number(), Type.String()], {
    description: 'How long the model stays loaded: seconds, or a duration such as 5m'
  })
)
