import { hash } from 'node:crypto'
import { setMaxListeners } from 'node:events'
import type { ServerResponse } from 'node:http'
import type { FastifyBaseLogger } from 'fastify'
import { type Caller, keylessCaller } from '../../../core/contracts/callers.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { OpenSet } from '../../../core/system/open-tables.ts'
import { type KeyEntry, keyFileMark, matchesSecret, parseKey, readKeys } from './key-file.ts'
import { partsOf } from './key-limits.ts'

/** Milliseconds between checks for expired keys and for changes of the file. */
const CHECK_INTERVAL_MS = 1000
/** How long answers to a revoked key may take to report the error before they are disconnected, in milliseconds. */
const REVOCATION_GRACE_MS = 400

/** A credential that the server accepts: a key, or a browser session. */
export interface KnownCredential {
  readonly caller: Omit<Caller, 'turn' | 'address'>
  /** Whether it is too long to be found by guessing. */
  readonly isLong: boolean
  /** Disconnects the answer shortly after the credential is revoked, unless it has ended. */
  track(response: ServerResponse): void
}

interface Key extends KnownCredential {
  readonly caller: KnownCredential['caller'] & { readonly name: string }
  revoke(reason: CorralError): void
}

interface ConfiguredKey extends Key {
  readonly digest: string
}

interface StoredKey extends Key {
  readonly entry: KeyEntry
  /** Expiry in milliseconds since the epoch, or infinite. */
  readonly end: number
}

/** The keys that the server accepts, from the configuration and from the key file. */
export type KeyStore = Awaited<ReturnType<typeof openKeyStore>>

/** @throws Error if the key file cannot be used */
export async function openKeyStore(
  path: string,
  configured: readonly string[],
  log: Pick<FastifyBaseLogger, 'info' | 'error'>,
  changed: (change: 'key_created' | 'key_replaced' | 'key_revoked', name: string, owner: string) => void = () => {}
) {
  let own = configured.map(configuredKey)
  /** Configured keys and used keys of the file by digest, which clients cannot choose: lookup times reveal nothing. */
  let byDigest = indexOf(own)
  let stored = new Map<string, StoredKey>()
  let required = own.length > 0
  /** Mark of the file when it was read last. */
  let seen = ''
  let fault = ''

  async function look(): Promise<void> {
    // Taken before reading, so that the next check notices a change during the read.
    const mark = (await keyFileMark(path)) ?? 'absent'
    if (mark === seen) return
    const entries = await readKeys(path)
    const isFirst = seen === ''
    seen = mark
    fault = ''
    // Keys stay required while this server runs, even if the file is deleted.
    if (entries) required = true
    const before = stored
    stored = new Map(
      (entries ?? []).map(entry => {
        const known = before.get(entry.id)
        const isSame = known !== undefined && JSON.stringify(known.entry) === JSON.stringify(entry)
        return [entry.id, isSame ? known : storedKey(entry)]
      })
    )
    byDigest = indexOf(own)
    for (const [id, { caller }] of stored)
      if (!isFirst && !before.has(id)) changed('key_created', caller.name, caller.owner)
    for (const [id, key] of before) {
      if (stored.get(id) === key) continue
      const rotated = stored.has(id)
      log.info({ key: key.caller.name }, `The key "${key.caller.name}" was ${rotated ? 'replaced' : 'revoked'}.`)
      changed(rotated ? 'key_replaced' : 'key_revoked', key.caller.name, key.caller.owner)
      key.revoke(endedKey(key.caller.name, rotated ? 'replaced by a new one' : 'revoked'))
    }
  }

  let latest: Promise<void> = look()
  await latest
  let waiting: Promise<void> | undefined
  /** Reloads one at a time. A call during a reload starts another reload after it, which sees the current file. */
  function refresh(): Promise<void> {
    waiting ??= latest = latest.then(async () => {
      waiting = undefined
      await look().catch(error => {
        // Keep the current keys, because a half-edited file must neither admit nor lock out anyone.
        if (fault !== errorMessage(error)) log.error(`${errorMessage(error)} Until then the keys stay unchanged.`)
        fault = errorMessage(error)
      })
    })
    return waiting
  }

  const checks = setInterval(() => {
    for (const key of stored.values()) if (key.end <= Date.now()) key.revoke(expiredKey(key))
    void refresh()
  }, CHECK_INTERVAL_MS).unref()

  function findStored({ id, secret }: { id: string; secret: string }, digest: string): StoredKey | undefined {
    const key = stored.get(id)
    if (!key || !matchesSecret(key.entry, secret)) return undefined
    const valid = asValid(key)
    byDigest.set(digest, valid)
    return valid
  }

  /** @throws CorralError `unauthorized` if it has expired */
  function asValid(key: StoredKey): StoredKey {
    if (key.end <= Date.now()) throw expiredKey(key)
    if (!key.caller.revoked!.aborted) return key
    // The clock jumped ahead, which revoked the key, and back.
    const valid = storedKey(key.entry)
    stored.set(key.entry.id, valid)
    return valid
  }

  return {
    /** Whether every request needs a key, because there is or was one. */
    get required() {
      return required
    },
    /** Returns the key that a client sent, even if it is new. @throws CorralError `unauthorized` if it has expired */
    find(sent: string): Key | undefined | Promise<Key | undefined> {
      const digest = digestOf(sent)
      const known = byDigest.get(digest)
      if (known && !('entry' in known)) return known
      // Look up revoked keys as if they had never been used.
      if (known && !known.caller.revoked!.aborted) return asValid(known)
      const parts = parseKey(sent)
      return parts && (findStored(parts, digest) ?? refresh().then(() => findStored(parts, digest)))
    },
    /** Returns the current caller of an owner; undefined if its key is gone or keyless callers are refused. */
    callerOf(owner: string): KnownCredential['caller'] | undefined {
      const { turn, address, ...keyless } = keylessCaller('')
      if (owner === keyless.owner) return required ? undefined : keyless
      const key = own.find(({ caller }) => caller.owner === owner) ?? stored.get(owner.slice(OWNER.length))
      return key?.caller.owner === owner && !('end' in key && key.end <= Date.now()) ? key.caller : undefined
    },
    /** Returns a text that changes when the key of an owner is replaced. Undefined if there is none. */
    markOf(owner: string): string | undefined {
      const configured = own.find(({ caller }) => caller.owner === owner)
      const hash = configured?.digest ?? stored.get(owner.slice(OWNER.length))?.entry.hash
      return hash && digestOf(hash)
    },
    ownerOf: (name: string) => [...own, ...stored.values()].find(({ caller }) => caller.name === name)?.caller.owner,
    /** Replaces the configured keys and ends the answers to removed ones. @returns whether there are new ones */
    configure(keys: readonly string[]): boolean {
      const before = own
      // Unchanged keys keep their answers, but their name is their position in the list.
      own = keys.map((key, index) => {
        const known = before.find(({ digest }) => digest === digestOf(key))
        return known
          ? Object.assign(known, { caller: { ...known.caller, name: nameOfConfigured(index) } })
          : configuredKey(key, index)
      })
      byDigest = indexOf(own)
      if (own.length > 0) required = true
      for (const key of before.filter(known => !own.includes(known))) {
        log.info({ key: key.caller.name }, `The key "${key.caller.name}" was removed from the configuration.`)
        key.revoke(endedKey(key.caller.name, 'removed from the configuration'))
      }
      return own.some(key => !before.includes(key))
    },
    refresh,
    close: () => clearInterval(checks)
  }
}

const OWNER = 'key:'
/** The owner (`Caller.owner`) of a key in the file. */
export const ownerOfKey = (id: string) => `${OWNER}${id}`

const indexOf = (keys: readonly ConfiguredKey[]) =>
  new Map<string, ConfiguredKey | StoredKey>(keys.toReversed().map(key => [key.digest, key]))

const digestOf = (text: string) => hash('sha256', text, 'hex')

/** Shorter keys can be guessed. */
export const LONG_KEY = 20

const nameOfConfigured = (index: number) => `api_keys[${index}]`

function configuredKey(key: string, index: number): ConfiguredKey {
  const digest = digestOf(key)
  const { signal, ...revocable } = revocation()
  return {
    digest,
    // Derived from the digest, so that data does not change owners when the list is reordered.
    caller: {
      role: 'admin',
      owner: `${OWNER}${digest.slice(0, 16)}`,
      name: nameOfConfigured(index),
      revoked: signal
    },
    isLong: key.length >= LONG_KEY,
    ...revocable
  }
}

/** Tracks the answers to a key or session, and ends them when it is revoked. */
export function revocation(): Pick<Key, 'track' | 'revoke'> & { signal: AbortSignal } {
  const controller = new AbortController()
  // One listener per open request.
  setMaxListeners(0, controller.signal)
  const open = new OpenSet<ServerResponse>()
  return {
    signal: controller.signal,
    track(response) {
      open.add(response)
      response.once('close', () => open.delete(response))
    },
    revoke(reason) {
      if (controller.signal.aborted) return
      controller.abort(reason)
      if (open.size === 0) return
      setTimeout(() => {
        for (const response of [...open]) response.destroy()
      }, REVOCATION_GRACE_MS).unref()
    }
  }
}

function storedKey(entry: KeyEntry): StoredKey {
  const { signal, ...revocable } = revocation()
  return {
    entry,
    // An impossible date, such as 31 June, has expired.
    end: entry.expires === undefined ? Number.POSITIVE_INFINITY : Date.parse(entry.expires) || 0,
    caller: {
      role: entry.role,
      owner: ownerOfKey(entry.id),
      name: entry.name,
      ...(entry.models && { models: entry.models }),
      ...(entry.limits && partsOf(entry.limits)),
      ...(entry.expires !== undefined && { expires: entry.expires }),
      revoked: signal
    },
    isLong: true,
    ...revocable
  }
}

const expiredKey = ({ caller, entry }: StoredKey) => endedKey(caller.name, `valid until ${entry.expires}`)

function endedKey(name: string, how: string): CorralError {
  const message = `The API key "${name}" was ${how}. Ask the admin of this server for a new one (corral key create, corral key rotate).`
  return new CorralError('unauthorized', message)
}
