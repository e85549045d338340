import type { FileLocation, Hub, HubFile, HubRepository, HubRequest } from '../../../core/contracts/downloads.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { askPlace, isPlace, locationOf, type PlaceQuestion } from '../files/file-location.ts'
import { encodePath, fingerprint, isFingerprint } from '../files/listed-files.ts'
import type { AskHub, EndpointAnswer } from '../http/endpoints.ts'
import { jsonOf } from '../http/hub-answer.ts'
import { type HubAnswer, isPassing } from '../http/hub-fetch.ts'
import { requireRequest } from '../hub-request.ts'
import { completed, filesOfInfo, filesOfTree, isIncomplete, nextPage } from './listing.ts'
import { isFinalWord, refusalOf, type Subject, verdictOf } from './refusal.ts'

/** How one hub with Hugging Face's API differs from another. */
export interface HfLikeOptions {
  name: string
  title: string
  prefixes: readonly string[]
  ask: AskHub
  proxy: string
  /** Goes before all paths: empty or `/csg`. */
  pathPrefix: string
  /** Branch that is asked for where none is named; undefined asks for the repository alone. */
  defaultBranch?: string
  /** Where people see a repository. */
  pageOf(id: string): string
  tokenAdvice: string
  /** Its tree names each file's digest. */
  treeHasDigests: boolean
  /** A HEAD for a file redirects as a GET does. */
  headRedirects: boolean
  /** It can be asked for names alike. */
  hasSearch: boolean
  /** Why it must not be asked at all, for people. */
  offline(): string | undefined
}

const PAGES = 500

interface Description {
  /** Undefined when it was refused. */
  info?: Record<string, unknown>
  /** The answer with it, else the refusal. */
  answer: EndpointAnswer
  /** The repository is there, but not the revision. */
  elsewhere?: boolean
}

/** A hub that speaks Hugging Face's API, be it liberally. */
export function createHfLikeHub(options: HfLikeOptions): Hub {
  const { ask, title, pathPrefix } = options
  const good = ({ status }: HubAnswer) => status >= 200 && status < 300

  function refuseOffline() {
    const why = options.offline()
    if (why) throw new CorralError('hub_unreachable', why)
  }

  const subject = (id: string, revision: string | undefined, file?: string): Subject => {
    return { title, id, page: options.pageOf(id), revision, file, tokenAdvice: options.tokenAdvice }
  }

  /** A repository's description at a revision, from the first of its addresses that knows it. */
  async function describe(id: string, revision: string | undefined, signal: AbortSignal | undefined) {
    const base = `${pathPrefix}/api/models/${encodePath(id)}`
    const branch = revision ?? options.defaultBranch
    const first = branch === undefined ? base : `${base}/revision/${encodeURIComponent(branch)}`
    const read = async (path: string): Promise<Description> => {
      const answer = await ask({ path: `${path}?blobs=true`, signal, isFinal: isFinalWord })
      if (!good(answer)) return { answer }
      const info = jsonOf(answer, title)
      if (isObject(info)) return { info, answer }
      throw new CorralError('hub_unreachable', `${title} does not describe "${id}" as it should.`)
    }
    const described = await read(first)
    const { status, headers } = described.answer
    if (described.info || first === base || status === 401 || headers['x-error-code'] === 'RepoNotFound')
      return described
    const verdict = verdictOf(described.answer, false)
    if (verdict !== 'unknown-repository' && verdict !== 'unknown-revision') return described
    // Simple servers have no address for revisions; then they can tell about the default branch at least.
    const whole = await read(base)
    if (!whole.info) return described
    return branch === options.defaultBranch ? whole : { ...described, elsewhere: true }
  }

  async function tree(id: string, revision: string, signal: AbortSignal | undefined) {
    const entries: unknown[] = []
    const query = options.treeHasDigests ? '?recursive=true&expand=false' : '?recursive=true'
    let path: string | undefined =
      `${pathPrefix}/api/models/${encodePath(id)}/tree/${encodeURIComponent(revision)}${query}`
    let first: EndpointAnswer | undefined
    for (let page = 0; path !== undefined; page++) {
      const answer: EndpointAnswer = await ask({ path, signal, isFinal: isFinalWord })
      first ??= answer
      if (!good(answer)) return { answer, files: undefined }
      const list = jsonOf(answer, title)
      if (!Array.isArray(list) || page === PAGES) {
        throw new CorralError('hub_unreachable', `${title} does not list the files of "${id}" as it should.`)
      }
      entries.push(...list)
      path = nextPage(answer.headers.link, answer.endpoint)
    }
    return { answer: first!, files: filesOfTree(entries, options.treeHasDigests) }
  }

  /** The tree of a commit; simple servers know the one of a branch only. */
  async function treeOf(id: string, sha: string | undefined, ref: string, signal: AbortSignal | undefined) {
    const listed = await tree(id, sha ?? ref, signal)
    return listed.files || sha === undefined || listed.answer.status !== 404 ? listed : await tree(id, ref, signal)
  }

  async function refuse(answer: HubAnswer, about: Subject, signal: AbortSignal | undefined): Promise<never> {
    const error = refusalOf(answer, about, Date.now())
    if (error.code !== 'repo_not_found' || verdictOf(answer, false) !== 'unknown-repository' || !options.hasSearch) {
      throw error
    }
    const similar = await similarName(ask, pathPrefix, about.id, signal)
    if (similar === undefined) throw error
    throw new CorralError(
      'repo_not_found',
      `${title} has no repository "${about.id}", but "${similar}": upper and lower case count there. Pull "${similar}".`,
      { param: 'model', details: { ...error.details, similar } }
    )
  }

  /** The answer with a file's place, else the refusal. */
  async function place(repository: HubRepository, file: HubFile, signal: AbortSignal | undefined) {
    const { id, revision, more } = repository
    const at = (revision: string) => {
      const path = `${pathPrefix}/${encodePath(id)}/resolve/${encodeURIComponent(revision)}/${encodePath(file.path)}`
      const asking = (question: PlaceQuestion) => ask({ isFinal: isFinalWord, ...question, path, signal })
      return askPlace(asking, 'stop', options.headRedirects)
    }
    const ref = more?.ref ?? revision
    if (isFingerprint(revision)) return await at(ref)
    const answer = await at(revision)
    if (answer.status !== 404 || ref === revision) return answer
    // Simple servers know their files under a branch only. The digests tell whether they are the same.
    const other = await at(ref)
    return isPlace(other) ? other : answer
  }

  return {
    name: options.name,
    title,
    prefixes: options.prefixes,

    async repository(request: HubRequest, { signal }: Waiting): Promise<HubRepository> {
      refuseOffline()
      requireRequest(request)
      const { id: asked, revision } = request
      const ref = revision ?? options.defaultBranch ?? 'main'
      const { info, answer, elsewhere } = await describe(asked, revision, signal)
      const refuseDescription = () =>
        refuse(elsewhere ? withErrorCode(answer, 'RevisionNotFound') : answer, subject(asked, revision), signal)
      // What was refused for good is not asked for under another address.
      if (!info && (answer.status !== 404 || answer.headers['x-error-code'])) return await refuseDescription()

      const id = info ? spelling(asked, info, answer) : asked
      let sha = typeof info?.sha === 'string' && /^[\w.-]+$/.test(info.sha) ? info.sha : undefined
      let files = info && filesOfInfo(info)
      if (files === undefined || isIncomplete(files, options.treeHasDigests)) {
        const listed = await treeOf(id, sha, ref, signal)
        if (listed.files) {
          files = files ? completed(files, listed.files) : listed.files
          sha ??= listed.answer.headers['x-repo-commit']
        } else if (!info) return await refuseDescription()
        // What is unknown of a file is asked for when its place is.
        else if (!files || isPassing(listed.answer.status)) await refuse(listed.answer, subject(id, revision), signal)
      }
      return {
        hub: options.name,
        id,
        revision: sha ?? fingerprint(files!),
        address: options.pageOf(id),
        gated: typeof info?.gated === 'string' ? info.gated !== 'false' : info?.gated === true,
        files: files!,
        more: { ref }
      }
    },

    async locate(repository, file, signal): Promise<FileLocation> {
      refuseOffline()
      const answer = await place(repository, file, signal)
      if (isPlace(answer)) return locationOf(answer, options.proxy, Date.now())
      const about = subject(repository.id, repository.more?.ref, file.path)
      throw refusalOf(asRefusalOf(repository, answer), about, Date.now())
    }
  }
}

function withErrorCode<Answer extends HubAnswer>(answer: Answer, code: string): Answer {
  return { ...answer, headers: { ...answer.headers, 'x-error-code': code } }
}

/** A refusal of a file, with what is known of its repository where it does not say itself. */
function asRefusalOf(repository: HubRepository, answer: HubAnswer): HubAnswer {
  const isTerms = repository.gated && (answer.status === 401 || answer.status === 403)
  return isTerms && verdictOf(answer, true) !== 'bad-token' ? withErrorCode(answer, 'GatedRepo') : answer
}

/** How the hub spells a name: as it is asked for, but for case and for repositories that were renamed. */
function spelling(asked: string, info: Record<string, unknown>, answer: HubAnswer | undefined): string {
  const id = info.id ?? info.modelId
  if (typeof id !== 'string' || !/^[^/\s]+\/[^/\s]+$/.test(id)) return asked
  const redirected = answer !== undefined && answer.hops.length > 1
  return redirected || id.toLowerCase() === asked.toLowerCase() ? id : asked
}

/** Milliseconds that the search for a better name may take: an error waits for it. */
const LIMIT = 3_000

/** The id among a search's results that differs from the asked one by case only. */
export function sameButForCase(results: unknown, id: string): string | undefined {
  const ids = Array.isArray(results) ? results.filter(isObject).map(result => result.id ?? result.modelId) : []
  return ids.find(other => typeof other === 'string' && other !== id && other.toLowerCase() === id.toLowerCase()) as
    | string
    | undefined
}

/**
 * Looks for a repository whose name differs by case only. It makes an error's message better and nothing else, so that
 * a search which fails finds nothing.
 * @throws the signal's reason
 */
export async function similarName(ask: AskHub, pathPrefix: string, id: string, signal: AbortSignal | undefined) {
  const [owner, name] = id.split('/') as [string, string]
  const limit = AbortSignal.timeout(LIMIT)
  // The owner's case may be the wrong one: then only the name finds it.
  const queries: Record<string, string>[] = [
    { search: name, author: owner, limit: '5' },
    { search: name, limit: '50' }
  ]
  for (const query of queries) {
    try {
      const answer = await ask({
        path: `${pathPrefix}/api/models?${new URLSearchParams(query)}`,
        signal: signal ? AbortSignal.any([signal, limit]) : limit,
        patience: 0
      })
      const found = answer.status === 200 ? sameButForCase(JSON.parse(answer.text), id) : undefined
      if (found !== undefined) return found
    } catch (error) {
      signal?.throwIfAborted()
      const harmless = error === limit.reason || error instanceof SyntaxError || error instanceof CorralError
      if (!harmless) throw error
      return undefined
    }
  }
  return undefined
}
