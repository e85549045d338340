import { type TProperties, type TSchema, type TSchemaOptions, Type } from 'typebox'
import { invalidRequest } from '../errors.ts'
import { RequestOptionsSchema } from '../models/options.ts'
import { parseMoment } from '../system/duration.ts'

/* Fields that requests and replies of several APIs share. */

export const loose = { additionalProperties: true }

/** An object that may have additional fields. */
export const Loose = <Properties extends TProperties>(properties: Properties, options: TSchemaOptions = {}) =>
  Type.Object(properties, { ...loose, ...options })

/** The same, as a named schema of the API document. */
export const Titled = <Properties extends TProperties>(title: string, properties: Properties) =>
  Loose(properties, { title })

export const Described = <Properties extends TProperties>(title: string, description: string, properties: Properties) =>
  Loose(properties, { title, description })

/** A list of such objects. */
export const ListOf = <Properties extends TProperties>(properties: Properties, options: TSchemaOptions = {}) =>
  Type.Array(Loose(properties), options)

/** A described list of objects that may have additional fields. */
export const Items = <Properties extends TProperties>(description: string, properties: Properties) =>
  ListOf(properties, { description })

export const Group = <Properties extends TProperties>(description: string, properties: Properties) =>
  Type.Object(properties, { description })

/* Described fields. */
export const Text = (description: string) => Type.String({ description })
export const Flag = (description: string) => Type.Boolean({ description })
export const Integer = (description: string) => Type.Integer({ description })
export const Count = (description: string) => Type.Integer({ minimum: 0, description })

export const Texts = (description: string) => Type.Array(Type.String(), { description })

export const OrNull = <Schema extends TSchema>(schema: Schema) => Type.Union([schema, Type.Null()])

/** A field that may be absent, or `null` as some clients send it. */
export const Given = <Schema extends TSchema>(schema: Schema) => Type.Optional(OrNull(schema))

/** `model`, or `name` as some clients send it. */
export const named = {
  model: Given(Type.String({ description: '<owner>/<name> or <owner>/<name>:<variant>' })),
  name: Given(Type.String({ description: 'The same as model' }))
}

/** `parseOptions` validates them. */
export const options = Given(Type.Object({}, { ...loose, documented: RequestOptionsSchema }))

/** `parseKeepAlive` validates it. */
export const keep_alive = Given(
  Type.Union([Type.Number(), Type.String()], {
    description: 'How long the model stays loaded: seconds, or a duration such as 5m'
  })
)

/** Several fields with the same schema. */
export const each = <Schema extends TSchema, Name extends string>(schema: Schema, ...names: Name[]) =>
  Object.fromEntries(names.map(name => [name, schema])) as Record<Name, Schema>

/** Fields that clients of other services send and that have no effect here. */
export const ignored = <Name extends string>(...names: Name[]) =>
  each(Type.Optional(Type.Unknown({ description: 'No effect' })), ...names)

/**
 * Parses the parameter `since`: `1h`, `7d`, `2w`, a date (UTC) or a time.
 * @returns milliseconds since the epoch, not after `now`
 * @throws CorralError `invalid_request`
 */
export function parseSince(text: string, now: number): number {
  const moment = parseMoment(text, now, 'past')
  if (moment !== undefined && moment <= now) return moment
  const message = `"since" cannot be ${JSON.stringify(text.slice(0, 40))}: it must be a duration, or a date or time in the past. Write 1h, 7d, 2w, a date such as 2025-12-31 or a time such as 2025-12-31T12:00:00Z.`
  throw invalidRequest('since', message)
}
