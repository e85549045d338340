import type { FileLocation, Hub, HubFile, HubRepository, HubRequest } from '../../../core/contracts/downloads.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { askPlace, isPlace, locationOf } from '../files/file-location.ts'
import { encodePath, fingerprint, isUsablePath, sha256Hex, sizeOf } from '../files/listed-files.ts'
import type { AskHub } from '../http/endpoints.ts'
import { jsonOf } from '../http/hub-answer.ts'
import { requireRequest } from '../hub-request.ts'
import { isGood, modelScopeRefusal } from './refusal.ts'

export interface ModelScopeOptions {
  title: string
  prefixes: readonly string[]
  endpoint: string
  ask: AskHub
  proxy: string
}

const DEFAULT_BRANCH = 'master'

/** ModelScope's own API. It names no commit for a listing: a fingerprint of the listing pins what is fetched. */
export function createModelScopeHub({ title, prefixes, endpoint, ask, proxy }: ModelScopeOptions): Hub {
  const api = (id: string) => `/api/v1/models/${encodePath(id)}`
  const pageOf = (id: string) => `${endpoint}/models/${id}`

  return {
    name: 'modelscope',
    title,
    prefixes,

    async repository(request: HubRequest, { signal }: Waiting): Promise<HubRepository> {
      requireRequest(request)
      const { id, revision = DEFAULT_BRANCH } = request
      // "True" with a capital letter: anything else lists the top folder only, without a word.
      const query = new URLSearchParams({ Revision: revision, Recursive: 'True' })
      const answer = await ask({ path: `${api(id)}/repo/files?${query}`, signal })
      const subject = { title, id, page: pageOf(id), revision }
      // A page is explained as one; all refusals are JSON.
      const body = answer.status === 200 ? jsonOf(answer, title) : undefined
      if (!isGood(answer)) throw modelScopeRefusal(answer, subject, Date.now())
      const listing = readListing(body)
      if (!listing)
        throw new CorralError('hub_unreachable', `${title} does not list the files of "${id}" as it should.`)
      const { files, inCheck } = listing
      return {
        hub: 'modelscope',
        id,
        revision: fingerprint(files),
        address: pageOf(id),
        gated: false,
        files,
        more: { ref: revision, ...(inCheck.length > 0 ? { inCheck: JSON.stringify(inCheck) } : {}) }
      }
    },

    async locate({ id, more }: HubRepository, { path }: HubFile, signal: AbortSignal): Promise<FileLocation> {
      const revision = more?.ref ?? DEFAULT_BRANCH
      const query = new URLSearchParams({ Revision: revision, FilePath: path })
      const asked = `${api(id)}/repo?${query}`
      const answer = await askPlace(question => ask({ ...question, path: asked, signal }), 'stop', false)
      // A refusal may come with status 200, as JSON in the place of the bytes.
      const isRefusal = /\bjson\b/.test(answer.headers['content-type'] ?? '') && !path.endsWith('.json')
      if (isPlace(answer) && !isRefusal) return locationOf(answer, proxy, Date.now())
      const refused = isRefusal && answer.status === 200 ? await ask({ path: asked, signal }) : answer
      const inCheck = (JSON.parse(more?.inCheck ?? '[]') as string[]).includes(path)
      const subject = { title, id, page: pageOf(id), revision, file: path, inCheck }
      throw modelScopeRefusal(refused, subject, Date.now())
    }
  }
}

export interface ModelScopeListing {
  files: HubFile[]
  /** Paths of files that the hub is still examining, and may refuse. */
  inCheck: string[]
}

/** ModelScope's list of files: folders, links and what is no safe path are left out. Undefined when it is none. */
export function readListing(body: unknown): ModelScopeListing | undefined {
  const data = isObject(body) ? (body.Data ?? body.data) : undefined
  const entries = isObject(data) ? (data.Files ?? data.files) : undefined
  if (!Array.isArray(entries)) return undefined
  const files = new Map<string, HubFile>()
  const inCheck: string[] = []
  for (const entry of entries.filter(isObject)) {
    const { Path: path, Type: type, Mode: mode } = entry
    // Modes are git's, in decimal: 40960 is a symbolic link.
    if ((type !== undefined && type !== 'blob') || String(mode) === '40960' || !isUsablePath(path)) continue
    const sha256 = sha256Hex(entry.Sha256)
    files.set(path, { path, size: sizeOf(entry.Size), ...(sha256 ? { sha256 } : {}) })
    if (entry.InCheck === true) inCheck.push(path)
  }
  return { files: [...files.values()], inCheck }
}
