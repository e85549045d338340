import type { MemoryUse } from '../../core/contracts/builds.ts'

/** What an engine holds by its own tables. */
export interface MemoryReport {
  /** A table that it printed (`fit_memory_breakdown`), while it loads or later. */
  note(use: MemoryUse, loading: boolean): void
  /** Bytes by pool; undefined before the first table. */
  use(): MemoryUse | undefined
}

function sum(uses: readonly MemoryUse[]): MemoryUse {
  const all: MemoryUse = {}
  for (const use of uses) {
    for (const [pool, bytes] of Object.entries(use)) all[pool] = (all[pool] ?? 0) + bytes
  }
  return all
}

/**
 * Makes one account of llama-server's tables (`common_memory_breakdown_print` in common/fit.cpp, v0.5.0). All that it
 * prints while it loads come from `--fit`, which reckons before anything is allocated: the first one is of the model
 * with its initial parameters, then one of the draft model where there is one, then one for each try to put fewer
 * layers on the devices, of which the last is what it settles on, or within a layer of that. Without devices nothing is
 * tried. The table at its end is of the model as it was.
 */
export function createMemoryReport(drafts: boolean): MemoryReport {
  const tables: MemoryUse[] = []
  let real: MemoryUse | undefined
  return {
    note(use, loading) {
      if (loading) tables.push(use)
      else real = use
    },
    use() {
      const draft = drafts ? tables[1] : undefined
      const model = real ?? (draft && tables.length === 2 ? tables[0] : tables.at(-1))
      return model && sum(draft ? [model, draft] : [model])
    }
  }
}
