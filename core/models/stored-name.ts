/** Names that Windows keeps for devices, with or without an extension. */
const RESERVED = /^(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|$)/i

/**
 * A file's name in the store: characters that some file system refuses, or that llama-server would read as a list, are
 * replaced. Give it single names, not paths.
 */
export function storedName(name: string): string {
  const plain = name
    .replace(/[^A-Za-z0-9._+-]/g, '_')
    .replace(/\.{2,}/g, '.')
    .replace(/^[.-]/, '_')
    .replace(/\.$/, '_')
  return RESERVED.test(plain) ? `_${plain}` : plain
}
