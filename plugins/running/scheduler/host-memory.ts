import { freemem, totalmem } from 'node:os'
import type { Engine } from '../../../core/contracts/engines.ts'
import type { HardwareService } from '../../../core/contracts/hardware.ts'
import { processMemory } from '../../../core/system/processes.ts'

const MIB = 2 ** 20
const GIB = 2 ** 30

/**
 * Bytes of the machine's memory that are left to the system and other programs: a tenth, one GiB at least and eight at
 * most; of a small machine or container a quarter, for nothing else is likely to run there.
 */
export function reserveOf(total: number): number {
  return Math.min(total / 4, Math.min(8 * GIB, Math.max(GIB, total / 10)))
}

/** Bytes of the machine's memory. */
export interface HostMemoryFigures {
  /** Of the machine, within a container's limit. */
  total: number
  /** That programs can have now. Weights that engines have mapped are among it: the system could read them again. */
  available: number
  /** That engines have beside mapped files. */
  engines: number
}

/**
 * Bytes of the machine's memory that engines may take together: what is configured, else all but a reserve; and never
 * more than there is for them now, which is what is available and what they have already.
 */
export function hostBudget({ total, available, engines }: HostMemoryFigures, configured: number | undefined): number {
  const most = configured ?? total - reserveOf(total)
  // What is available goes up and down.
  const now = available + engines - Math.min(256 * MIB, total / 50)
  return Math.max(0, Math.floor(Math.min(most, now)))
}

/** The machine's own memory, and what engines have of it. */
export interface HostMemory {
  /** Counts an engine until it has gone; `reserved` counts where nothing is known of its process. */
  add(engine: Pick<Engine, 'pid' | 'exited'>, reserved: number): void
  /** @param configured bytes that `config.yaml` allows from now on; undefined is all but a reserve */
  configure(configured: number | undefined): void
  /** Bytes that all engines together may take now. */
  budget(): Promise<number>
}

/** @param configured bytes that `config.yaml` allows; undefined is all but a reserve */
export function createHostMemory(
  hardware: Pick<HardwareService, 'memory'>,
  configured: number | undefined
): HostMemory {
  const engines = new Map<Pick<Engine, 'pid' | 'exited'>, number>()
  let most = configured
  return {
    configure(next) {
      most = next
    },
    add(engine, reserved) {
      engines.set(engine, reserved)
      void engine.exited.then(() => engines.delete(engine))
    },
    async budget() {
      const measured = Promise.all(
        [...engines].map(async ([{ pid }, reserved]) => (await processMemory(pid))?.own ?? reserved)
      )
      const [{ host }, bytes] = await Promise.all([hardware.memory(), measured])
      // Of a system that reports nothing, what Node knows has to do.
      const machine = host.total > 0 ? host : { total: totalmem(), available: freemem() }
      return hostBudget({ ...machine, engines: bytes.reduce((sum, own) => sum + own, 0) }, most)
    }
  }
}
