import { Type } from 'typebox'

/** A moment as all replies give it. */
export const Time = (description?: string) =>
  Type.String({ format: 'date-time', description: description ?? 'ISO 8601 UTC' })

export const Nanoseconds = (description: string) =>
  Type.Integer({ minimum: 0, description: `Nanoseconds. ${description}` })

export const Bytes = (description?: string) =>
  Type.Integer({ minimum: 0, description: description ? `Bytes. ${description}` : 'Bytes' })

export const Sha256 = (description?: string) =>
  Type.String({ pattern: '^[0-9a-f]{64}$', ...(description && { description }) })
