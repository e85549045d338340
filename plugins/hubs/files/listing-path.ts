const RESERVED = /^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?$/i
/** Control characters, and what Windows allows in no name (a colon makes a stream or a drive of it). */
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
const FORBIDDEN = /[\u0000-\u001f\u007f\\:*?"<>|]/

/**
 * Whether a path of a listing can be a file below a folder on every system: relative, no `.` or `..`, nothing that some
 * system takes for something else.
 */
export function isUsablePath(path: unknown): path is string {
  if (typeof path !== 'string' || path.length === 0 || path.length > 1024 || FORBIDDEN.test(path)) return false
  return path
    .split('/')
    .every(
      part =>
        part !== '' &&
        !/^\.\.?$/.test(part) &&
        !/[. ]$/.test(part) &&
        !RESERVED.test(part) &&
        Buffer.byteLength(part) <= 255
    )
}

/** A path for an address: each part percent-encoded. */
export function encodePath(path: string): string {
  return path.split('/').map(encodeURIComponent).join('/')
}

/** A file's size as a listing gives it. */
export function sizeOf(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0 ? value : undefined
}
