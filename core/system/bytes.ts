const FACTOR: Record<string, number> = {
  '': 1,
  b: 1,
  k: 1e3,
  kb: 1e3,
  m: 1e6,
  mb: 1e6,
  g: 1e9,
  gb: 1e9,
  t: 1e12,
  tb: 1e12,
  kib: 2 ** 10,
  mib: 2 ** 20,
  gib: 2 ** 30,
  tib: 2 ** 40
}

/** Parses `64MiB`, `1.5 GB` or a number of bytes; undefined if it is neither or negative. */
export function parseBytes(value: unknown): number | undefined {
  if (typeof value === 'number') return Number.isFinite(value) && value >= 0 ? Math.round(value) : undefined
  if (typeof value !== 'string') return undefined
  const match = /^\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$/i.exec(value)
  const factor = match && FACTOR[match[2]!.toLowerCase()]
  return match && factor !== undefined && factor !== null ? Math.round(Number(match[1]) * factor) : undefined
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
