import { type TOptional, type TProperties, type TSchema, type TSchemaOptions, type TUnknown, Type } from 'typebox'
import { RequestOptionsSchema } from '../models/options.ts'

/** Schemas of what requests and replies of several surfaces have in common. */

/** For objects that may have more fields than are named. */
export const loose = { additionalProperties: true }

/** An object that may have more fields than are named. */
export const Loose = <Properties extends TProperties>(properties: Properties, options: TSchemaOptions = {}) =>
  Type.Object(properties, { ...loose, ...options })

/** The same, as a schema of the API document with a name of its own. */
export const Titled = <Properties extends TProperties>(title: string, properties: Properties) =>
  Loose(properties, { title })

/** A list of such objects. */
export const ListOf = <Properties extends TProperties>(properties: Properties, options: TSchemaOptions = {}) =>
  Type.Array(Loose(properties), options)

export const OrNull = <Schema extends TSchema>(schema: Schema) => Type.Union([schema, Type.Null()])

/** A field that may be left out, or sent as `null` as some clients do for "not given". */
export const Given = <Schema extends TSchema>(schema: Schema) => Type.Optional(OrNull(schema))

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

/** Fields that clients of other services send, and that make no difference here, whatever they hold. */
export function ignored<Name extends string>(...names: Name[]) {
  const entries = names.map(name => [name, Type.Optional(Type.Unknown({ description: 'Of no effect' }))])
  return Object.fromEntries(entries) as Record<Name, TOptional<TUnknown>>
}
