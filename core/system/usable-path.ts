/** Names that Windows reserves for devices, with or without an extension. */
export const RESERVED_NAME = /^(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)/i
/** Control characters, and characters that Windows does not allow in names (a colon names a stream or a drive). */
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
const FORBIDDEN = /[\u0000-\u001f\u007f\\:*?"<>|]/

/** Whether a path is relative, stays in its folder, and has no names that are special on any system. */
export function isUsablePath(path: unknown): path is string {
  if (typeof path !== 'string' || path.length === 0 || path.length > 1024 || FORBIDDEN.test(path)) return false
  const isUsable = (part: string) => part !== '' && !/[. ]$/.test(part) && !RESERVED_NAME.test(part)
  return path.split('/').every(part => isUsable(part) && Buffer.byteLength(part) <= 255)
}
