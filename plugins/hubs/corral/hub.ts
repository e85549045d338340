import type { FileLocation, Hub, HubFile, HubRepository, HubRequest } from '../../../core/contracts/downloads.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError } from '../../../core/errors.ts'
import { isObject } from '../../../core/system/json-object.ts'
import { fingerprint } from '../files/fingerprint.ts'
import { encodePath } from '../files/listing-path.ts'
import { locationHeaders, proxyOf } from '../files/location.ts'
import type { HubFetch } from '../http/hub-fetch.ts'
import { jsonOf } from '../http/json-answer.ts'
import { mayHaveCredentials } from '../http/redirects.ts'
import { bearer } from '../token.ts'
import { readCorralListing } from './listing.ts'
import { parseCorralReference } from './reference.ts'
import { corralRefusal } from './refusal.ts'

export interface CorralHubOptions {
  fetch: HubFetch
  /** Server that is meant where a reference names none; empty is none. Without a slash at the end. */
  endpoint: string
  /** Its API key; empty is none. */
  key: string
  proxy: string
}

/** Models of another corral on the network. Its digests are known from the start, and its files lie where they lie. */
export function createCorralHub({ fetch, endpoint, key, proxy }: CorralHubOptions): Hub {
  /** The key, where it is for this server. */
  const credentialsFor = (server: string) =>
    key && endpoint && mayHaveCredentials(new URL(server), new URL(endpoint), []) ? bearer(key) : undefined

  function serverOf(named: string | undefined): string {
    // A reference tells a host only: the setting tells how it is spoken to.
    if (named && endpoint && new URL(named).host === new URL(endpoint).host) return endpoint
    const server = named ?? endpoint
    if (server) return server
    throw new CorralError(
      'repo_not_found',
      'No other corral is known to ask. Write corral://<host>:<port>/<owner>/<name>, or set corral-hub.endpoint in config.yaml.',
      { param: 'model' }
    )
  }

  return {
    name: 'corral-hub',
    title: 'Another corral',
    prefixes: ['corral://', 'corral:'],

    async repository(request: HubRequest, { signal }: Waiting): Promise<HubRepository> {
      const { id, endpoint: named } = parseCorralReference(request.id)
      const server = serverOf(named)
      const credentials = credentialsFor(server)
      const url = `${server}/api/files/${encodePath(id)}`
      const answer = await fetch.ask({ url, signal, ...(credentials ? { credentials } : {}) })
      if (answer.status !== 200) throw corralRefusal(answer, server, id, Date.now())
      const listing = readCorralListing(jsonOf(answer, 'a corral'))
      if (!listing) throw new CorralError('hub_unreachable', `${server} does not list files as a corral does.`)
      const { name, revisions } = listing
      const wanted = request.revision
      const files = listing.files.filter(({ path }) => !wanted || revisions[path.split('/')[0]!] === wanted)
      if (wanted && files.length === 0) {
        throw new CorralError(
          'repo_not_found',
          `"${id}" has no revision "${wanted}" at ${server}. It has ${Object.values(revisions).join(', ')}.`,
          { param: 'model' }
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

    async locate({ id, more }: HubRepository, file: HubFile): Promise<FileLocation> {
      const server = more?.endpoint ?? serverOf(undefined)
      const revisions: unknown = JSON.parse(more?.revisions ?? '{}')
      const [label, ...path] = file.path.split('/') as [string, ...string[]]
      const revision = isObject(revisions) ? revisions[label] : undefined
      const url = `${server}/api/files/${encodePath(id)}/${encodePath(label)}/${encodePath(String(revision))}/${encodePath(path.join('/'))}`
      return {
        url,
        headers: locationHeaders(credentialsFor(server)),
        ...proxyOf(url, proxy),
        ...(file.size === undefined ? {} : { size: file.size }),
        ...(file.sha256 === undefined ? {} : { sha256: file.sha256, identity: `"${file.sha256}"` })
      }
    }
  }
}
