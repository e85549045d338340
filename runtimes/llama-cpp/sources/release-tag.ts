import { compareVersions, RELEASE_TAG } from '../kinds/scores.ts'

/*
 * The tags of llama.cpp's releases: `b11347` is a nightly one, `v0.6.0` a stable one (semantic versions). Archives are named
 * after the tag of the release that holds them.
 */

/** The release in a build's id, such as `b11347` in `release-b11347-cuda-13`. */
export function releaseTag(id: string): string | undefined {
  return new RegExp(`^(?:release|archive)-(${RELEASE_TAG})-`).exec(id)?.[1]
}

/** The release in the name of an archive, or of the folder in it. */
export function archiveTag(name: string): string | undefined {
  return new RegExp(`^llama-(${RELEASE_TAG})(?:-|$)`).exec(name)?.[1]
}

/** The number of a nightly release: higher is newer. Undefined for stable ones. */
export function nightlyNumber(tag: string | undefined): number | undefined {
  const digits = /^b(\d+)$/.exec(tag ?? '')?.[1]
  return digits === undefined ? undefined : Number(digits)
}

/** The version of a stable release, such as `0.6.0`; undefined for nightly ones. */
export function stableVersion(tag: string | undefined): string | undefined {
  return /^v(\d+\.\d+\.\d+)$/.exec(tag ?? '')?.[1]
}

/**
 * Whether the newest release that a server names is newer than the one in use. Nightly ones are compared by number, stable
 * ones by version. Between the two nothing can be compared: what the server names counts.
 */
export function isNewerRelease(offered: string, present: string | undefined): boolean {
  const [number, own] = [nightlyNumber(offered), nightlyNumber(present)]
  if (number !== undefined && own !== undefined) return number > own
  const [version, ownVersion] = [stableVersion(offered), stableVersion(present)]
  if (version !== undefined && ownVersion !== undefined) return compareVersions(version, ownVersion) > 0
  return offered !== present
}

/** Orders releases of installed builds, the one to prefer first: stable ones, then nightly ones, each the newest first. */
export function byRelease(a: string | undefined, b: string | undefined): number {
  const [left, right] = [stableVersion(a), stableVersion(b)]
  if (left !== undefined && right !== undefined) return compareVersions(right, left)
  if (left !== undefined || right !== undefined) return left === undefined ? 1 : -1
  return (nightlyNumber(b) ?? -1) - (nightlyNumber(a) ?? -1)
}
