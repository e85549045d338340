import type { Exchange } from './exchange.ts'
import { type Commit, type Entry, getFormats, listing, type Repository, searched } from './repositories.ts'

export interface CsgHubManners {
  /** Supports `?blobs=true`. */
  blobs: boolean
  /** Has a listing in Hugging Face's form, as newer servers do, without digests of large files. */
  tree: boolean
  /** Sends ETags without quotes, as older servers do. */
  bareEtags: boolean
  /** The repository is still being mirrored: its REST listing answers 202. */
  mirroring: boolean
}

export const CSGHUB_MANNERS: CsgHubManners = { blobs: true, tree: false, bareEtags: false, mirroring: false }

const PREFIXES = ['csg', 'hf', 'ms']
const STORE_LIFE = 259_200_000

/** CSGHub's answers: a tree in Hugging Face's form under three prefixes, and its REST API. */
export async function serveCsgHub(exchange: Exchange, manners: CsgHubManners): Promise<void> {
  const { segments } = exchange
  const [prefix] = segments
  if (PREFIXES.includes(prefix!)) {
    const mapped = (revision?: string) =>
      prefix !== 'csg' && (revision === 'main' || revision === 'master') ? undefined : revision
    if (segments[1] === 'api' && segments[2] === 'models' && segments.length >= 5) {
      const [, , , owner, name, what, revision, ...rest] = segments
      const id = `${owner}/${name}`
      if (what === undefined || what === 'revision') return await info(exchange, manners, id, mapped(revision))
      if (what === 'tree' && manners.tree) return await hfTree(exchange, id, mapped(revision), rest.join('/'))
    }
    if (segments[3] === 'resolve' && segments.length >= 6) {
      const [, owner, name, , revision, ...path] = segments
      return await file(exchange, manners, `${owner}/${name}`, mapped(revision), path.join('/'))
    }
  }
  if (segments.join('/') === 'api/v1/models') return await search(exchange)
  if (segments[0] === 'api' && segments[1] === 'v1' && segments[2] === 'models') {
    const [, , , owner, name, what, ...rest] = segments
    const id = `${owner}/${name}`
    const ref = exchange.url.searchParams.get('ref') || undefined
    if (what === undefined) return await restInfo(exchange, id)
    if (what === 'tree') return await restTree(exchange, manners, id, ref)
    if (what === 'refs' && rest[1] === 'tree') {
      return await restTree(exchange, manners, id, rest[0], rest.slice(2).join('/'))
    }
    if (what === 'resolve') return await file(exchange, manners, id, ref, rest.join('/'))
  }
  exchange.text(404, '404 page not found')
}

async function search(exchange: Exchange): Promise<void> {
  if (!(await exchange.begin('search', ''))) return
  const query = exchange.url.searchParams
  const sort = query.get('sort') ?? ''
  if (!['trending', 'recently_update', 'most_download', 'most_favorite'].includes(sort)) {
    return exchange.json(400, { msg: 'sort parameter must be one of trending, recently_update, …' })
  }
  const all = searched(exchange.state.repositories.values(), query.get('search') ?? '', query.get('framework_tag'))
  const data = all.slice(0, Number(query.get('per') ?? 20)).map(repository => {
    const { downloads = 3, likes = 0, license = '' } = repository.settings
    return {
      ...{ id: 7, name: repository.name.split('/')[1], nickname: '', description: '', path: repository.name },
      ...{ downloads, likes, license, private: false, default_branch: 'main', source: 'local' },
      updated_at: '2026-01-02T03:04:05Z',
      tags: getFormats(repository).map(name => ({ name, category: 'framework', group: '', built_in: true }))
    }
  })
  exchange.json(200, { msg: 'OK', data, total: all.length })
}

const refuse = (exchange: Exchange, status: number, code: string, message: string) =>
  exchange.json(status, { code, msg: `${code}: ${message}`, context: {} })

type Access = 'ok' | 'missing' | 'anonymous' | 'forbidden'

function access(exchange: Exchange, id: string): { repository: Repository | undefined; access: Access } {
  const repository = exchange.repository(id)
  if (!repository) return { repository, access: 'missing' }
  if (!repository.settings.private || exchange.bearer === repository.settings.token) {
    return { repository, access: 'ok' }
  }
  return { repository, access: exchange.bearer ? 'forbidden' : 'anonymous' }
}

/** The commit of an API call, or undefined if it was refused (with 500, whatever the reason). */
async function forApi(
  exchange: Exchange,
  id: string,
  revision: string | undefined,
  noRight: number
): Promise<{ repository: Repository; commit: Commit } | undefined> {
  const found = access(exchange, id)
  if (found.access === 'missing') refuse(exchange, 500, 'SYS-ERR-3', 'no such row: sql: no rows in result set')
  else if (found.access !== 'ok') {
    refuse(exchange, noRight, noRight === 403 ? 'AUTH-ERR-2' : 'AUTH-ERR-0', 'unauthorized')
  } else {
    const commit = await found.repository!.at(revision)
    if (commit) return { repository: found.repository!, commit }
    refuse(exchange, 500, 'GIT-ERR-11', 'branch not found')
  }
  return undefined
}

async function info(exchange: Exchange, manners: CsgHubManners, id: string, revision?: string): Promise<void> {
  const found = await forApi(exchange, id, revision, 500)
  if (!found || !(await exchange.begin('info', id))) return
  const blobs = manners.blobs && exchange.url.searchParams.get('blobs') === 'true'
  exchange.json(200, {
    id,
    author: id.split('/')[0],
    sha: found.commit.id,
    created_at: '2026-01-02T03:04:05Z',
    last_modified: '2026-01-02T03:04:05Z',
    private: found.repository.settings.private ?? false,
    disabled: false,
    gated: null,
    downloads: 3,
    likes: 0,
    tags: [],
    siblings: found.commit.entries.map(entry => ({
      rfilename: entry.path,
      ...(blobs ? { blobId: entry.blobId, size: entry.size } : {}),
      ...(blobs && entry.lfs ? { lfs: { sha256: entry.sha256, size: entry.size, pointerSize: entry.pointerSize } } : {})
    }))
  })
}

async function hfTree(exchange: Exchange, id: string, revision: string | undefined, folder: string): Promise<void> {
  const found = await forApi(exchange, id, revision, 403)
  if (!found || !(await exchange.begin('tree', id))) return
  const recursive = exchange.url.searchParams.get('recursive') === 'true'
  const entries = listing(found.commit.entries, folder, recursive).filter(({ entry }) => entry || !recursive)
  exchange.json(
    200,
    entries.map(({ path, size, entry }) => ({
      type: entry ? 'file' : 'directory',
      path,
      size,
      oid: entry?.blobId ?? 'c86d67c722720df4843d5cf40001ecf4c381d5bb'
    }))
  )
}

async function restInfo(exchange: Exchange, id: string): Promise<void> {
  const found = await forApi(exchange, id, undefined, 403)
  if (!found || !(await exchange.begin('info', id))) return
  exchange.json(200, {
    msg: 'OK',
    data: { path: id, default_branch: found.repository.defaultBranch, sync_status: 'completed', source: 'local' }
  })
}

/** The first form returns one level as `data`. The second, with a folder, has capitalised keys. */
async function restTree(
  exchange: Exchange,
  manners: CsgHubManners,
  id: string,
  revision: string | undefined,
  folder?: string
): Promise<void> {
  const found = await forApi(exchange, id, revision, 403)
  if (!found || !(await exchange.begin('tree', id))) return
  if (manners.mirroring) {
    const code = 'MIRROR-ERR-1'
    return exchange.json(202, { code, msg: `${code}: the repository is being mirrored` }, { 'retry-after': 2 })
  }
  const root = folder ?? exchange.url.searchParams.get('path') ?? ''
  const files = listing(found.commit.entries, root, false).map(({ path, size, entry }) => ({
    name: path.split('/').at(-1),
    type: entry ? 'file' : 'dir',
    size,
    path,
    mode: entry ? '100644' : '040000',
    sha: entry?.blobId ?? '',
    url: '',
    content: '',
    lfs: entry?.lfs ?? false,
    lfs_sha256: entry?.lfs ? entry.sha256 : '',
    lfs_pointer_size: entry?.lfs ? entry.pointerSize : 0,
    last_commit_sha: found.commit.id,
    xnet_enabled: false
  }))
  exchange.json(200, { msg: 'OK', data: folder === undefined ? files : { Files: files, Cursor: '' } })
}

async function file(
  exchange: Exchange,
  manners: CsgHubManners,
  id: string,
  revision: string | undefined,
  path: string
): Promise<void> {
  const found = access(exchange, id)
  if (found.access === 'anonymous') return refuse(exchange, 401, 'AUTH-ERR-0', 'unauthorized')
  if (found.access === 'forbidden') return refuse(exchange, 403, 'AUTH-ERR-2', 'forbidden')
  const commit = await found.repository?.at(revision)
  const entry = commit?.entries.find(other => other.path === path)
  if (!found.repository || !commit || !entry) return refuse(exchange, 404, 'GIT-ERR-15', 'file not found')
  const kind = entry.lfs || exchange.isHead ? 'resolve' : 'bytes'
  const faults = await exchange.begin(kind, id, entry)
  if (!faults) return
  const etag = manners.bareEtags ? entry.blobId : `"${entry.blobId}"`
  const headers = { 'x-repo-commit': commit.id, etag, 'accept-ranges': 'bytes' }
  if (exchange.isHead) {
    exchange.log.status = 200
    exchange.response.writeHead(200, { ...headers, 'content-length': entry.size }).end()
    return
  }
  if (entry.lfs) {
    const signedUrls = exchange.state.signedUrls
    const life = Math.min(STORE_LIFE, signedUrls.rules.lifeMs === 3_600_000 ? STORE_LIFE : signedUrls.rules.lifeMs)
    const location = signedUrls.sign(found.repository, entry, 'store', life)
    return exchange.text(302, '', { ...headers, location })
  }
  await exchange.bytes(entry, faults, { ...headers, ...attachment(entry) }, { etag })
}

const attachment = (entry: Entry) => ({
  'content-type': 'application/octet-stream',
  'content-disposition': `attachment; filename="${entry.path.split('/').at(-1)}"`
})
