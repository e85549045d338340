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

export interface Platform {
  platform: NodeJS.Platform
  arch: string
}

/** The pattern of the archive for a platform and the hardware it is for. More kinds of hardware are more rows. */
const ARCHIVES: { platform: NodeJS.Platform; arch: string; kind: 'cpu' | 'metal'; name: RegExp }[] = [
  { platform: 'linux', arch: 'x64', kind: 'cpu', name: /^llama-b\d+-bin-ubuntu-x64\.(tar\.gz|zip)$/ },
  { platform: 'linux', arch: 'arm64', kind: 'cpu', name: /^llama-b\d+-bin-ubuntu-arm64\.(tar\.gz|zip)$/ },
  { platform: 'linux', arch: 's390x', kind: 'cpu', name: /^llama-b\d+-bin-ubuntu-s390x\.(tar\.gz|zip)$/ },
  { platform: 'darwin', arch: 'arm64', kind: 'metal', name: /^llama-b\d+-bin-macos-arm64\.(tar\.gz|zip)$/ },
  { platform: 'darwin', arch: 'x64', kind: 'cpu', name: /^llama-b\d+-bin-macos-x64\.(tar\.gz|zip)$/ },
  { platform: 'win32', arch: 'x64', kind: 'cpu', name: /^llama-b\d+-bin-win-cpu-x64\.(tar\.gz|zip)$/ },
  { platform: 'win32', arch: 'arm64', kind: 'cpu', name: /^llama-b\d+-bin-win-cpu-arm64\.(tar\.gz|zip)$/ }
]

/** The release's archive for a platform and what hardware it is for; undefined when there is none. Pure. */
export function chooseAsset(
  assets: readonly ReleaseAsset[],
  { platform, arch }: Platform
): { asset: ReleaseAsset; kind: 'cpu' | 'metal' } | undefined {
  for (const row of ARCHIVES) {
    if (row.platform !== platform || row.arch !== arch) continue
    const asset = assets.find(({ name }) => row.name.test(name))
    if (asset) return { asset, kind: row.kind }
  }
  return undefined
}

/** The newest release of binaries that has an archive for this platform: the very newest may still be uploading. Pure. */
export function newestComplete(releases: readonly Release[], platform: Platform): Release | undefined {
  return releases
    .filter(({ tag_name, assets }) => /^b\d+$/.test(tag_name) && chooseAsset(assets, platform))
    .sort((a, b) => Number(b.tag_name.slice(1)) - Number(a.tag_name.slice(1)))[0]
}

/** The digest's 64 hex digits; undefined when it is absent or of another kind. */
export function sha256Of({ digest }: ReleaseAsset): string | undefined {
  return /^sha256:([0-9a-f]{64})$/i.exec(digest ?? '')?.[1]?.toLowerCase()
}
