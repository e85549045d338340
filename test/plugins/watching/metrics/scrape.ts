import type { Corral, SendOptions } from '../../../support/corral.ts'

/** The samples of a scrape, by name and printed labels. */
export class Scrape {
  readonly samples = new Map<string, number>()
  /** Names of the families, with their types. */
  readonly types = new Map<string, string>()

  readonly text: string

  constructor(text: string) {
    this.text = text
    for (const line of text.split('\n')) {
      const [, name, type] = /^# TYPE (\S+) (\S+)$/.exec(line) ?? []
      if (name) this.types.set(name, type!)
      if (line === '' || line.startsWith('#')) continue
      const at = line.lastIndexOf(' ')
      this.samples.set(line.slice(0, at), Number(line.slice(at + 1)))
    }
  }

  /** Sum of the samples of this name that have all of these labels. */
  sum(name: string, labels: Record<string, string> = {}): number {
    let sum = 0
    for (const [sample, value] of this.samples) if (matches(sample, name, labels)) sum += value
    return sum
  }

  has(name: string, labels: Record<string, string> = {}): boolean {
    return [...this.samples.keys()].some(sample => matches(sample, name, labels))
  }
}

function matches(sample: string, name: string, labels: Record<string, string>): boolean {
  if (sample !== name && !sample.startsWith(`${name}{`)) return false
  return Object.entries(labels).every(([label, value]) =>
    new RegExp(`[{,]${label}=${JSON.stringify(value).replace(/[.*+?^$()|[\]\\]/g, '\\$&')}[,}]`).test(sample)
  )
}

export async function scrape(corral: Pick<Corral, 'send'>, options: SendOptions = {}): Promise<Scrape> {
  const response = await corral.send('/metrics', undefined, options)
  const text = await response.text()
  if (response.status !== 200) throw new Error(`/metrics answered ${response.status}: ${text}`)
  return new Scrape(text)
}
