import type { Exchange } from './exchange.ts'
import { type Entry, getFormats, type Repository, searched } from './repositories.ts'

export interface CsgHubManners {
  /** Supports `?blobs=true`. */
  blobs: boolean
  /** Sends ETags without quotes, as older servers do. */
  bareEtags: boolean
}

export const CSGHUB_MANNERS: CsgHubManners = { blobs: true, bareEtags: false }

const STORE_LIFE = 259_200_000

/** CSGHub's answers: those in Hugging Face's form, and its search. */
export async function serveCsgHub(exchange: Exchange, manners: CsgHubManners): Promise<void> {
  const { segments } = exchange
  if (segments.join('/') === 'api/v1/models') return await search(exchange)
  if (segments[0] === 'csg' && segments[1] === 'api' && segments[2] === 'models') {
    const [, , , owner, name, what, revision] = segments
    if (name && (what === undefined || what === 'revision')) {
      return await info(exchange, manners, `${owner}/${name}`, revision)
    }
  } else if (segments[0] === 'csg' && segments[3] === 'resolve') {
    const [, owner, name, , revision, ...path] = segments
    return await file(exchange, manners, `${owner}/${name}`, revision, path.join('/'))
  }
  exchange.text(404, '404 page not found')
}

async function search(exchange: Exchange): Promise<void> {
  if (!(await exchange.begin('search'))) return
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

async function info(exchange: Exchange, manners: CsgHubManners, id: string, revision?: string): Promise<void> {
  const found = access(exchange, id)
  // Refused with 500, whatever the reason.
  if (found.access === 'missing') return refuse(exchange, 500, 'SYS-ERR-3', 'no such row: sql: no rows in result set')
  if (found.access !== 'ok') return refuse(exchange, 500, 'AUTH-ERR-0', 'unauthorized')
  const commit = await found.repository!.at(revision)
  if (!commit) return refuse(exchange, 500, 'GIT-ERR-11', 'branch not found')
  if (!(await exchange.begin('info'))) return
  const blobs = manners.blobs && exchange.url.searchParams.get('blobs') === 'true'
  exchange.json(200, {
    id,
    author: id.split('/')[0],
    sha: commit.id,
    created_at: '2026-01-02T03:04:05Z',
    last_modified: '2026-01-02T03:04:05Z',
    private: found.repository!.settings.private ?? false,
    disabled: false,
    gated: null,
    downloads: 3,
    likes: 0,
    tags: [],
    siblings: commit.entries.map(entry => ({
      rfilename: entry.path,
      ...(blobs ? { blobId: entry.blobId, size: entry.size } : {}),
      ...(blobs && entry.lfs ? { lfs: { sha256: entry.sha256, size: entry.size, pointerSize: entry.pointerSize } } : {})
    }))
  })
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
  const faults = await exchange.begin(kind, entry)
  if (!faults) return
  const etag = manners.bareEtags ? entry.blobId : `"${entry.blobId}"`
  const headers = { 'x-repo-commit': commit.id, etag, 'accept-ranges': 'bytes' }
  if (exchange.isHead) {
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
