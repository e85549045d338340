import type { BuildSource, RankedCandidate, RuntimeDescriptor } from '../../core/contracts/builds.ts'
import type { HardwareService } from '../../core/contracts/hardware.ts'
import type { BuildsDirectory, BuildsLog } from './builds-directory.ts'
import type { VerifyBuild } from './verify-build.ts'

/** Dependencies that searching, installing and starting builds share. */
export interface BuildsContext {
  builds: BuildsDirectory
  log: BuildsLog
  /** Aborts all work when corral stops. */
  signal: AbortSignal
  hardware: HardwareService
  /** In the order in which they are tried. */
  sources: readonly BuildSource[]
  kinds: readonly RuntimeDescriptor[]
  verifyBuild: VerifyBuild
  /** The kinds, best first, by the file names that are already known. Empty until the hardware is detected. */
  ranking(): RankedCandidate[]
  /** The kinds, best first, by the release's current list of files. */
  liveRanking(): Promise<RankedCandidate[]>
}
