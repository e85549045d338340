import { Type } from 'typebox'
import { parseDuration } from '../system/duration.ts'

interface SettingText {
  default?: string | number
  description: string
  /** Read only at the start. */
  restart?: boolean
  /** Accepted only in a trusted file: see `JsonSchema`. */
  needsTrust?: boolean
}

/** A setting that is written as text with a unit, or as a number. */
const measure =
  (format: string, bounds: object = {}) =>
  (options: SettingText) =>
    Type.Unsafe<string | number>({ type: ['string', 'number'], format, ...bounds, ...options })

/** Maximum duration in hours: timers of Node.js fire immediately if they are set to more than 596. */
const MAX_LENGTH = 500

/** A duration as people write it: `30s`, `5m`, `1h30m` or seconds. It cannot be negative. */
export const Duration = measure('corral-duration', { minimum: 0, maximum: MAX_LENGTH * 3600 })

export const Timeout = measure('corral-timeout', { exclusiveMinimum: 0, maximum: MAX_LENGTH * 3600 })

/** How long a model stays loaded; negative means forever. */
export const KeepAlive = measure('corral-keep-alive')

/** An amount of bytes as people write it: `64MiB`, `1.5GB` or a number. */
export const Bytes = measure('corral-bytes', { minimum: 0 })

export function isDuration(text: string): boolean {
  const length = parseDuration(text)
  return length !== undefined && length >= 0 && length <= MAX_LENGTH * 3_600_000
}

/**
 * A file or folder; empty means none. Loading the configuration makes it absolute: `~/` is the user's home, and a
 * relative path starts at the file's folder or, for flags and environment, at the working directory.
 */
export const Path = (options: SettingText & { minLength?: number }) =>
  Type.String({ format: 'corral-path', ...options })

/** A program: its name on the PATH, or its path, which is made absolute like `Path`. */
export const Program = (options: SettingText) => Type.String({ format: 'corral-program', ...options })
