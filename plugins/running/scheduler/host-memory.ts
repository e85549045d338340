import { freemem, totalmem } from 'node:os'
import type { PoolsInUse } from '../../../core/contracts/built-in-services.ts'
import type { Engine } from '../../../core/contracts/engines.ts'
import type { HardwareService } from '../../../core/contracts/hardware.ts'
import { processMemory } from '../../../core/system/processes.ts'

const MIB = 2 ** 20
const GIB = 2 ** 30
/** Steps in which the memory in use is reported. */
const USED_STEPS = 500

/**
 * Bytes of main memory left to the system and other programs: a tenth, but at least 1 GiB and at most 8 GiB. On a small
 * machine or container it is a quarter, since little else runs there.
 */
export function getSystemReserve(total: number): number {
  return Math.min(total / 4, Math.min(8 * GIB, Math.max(GIB, total / 10)))
}

/**
 * Bytes that all engines together may use: the configured amount, or everything except a reserve. It never exceeds the
 * available memory plus the memory that engines already use.
 * @param figures bytes of the machine (or a container's limit), that programs can allocate now (with mapped weights,
 * which the system can read again), and that engines use without mapped files
 */
export function hostBudget(
  { total, available, engines }: Record<'total' | 'available' | 'engines', number>,
  configured: number | undefined
): number {
  const most = configured ?? total - getSystemReserve(total)
  // Allows for fluctuations.
  const now = available + engines - Math.min(256 * MIB, total / 50)
  return Math.max(0, Math.floor(Math.min(most, now)))
}

export type HostMemory = ReturnType<typeof createHostMemory>

/**
 * Measures the main memory for engines.
 * @param settings `memory` is the limit in bytes from `config.yaml`; undefined means everything except a reserve
 * @param reclaimable bytes that providers can free for an engine
 */
export function createHostMemory(
  hardware: Pick<HardwareService, 'memory'>,
  settings: { readonly memory: number | undefined },
  reclaimable: () => number = () => 0
) {
  const engines = new Map<Pick<Engine, 'pid' | 'exited'>, number>()
  return {
    /** Counts an engine until it has ended. `reserved` counts if its process cannot be measured. */
    add(engine: Pick<Engine, 'pid' | 'exited'>, reserved: number): void {
      engines.set(engine, reserved)
      void engine.exited.then(() => engines.delete(engine))
    },

    /** Main memory in use by all programs, if the system reports it. */
    async used(): Promise<PoolsInUse> {
      const { total, available } = (await hardware.memory()).host
      // In steps, since it changes all the time and each change is sent to clients.
      const step = Math.max(1, Math.round(total / USED_STEPS))
      return total > 0 ? { host: { total, used: Math.max(0, Math.round((total - available) / step) * step) } } : {}
    },

    /** Bytes that all engines together may use now. */
    async budget(): Promise<number> {
      const measured = Promise.all(
        [...engines].map(async ([{ pid }, reserved]) => (await processMemory(pid))?.own ?? reserved)
      )
      const [{ host }, bytes] = await Promise.all([hardware.memory(), measured])
      // If the system reports nothing, use Node's figures.
      const { total, available } = host.total > 0 ? host : { total: totalmem(), available: freemem() }
      return hostBudget(
        { total, available: available + reclaimable(), engines: bytes.reduce((sum, own) => sum + own, 0) },
        settings.memory
      )
    }
  }
}
