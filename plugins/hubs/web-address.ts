import { CorralError } from '../../core/errors.ts'

/** What the rest of a hub's web address names. */
export interface WebPath {
  /** `owner/name`; what stood behind the name in one segment, such as `:Q8_0`, is still there. */
  id: string
  revision?: string
  /** Path of a single file in the repository. */
  file?: string
}

/** Segments behind a repository's name that are followed by a revision and a path. */
const WITH_REVISION = new Set(['resolve', 'blob', 'raw', 'tree', 'revision', 'commit', 'commits'])
/** What hubs put before the owner. */
const BEFORE_OWNER = /^(api\/v1\/models|api\/models|csg\/api\/models|models|csg)\/(?=[^/]+\/[^/]+)/
const NOT_MODELS = /^(api\/v1\/|api\/)?(datasets|spaces|buckets|collections)\//

function decoded(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    throw new CorralError(
      'invalid_model_name',
      `"${text.slice(0, 120)}" is not an address: its % signs code nothing.`,
      {
        param: 'model'
      }
    )
  }
}

/** What an address takes for steps up and not for a name. */
const isDots = (segment: string) => /^\.{1,2}$/.test(segment)

/** @throws CorralError `repo_not_found` for a revision that cannot be part of an address */
export function requireRevision(revision: string | undefined): void {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  if (revision === undefined || !(isDots(revision) || revision === '' || /[\u0000-\u001f\u007f]/.test(revision))) return
  throw new CorralError(
    'repo_not_found',
    `${JSON.stringify(revision)} is no revision: name a branch, a tag or a commit.`,
    {
      param: 'model'
    }
  )
}

/**
 * Splits what stands behind a hub's host in the address of one of its pages or files, or a plain `owner/name`:
 * `owner/name/resolve/main/a.gguf`, `models/owner/name/file/view/master/a.gguf`, `owner/name/tree/v1?x=y` …
 * @throws CorralError `invalid_model_name` for what is no model's address
 */
export function splitWebPath(rest: string): WebPath {
  const url = /^([^?#]*)(?:\?([^#]*))?/.exec(rest)!
  const query = new URLSearchParams(url[2] ?? '')
  const path = url[1]!.replace(/^\/+|\/+$/g, '')
  if (NOT_MODELS.test(path)) {
    throw new CorralError('invalid_model_name', `"${path.slice(0, 120)}" is the address of no model.`, {
      param: 'model'
    })
  }
  const [owner = '', name = '', kind, ...more] = path.replace(BEFORE_OWNER, '').split('/').map(decoded)
  if (owner === '' || name === '' || isDots(owner) || isDots(name)) {
    throw new CorralError(
      'invalid_model_name',
      `"${path.slice(0, 120)}" names no model: a hub's models are called <owner>/<name>.`,
      { param: 'model' }
    )
  }
  const named = (revision: string | null | undefined, file: string | null | undefined): WebPath => ({
    id: `${owner}/${name}`,
    ...(revision ? { revision } : {}),
    ...(file ? { file } : {})
  })
  // ModelScope: …/file/view/<revision>/<path>, …/repo?Revision=…&FilePath=…
  if (kind === 'file' && more[0] === 'view') return named(more[1], more.slice(2).join('/'))
  if (kind === 'repo') return named(query.get('Revision'), query.get('FilePath'))
  // Hugging Face opens a page about one file this way.
  if (kind === undefined) return named(undefined, query.get('show_file_info'))
  if (!WITH_REVISION.has(kind)) return named(undefined, undefined)
  // refs/pr/1 is one revision although it has slashes.
  const parts = more[0] === 'refs' ? 3 : 1
  const file = kind.startsWith('commit') || kind === 'tree' ? undefined : more.slice(parts).join('/')
  return named(more.slice(0, parts).join('/'), file)
}
