import type { Hardware } from '../../../core/contracts/hardware.ts'
import { bytesOf, known } from '../findings.ts'
import { featuresOfSysctl } from '../processor/features.ts'

/** `key: value` lines of `sysctl`; on some systems `key = value`. */
export function parseSysctl(text: string): Map<string, string> {
  const values = new Map<string, string>()
  for (const line of text.split(/\r?\n/)) {
    const match = /^([A-Za-z_][\w.]*)\s*[:=]\s*(.*?)\s*$/.exec(line)
    if (match) values.set(match[1]!, match[2]!)
  }
  return values
}

/** A Mac's processor; undefined when its name is not among the values. */
export function appleProcessor(values: ReadonlyMap<string, string>): Partial<Hardware['cpu']> | undefined {
  const model = values.get('machdep.cpu.brand_string')
  if (model === undefined || model === '') return undefined
  const count = (...keys: string[]) => {
    const found = keys.map(key => Number(values.get(key))).find(value => Number.isInteger(value) && value > 0)
    return found
  }
  return known({
    model,
    cores: count('hw.physicalcpu', 'machdep.cpu.core_count'),
    threads: count('hw.logicalcpu', 'machdep.cpu.thread_count'),
    features: featuresOfSysctl(values)
  })
}

/** Bytes of memory, of `sysctl hw.memsize` or `sysctl -n hw.memsize`. */
export function appleMemory(text: string): number | undefined {
  return bytesOf(parseSysctl(text).get('hw.memsize') ?? text.trim())
}

/**
 * Bytes that the GPU of an Apple processor may hold: what Metal recommends as its working set, two thirds of the memory
 * up to 36 GiB and three quarters of larger ones.
 */
export function metalBudget(memory: number): number {
  return Math.floor(memory <= 36 * 2 ** 30 ? (memory * 2) / 3 : (memory * 3) / 4)
}
