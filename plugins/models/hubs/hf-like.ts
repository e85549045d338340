import { homedir } from 'node:os'
import { join } from 'node:path'
import type { FileLocation, Hub, HubFile, HubRepository, HubRequest } from '../../../core/contracts/hubs.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError } from '../../../core/errors.ts'
import { abortAfter } from '../../../core/system/abort-signals.ts'
import { mapInSlices } from '../../../core/system/collections.ts'
import { isTrue, offlineVariable } from '../../../core/system/connections.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { isUsablePath } from '../../../core/system/usable-path.ts'
import {
  type EndpointResponse,
  type HubAccess,
  type HubResponse,
  hubPlugin,
  isTemporary,
  type PublicHub,
  publicHubAccess,
  publicHubOptions,
  type SendToHub,
  type TokenSources
} from './hub-fetch.ts'
import {
  encodePath,
  findRefusalRule,
  fingerprint,
  hubFile,
  hubRefusal,
  isFingerprint,
  isLocation,
  notAtHub,
  parseJsonResponse,
  type RefusalKind,
  readFacts,
  readLocation,
  requestLocation,
  requireFewFiles,
  type Subject,
  searchFormats,
  sha1Hex
} from './hub-replies.ts'

/** The differences between the hubs with Hugging Face's API. */
interface HfLikeHub extends Pick<Hub, 'name' | 'prefixes'>, Omit<PublicHub, 'tokens'> {
  description: string
  tokens(env: NodeJS.ProcessEnv): TokenSources
  /** Where its token comes from, for the documentation, and the variable to set. */
  tokenSource: string
  tokenVariable: string
  /** Prefix of all paths: empty or `/csg`, and that of the pages of its repositories. */
  pathPrefix: string
  pagePrefix: string
  /** Branch to request by default. Undefined requests the repository without a branch. */
  defaultBranch?: string
  /** Returns the variable that forbids all requests, if it is set. */
  offlineVariable?(env: NodeJS.ProcessEnv): string | undefined
  /** Whether its tree lists digests, it redirects HEAD like GET, and its search finds names in another case. */
  isComplete: boolean
  search: {
    /** Returns path and query of a search for repositories with weights in this format. */
    path(words: string, limit: number, format: 'gguf' | 'safetensors'): string
    records(reply: unknown): unknown
    id: string
  }
}

const hfLikePlugin = (hub: HfLikeHub) =>
  hubPlugin(hub.name, hub.description, publicHubOptions(hub, hub.tokenSource), (context, options) => {
    const access = publicHubAccess(context, options, { ...hub, tokens: hub.tokens(process.env) })
    return createHfLikeHub(hub, access, options.proxy)
  })

const MAX_PAGES = 500

function createHfLikeHub(options: HfLikeHub, { title, endpoint, send: sendToHub }: HubAccess, proxy: string): Hub {
  const { name, pathPrefix } = options
  const pageUrl = (id: string) => `${endpoint}${options.pagePrefix}${id}`
  const send: SendToHub = async outgoing => {
    const variable = options.offlineVariable?.(process.env)
    if (variable === undefined) return await sendToHub({ isFinal: isFinalRefusal, ...outgoing })
    const message = `${title} is not used because ${variable} is set to ${process.env[variable]}. Unset it to download models.`
    throw new CorralError('hub_unreachable', message)
  }
  const good = ({ status }: HubResponse) => status >= 200 && status < 300

  const subject = (id: string, revision: string | undefined, file?: string): Subject => {
    const tokenAdvice = `set ${options.tokenVariable} or ${name}.token in config.yaml`
    return { title, id, page: pageUrl(id), revision, file, tokenAdvice }
  }

  /**
   * Requests the description of a repository at a revision. Returns it with its response, or only a refusal.
   * `elsewhere` means that the repository exists, but not the revision.
   */
  async function describe(id: string, revision: string | undefined, signal: AbortSignal | undefined) {
    const base = `${pathPrefix}/api/models/${encodePath(id)}`
    const branch = revision ?? options.defaultBranch
    const first = branch === undefined ? base : `${base}/revision/${encodeURIComponent(branch)}`
    const read = async (path: string) => {
      const response = await send({ path: `${path}?blobs=true`, signal })
      if (!good(response)) return { response, elsewhere: false }
      const info = await parseJsonResponse(response, title)
      if (isObject(info) && Array.isArray(info.siblings)) requireFewFiles(info.siblings.length, title, id)
      if (isObject(info)) return { info, response, elsewhere: false }
      throw new CorralError('hub_unreachable', `${title} returns an invalid description of "${id}".`)
    }
    const described = await read(first)
    const { status, headers } = described.response
    if (described.info || first === base || status === 401 || headers['x-error-code'] === 'RepoNotFound')
      return described
    if (!['unknown-repository', 'unknown-revision'].includes(refusalKind(described.response, false))) return described
    // Simple servers have no address for revisions, only for the default branch.
    const whole = await read(base)
    if (!whole.info) return described
    return branch === options.defaultBranch ? whole : { ...described, elsewhere: true }
  }

  async function tree(id: string, revision: string, signal: AbortSignal | undefined) {
    const entries: unknown[] = []
    const query = options.isComplete ? '?recursive=true&expand=false' : '?recursive=true'
    let path: string | undefined =
      `${pathPrefix}/api/models/${encodePath(id)}/tree/${encodeURIComponent(revision)}${query}`
    let first: EndpointResponse | undefined
    for (let page = 0; path !== undefined; page++) {
      const response: EndpointResponse = await send({ path, signal })
      first ??= response
      if (!good(response)) return { response, files: undefined }
      const list = await parseJsonResponse(response, title)
      if (!Array.isArray(list) || page === MAX_PAGES) {
        throw new CorralError('hub_unreachable', `${title} returns an invalid list of the files of "${id}".`)
      }
      requireFewFiles(entries.length + list.length, title, id)
      for (const entry of list) entries.push(entry)
      path = nextPage(response.headers.link, response.endpoint)
    }
    const files = await readFacts(title, () => filesFromTree(entries, options.isComplete))
    return { response: first!, files }
  }

  /** Requests the tree of a commit. Simple servers only have that of a branch. */
  async function fetchTree(id: string, sha: string | undefined, ref: string, signal: AbortSignal | undefined) {
    const listed = await tree(id, sha ?? ref, signal)
    return listed.files || sha === undefined || listed.response.status !== 404 ? listed : await tree(id, ref, signal)
  }

  async function refuse(
    response: HubResponse,
    about: Subject,
    signal: AbortSignal | undefined,
    kind = refusalKind(response, false)
  ): Promise<never> {
    const error = hubRefusal(kind, response, about, Date.now())
    if (kind !== 'unknown-repository' || error.code !== 'repo_not_found' || !options.isComplete) throw error
    const similar = await similarName(send, pathPrefix, about.id, signal)
    if (similar === undefined) throw error
    throw notAtHub(
      `${title} has no repository "${about.id}", but it has "${similar}": names are case-sensitive there. Pull "${similar}".`,
      { ...error.details, similar }
    )
  }

  /** Returns the response with a file's location, or the refusal. */
  async function locate(repository: HubRepository, file: HubFile, signal: AbortSignal | undefined) {
    const { id, revision, more } = repository
    const at = (revision: string) => {
      const path = `${pathPrefix}/${encodePath(id)}/resolve/${encodeURIComponent(revision)}/${encodePath(file.path)}`
      return requestLocation(outgoing => send({ ...outgoing, path, signal }), 'stop', options.isComplete)
    }
    const ref = more?.ref ?? revision
    if (isFingerprint(revision)) return await at(ref)
    const response = await at(revision)
    if (response.status !== 404 || ref === revision) return response
    // Simple servers only have files of a branch. Their digests show whether they are the right ones.
    const other = await at(ref)
    return isLocation(other) ? other : response
  }

  return {
    name,
    title,
    prefixes: options.prefixes,

    async repository({ id: requested, revision }: HubRequest, { signal }: Waiting): Promise<HubRepository> {
      const ref = revision ?? options.defaultBranch ?? 'main'
      const { info, response, elsewhere } = await describe(requested, revision, signal)
      const refuseDescription = () =>
        refuse(response, subject(requested, revision), signal, elsewhere ? 'unknown-revision' : undefined)
      // After a final refusal, do not try other addresses.
      if (!info && (response.status !== 404 || response.headers['x-error-code'])) return await refuseDescription()

      const id = info ? spelling(requested, info, response) : requested
      let sha = typeof info?.sha === 'string' && /^[\w.-]+$/.test(info.sha) ? info.sha : undefined
      let files = info && (await readFacts(title, () => filesFromInfo(info)))
      if (files === undefined || isIncomplete(files, options.isComplete)) {
        const listed = await fetchTree(id, sha, ref, signal)
        if (listed.files) {
          files = files ? completed(files, listed.files) : listed.files
          sha ??= listed.response.headers['x-repo-commit']
        } else if (!info) return await refuseDescription()
        // Unknown facts about a file are requested with its location.
        else if (!files || isTemporary(listed.response.status))
          await refuse(listed.response, subject(id, revision), signal)
      }
      return {
        hub: name,
        id,
        revision: sha ?? fingerprint(files!),
        address: pageUrl(id),
        gated: typeof info?.gated === 'string' ? info.gated !== 'false' : info?.gated === true,
        files: files!,
        page: { folder: `${pageUrl(id)}/blob/${encodePath(ref)}/`, ...ggufTemplate(info) },
        more: { ref }
      }
    },

    search(words, limit, { signal }) {
      const { path, records, id } = options.search
      return searchFormats(title, id, limit, async format => {
        const response = await send({ path: path(words, limit, format), signal })
        if (good(response)) return records(await parseJsonResponse(response, title))
        const kind = refusalKind(response, false)
        // A search does not name a repository that could be unknown or private.
        const isClosed = kind === 'gated' || kind === 'private' || response.status === 401
        const ofSearch = isClosed ? 'forbidden' : kind.startsWith('unknown-') ? 'no-search' : kind
        const endpointAdvice = `${options.variable} or ${name}.endpoint in config.yaml`
        const about = { ...subject(words, undefined), endpointAdvice }
        throw hubRefusal(ofSearch, response, about, Date.now())
      })
    },

    async locate(repository, file, signal): Promise<FileLocation> {
      const response = await locate(repository, file, signal)
      if (isLocation(response)) return await readFacts(title, () => readLocation(response, proxy, file.path))
      const about = subject(repository.id, repository.more?.ref, file.path)
      const kind = refusalKind(response, true)
      // In a gated repository, the refusal of a file is about the terms.
      const isAboutTerms = repository.gated && [401, 403].includes(response.status) && kind !== 'bad-token'
      throw hubRefusal(isAboutTerms ? 'gated' : kind, response, about, Date.now())
    }
  }
}

/** Returns the chat template that the hub has read in a GGUF file. */
function ggufTemplate(info: Record<string, unknown> | undefined) {
  const template = isObject(info?.gguf) ? info.gguf.chat_template : undefined
  return typeof template === 'string' ? { chatTemplate: template } : {}
}

/** Returns the hub's spelling of a name, which differs in case or because the repository was renamed. */
function spelling(requested: string, info: Record<string, unknown>, { hops }: HubResponse): string {
  const id = info.id ?? info.modelId
  if (typeof id !== 'string' || !/^[^/\s]+\/[^/\s]+$/.test(id)) return requested
  return hops.length > 1 || id.toLowerCase() === requested.toLowerCase() ? id : requested
}

/** The search for a similar name delays an error message by at most this time. */
const SIMILAR_NAME_TIMEOUT_MS = 3_000

/** Returns the id among search results that differs from the requested one only in case. */
export function sameButForCase(results: unknown, id: string): string | undefined {
  const ids = Array.isArray(results) ? results.filter(isObject).map(result => result.id ?? result.modelId) : []
  const isSame = (other: unknown) =>
    typeof other === 'string' && other !== id && other.toLowerCase() === id.toLowerCase()
  return ids.find(isSame) as string | undefined
}

/** Searches for a name that differs only in case. This only improves an error message, so failures are ignored. */
async function similarName(send: SendToHub, pathPrefix: string, id: string, signal: AbortSignal | undefined) {
  const [author, search] = id.split('/') as [string, string]
  const limit = abortAfter(SIMILAR_NAME_TIMEOUT_MS)
  const either = signal ? AbortSignal.any([signal, limit]) : limit
  try {
    // If the owner's case is wrong, only the name finds it.
    for (const query of [
      { search, author, limit: '5' },
      { search, limit: '50' }
    ] as Record<string, string>[]) {
      const path = `${pathPrefix}/api/models?${new URLSearchParams(query)}`
      const response = await send({ path, signal: either, retryTime: 0 })
      const results = response.status === 200 ? await parseJsonResponse(response, 'the hub') : undefined
      const found = sameButForCase(results, id)
      if (found !== undefined) return found
    }
  } catch (error) {
    signal?.throwIfAborted()
    const harmless = error === limit.reason || error instanceof CorralError
    if (!harmless) throw error
  }
  return undefined
}

/** Always in LFS: without an LFS object in the listing, the blob id is the pointer's, not the file's. */
const ALWAYS_LFS = /\.(gguf|safetensors)$/i

function file(path: string, size: unknown, oid: unknown, lfs: unknown): HubFile {
  const linked = isObject(lfs) ? lfs : undefined
  const gitSha1 = linked || ALWAYS_LFS.test(path) ? undefined : sha1Hex(oid)
  return hubFile(path, linked?.size ?? size, linked?.sha256 ?? linked?.oid, gitSha1)
}

async function toHubFiles(entries: readonly unknown[], read: (entry: Record<string, unknown>) => HubFile | undefined) {
  const distinct = new Map<string, HubFile>()
  await mapInSlices(entries, entry => {
    const listed = isObject(entry) ? read(entry) : undefined
    if (listed) distinct.set(listed.path, listed)
  })
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

export function isIncomplete(files: readonly HubFile[], treeHasDigests: boolean): boolean {
  return files.some(
    ({ size, sha256, gitSha1 }) =>
      size === undefined || (treeHasDigests && sha256 === undefined && gitSha1 === undefined)
  )
}

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

const findRule = (response: HubResponse, isFile: boolean) =>
  findRefusalRule('huggingFace', response, { code: response.headers['x-error-code'], isFile })
export const refusalKind = (response: HubResponse, isFile: boolean): RefusalKind => findRule(response, isFile).kind
export const isFinalRefusal = (response: HubResponse): boolean => findRule(response, false).isFinal

const HOSTS = ['huggingface.co', 'hf.co']
const FIELDS = ['downloads', 'likes', 'lastModified', 'gated', 'tags', 'pipeline_tag']

export const huggingface = hfLikePlugin({
  name: 'huggingface',
  title: 'Hugging Face',
  description: 'Models from Hugging Face (hf:owner/name)',
  usual: 'https://huggingface.co',
  variable: 'HF_ENDPOINT',
  hosts: HOSTS,
  prefixes: ['hf:', ...['', 'https://', 'http://'].flatMap(scheme => HOSTS.map(host => `${scheme}${host}/`))],
  tokens: tokenSources,
  tokenSource: 'HF_TOKEN, or the token that "hf auth login" stored',
  tokenVariable: 'HF_TOKEN',
  pathPrefix: '',
  pagePrefix: '/',
  defaultBranch: 'main',
  offlineVariable,
  isComplete: true,
  search: {
    path: (words, limit, format) => {
      const query = new URLSearchParams({ search: words, filter: format, sort: 'downloads', direction: '-1' })
      query.set('limit', `${limit}`)
      for (const field of FIELDS) query.append('expand', field)
      return `/api/models?${query}`
    },
    records: reply => reply,
    id: 'id'
  }
})

export const csghub = hfLikePlugin({
  name: 'csghub',
  title: 'CSGHub',
  description: 'Models from CSGHub, the hub of OpenCSG (csghub:owner/name)',
  usual: 'https://hub.opencsg.com',
  variable: 'CSGHUB_DOMAIN',
  hosts: [],
  prefixes: ['csghub:', 'https://hub.opencsg.com/', 'https://opencsg.com/'],
  tokens: ({ CSGHUB_TOKEN_PATH, CSGHUB_HOME }) => ({
    variables: ['CSGHUB_TOKEN'],
    file: CSGHUB_TOKEN_PATH || (CSGHUB_HOME ? join(CSGHUB_HOME, 'token') : undefined)
  }),
  tokenSource: "CSGHUB_TOKEN, or the token file of CSGHub's own client",
  tokenVariable: 'CSGHUB_TOKEN',
  pathPrefix: '/csg',
  pagePrefix: '/models/',
  isComplete: false,
  search: {
    path: (words, limit, format) => {
      const query = { page: '1', per: `${limit}`, search: words, sort: 'most_download', framework_tag: format }
      return `/api/v1/models?${new URLSearchParams(query)}`
    },
    records: reply => (isObject(reply) ? reply.data : undefined),
    id: 'path'
  }
})

const expanded = (path: string): string => path.replace(/^~(?=$|[\\/])/, homedir())

export function tokenFile(env: NodeJS.ProcessEnv): string {
  if (env.HF_TOKEN_PATH) return expanded(env.HF_TOKEN_PATH)
  const cache = env.XDG_CACHE_HOME ? expanded(env.XDG_CACHE_HOME) : join(homedir(), '.cache')
  return join(env.HF_HOME ? expanded(env.HF_HOME) : join(cache, 'huggingface'), 'token')
}

export function tokenSources(env: NodeJS.ProcessEnv) {
  if (isTrue(env.HF_HUB_DISABLE_IMPLICIT_TOKEN)) return { variables: [] }
  return { variables: ['HF_TOKEN', 'HUGGING_FACE_HUB_TOKEN'], file: tokenFile(env) }
}
