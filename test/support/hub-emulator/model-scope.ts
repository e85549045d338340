import type { Exchange } from './exchange.ts'
import { type Entry, getFormats, listing, type Repository, searched } from './repositories.ts'

export interface ModelScopeManners {
  /** Bytes come directly in the answer, or from another address. */
  delivery: 'direct' | 'redirect'
  /** Direct answers send ranges with status 200. */
  rangeWith200: boolean
  upperCaseDigests: boolean
  /** How unknown names are refused: by the status, or by `Success: false` under 200. */
  refusal: 'status' | 'success-false'
  /** Where the login is sent. Older endpoints read only the cookie. */
  login: 'either' | 'cookie'
}

export const MODELSCOPE_MANNERS: ModelScopeManners = {
  delivery: 'direct',
  rangeWith200: true,
  upperCaseDigests: true,
  refusal: 'status',
  login: 'either'
}

/** ModelScope's answers. */
export async function serveModelScope(exchange: Exchange, manners: ModelScopeManners): Promise<void> {
  const { segments, url } = exchange
  const query = url.searchParams
  if (segments[0] === 'api' && segments[1] === 'v1' && segments[2] === 'models' && segments.length >= 5) {
    const [, , , owner, name, what, more] = segments
    const repository = open(exchange, manners, `${owner}/${name}`)
    if (!repository) return
    if (what === 'repo' && more === 'files') return await files(exchange, manners, repository)
    if (what === 'repo' && more === undefined) {
      return await file(exchange, manners, repository, query.get('Revision'), query.get('FilePath') ?? '')
    }
  }
  if (segments.join('/') === 'openapi/v1/models') return await search(exchange)
  exchange.json(404, envelope(404, 'Not found'))
}

async function search(exchange: Exchange): Promise<void> {
  if (!(await exchange.begin('search'))) return
  const query = exchange.url.searchParams
  const size = Number(query.get('page_size') ?? 10)
  if (size > 50) return exchange.json(400, { success: false, code: 'InvalidParameter', message: 'page_size' })
  const all = searched(exchange.state.repositories.values(), query.get('search') ?? '', query.get('filter.library'))
  const models = all.slice(0, size).map(repository => {
    const { downloads = 3, likes = 0, license = '', task } = repository.settings
    return {
      ...{ id: repository.name, display_name: repository.name, description: '', downloads, likes, license },
      ...{ private: false, gated: false, params: 630_167_424, file_size: 1, created_at: '2026-01-01T00:00:00Z' },
      last_modified: '2026-01-02T03:04:05Z',
      tasks: task ? [task] : [],
      tags: getFormats(repository).map(format => `library:${format}`)
    }
  })
  const page = { total_count: all.length, page_number: 1, page_size: size }
  exchange.json(200, { success: true, request_id: '0000-1111', data: { models, ...page } })
}

const envelope = (Code: number, Message: string, Data?: unknown) => ({
  Code,
  ...(Data === undefined ? {} : { Data }),
  Message,
  RequestId: '0000-1111',
  Success: Code === 200
})

function refuse(exchange: Exchange, manners: ModelScopeManners, code: number, message: string): void {
  exchange.json(manners.refusal === 'status' ? code : 200, envelope(code, message))
}

function open(exchange: Exchange, manners: ModelScopeManners, name: string): Repository | undefined {
  const repository = exchange.repository(name)
  const cookie = /(?:^|;\s*)m_session_id=([^;]+)/.exec(exchange.request.headers.cookie ?? '')?.[1]
  const token = cookie ?? (manners.login === 'either' ? exchange.bearer : undefined)
  if (repository && (!repository.settings.private || token === repository.settings.token)) return repository
  if (repository && !token) refuse(exchange, manners, 403, 'Please login first.')
  else refuse(exchange, manners, 404, 'Model not found.')
  return undefined
}

async function files(exchange: Exchange, manners: ModelScopeManners, repository: Repository): Promise<void> {
  if (!(await exchange.begin('tree'))) return
  const query = exchange.url.searchParams
  const commit = await repository.at(query.get('Revision') || undefined)
  if (!commit) return refuse(exchange, manners, 404, 'Revision not found.')
  // Only "True" with a capital T. Any other value lists the root alone.
  const recursive = query.get('Recursive') === 'True'
  const Files = listing(commit.entries, recursive).map(({ path, size, entry }) => ({
    Name: path.split('/').at(-1),
    Path: path,
    Type: entry ? 'blob' : 'tree',
    Size: size,
    Sha256: entry ? (manners.upperCaseDigests ? entry.sha256.toUpperCase() : entry.sha256) : '',
    IsLFS: entry?.lfs ?? false,
    Mode: entry ? '33188' : '16384',
    Revision: commit.id,
    InCheck: false,
    CommitMessage: '',
    CommittedDate: 1_775_179_795,
    CommitterName: 'someone'
  }))
  const LatestCommitter = { Name: 'someone', Email: 's@example.com' }
  exchange.json(200, envelope(200, '', { Files, IsVisual: false, LatestCommitter }))
}

async function file(
  exchange: Exchange,
  manners: ModelScopeManners,
  repository: Repository,
  revision: string | null,
  path: string
): Promise<void> {
  const commit = await repository.at(revision || undefined)
  const entry: Entry | undefined = commit?.entries.find(other => other.path === path)
  if (!entry) return refuse(exchange, manners, 404, 'File not found.')
  const redirects = manners.delivery === 'redirect' && entry.lfs
  const faults = await exchange.begin(redirects || exchange.isHead ? 'resolve' : 'bytes', entry)
  if (!faults) return
  if (redirects) {
    return exchange.text(302, '', { location: exchange.state.signedUrls.sign(repository, entry, 'store') })
  }
  const headers = {
    'content-type': 'application/octet-stream',
    'content-disposition': `attachment; filename="${path.split('/').at(-1)}"`
  }
  await exchange.bytes(entry, faults, headers, { rangeWith200: manners.rangeWith200 })
}
