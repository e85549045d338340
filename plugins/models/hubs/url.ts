import { createHash } from 'node:crypto'
import { Type } from 'typebox'
import type { FileLocation, Hub } from '../../../core/contracts/hubs.ts'
import { CorralError } from '../../../core/errors.ts'
import { shardNames } from '../../../core/models/gguf-file-name.ts'
import { setNewest } from '../../../core/system/collections.ts'
import { isUsablePath } from '../../../core/system/usable-path.ts'
import {
  connectionOptions,
  type Headers,
  type HubFetch,
  type HubResponse,
  hubFetch,
  hubPlugin,
  shownAddress
} from './hub-fetch.ts'
import {
  hubFile,
  hubRefusal,
  isLocation,
  notAtHub,
  readFacts,
  readLocation,
  requestLocation,
  sha256FromHeaders,
  withoutServerText
} from './hub-replies.ts'

export default hubPlugin(
  'url',
  'Models from plain addresses (https://…/model.gguf)',
  Type.Object(connectionOptions, { additionalProperties: false, restart: true }),
  (context, options) => createUrlHub(hubFetch('The address', options, context), options.proxy)
)

/** A higher number of shards is a mistake. */
const MAX_SHARDS = 500
/** Maximum addresses whose secrets are remembered, far more than concurrent pulls. */
const MAX_SECRETS = 1000

interface Secrets {
  credentials: Headers | undefined
  /** The query if it contains a secret, otherwise empty. */
  secretQuery: string
}

/** Secrets in an address are only in memory, so they must be entered again after a restart. */
function createUrlHub(fetch: HubFetch, proxy: string): Hub {
  const secretsById = new Map<string, Secrets>()

  /** Returns the location of the file at an address. @throws CorralError if there is none */
  async function find(
    address: string,
    secrets: Secrets | undefined,
    privateAddresses: readonly string[] = [],
    signal?: AbortSignal
  ) {
    const url = address + (secrets?.secretQuery ?? '')
    const response = await requestLocation(
      outgoing => fetch({ ...outgoing, url, signal, privateAddresses, credentials: secrets?.credentials }),
      'follow',
      true
    )
    if (!isLocation(response)) throw addressRefusal(response, shownAddress(address))
    if (/\btext\/html\b/.test(response.headers['content-type'] ?? '')) {
      throw notAtHub(
        `${shownAddress(address)} is a web page, not a model file. Use the address that the file itself is downloaded from.`
      )
    }
    const { headers } = response
    const shown = shownAddress(address)
    const located = await readFacts(`The server of ${shown}`, () => readLocation(response, proxy, shown))
    // Plain web servers send digest and identity in headers.
    const sha256 = located.sha256 ?? sha256FromHeaders(headers)
    const identity = located.identity ?? headers['last-modified']
    return { response, location: { ...located, sha256, identity, privateAddresses } satisfies FileLocation }
  }

  return {
    name: 'url',
    title: 'The address',
    prefixes: ['https://', 'http://'],

    async repository(request, { signal }) {
      const { id, ...secrets } = parseAddress(request.id)
      if (secrets.credentials || secrets.secretQuery) setNewest(secretsById, id, secrets, MAX_SECRETS)
      else secretsById.delete(id)
      const at = (address: string) => find(address, secrets, request.privateAddresses, signal)
      const { response, location } = await at(id)
      const name = fileNameFromDisposition(response.headers['content-disposition']) ?? fileNameFromUrl(id)
      if (name === undefined) {
        throw notAtHub(
          `${shownAddress(id)} does not end in a file name. Use an address that does, for example …/model.gguf.`
        )
      }
      // Shards are beside each other under their own names. A name from a header does not lead to other shards.
      const shards = shardNames(name)
      const names = name === fileNameFromUrl(id) && shards.length <= MAX_SHARDS ? shards : [name]
      const locations: FileLocation[] = []
      for (const shard of names) {
        locations.push(shard === name ? location : (await at(siblingUrl(id, shard))).location)
      }
      const files = names.map((path, i) => hubFile(path, locations[i]!.size, locations[i]!.sha256))
      // Identifies the content by what the servers report about it.
      const facts = files.map(({ path, size, sha256 }, i) => [path, size, sha256 ?? locations[i]!.identity])
      const digest = createHash('sha256').update(JSON.stringify(facts)).digest('hex')
      const revision = `content-${digest.slice(0, 40)}`
      return { hub: 'url', id, revision, address: shownAddress(id), gated: false, files }
    },

    async locate({ id, files }, file, signal, privateAddresses) {
      const address = files.length > 1 ? siblingUrl(id, file.path) : id
      return (await find(address, secretsById.get(id), privateAddresses, signal)).location
    }
  }
}

/** Creates the error for an address that does not deliver its file, without the server's own words. */
function addressRefusal(response: HubResponse, shown: string): CorralError {
  const { status } = response
  const details = { address: shown, hubStatus: status }
  if (status === 401 || status === 403) {
    const advice =
      'If you have access, pull it again with a name and password in the address (https://name:password@…), or with a ' +
      'signed address that is still valid.'
    return new CorralError('hub_forbidden', `${shown} is not public (status ${status}). ${advice}`, { details })
  }
  if (status < 500 && ![407, 429, 451].includes(status)) {
    return notAtHub(`There is no file at ${shown} (status ${status}). Check the address.`, details)
  }
  const subject = { title: `The server of ${shown}`, id: shown }
  return hubRefusal(status === 429 ? 'rate-limited' : 'server-error', withoutServerText(response), subject, Date.now())
}

/** Query parameters that are secret or expire: signatures, keys and tokens. */
const SECRET =
  /sig|token|key|credential|secret|passw|auth|policy|expires|^(se|sp|sv|sr|st|x-amz-.*|x-goog-.*|x-oss-.*)$/i

/**
 * Splits an address into its secrets, which are never stored, and the rest: without credentials and fragment, and
 * without a query that contains a secret.
 * @throws CorralError `repo_not_found` for an invalid address
 */
export function parseAddress(text: string): Secrets & { id: string } {
  const address = text.includes('://') ? text : `https://${text}`
  const url = /^https?:\/\//i.test(address) && URL.canParse(address) ? new URL(address) : undefined
  if (!url) throw notAtHub(`"${text.slice(0, 120)}" is not the address of a file (https://…).`)
  const { username, password, search } = url
  const isSecret = [...url.searchParams.keys()].some(name => SECRET.test(name))
  url.username = ''
  url.password = ''
  url.hash = ''
  if (isSecret) url.search = ''
  const user = `${decodeURIComponent(username)}:${decodeURIComponent(password)}`
  return {
    id: url.href,
    credentials: username || password ? { authorization: `Basic ${Buffer.from(user).toString('base64')}` } : undefined,
    secretQuery: isSecret ? search : ''
  }
}

/** Returns the last part of an address's path. Undefined if that is not a file name. */
export const fileNameFromUrl = (id: string): string | undefined =>
  usableName(decoded(new URL(id).pathname.split('/').at(-1)!))

/** Returns the file name in a `Content-Disposition` header. Undefined if there is no usable one. */
export function fileNameFromDisposition(header: string | undefined): string | undefined {
  const extended = /filename\*\s*=\s*UTF-8'[^']*'([^;\s]+)/i.exec(header ?? '')?.[1]
  if (extended !== undefined) return usableName(decoded(extended))
  const plain = /filename\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]+))/i.exec(header ?? '')
  return usableName(plain?.[1]?.replace(/\\(.)/g, '$1') ?? plain?.[2])
}

/** Undefined if its % signs encode nothing. */
function decoded(text: string): string | undefined {
  try {
    return decodeURIComponent(text)
  } catch {
    return undefined
  }
}

const usableName = (name: string | undefined) => (isUsablePath(name) && !name.includes('/') ? name : undefined)

function siblingUrl(id: string, name: string): string {
  const url = new URL(id)
  url.pathname = url.pathname.replace(/[^/]*$/, encodeURIComponent(name))
  return url.href
}
