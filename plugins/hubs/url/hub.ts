import type { FileLocation, Hub, HubFile, HubRepository, HubRequest } from '../../../core/contracts/downloads.ts'
import type { Waiting } from '../../../core/contracts/progress.ts'
import { CorralError } from '../../../core/errors.ts'
import { askPlace, isPlace, locationOf } from '../files/file-location.ts'
import { sha256OfHeaders } from '../files/listed-files.ts'
import { serverWords } from '../http/hub-answer.ts'
import { type HubAnswer, type HubFetch, retryAfterSeconds, shownAddress } from '../http/hub-fetch.ts'
import {
  addressBeside,
  contentFingerprint,
  nameOfAddress,
  nameOfDisposition,
  type PlainAddress,
  parseAddress,
  shardsOf
} from './address.ts'

/** Addresses asked at the same time for the shards of one model. */
const AT_ONCE = 4

type Secrets = Pick<PlainAddress, 'credentials' | 'secretQuery'>

/**
 * Files at plain addresses. Passwords and signatures in an address are used but kept in memory only: after a restart
 * they are to be given again.
 */
export function createUrlHub(fetch: HubFetch, proxy: string): Hub {
  const secretsOf = new Map<string, Secrets>()

  /** Where an address's file is. @throws CorralError when it gives none */
  async function find(address: string, secrets: Secrets | undefined, signal: AbortSignal | undefined) {
    const url = address + (secrets?.secretQuery ?? '')
    const credentials = secrets?.credentials
    const answer = await askPlace(
      question => fetch.ask({ ...question, url, signal, ...(credentials ? { credentials } : {}) }),
      'follow',
      true
    )
    if (!isPlace(answer)) throw addressRefusal(answer, shownAddress(address), Date.now())
    if (/\btext\/html\b/.test(answer.headers['content-type'] ?? '')) {
      throw new CorralError(
        'repo_not_found',
        `${shownAddress(address)} is a web page, not a model's file. Give the address that the file itself is downloaded from.`,
        { param: 'model' }
      )
    }
    return { answer, location: complete(locationOf(answer, proxy, Date.now()), answer) }
  }

  return {
    name: 'url',
    title: 'The address',
    prefixes: ['https://', 'http://'],

    async repository(request: HubRequest, { signal }: Waiting): Promise<HubRepository> {
      const { id, ...secrets } = parseAddress(request.id)
      secretsOf.set(id, secrets)
      const { answer, location } = await find(id, secrets, signal)
      const name = nameOfDisposition(answer.headers['content-disposition']) ?? nameOfAddress(id)
      if (name === undefined) {
        throw new CorralError(
          'repo_not_found',
          `${shownAddress(id)} gives no name for its file. Give an address that ends in one, such as …/model.gguf.`,
          { param: 'model' }
        )
      }
      // Shards lie beside each other under their own names; a name that the server made up leads to no others.
      const names = name === nameOfAddress(id) ? shardsOf(name) : [name]
      const locations = await inTurns(names, async shard =>
        shard === name ? location : (await find(addressBeside(id, shard), secrets, signal)).location
      )
      const files = names.map((path, i): HubFile => {
        const { size, sha256 } = locations[i]!
        return { path, size, ...(sha256 ? { sha256 } : {}) }
      })
      const facts = files.map(({ path, size, sha256 }, i) => [path, size, sha256 ?? locations[i]!.identity])
      return { hub: 'url', id, revision: contentFingerprint(facts), address: shownAddress(id), gated: false, files }
    },

    async locate({ id, files }: HubRepository, file: HubFile, signal: AbortSignal): Promise<FileLocation> {
      const address = files.length > 1 ? addressBeside(id, file.path) : id
      return (await find(address, secretsOf.get(id), signal)).location
    }
  }
}

/** A location with what servers of plain files say about them. */
function complete(location: FileLocation, { headers }: HubAnswer): FileLocation {
  const sha256 = location.sha256 ?? sha256OfHeaders(headers)
  const identity = location.identity ?? headers['last-modified']
  return { ...location, ...(sha256 ? { sha256 } : {}), ...(identity ? { identity } : {}) }
}

/** Does something with each, few at a time; gives the results in order. */
async function inTurns<Item, Result>(items: readonly Item[], work: (item: Item) => Promise<Result>): Promise<Result[]> {
  const results: Result[] = []
  for (let i = 0; i < items.length; i += AT_ONCE) {
    results.push(...(await Promise.all(items.slice(i, i + AT_ONCE).map(work))))
  }
  return results
}

/** The error for an address that does not give its file. @param shown the address as it may be shown */
export function addressRefusal(answer: HubAnswer, shown: string, now: number): CorralError {
  const { status } = answer
  const words = serverWords(answer)
  const said = words ? ` It says: ${words.replace(/[.!?]?$/, '.')}` : ''
  const details = { address: shown, hubStatus: status }
  const retryAfter = retryAfterSeconds(answer.headers, now)
  const later = retryAfter === undefined ? {} : { retryAfter }
  if (status === 401 || status === 403 || status === 407) {
    return new CorralError(
      'hub_forbidden',
      `${shown} is not for everybody (status ${status}). If you have access, pull it again with what its server wants: a name and password in the address (https://name:password@…), or a signed address that is still valid.${said}`,
      { details }
    )
  }
  if (status === 429) {
    const when = retryAfter === undefined ? 'in some minutes' : `in ${retryAfter} s`
    return new CorralError('hub_rate_limited', `The server of ${shown} refuses more requests. Try again ${when}.`, {
      details,
      ...later
    })
  }
  if (status < 500) {
    return new CorralError('repo_not_found', `There is no file at ${shown} (status ${status}). Check the address.`, {
      param: 'model',
      details
    })
  }
  return new CorralError(
    'hub_unreachable',
    `The server of ${shown} could not answer (status ${status}).${said} Try again later.`,
    { details, ...later }
  )
}
