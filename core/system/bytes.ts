/** Powers of 1000 or 1024, by the first letter of a unit. */
const POWERS = ['', 'k', 'm', 'g', 't']

/** Parses `64MiB`, `1.5 GB` or a number of bytes. Returns undefined if it is malformed or negative. */
export function parseBytes(value: unknown): number | undefined {
  if (typeof value === 'number') return Number.isFinite(value) && value >= 0 ? Math.round(value) : undefined
  if (typeof value !== 'string') return undefined
  const [, amount, prefix = '', binary] = /^\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])?b?|([kmgt])ib)\s*$/i.exec(value) ?? []
  if (amount === undefined) return undefined
  const factor = binary ? 1024 ** POWERS.indexOf(binary.toLowerCase()) : 1000 ** POWERS.indexOf(prefix.toLowerCase())
  return Math.round(Number(amount) * factor)
}

/**
 * Formats bytes for people: `638 kB`, `4.1 MB`, `12.3 GB`. All amounts are decimal, including memory, as hubs, disks,
 * Ollama and LM Studio count: a model of 8 GB on the disk uses 8 GB of memory. Gigabytes have one decimal place up to
 * 100, so that "needs 12.4 GB, 12.1 GB available" does not read as 12 of 12.
 */
export function formatBytes(bytes: number): string {
  if (bytes < 1000) return `${bytes} B`
  const units = ['kB', 'MB', 'GB', 'TB']
  let value = bytes
  let unit = -1
  do {
    value /= 1000
    unit++
  } while (value >= 999.5 && unit < units.length - 1)
  const tenths = value < 9.95 || (unit >= 2 && value < 99.95)
  return `${tenths ? value.toFixed(1) : Math.round(value)} ${units[unit]}`
}
