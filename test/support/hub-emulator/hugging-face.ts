import { type Exchange, getXetHash } from './exchange.ts'
import { type Commit, type Entry, getFormats, listing, type Repository, searched } from './repositories.ts'

export interface HuggingFaceManners {
  /** Supports `?blobs=true`: sizes and digests in the info. */
  blobs: boolean
  /** Has a file listing besides the info. */
  tree: boolean
  /** The info accepts a revision and names its commit. */
  revisions: boolean
  /** Supports HEAD. */
  heads: boolean
  /** Signed addresses have no host, as on a single server. */
  relative: boolean
  /** Bytes come from another address, or directly in the answer as from a simple mirror. */
  delivery: 'cdn' | 'direct'
  /** The answer to a name in another case: 404, a redirect to the right name, or the repository. */
  casing: 'strict' | 'redirect' | 'lenient'
  /** Repositories are found by any part of their name, in any case. */
  search: boolean
  /** Terms that were not accepted block the info as well as the files. */
  gatedInfo: boolean
  /** Host in links to next pages: mirrors may repeat the hub's. Defaults to the requested host. */
  linkBase: string | undefined
}

export const HUGGING_FACE_MANNERS: HuggingFaceManners = {
  blobs: true,
  tree: true,
  revisions: true,
  heads: true,
  relative: false,
  delivery: 'cdn',
  casing: 'strict',
  search: true,
  gatedInfo: false,
  linkBase: undefined
}

const LIMITS = { ratelimit: '"api";r=499;t=300', 'ratelimit-policy': '"fixed window";"api";q=500;w=300' }
const BAD_LOGIN = { error: 'Invalid username or password.' }

/** Hugging Face's answers. */
export async function serveHuggingFace(exchange: Exchange, manners: HuggingFaceManners): Promise<void> {
  const { segments } = exchange
  if (exchange.isHead && !manners.heads) return exchange.text(405, 'Method Not Allowed')
  if (segments[0] === 'api' && segments[1] === 'models' && segments.length >= 4) {
    const [, , owner, name, what, revision] = segments
    const repository = await open(exchange, manners, `${owner}/${name}`, 'info')
    if (!repository) return
    if (what === undefined || what === '') return await info(exchange, manners, repository, undefined)
    if (what === 'revision' && revision && manners.revisions) return await info(exchange, manners, repository, revision)
    if (what === 'tree' && revision) return await tree(exchange, manners, repository, revision)
  }
  if (segments[0] === 'api' && segments[1] === 'models' && segments.length === 2 && manners.search) {
    return await search(exchange)
  }
  if (segments[0] === 'api' && segments[1] === 'resolve-cache' && segments[2] === 'models') {
    const [, , , owner, name, commit, ...path] = segments
    return await file(exchange, manners, `${owner}/${name}`, commit!, path.join('/'), true)
  }
  if (segments[2] === 'resolve' && segments.length >= 5) {
    const [owner, name, , revision, ...path] = segments
    return await file(exchange, manners, `${owner}/${name}`, revision!, path.join('/'), false)
  }
  if (segments[0] === 'xet-bridge-us' && manners.relative) return await exchange.state.signedUrls.serve(exchange)
  exchange.json(404, { error: "Sorry, we can't find the page you are looking for." }, LIMITS)
}

async function search(exchange: Exchange): Promise<void> {
  if (!(await exchange.begin('search'))) return
  const query = exchange.url.searchParams
  const author = query.get('author')?.toLowerCase()
  const limit = Number(query.get('limit') ?? 1000)
  const expand = query.getAll('expand')
  const records = searched(exchange.state.repositories.values(), query.get('search') ?? '', query.get('filter'))
    .filter(({ name }) => !author || name.toLowerCase().startsWith(`${author}/`))
    .slice(0, limit)
    .map(repository => {
      const { name, settings } = repository
      const { downloads = 3, likes = 0, license, task, gated = false } = settings
      const all: Record<string, unknown> = {
        modelId: name,
        private: false,
        downloads,
        likes,
        gated,
        lastModified: '2026-01-02T03:04:05.000Z',
        tags: [...getFormats(repository), ...(license ? [`license:${license}`] : []), 'region:us'],
        ...(task && { pipeline_tag: task })
      }
      // A client that names fields gets exactly these.
      const shown = Object.entries(all).filter(([field]) => expand.length === 0 || expand.includes(field))
      return { _id: '66f0', id: name, ...Object.fromEntries(shown) }
    })
  exchange.json(200, records, LIMITS)
}

function refuse(exchange: Exchange, status: number, code: string | undefined, message: string, body?: unknown): void {
  exchange.json(status, body ?? { error: message }, {
    ...LIMITS,
    ...(code ? { 'x-error-code': code } : {}),
    'x-error-message': message,
    ...(status === 401 ? { 'www-authenticate': 'Bearer realm="Authentication required", charset="UTF-8"' } : {})
  })
}

/** The repository as far as the caller may see it, or undefined if the request was refused. */
async function open(
  exchange: Exchange,
  manners: HuggingFaceManners,
  name: string,
  purpose: 'info' | 'file'
): Promise<Repository | undefined> {
  const { bearer, state } = exchange
  if (exchange.request.headers.authorization && !(bearer && state.tokens.has(bearer))) {
    refuse(exchange, 401, undefined, 'Invalid credentials in Authorization header', BAD_LOGIN)
    return undefined
  }
  let repository = exchange.repository(name)
  if (!repository && manners.casing !== 'strict') {
    repository = [...state.repositories.values()].find(other => other.name.toLowerCase() === name.toLowerCase())
    if (repository && manners.casing === 'redirect') {
      const location = exchange.request.url!.replace(name, repository.name)
      exchange.text(307, `Temporary Redirect. Redirecting to ${location}`, { location })
      return undefined
    }
  }
  const allowed = bearer !== undefined && bearer === repository?.settings.token
  if (!repository || (repository.settings.private && !allowed)) {
    if (bearer) refuse(exchange, 404, 'RepoNotFound', 'Repository not found')
    else exchange.json(401, BAD_LOGIN, LIMITS)
    return undefined
  }
  if (repository.settings.disabled) {
    refuse(exchange, 403, undefined, 'Access to this resource is disabled.')
    return undefined
  }
  if (repository.settings.gated && !allowed && (purpose === 'file' || manners.gatedInfo)) {
    const start = `Access to model ${repository.name} is restricted`
    if (!bearer) refuse(exchange, 401, 'GatedRepo', `${start}. You must be authenticated to access it.`)
    else {
      const page = `https://huggingface.co/${repository.name}`
      const message = `${start} and you are not in the authorized list. Visit ${page} to ask for access.`
      refuse(exchange, 403, 'GatedRepo', message)
    }
    return undefined
  }
  return repository
}

async function commitAt(exchange: Exchange, repository: Repository, revision?: string): Promise<Commit | undefined> {
  const commit = await repository.at(revision)
  if (!commit) refuse(exchange, 404, 'RevisionNotFound', `Invalid rev id: ${revision}`)
  return commit
}

async function info(
  exchange: Exchange,
  manners: HuggingFaceManners,
  repository: Repository,
  revision: string | undefined
): Promise<void> {
  if (!(await exchange.begin('info'))) return
  const commit = await commitAt(exchange, repository, revision)
  if (!commit) return
  const blobs = manners.blobs && ['true', '1'].includes(exchange.url.searchParams.get('blobs') ?? '')
  const siblings = commit.entries.map(entry => ({
    rfilename: entry.path,
    ...(blobs ? { blobId: entry.blobId, size: entry.size } : {}),
    ...(blobs && entry.lfs ? { lfs: { sha256: entry.sha256, size: entry.size, pointerSize: entry.pointerSize } } : {})
  }))
  const { name, settings } = repository
  const { private: isPrivate = false, gated = false } = settings
  const counts = { lastModified: '2026-01-02T03:04:05.000Z', downloads: 3, likes: 0, tags: ['gguf'], disabled: false }
  const names = { _id: '66f0c0ffee0000000000abcd', id: name, modelId: name, author: name.split('/')[0] }
  const sha = manners.revisions ? { sha: commit.id } : {}
  const gguf = settings.chatTemplate && { gguf: { architecture: 'llama', chat_template: settings.chatTemplate } }
  exchange.json(200, { ...names, ...sha, ...counts, ...gguf, private: isPrivate, gated, siblings }, LIMITS)
}

async function tree(
  exchange: Exchange,
  manners: HuggingFaceManners,
  repository: Repository,
  revision: string
): Promise<void> {
  if (!manners.tree) return exchange.json(404, { error: 'Not found' }, LIMITS)
  if (!(await exchange.begin('tree'))) return
  const commit = await commitAt(exchange, repository, revision)
  if (!commit) return
  const query = exchange.url.searchParams
  const recursive = ['true', '1'].includes(query.get('recursive') ?? '')
  const all = listing(commit.entries, recursive)
  const from = Number(Buffer.from(query.get('cursor') ?? '', 'base64').toString() || 0)
  const to = from + exchange.state.pageSize
  const headers: Record<string, string> = { ...LIMITS, 'x-repo-commit': commit.id }
  if (to < all.length) {
    const next = new URL(exchange.request.url!, manners.linkBase ?? exchange.state.url)
    next.searchParams.set('cursor', Buffer.from(String(to)).toString('base64'))
    headers.link = `<${next.href}>; rel="next"`
  }
  exchange.json(200, all.slice(from, to).map(treeEntry), headers)
}

function treeEntry({ path, entry }: { path: string; entry?: Entry }) {
  if (!entry) return { type: 'directory', oid: 'c86d67c722720df4843d5cf40001ecf4c381d5bb', size: 0, path }
  const { size, blobId: oid } = entry
  const lfs = { oid: entry.sha256, size, pointerSize: entry.pointerSize }
  return { type: 'file', oid, size, path, ...(entry.lfs ? { lfs, xetHash: getXetHash(entry) } : {}) }
}

async function file(
  exchange: Exchange,
  manners: HuggingFaceManners,
  name: string,
  revision: string,
  path: string,
  cached: boolean
): Promise<void> {
  const repository = await open(exchange, manners, name, 'file')
  if (!repository) return
  const commit = await commitAt(exchange, repository, revision)
  if (!commit) return
  const entry = commit.entries.find(other => other.path === path)
  const headers = { 'x-repo-commit': commit.id, 'accept-ranges': 'bytes' }
  if (!entry) return exchange.text(404, 'Entry not found', { ...headers, 'x-error-code': 'EntryNotFound' })
  const linked = {
    'x-linked-size': String(entry.size),
    'x-linked-etag': `"${entry.lfs ? entry.sha256 : entry.blobId}"`
  }
  if (cached || manners.delivery === 'direct') {
    const faults = await exchange.begin(exchange.isHead ? 'resolve' : 'bytes', entry)
    if (faults) await direct(exchange, entry, faults, { ...headers, ...(entry.lfs ? linked : {}) })
    return
  }
  if (!(await exchange.begin('resolve', entry))) return
  if (!entry.lfs) {
    const encoded = path.split('/').map(encodeURIComponent).join('/')
    const asked = encodeURIComponent(exchange.url.pathname)
    const location = `/api/resolve-cache/models/${repository.name}/${commit.id}/${encoded}?${asked}=&etag=%22${entry.blobId}%22`
    return redirect(exchange, 307, location, headers)
  }
  const hash = getXetHash(entry)
  const token = `<${exchange.state.url}/api/models/${repository.name}/xet-read-token/${commit.id}>; rel="xet-auth"`
  const rebuild = `<https://cas-server.invalid/v1/reconstructions/${hash}>; rel="xet-reconstruction-info"`
  const signed = exchange.state.signedUrls.sign(repository, entry, 'cdn')
  const location = manners.relative ? signed.slice(exchange.state.signedUrls.base.length) : signed
  redirect(exchange, 302, location, { ...headers, ...linked, 'x-xet-hash': hash, link: `${token}, ${rebuild}` })
}

/** A redirect in the form of its framework: the length is that of this text, not of the file. */
function redirect(exchange: Exchange, status: number, location: string, headers: Record<string, string>): void {
  const body = `${status === 302 ? 'Found' : 'Temporary Redirect'}. Redirecting to ${location}`.padEnd(913)
  exchange.response.writeHead(status, {
    ...headers,
    ...LIMITS,
    location,
    vary: 'Accept',
    'content-type': 'text/plain; charset=utf-8',
    'content-length': Buffer.byteLength(body)
  })
  exchange.response.end(exchange.isHead ? undefined : body)
}

async function direct(
  exchange: Exchange,
  entry: Entry,
  faults: Parameters<Exchange['bytes']>[1],
  headers: Record<string, string>
): Promise<void> {
  const etag = `"${entry.lfs ? entry.sha256 : entry.blobId}"`
  const gzip = /\bgzip\b/.test(String(exchange.request.headers['accept-encoding'] ?? ''))
  if (!entry.lfs && gzip && exchange.request.headers.range === undefined) {
    exchange.log.bytes += exchange.isHead ? 0 : entry.size
    return exchange.text(200, entry.content.read(0, entry.size), { ...headers, etag: `W/${etag}` })
  }
  await exchange.bytes(entry, faults, { ...headers, etag, 'content-type': 'application/octet-stream' }, { etag })
}
