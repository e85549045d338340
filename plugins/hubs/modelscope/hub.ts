import type { FileLocation, Hub, HubFile, HubRepository, HubRequest } from '../../../core/contracts/downloads.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError } from '../../../core/errors.ts'
import { fingerprint } from '../files/fingerprint.ts'
import { encodePath } from '../files/listing-path.ts'
import { askPlace, isPlace, locationOf } from '../files/location.ts'
import type { AskHub } from '../http/endpoints.ts'
import { jsonOf } from '../http/json-answer.ts'
import { requireRequest } from '../hub-request.ts'
import { readListing } from './listing.ts'
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
