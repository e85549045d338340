import { EngineThread } from './engine-thread.ts'
import type { TransferOptions, Transfers } from './transfer.ts'

export { partialBytes, removePartial } from './journal.ts'

/** Transfers that share connections and a bandwidth limit. They work in a thread that lives while there is something to do. */
export function createTransfers(options: TransferOptions): Transfers {
  return new EngineThread(options)
}
