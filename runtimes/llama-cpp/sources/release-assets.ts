/** A file of a release, as GitHub's API lists it. */
export interface ReleaseAsset {
  name: string
  browser_download_url: string
  /** Bytes. */
  size: number
  /** `sha256:` and 64 hex digits. */
  digest?: string | null
}

/** A release, as GitHub's API gives it. */
export interface Release {
  tag_name: string
  assets: ReleaseAsset[]
}

/** The digest's 64 hex digits; undefined when it is absent or of another kind. */
export function sha256Of({ digest }: ReleaseAsset): string | undefined {
  return /^sha256:([0-9a-f]{64})$/i.exec(digest ?? '')?.[1]?.toLowerCase()
}
