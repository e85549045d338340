import { Type } from 'typebox'
import { isAllowedEntry } from '../system/allowed-address.ts'
import { parseBytes } from '../system/bytes.ts'
import { parseDuration } from '../system/duration.ts'

interface SettingText {
  default?: string | number
  description?: string
  /** Read only at the start. */
  restart?: boolean
  /** Accepted only in a trusted file: see `JsonSchema`. */
  needsTrust?: boolean
}

/** A setting that is written as text with a unit, or as a number. */
const measure =
  (format: string, bounds: object = {}) =>
  (options: SettingText = {}) =>
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

function isDuration(text: string): boolean {
  const length = parseDuration(text)
  return length !== undefined && length >= 0 && length <= MAX_LENGTH * 3_600_000
}

const LENGTH_OF_TIME = 'a duration such as 30s, 5m or 1h30m, or a number of seconds'
const isPath = (text: string) => !text.includes('\0')

/** The formats of settings: which texts they accept, and words for these. */
export const SETTING_FORMATS: Record<string, [allowed: string, accepts: (text: string) => boolean]> = {
  'corral-timeout': [
    `${LENGTH_OF_TIME}, longer than 0 and at most 500h`,
    text => isDuration(text) && parseDuration(text)! > 0
  ],
  'corral-duration': [`${LENGTH_OF_TIME}, from 0 to 500h`, isDuration],
  'corral-keep-alive': [`${LENGTH_OF_TIME}; negative means forever`, text => parseDuration(text) !== undefined],
  'corral-bytes': ['an amount of bytes such as 64MiB or 1.5GB, or a number', text => parseBytes(text) !== undefined],
  'corral-path': ['a path', isPath],
  'corral-program': ['a path or the name of a program', isPath],
  'corral-private-address': ['a host name, an address, a network such as 10.0.0.0/8, or "*" for all', isAllowedEntry]
}

/**
 * A file or folder; empty means none. Loading the configuration makes it absolute: `~/` is the user's home, and a
 * relative path starts at the file's folder or, for flags and environment, at the working directory.
 */
export const Path = (options: SettingText & { minLength?: number } = {}) =>
  Type.String({ format: 'corral-path', ...options })

/** A program: its name on the PATH, or its path, which is made absolute like `Path`. */
export const Program = (options: SettingText) => Type.String({ format: 'corral-program', ...options })
