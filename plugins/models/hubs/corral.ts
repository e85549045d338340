import { Type } from 'typebox'
import type { Hub, HubFile, HubMatch } from '../../../core/contracts/hubs.ts'
import { CorralError } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { mayHaveCredentials } from '../../../core/system/redirects.ts'
import { isUsablePath } from '../../../core/system/usable-path.ts'
import {
  bearer,
  connectionOptions,
  type HubFetch,
  type HubResponse,
  hubFetch,
  hubPlugin,
  serverOptions,
  withoutSlash
} from './hub-fetch.ts'
import {
  encodePath,
  fingerprint,
  hubFile,
  hubRefusal,
  locationHeaders,
  notAtHub,
  parseJsonResponse,
  proxyForUrl,
  readFacts,
  requireFewFiles,
  toTimestamp,
  withoutServerText
} from './hub-replies.ts'

export default hubPlugin(
  'corral-hub',
  'Models from another corral (corral://host:port/owner/name)',
  Type.Object(
    {
      ...serverOptions(
        'Address of the corral that corral:owner/name refers to, for example http://big-machine:11435; empty means none',
        'API key of that corral'
      ),
      ...connectionOptions
    },
    { additionalProperties: false, restart: true }
  ),
  (context, options) => {
    const fetch = hubFetch('The other corral', options, context)
    return createCorralHub(fetch, withoutSlash(options.endpoint), options.token, options.proxy)
  }
)

/** @param endpoint server for references without one, without a trailing slash; empty means none */
function createCorralHub(fetch: HubFetch, endpoint: string, key: string, proxy: string): Hub {
  /** Send the key only to the configured server. */
  const credentialsFor = (server: string) =>
    key && endpoint && mayHaveCredentials(new URL(server), new URL(endpoint), []) ? bearer(key) : undefined

  function resolveServer(named: string | undefined): string {
    // A reference has only a host. The setting has the scheme too.
    if (named && endpoint && new URL(named).host === new URL(endpoint).host) return endpoint
    if (named || endpoint) return named ?? endpoint
    throw notAtHub(
      'It is not clear which corral to use. Write corral://<host>:<port>/<owner>/<name>, or set corral-hub.endpoint in config.yaml.'
    )
  }

  /** The restrictions for requests to a server: none if the settings name it. */
  const restrictions = (server: string, privateAddresses: readonly string[] = []) =>
    server === endpoint ? { redirectsAnywhere: true } : { privateAddresses }

  return {
    name: 'corral-hub',
    title: 'Another corral',
    prefixes: ['corral://', 'corral:'],

    async repository(request, { signal }) {
      const { id, endpoint: named } = parseCorralReference(request.id)
      const server = resolveServer(named)
      const url = `${server}/api/files/${encodePath(id)}`
      const limits = restrictions(server, request.privateAddresses)
      const response = await fetch({ url, signal, credentials: credentialsFor(server), ...limits })
      if (response.status !== 200) throw refusal(response, server, id, server === endpoint)
      const listing = await readFacts(`The corral at ${server}`, async () =>
        readCorralListing(await parseJsonResponse(response, 'a corral', server === endpoint))
      )
      if (!listing) throw new CorralError('hub_unreachable', `${server} does not list files like a corral.`)
      const { name, revisions } = listing
      const wanted = request.revision
      const files = listing.files.filter(({ path }) => !wanted || revisions[path.split('/')[0]!] === wanted)
      if (wanted && files.length === 0) {
        throw notAtHub(
          `"${id}" has no revision "${wanted}" at ${server}. It has ${Object.values(revisions).join(', ')}.`
        )
      }
      return {
        hub: 'corral-hub',
        id: name.toLowerCase() === id.toLowerCase() ? name : id,
        revision: fingerprint(files),
        address: `${server}/api/files/${id}`,
        gated: false,
        files,
        more: { endpoint: server, revisions: JSON.stringify(revisions) }
      }
    },

    ...(endpoint !== '' && {
      async search(words: string, limit: number, { signal }: { signal?: AbortSignal }): Promise<HubMatch[]> {
        const request = { url: `${endpoint}/api/tags`, signal, credentials: credentialsFor(endpoint) }
        const response = await fetch({ ...request, ...restrictions(endpoint) })
        if (response.status !== 200) throw refusal(response, endpoint, words, true)
        const body = await parseJsonResponse(response, 'a corral')
        if (!isObject(body) || !Array.isArray(body.models)) {
          throw new CorralError('hub_unreachable', `${endpoint} does not list models like a corral.`)
        }
        const wanted = words.toLowerCase().split(/\s+/)
        const found = new Map<string, HubMatch>()
        for (const { name, format, modified_at } of body.models.filter(isObject)) {
          if (typeof name !== 'string' || !wanted.every(word => name.toLowerCase().includes(word))) continue
          const [id] = name.split(':') as [string]
          const formats = format === 'gguf' || format === 'safetensors' ? ([format] as const) : []
          // Its variants have their own records.
          if (!found.has(id)) {
            found.set(id, { id, updatedAt: toTimestamp(modified_at), tasks: [], gated: false, formats: [...formats] })
          }
        }
        return [...found.values()].slice(0, limit)
      }
    }),

    async locate({ id, more }, file, _signal, privateAddresses) {
      const server = more?.endpoint ?? resolveServer(undefined)
      const revisions: Record<string, string> = JSON.parse(more?.revisions ?? '{}')
      const [label, ...path] = file.path.split('/') as [string, ...string[]]
      const url = [`${server}/api/files`, ...[id, label, String(revisions[label]), ...path].map(encodePath)].join('/')
      return {
        url,
        headers: locationHeaders(credentialsFor(server)),
        ...proxyForUrl(url, proxy),
        ...(server === endpoint ? {} : { privateAddresses: privateAddresses ?? [] }),
        size: file.size,
        sha256: file.sha256
      }
    }
  }
}

/** @param isQuoted whether to quote the server's own words: false for a server that the client chose */
function refusal(response: HubResponse, server: string, id: string, isQuoted: boolean): CorralError {
  const { status, text } = response
  const details = { hub: server, repository: id, hubStatus: status }
  if (status === 404 && /"model_not_found"/.test(text)) {
    return notAtHub(
      `The corral at ${server} has no model "${id}". Its models are listed at ${server}/api/tags.`,
      details
    )
  }
  const kind = ({ 401: 'bad-token', 403: 'forbidden', 429: 'rate-limited' } as const)[status]
  if (kind === undefined && status < 500) {
    return new CorralError(
      'hub_unreachable',
      `The server at ${server} is not a corral that serves its files (status ${status}): is the address right, and is "api-files" enabled there?`,
      { details }
    )
  }
  const subject = {
    title: `The corral at ${server}`,
    id,
    tokenAdvice: 'set its address and one of its API keys as corral-hub.endpoint and corral-hub.token in config.yaml'
  }
  return hubRefusal(kind ?? 'server-error', isQuoted ? response : withoutServerText(response), subject, Date.now())
}

/**
 * Parses the listing of another corral: its spelling of the name, files in one folder per variant label, and revisions
 * by label. Skips invalid variants and unsafe paths. Returns undefined if the body is not a listing.
 * @throws InvalidFact
 */
export function readCorralListing(body: unknown) {
  if (!isObject(body) || typeof body.name !== 'string' || !Array.isArray(body.variants)) return undefined
  const files: HubFile[] = []
  const revisions: Record<string, string> = {}
  for (const { label, revision, files: listed } of body.variants.filter(isObject)) {
    if (!isUsablePath(label) || label.includes('/') || !isUsablePath(revision) || !Array.isArray(listed)) continue
    revisions[label] = revision
    requireFewFiles(files.length + listed.length, 'this corral', body.name)
    for (const { path, size, sha256 } of listed.filter(isObject)) {
      if (!isUsablePath(path)) continue
      files.push(hubFile(`${label}/${path}`, size, sha256 ?? ''))
    }
  }
  return { name: body.name, files, revisions }
}

const DEFAULT_PORT = 11435

/** Parses `owner/name` or `[[corral:]//]host:port/owner/name`. @throws CorralError `invalid_model_name` */
export function parseCorralReference(text: string): { id: string; endpoint?: string } {
  const match =
    /^(?:(?:corral:)?\/\/)?(?:([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?\/)?([^/\s]+\/[^/\s]+)$/.exec(text)
  const [, host, port, id] = match ?? []
  if (!id || (/^(corral:)?\/\//.test(text) && !host)) {
    throw new CorralError(
      'invalid_model_name',
      `"${text.slice(0, 120)}" is not a model of another corral. Write corral://<host>:<port>/<owner>/<name>, or corral:<owner>/<name> with corral-hub.endpoint set.`,
      { param: 'model' }
    )
  }
  return host === undefined ? { id } : { id, endpoint: `http://${host}:${port ?? DEFAULT_PORT}` }
}
