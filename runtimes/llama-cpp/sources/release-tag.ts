import { compareVersions, RELEASE_TAG } from '../kinds/scores.ts'

/**
 * The tags of llama.cpp's releases are `b11347` for nightly and `v0.6.0` for stable releases (semantic versions).
 * Archives are named after the tag of the release that contains them.
 *
 * Returns the release in a build's id, such as `b11347` in `release-b11347-cuda-13`.
 */
export function releaseTag(id: string): string | undefined {
  return new RegExp(`^(?:release|archive)-(${RELEASE_TAG})-`).exec(id)?.[1]
}

/** Returns the release in the name of an archive, or of the folder in it. */
export function archiveTag(name: string): string | undefined {
  return new RegExp(`^llama-(${RELEASE_TAG})(?:-|$)`).exec(name)?.[1]
}

/** Returns the number of a nightly release. Higher is newer. Undefined for stable releases. */
export function nightlyNumber(tag: string | undefined): number | undefined {
  const digits = /^b(\d+)$/.exec(tag ?? '')?.[1]
  return digits === undefined ? undefined : Number(digits)
}

/** Returns the version of a stable release, such as `0.6.0`. Undefined for nightly releases. */
export function stableVersion(tag: string | undefined): string | undefined {
  return /^v(\d+\.\d+\.\d+)$/.exec(tag ?? '')?.[1]
}

/**
 * Whether the newest release on the server is newer than the one in use. Nightly releases are compared by number,
 * stable releases by version. A nightly and a stable release cannot be compared, so the server's release is preferred.
 */
export function isNewerRelease(offered: string, present: string | undefined): boolean {
  const [number, own] = [nightlyNumber(offered), nightlyNumber(present)]
  if (number !== undefined && own !== undefined) return number > own
  const [version, ownVersion] = [stableVersion(offered), stableVersion(present)]
  if (version !== undefined && ownVersion !== undefined) return compareVersions(version, ownVersion) > 0
  return offered !== present
}

/** Orders the releases of installed builds by preference: stable releases, then nightly ones, each newest first. */
export function byRelease(a: string | undefined, b: string | undefined): number {
  const [left, right] = [stableVersion(a), stableVersion(b)]
  if (left !== undefined && right !== undefined) return compareVersions(right, left)
  if (left !== undefined || right !== undefined) return left === undefined ? 1 : -1
  return (nightlyNumber(b) ?? -1) - (nightlyNumber(a) ?? -1)
}
