import type { Hardware } from '../../../../core/contracts/hardware.ts'
import { builtInKinds } from '../../../../runtimes/llama-cpp/kinds/index.ts'
import { rankRuntimes } from '../../../../runtimes/llama-cpp/ranking.ts'
import { BUNDLED_LISTING } from '../../../../runtimes/llama-cpp/sources/release.ts'

/** The archives of the bundled release. */
export const NAMES = BUNDLED_LISTING.names

/** Returns the names of the kinds that can work, best first. */
export const order = (hardware: Hardware, names: readonly string[] = NAMES) =>
  rankRuntimes(builtInKinds, hardware, names)
    .filter(({ usable }) => usable)
    .map(({ runtime }) => runtime)
    .join(' ')

/** Returns the candidate of one kind. */
export const candidate = (hardware: Hardware, runtime: string, names: readonly string[] = NAMES) =>
  rankRuntimes(builtInKinds, hardware, names).find(one => one.runtime === runtime)!
