import type { HubFile } from '../../../../core/contracts/hubs.ts'
import { mapInSlices } from '../../../../core/system/collections.ts'
import { isObject } from '../../../../core/system/json-object.ts'
import { isUsablePath } from '../../../../core/system/usable-path.ts'
import { hubFile, readSha256, readSize, sha1Hex } from '../files/listed-files.ts'

/** Always in LFS: without an LFS object in the listing, the blob id is the pointer's, not the file's. */
const ALWAYS_LFS = /\.(gguf|safetensors)$/i

function file(path: string, size: unknown, oid: unknown, lfs: unknown): HubFile {
  const linked = isObject(lfs) ? lfs : undefined
  const sha256 = linked && readSha256(linked.sha256 ?? linked.oid, path)
  const gitSha1 = linked || ALWAYS_LFS.test(path) ? undefined : sha1Hex(oid)
  return hubFile(path, readSize(linked?.size, path) ?? readSize(size, path), sha256, gitSha1)
}

async function toHubFiles(
  entries: readonly unknown[],
  read: (entry: Record<string, unknown>) => HubFile | undefined
): Promise<HubFile[]> {
  const files = await mapInSlices(entries, entry => (isObject(entry) ? read(entry) : undefined))
  const distinct = new Map<string, HubFile>()
  await mapInSlices(files, listed => void distinct.set(listed.path, listed))
  return [...distinct.values()]
}

/** Returns the files of a description (`siblings`), without unsafe paths. Undefined if it has no list. */
export async function filesFromInfo({ siblings }: Record<string, unknown>): Promise<HubFile[] | undefined> {
  if (!Array.isArray(siblings)) return undefined
  return await toHubFiles(siblings, ({ rfilename, size, blobId, lfs }) =>
    isUsablePath(rfilename) ? file(rfilename, size, blobId, lfs) : undefined
  )
}

/** Returns the files of a tree. @param withDigests `oid` is the file's digest even without an LFS object */
export async function filesFromTree(entries: readonly unknown[], withDigests: boolean): Promise<HubFile[]> {
  return await toHubFiles(entries, ({ path, type, mode, size, oid, lfs }) => {
    const isFile = (type === undefined || type === 'file' || type === 'blob') && mode !== '120000'
    return isFile && isUsablePath(path) ? file(path, size, withDigests ? oid : undefined, lfs) : undefined
  })
}

/** Returns whether the tree may add something. */
export function isIncomplete(files: readonly HubFile[], treeHasDigests: boolean): boolean {
  return files.some(
    ({ size, sha256, gitSha1 }) =>
      size === undefined || (treeHasDigests && sha256 === undefined && gitSha1 === undefined)
  )
}

/** Adds what the tree knows about the files. */
export function completed(files: readonly HubFile[], tree: readonly HubFile[]): HubFile[] {
  const known = new Map(tree.map(file => [file.path, file]))
  return files.map(file => {
    const more = known.get(file.path)
    if (!more) return file
    const sha256 = file.sha256 ?? more.sha256
    // An LFS file has no git blob of its own.
    const gitSha1 = sha256 ? undefined : (file.gitSha1 ?? more.gitSha1)
    // If only the tree shows an LFS object, the first size may be the pointer's.
    const size = (more.sha256 && !file.sha256 ? more.size : file.size) ?? more.size
    return hubFile(file.path, size, sha256, gitSha1)
  })
}

/** Returns a listing's next page, relative to the endpoint: hubs name their own host, which mirrors must not use. */
export function nextPage(link: string | undefined, endpoint: string): string | undefined {
  for (const part of (link ?? '').split(/,\s*(?=<)/)) {
    const target = /^\s*<([^>]+)>(.*)$/.exec(part)
    if (!target || !/;\s*rel="?next"?/i.test(target[2]!)) continue
    const base = new URL(endpoint)
    const { pathname, search } = new URL(target[1]!, `${base.origin}/`)
    const folder = base.pathname.replace(/\/$/, '')
    return (folder && pathname.startsWith(`${folder}/`) ? pathname.slice(folder.length) : pathname) + search
  }
  return undefined
}
