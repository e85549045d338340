import type { Hub, HubFile } from '../../../core/contracts/hubs.ts'
import { CorralError } from '../../../core/errors.ts'
import { mapInSlices } from '../../../core/system/collections.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { parseUntrustedJson } from '../../../core/system/untrusted-json.ts'
import { isUsablePath } from '../../../core/system/usable-path.ts'
import { type HubAccess, type HubResponse, hubPlugin, publicHubAccess, publicHubOptions } from './hub-fetch.ts'
import {
  encodePath,
  findRefusalRule,
  fingerprint,
  hubFile,
  hubRefusal,
  isLocation,
  parseJsonResponse,
  readFacts,
  readLocation,
  requestLocation,
  requireFewFiles,
  type Subject,
  searchFormats
} from './hub-replies.ts'

const HUB = { usual: 'https://modelscope.cn', variable: 'MODELSCOPE_ENDPOINT' }

export default hubPlugin(
  'modelscope',
  'Models from ModelScope (modelscope:owner/name)',
  publicHubOptions(HUB, 'MODELSCOPE_API_TOKEN'),
  (context, options) => {
    const access = publicHubAccess(context, options, {
      ...HUB,
      title: 'ModelScope',
      hosts: ['modelscope.cn', 'www.modelscope.cn'],
      tokens: { variables: ['MODELSCOPE_API_TOKEN', 'MODELSCOPE_ACCESS_TOKEN'] },
      // Older parts of the hub only accept the cookie.
      moreHeaders: token => ({ cookie: `m_session_id=${token}` })
    })
    return createModelScopeHub(access, options.proxy)
  }
)

const DEFAULT_BRANCH = 'master'
/** The API's limit per request. */
const MAX_FOUND = 50

/** Its listings name no commit, so a fingerprint of the listing identifies the revision. */
function createModelScopeHub({ title, endpoint, send }: HubAccess, proxy: string): Hub {
  // The international site has other models. Its addresses only work if it is the endpoint.
  const site = new URL(endpoint).host.endsWith('modelscope.ai') ? 'modelscope.ai' : 'modelscope.cn'
  const api = (id: string) => `/api/v1/models/${encodePath(id)}`
  const pageUrl = (id: string) => `${endpoint}/models/${id}`
  // Refusals are JSON too. `parseJsonResponse` reports a web page.
  const readBody = async (response: HubResponse) => {
    const body = response.status === 200 ? await parseJsonResponse(response, title) : await parseEnvelope(response)
    return isObject(body) ? body : {}
  }

  return {
    name: 'modelscope',
    title,
    prefixes: ['modelscope:', `https://${site}/`, `https://www.${site}/`],

    async repository({ id, revision = DEFAULT_BRANCH }, { signal }) {
      // "True" must have a capital letter. Any other spelling silently lists only the top folder.
      const query = new URLSearchParams({ Revision: revision, Recursive: 'True' })
      const response = await send({ path: `${api(id)}/repo/files?${query}`, signal })
      const subject = { title, id, page: pageUrl(id), revision }
      const body = await readBody(response)
      if (!isSuccess(response, body)) throw modelScopeRefusal(response, body, subject, Date.now())
      const listing = await readFacts(title, () => readListing(body, title, id))
      if (!listing)
        throw new CorralError('hub_unreachable', `${title} returns an invalid list of the files of "${id}".`)
      const { files, inCheck } = listing
      return {
        hub: 'modelscope',
        id,
        revision: fingerprint(files),
        address: pageUrl(id),
        gated: false,
        files,
        page: { folder: `${pageUrl(id)}/file/view/${encodePath(revision)}/` },
        more: { ref: revision, ...(inCheck.length > 0 ? { inCheck: JSON.stringify(inCheck) } : {}) }
      }
    },

    async search(words, limit, { signal }) {
      const size = Math.min(limit, MAX_FOUND)
      return await searchFormats(title, 'id', limit, async format => {
        const query = { search: words, sort: 'downloads', page_number: '1', page_size: `${size}` }
        const path = `/openapi/v1/models?${new URLSearchParams({ ...query, 'filter.library': format })}`
        const response = await send({ path, signal })
        const body = await readBody(response)
        if (response.status === 404) throw hubRefusal('no-search', response, { title, id: words }, Date.now())
        if (!isSuccess(response, body)) throw modelScopeRefusal(response, body, { title, id: words }, Date.now())
        const { data } = body
        return isObject(data) ? data.models : undefined
      })
    },

    async locate({ id, more }, { path }, signal) {
      const revision = more?.ref ?? DEFAULT_BRANCH
      const query = new URLSearchParams({ Revision: revision, FilePath: path })
      const address = `${api(id)}/repo?${query}`
      const response = await requestLocation(outgoing => send({ ...outgoing, path: address, signal }), 'stop', false)
      // A refusal may have status 200, with JSON instead of the bytes.
      const isRefusal = /\bjson\b/.test(response.headers['content-type'] ?? '') && !path.endsWith('.json')
      if (isLocation(response) && !isRefusal) return await readFacts(title, () => readLocation(response, proxy, path))
      const refused = isRefusal && response.status === 200 ? await send({ path: address, signal }) : response
      const inCheck = (JSON.parse(more?.inCheck ?? '[]') as string[]).includes(path)
      const subject = { title, id, page: pageUrl(id), revision, file: path }
      throw modelScopeRefusal(refused, await parseEnvelope(refused), subject, Date.now(), inCheck)
    }
  }
}

/** Parses a list of files, and the paths that the hub is still checking. Undefined if it is not a listing. */
export async function readListing(body: Record<string, unknown>, title: string, id: string) {
  const data = body.Data ?? body.data
  const entries = isObject(data) ? (data.Files ?? data.files) : undefined
  if (!Array.isArray(entries)) return undefined
  requireFewFiles(entries.length, title, id)
  const files = new Map<string, HubFile>()
  const inCheck: string[] = []
  await mapInSlices(entries, entry => {
    const { Path: path, Type: type, Mode: mode } = isObject(entry) ? entry : {}
    // Modes are git's, in decimal: 40960 is a symbolic link.
    if ((type !== undefined && type !== 'blob') || String(mode) === '40960' || !isUsablePath(path)) return
    const isInCheck = entry.InCheck === true
    const digest = isInCheck && entry.Sha256 === '' ? undefined : entry.Sha256
    files.set(path, hubFile(path, entry.Size, digest))
    if (isInCheck) inCheck.push(path)
  })
  return { files: [...files.values()], inCheck }
}

/** Parses a reply's object. Empty for a web page or bytes: then only the status matters. */
export async function parseEnvelope({ text }: Pick<HubResponse, 'text'>): Promise<Record<string, unknown>> {
  const { value } = await parseUntrustedJson(text)
  return isObject(value) ? value : {}
}

/** Returns whether a response is a success: by its status, and by its JSON, which may contradict the status. */
export function isSuccess({ status }: Pick<HubResponse, 'status'>, body: Record<string, unknown>): boolean {
  if (status < 200 || status >= 300) return false
  const code = body.Code ?? body.code
  return (
    (body.Success ?? body.success) !== false && (code === undefined || code === 0 || code === 200 || code === '200')
  )
}

/** Creates the error for a refusal, which may have status 200. @param inCheck the hub is still checking the file */
export function modelScopeRefusal(
  response: HubResponse,
  body: Record<string, unknown>,
  subject: Pick<Subject, 'title' | 'id' | 'page' | 'revision' | 'file'>,
  now: number,
  inCheck = false
): CorralError {
  const code = String(body.Code ?? body.code ?? '')
  const advised = {
    ...subject,
    usualBranch: 'master',
    tokenAdvice: 'set MODELSCOPE_API_TOKEN or modelscope.token in config.yaml'
  }
  const facts = { code, isFile: subject.file !== undefined, isInCheck: inCheck }
  return hubRefusal(findRefusalRule('modelScope', response, facts).kind, response, advised, now, code)
}
