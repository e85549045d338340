import { hash } from 'node:crypto'
import { setMaxListeners } from 'node:events'
import { type FSWatcher, watch } from 'node:fs'
import type { ServerResponse } from 'node:http'
import { basename, dirname } from 'node:path'
import type { FastifyBaseLogger } from 'fastify'
import { type Caller, keylessCaller } from '../../../core/contracts/callers.ts'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import { OpenSet } from '../../../core/system/open-tables.ts'
import { isSecretOf, type KeyEntry, keyFileMark, parseKey, readKeys } from './key-file.ts'
import { partsOf } from './key-limits.ts'

/** How often it is looked for keys that end, and at the file where the system does not tell of changes (milliseconds). */
const LOOK_INTERVAL = 250
/** How often the file is looked at where the system does tell: some changes, as over a network, it does not see. */
const WATCHED_INTERVAL = 2000
/** How long answers of a key that was revoked have to say so before their connections are cut (milliseconds). */
const LAST_WORDS = 400

/** What requests may show to be let in: a key, or a session of a browser. */
export interface KnownCredential {
  /** What callers with it are, wherever they call from. */
  readonly caller: Omit<Caller, 'turn' | 'address'>
  /** Whether it is so long that nobody finds it by trying. */
  readonly isLong: boolean
  /** Has the answer cut off soon after the key is revoked, if it has not ended by itself. */
  track(response: ServerResponse): void
}

/** A key that the server accepts. */
export interface KnownKey extends KnownCredential {
  readonly caller: KnownCredential['caller'] & { readonly name: string }
}

/** The keys that the server accepts: those of the configuration, and those in the key file. */
export interface KeyStore {
  /** Whether every request needs a key: there is one, or there was one. */
  readonly required: boolean
  /** How many there are. */
  readonly count: number
  /**
   * The key that a client sent, undefined where there is none such. A key that was just made counts at once.
   * @throws CorralError `unauthorized` for one that has expired
   */
  find(sent: string): KnownKey | undefined | Promise<KnownKey | undefined>
  /** The owner of what belongs to the key of this name. */
  ownerOf(name: string): string | undefined
  /** What callers of this owner are now; undefined where its key is no more, or for keyless ones where keys are required. */
  callerOf(owner: string): Omit<Caller, 'turn' | 'address'> | undefined
  /**
   * Takes other keys of the configuration; answers of those that are not among them end.
   * @returns whether there are new ones
   */
  configure(keys: readonly string[]): boolean
  /** Reads the file again if it has changed. */
  refresh(): Promise<void>
  close(): void
}

interface RevocableKey extends KnownKey {
  /** Ends its answers. */
  revoke(reason: CorralError): void
}

interface StoredKey extends RevocableKey {
  readonly entry: KeyEntry
  /** Milliseconds since the epoch; infinite where it does not expire. */
  readonly end: number
}

/** @throws Error when the key file cannot be used */
export async function openKeyStore(
  path: string,
  configured: readonly string[],
  log: Pick<FastifyBaseLogger, 'info' | 'error'>,
  changed: (change: 'key_created' | 'key_replaced' | 'key_revoked', name: string) => void = () => {}
): Promise<KeyStore> {
  let own = configured.map(configuredKey)
  /**
   * Those of the configuration, and those of the file that were sent before, by the digests of their texts: nobody can
   * choose a digest, so that the time of a look tells nothing.
   */
  let byDigest = indexOf(own)
  let stored = new Map<string, StoredKey>()
  /** Whether no file has been read yet. */
  let isEmpty = true
  let required = own.length > 0
  let seen = ''
  let fault = ''
  /** Runs while there are keys that expire: it wakes a server that rests. */
  let ends: NodeJS.Timeout | undefined

  async function look(): Promise<void> {
    // Before it is read: a change in between is seen by the next look.
    const mark = (await keyFileMark(path)) ?? 'absent'
    if (mark === seen) return
    const entries = await readKeys(path)
    seen = mark
    fault = ''
    // Keys are required for as long as this server runs, even where somebody deletes the file.
    if (entries) required = true
    const before = stored
    const isFirst = isEmpty
    isEmpty = false
    stored = new Map(
      (entries ?? []).map(entry => {
        const known = before.get(entry.id)
        const isSame = known !== undefined && JSON.stringify(known.entry) === JSON.stringify(entry)
        return [entry.id, isSame ? known : storedKey(entry)]
      })
    )
    byDigest = indexOf(own)
    const someExpire = [...stored.values()].some(({ end }) => end !== Number.POSITIVE_INFINITY)
    clearInterval(ends)
    if (someExpire) ends = setInterval(endExpired, LOOK_INTERVAL).unref()
    for (const [id, { caller }] of stored) if (!isFirst && !before.has(id)) changed('key_created', caller.name)
    for (const [id, key] of before) {
      if (stored.get(id) === key) continue
      const rotated = stored.has(id)
      log.info({ key: key.caller.name }, `The key "${key.caller.name}" was ${rotated ? 'replaced' : 'revoked'}.`)
      changed(rotated ? 'key_replaced' : 'key_revoked', key.caller.name)
      key.revoke(endedKey(key.caller.name, rotated ? 'replaced by a new one' : 'revoked'))
    }
  }

  let latest: Promise<void> = look()
  await latest
  let waiting: Promise<void> | undefined
  /** One look at a time. Whoever calls while one goes on gets the next one, which sees what is there now. */
  function refresh(): Promise<void> {
    waiting ??= latest = latest.then(async () => {
      waiting = undefined
      await look().catch(error => {
        // What is in force stays so: by a file that is half edited nobody comes in, and nobody is shut out.
        if (fault !== errorMessage(error)) log.error(`${errorMessage(error)} Until then the keys stay as they were.`)
        fault = errorMessage(error)
      })
    })
    return waiting
  }

  function endExpired(): void {
    for (const key of stored.values()) {
      if (key.end <= Date.now()) key.revoke(endedKey(key.caller.name, `valid until ${key.entry.expires}`))
    }
  }
  const watcher = watchFile(path, () => void refresh())
  const looks = setInterval(() => void refresh(), watcher ? WATCHED_INTERVAL : LOOK_INTERVAL).unref()

  function findStored({ id, secret }: { id: string; secret: string }, digest: string): KnownKey | undefined {
    const key = stored.get(id)
    if (!key || !isSecretOf(key.entry, secret)) return undefined
    const valid = asValid(key)
    byDigest.set(digest, valid)
    return valid
  }

  /** @throws CorralError `unauthorized` for one that has expired */
  function asValid(key: StoredKey): StoredKey {
    if (key.end <= Date.now()) throw endedKey(key.caller.name, `valid until ${key.entry.expires}`)
    if (!key.caller.revoked!.aborted) return key
    // The clock went ahead, which ended its answers, and back.
    const valid = storedKey(key.entry)
    stored.set(key.entry.id, valid)
    return valid
  }

  return {
    get required() {
      return required
    },
    get count() {
      return own.length + stored.size
    },
    find(sent) {
      const digest = digestOf(sent)
      const known = byDigest.get(digest)
      if (known && !('entry' in known)) return known
      // One that ended is looked for as if it had never been sent.
      if (known && !known.caller.revoked!.aborted) return asValid(known)
      const parts = parseKey(sent)
      if (!parts) return undefined
      return findStored(parts, digest) ?? refresh().then(() => findStored(parts, digest))
    },
    callerOf(owner) {
      const { turn, address, ...keyless } = keylessCaller('')
      if (owner === keyless.owner) return required ? undefined : keyless
      const key = own.find(({ caller }) => caller.owner === owner) ?? stored.get(owner.slice(OWNER.length))
      return key?.caller.owner === owner && !('end' in key && key.end <= Date.now()) ? key.caller : undefined
    },
    ownerOf: name => [...own, ...stored.values()].find(({ caller }) => caller.name === name)?.caller.owner,
    configure(keys) {
      const before = own
      // One that is still there keeps its answers; its place in the list is its name.
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
    close() {
      clearInterval(looks)
      watcher?.close()
      // A look that goes on may begin it once more.
      void latest.then(() => clearInterval(ends))
    }
  }
}

/** What owners begin with; behind it is what identifies the key. */
const OWNER = 'key:'

const indexOf = (keys: readonly ConfiguredKey[]) =>
  new Map<string, ConfiguredKey | StoredKey>(keys.toReversed().map(key => [key.digest, key]))

const digestOf = (text: string) => hash('sha256', text, 'hex')

/** Shorter keys can be guessed by trying. */
export const LONG_KEY = 20

const nameOfConfigured = (index: number) => `api_keys[${index}]`

interface ConfiguredKey extends RevocableKey {
  digest: string
}

function configuredKey(key: string, index: number): ConfiguredKey {
  const digest = digestOf(key)
  const { signal, ...revocable } = revocation()
  return {
    digest,
    // By its digest, so that what belongs to a key does not change hands when the list does.
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

/** What ends the answers of a key or session. */
export function revocation(): Pick<RevocableKey, 'track' | 'revoke'> & { signal: AbortSignal } {
  const controller = new AbortController()
  // One listener for each open request.
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
      }, LAST_WORDS).unref()
    }
  }
}

function storedKey(entry: KeyEntry): StoredKey {
  const { signal, ...revocable } = revocation()
  return {
    entry,
    // One that is no date, such as the 31st of June, has passed.
    end: entry.expires === undefined ? Number.POSITIVE_INFINITY : Date.parse(entry.expires) || 0,
    caller: {
      role: entry.role,
      owner: `${OWNER}${entry.id}`,
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

function endedKey(name: string, how: string): CorralError {
  return new CorralError(
    'unauthorized',
    `The API key "${name}" was ${how}. Ask the admin of this server for a new one (corral key create, corral key rotate).`
  )
}

/** Tells of changes at once where the system can; elsewhere looking at intervals must do. */
function watchFile(path: string, changed: () => void): FSWatcher | undefined {
  try {
    const name = basename(path)
    // The folder: the file is replaced by others of its name.
    const watcher = watch(dirname(path), { persistent: false }, (_event, file) => {
      if (file === null || file === name) changed()
    })
    return watcher.on('error', () => watcher.close())
  } catch {
    return undefined
  }
}
