import type { Hub, HubRequest } from '../../../../core/contracts/hubs.ts'
import { type ModelName, parseModelName } from '../../../../core/models/model-name.ts'
import { refusal, type Wanted } from './choice.ts'

export interface PullReference extends HubRequest, Wanted {
  /** Name of the hub. If undefined, the configured hubs are searched in order. */
  hub?: string
  /** Name to store the model under, without variant. Undefined for addresses without one. */
  name?: ModelName
}

const NOT_MODELS = /^(?:api\/(?:v1\/)?)?(?:datasets|spaces|collections|buckets|papers|blog|docs)\//i
/** Path segments before the owner in addresses of hubs' pages. */
const BEFORE_OWNER = /^(?:api\/v1\/models|api\/models|csg\/api\/models|models|csg)\/(?=[^/]+\/[^/]+)/i
const REVISION = /^(?!.*(?:\.\.|\/\/))[A-Za-z0-9][A-Za-z0-9._/+-]{0,199}(?<!\/)$/
/** Relative, without control characters or backslashes (which separate folders on Windows). */
const FILE_PATH = /^(?!.*(?:^|\/)\.{0,2}(?:\/|$))[^\\\p{Cc}]{1,1024}$/u

const quoted = (text: string) => JSON.stringify(text.length > 120 ? `${text.slice(0, 120)}…` : text)

/**
 * Parses `[prefix]owner/name[:variant][@revision]` or an address: of a page or file at a known hub
 * (`https://huggingface.co/owner/name/blob/main/a.gguf`), of a model at another corral
 * (`corral://host:port/owner/name`), or of any file.
 * @param hubs available hubs; the longest matching prefix wins, ignoring case
 * @throws CorralError `invalid_model_name`, `invalid_request`
 */
export function parsePullReference(
  text: unknown,
  hubs: readonly Pick<Hub, 'name' | 'prefixes' | 'parse'>[]
): PullReference {
  const whole = typeof text === 'string' ? text.trim() : ''
  if (whole === '') throw refusal('invalid_model_name', 'The model name is missing. Send "model": "<owner>/<name>".')
  const found = hubs
    .flatMap(hub => hub.prefixes.map(prefix => ({ hub: hub.name, prefix, parse: hub.parse?.bind(hub) })))
    .filter(({ prefix }) => whole.toLowerCase().startsWith(prefix.toLowerCase()))
    .sort((a, b) => b.prefix.length - a.prefix.length)[0]
  if (!found) {
    refuseUnknownPrefix(whole, hubs)
    return nameReference(whole, whole)
  }
  const { hub, prefix, parse } = found
  const rest = whole.slice(prefix.length)
  if (parse) return { hub, ...hubReference(parse(rest), whole) }
  // Signed addresses contain colons and at signs: they are passed to the hub unchanged.
  if (/^https?:\/\/$/i.test(prefix)) return { hub, id: whole }
  if (prefix.endsWith('://')) return { hub, ...serverReference(prefix, rest, whole) }
  const page = prefix.includes('/') ? withoutQuery(rest) : undefined
  return { hub, ...nameReference(page?.path ?? rest, whole, page?.query ?? new URLSearchParams()) }
}

/** Explains why a new hub cannot have a prefix: names that now mean other models would mean its models. */
export function prefixFault(prefix: string, hubs: readonly Pick<Hub, 'name' | 'prefixes'>[]): string | undefined {
  if (!/^[^\s:/]+[:/]/.test(prefix) || !/[:/]$/.test(prefix)) return 'it must look like "name:" or "example.org/"'
  if (/^[^:/.]+\/$/.test(prefix)) return `models of the owner "${prefix.slice(0, -1)}" could no longer be named`
  const wanted = prefix.toLowerCase()
  // The hub for addresses takes any address, but other hubs take precedence.
  const taken = (other: string) => wanted === other || (wanted.startsWith(other) && !/^https?:\/\/$/.test(other))
  const owner = hubs.find(({ prefixes }) => prefixes.some(other => taken(other.toLowerCase())))
  return owner && `it belongs to the hub "${owner.name}"`
}

function refuseUnknownPrefix(whole: string, hubs: readonly Pick<Hub, 'prefixes'>[]): void {
  const prefix = /^[^/]*:(?:\/\/)?/.exec(whole)?.[0]
  if (prefix === undefined) return
  const known = hubs.flatMap(({ prefixes }) => prefixes)
  const short = known.filter(name => !name.includes('/') || name.endsWith('://')).join(', ')
  throw refusal(
    'invalid_request',
    `${quoted(whole)} begins with ${quoted(prefix)}, which is not the prefix of an enabled hub` +
      `${short ? ` (those are ${short})` : ''}. Send <owner>/<name>, with or without one of these prefixes.`
  )
}

/** Parses `host:port/owner/name…` after the scheme of a kind of server. */
function serverReference(prefix: string, rest: string, whole: string): Omit<PullReference, 'hub'> {
  const [, host, path] = /^([A-Za-z0-9._-]+(?::\d+)?|\[[0-9A-Fa-f:.]+\](?::\d+)?)\/(.+)$/.exec(rest) ?? []
  if (host === undefined || path === undefined) {
    const form = `write ${prefix}<host>:<port>/<owner>/<name>`
    throw refusal('invalid_model_name', `${quoted(whole)} is not the address of a model: ${form}.`)
  }
  const reference = nameReference(path, whole)
  return { ...reference, id: `${host}/${reference.id}` }
}

/** Checks a name that a hub has parsed itself. */
function hubReference(parsed: ReturnType<NonNullable<Hub['parse']>>, whole: string): Omit<PullReference, 'hub'> {
  if (!parsed || !FILE_PATH.test(parsed.id)) {
    throw refusal('invalid_model_name', `${quoted(whole)} is not the name of a model at this hub.`)
  }
  const { id, name, revision, variant } = parsed
  return { id, name: parseModelName(name), ...checked({ variant, revision }, whole) }
}

function withoutQuery(rest: string): { path: string; query: URLSearchParams } {
  const [, path = '', query = ''] = /^([^?#]*)(?:\?([^#]*))?/.exec(rest)!
  const bare = path.replace(/^\/+|\/+$/g, '')
  if (NOT_MODELS.test(bare))
    throw refusal('invalid_model_name', `${quoted(bare)} is not a model. Give the address of a model.`)
  return { path: bare.replace(BEFORE_OWNER, ''), query: new URLSearchParams(query) }
}

/** @param query of a page's address; undefined if the name is not part of an address */
function nameReference(text: string, whole: string, query?: URLSearchParams): Omit<PullReference, 'hub'> {
  const [, id = text, tail = ''] = /^([^/]*\/[^/:@]*)(.*)$/s.exec(text) ?? []
  const name = parseModelName(tail.startsWith('/') && !query ? text : id)
  if (tail.startsWith('/'))
    return { id, name, ...checked(pageParts(tail.slice(1).split('/').map(decoded), query!, whole), whole) }
  const [, variant, revision] = /^(?::([^@]*))?(?:@(.*))?$/s.exec(tail)!
  const file = query?.get('show_file_info') ?? undefined
  return { id, name, ...checked({ variant, revision, file }, whole) }
}

type Parts = Wanted & { revision?: string | undefined }

/** Parses variant, revision and file from the path of a hub's page, after the name. */
function pageParts([kind = '', ...more]: string[], query: URLSearchParams, whole: string): Parts {
  // refs/pr/1 is one revision although it has slashes.
  const parts = more[0] === 'refs' ? 3 : 1
  const [revision, path] = [more.slice(0, parts).join('/'), more.slice(parts).join('/')]
  if (['resolve', 'blob', 'raw'].includes(kind)) return { revision, file: path || undefined }
  if (kind === 'tree') return { revision: revision || undefined, variant: path || undefined }
  if (kind === 'commit' || kind === 'commits' || kind === 'revision') return { revision: revision || undefined }
  // ModelScope
  if (kind === 'file' && more[0] === 'view')
    return { revision: more[1] ?? '', file: more.slice(2).join('/') || undefined }
  if (kind === 'repo') return { revision: query.get('Revision') ?? undefined, file: query.get('FilePath') ?? undefined }
  const last = more.at(-1) ?? kind
  if (/\.(?:gguf|safetensors)$/i.test(last)) return { file: [kind, ...more].join('/') }
  if (['', 'files', 'summary', 'discussions', 'community'].includes(kind)) return {}
  const form = '<owner>/<name>[:<variant>][@<revision>]'
  throw refusal('invalid_model_name', `${quoted(whole)} has more after the name than ${form}.`)
}

function checked({ variant, revision, file }: Parts, whole: string): Parts {
  if (variant !== undefined && (!FILE_PATH.test(variant) || variant.includes(':'))) {
    const what = 'is neither a label like Q4_K_M nor a file name'
    throw refusal('invalid_model_name', `The text after ":" in ${quoted(whole)} ${what}.`)
  }
  if (revision !== undefined && !REVISION.test(revision)) {
    const form = 'Write <owner>/<name>:<variant>@<revision>.'
    throw refusal('invalid_request', `${quoted(revision)} is not the name of a revision. ${form}`)
  }
  if (file !== undefined && !FILE_PATH.test(file))
    throw refusal('invalid_request', `${quoted(file)} is not the path of a file.`)
  return {
    ...(variant === undefined || variant.toLowerCase() === 'latest' ? {} : { variant }),
    ...(revision === undefined ? {} : { revision }),
    ...(file === undefined ? {} : { file })
  }
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    throw refusal('invalid_request', `${quoted(text)} is not part of a valid address: its % signs encode nothing.`)
  }
}
