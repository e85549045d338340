import type { HubFile } from '../../../core/contracts/downloads.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { isUsablePath, sha1Hex, sha256Hex, sizeOf } from '../files/listed-files.ts'

/**
 * What never lies in git itself: where a listing shows no LFS object of it, its blob id is the pointer's, not the
 * file's.
 */
const ALWAYS_LFS = /\.(gguf|safetensors)$/i

function file(path: string, size: unknown, oid: unknown, lfs: unknown): HubFile {
  const linked = isObject(lfs) ? lfs : undefined
  const sha256 = linked && (sha256Hex(linked.sha256) ?? sha256Hex(linked.oid))
  const gitSha1 = linked || ALWAYS_LFS.test(path) ? undefined : sha1Hex(oid)
  return {
    path,
    size: sizeOf(linked?.size) ?? sizeOf(size),
    ...(sha256 ? { sha256 } : {}),
    ...(gitSha1 ? { gitSha1 } : {})
  }
}

function withoutDoubles(files: HubFile[]): HubFile[] {
  return [...new Map(files.map(file => [file.path, file])).values()]
}

/** The files of a repository's description (`siblings`); what is no safe path is left out. Undefined without a list. */
export function filesOfInfo(info: Record<string, unknown>): HubFile[] | undefined {
  if (!Array.isArray(info.siblings)) return undefined
  return withoutDoubles(
    info.siblings.filter(isObject).flatMap(entry => {
      const { rfilename } = entry
      return isUsablePath(rfilename) ? [file(rfilename, entry.size, entry.blobId, entry.lfs)] : []
    })
  )
}

/**
 * The files of a tree's entries; folders, links and what is no safe path are left out.
 * @param withDigests whether its `oid` is the file's own even where it says nothing of LFS
 */
export function filesOfTree(entries: readonly unknown[], withDigests: boolean): HubFile[] {
  return withoutDoubles(
    entries.filter(isObject).flatMap(({ path, type, mode, size, oid, lfs }) => {
      const isFile = (type === undefined || type === 'file' || type === 'blob') && mode !== '120000'
      return isFile && isUsablePath(path) ? [file(path, size, withDigests ? oid : undefined, lfs)] : []
    })
  )
}

/** Whether something is left to be learnt from the tree. */
export function isIncomplete(files: readonly HubFile[], treeHasDigests: boolean): boolean {
  return files.some(
    ({ size, sha256, gitSha1 }) =>
      size === undefined || (treeHasDigests && sha256 === undefined && gitSha1 === undefined)
  )
}

/** The files with what the tree knows of them besides. */
export function completed(files: readonly HubFile[], tree: readonly HubFile[]): HubFile[] {
  const known = new Map(tree.map(file => [file.path, file]))
  return files.map(file => {
    const more = known.get(file.path)
    if (!more) return file
    const sha256 = file.sha256 ?? more.sha256
    // What turns out to be an LFS file has no git blob of its own.
    const gitSha1 = sha256 ? undefined : (file.gitSha1 ?? more.gitSha1)
    return {
      path: file.path,
      // Beside an LFS object that only the tree shows, the first size may be the pointer's.
      size: (more.sha256 && !file.sha256 ? more.size : file.size) ?? more.size,
      ...(sha256 ? { sha256 } : {}),
      ...(gitSha1 ? { gitSha1 } : {})
    }
  })
}

/**
 * The path with query of a listing's next page, to go behind the endpoint; undefined at the end. Hubs name it with their
 * own host, which is another one behind a mirror.
 */
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
