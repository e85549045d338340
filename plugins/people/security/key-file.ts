import { hash, randomBytes, timingSafeEqual } from 'node:crypto'
import { lstat, mkdir, realpath, stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { type Static, Type } from 'typebox'
import { CorralError, errorMessage, isSystemError } from '../../../core/errors.ts'
import { ROLES } from '../../../core/http/roles.ts'
import { MODEL_PATTERN } from '../../../core/models/allowed-models.ts'
import { parseKeepAlive } from '../../../core/models/options.ts'
import { formatBytes } from '../../../core/system/bytes.ts'
import type { DataPaths } from '../../../core/system/data-paths.ts'
import { diskRefusal } from '../../../core/system/disk-space.ts'
import { readJsonFile, writeJsonFile } from '../../../core/system/json-file.ts'
import { faultSentence, findFault } from '../../../core/system/schema-check.ts'
import { withShortLock } from '../../../core/system/short-lock.ts'
import { KeyLimitsSchema } from './key-limits.ts'

/* The keys of `corral key` and /api/keys. Both change the file under a lock, and a running server reloads it. */

/** Key names appear in logs and URLs. */
const KEY_NAME_PATTERN = '^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$'

/** The pattern checks the start, so that a key never lives for ever because its expiry cannot be parsed. */
const Moment = Type.String({
  format: 'date-time',
  pattern: '^\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d',
  title: 'a time in ISO 8601'
})

const about = {
  name: Type.String({ pattern: KEY_NAME_PATTERN, title: 'a name of at most 64 letters, digits and . _ @ -' }),
  role: Type.Enum([...ROLES]),
  models: Type.Optional(
    Type.Array(Type.String({ pattern: MODEL_PATTERN, title: 'a model such as owner/name or owner/*' }), { minItems: 1 })
  ),
  limits: Type.Optional(KeyLimitsSchema),
  created: Moment,
  expires: Type.Optional(Moment)
}
export const KeyRecordSchema = Type.Object(about, { title: 'KeyRecord' })
export type KeyRecord = Static<typeof KeyRecordSchema>

const KeyEntrySchema = Type.Object({ id: Type.String(), salt: Type.String(), hash: Type.String(), ...about })
export type KeyEntry = Static<typeof KeyEntrySchema>

/** While this file exists keys are required, even if it lists none: revoking the last key does not open the server. */
const KeyFileSchema = Type.Object({ version: Type.Literal(1), keys: Type.Array(KeyEntrySchema) })

export function keyFilePath({ home }: Pick<DataPaths, 'home'>): string {
  return join(home, 'keys.json')
}

/** A larger file cannot be a list of keys, and reading it would block the server. */
const MAX_FILE = 64 * 2 ** 20

/** Returns a value that changes with the file; undefined if it never existed. @throws Error if it cannot be read */
export async function keyFileMark(path: string): Promise<string | undefined> {
  const found = await stat(path, { bigint: true }).catch(error => {
    if (!isSystemError(error, 'ENOENT', 'ENOTDIR')) throw unusable(path, errorMessage(error))
  })
  if (!found) {
    // The link may point to an unmounted disk. Ignoring it would open the server.
    const link = await lstat(path).catch(() => undefined)
    if (link?.isSymbolicLink()) throw unusable(path, 'it is a symbolic link to a file that does not exist')
    return undefined
  }
  // Reading a pipe would block for ever.
  if (!found.isFile()) throw unusable(path, 'it is not a regular file')
  if (found.size > MAX_FILE) throw unusable(path, `it is larger than ${formatBytes(MAX_FILE)}`)
  return `${found.ino}:${found.size}:${found.mtimeNs}`
}

/** Returns the keys in the file; undefined if it never existed. @throws Error naming an invalid file */
export async function readKeys(path: string): Promise<KeyEntry[] | undefined> {
  if ((await keyFileMark(path)) === undefined) return undefined
  const read = await readJsonFile(path, KeyFileSchema)
  if (read?.fault === undefined) return read?.value?.keys
  throw unusable(path, read.fault)
}

function unusable(path: string, fault: string): Error {
  return new Error(
    `The file of API keys, ${path}, cannot be used: ${fault}. Fix it, or delete it to start without keys.`
  )
}

async function changeKeys<Result>(
  path: string,
  change: (keys: KeyEntry[]) => { keys: KeyEntry[]; result: Result }
): Promise<Result> {
  try {
    await mkdir(dirname(path), { recursive: true, mode: 0o700 })
    // Several servers may link to one file.
    return await withShortLock(await realpath(path).catch(() => path), async () => {
      const { keys, result } = change((await readKeys(path)) ?? [])
      await writeJsonFile(path, { version: 1, keys }, { mode: 0o600, pretty: true })
      return result
    })
  } catch (error) {
    throw diskRefusal(error, 'The keys were not changed', 'home') ?? error
  }
}

export const NewKeySchema = Type.Object(
  {
    name: about.name,
    role: Type.Optional(about.role),
    models: about.models,
    limits: about.limits,
    expires: about.expires
  },
  { title: 'NewKey', additionalProperties: false }
)
export type NewKey = Static<typeof NewKeySchema>

/** A key in clear text. It is shown once, on creation, and stored nowhere. */
export interface MadeKey {
  key: string
  record: KeyRecord
}

/** Creates a key, after validating it. @throws CorralError `key_exists`, `invalid_request` or `invalid_option` */
export async function createKey(path: string, wanted: object): Promise<MadeKey> {
  checkNewKey(wanted)
  const { name, role = 'user', models, limits, expires } = wanted
  return await changeKeys(path, keys => {
    if (keys.some(key => sameName(key.name, name))) {
      const message = `A key named "${name}" already exists. Choose another name, or replace that key with: corral key rotate ${name}`
      throw new CorralError('key_exists', message, { param: 'name' })
    }
    const { secret, ...hashed } = newSecret()
    const entry: KeyEntry = {
      id: randomBytes(8).toString('hex'),
      name,
      role,
      ...(models && { models }),
      ...(limits && Object.keys(limits).length > 0 && { limits }),
      created: new Date().toISOString(),
      ...(expires !== undefined && { expires }),
      ...hashed
    }
    return { keys: [...keys, entry], result: madeKey(entry, secret) }
  })
}

const madeKey = (entry: KeyEntry, secret: string): MadeKey => ({
  key: `corral_${entry.id}_${secret}`,
  record: recordOf(entry)
})

function checkNewKey(wanted: object): asserts wanted is NewKey {
  const refuse = (message: string, param: string) => new CorralError('invalid_request', message, { param })
  const fault = findFault(NewKeySchema, wanted)
  if (fault) throw refuse(faultSentence(fault, 'The key'), fault.path.join('.'))
  const { limits, expires } = wanted as NewKey
  parseKeepAlive(limits?.keep_alive)
  if (expires !== undefined && !(Date.parse(expires) > Date.now())) {
    throw refuse(`"expires" must be a future time in ISO 8601; ${expires} is not.`, 'expires')
  }
}

/** Deletes a key. @throws CorralError `key_not_found` */
export async function revokeKey(path: string, name: string): Promise<KeyRecord> {
  return await changeKeys(path, keys => {
    const entry = named(keys, name)
    return { keys: keys.filter(key => key !== entry), result: recordOf(entry) }
  })
}

/** Gives a key a new secret. It keeps its id and what belongs to its owner. @throws CorralError `key_not_found` */
export async function rotateKey(path: string, name: string): Promise<MadeKey> {
  return await changeKeys(path, keys => {
    const entry = named(keys, name)
    const { secret, ...hashed } = newSecret()
    const rotated = { ...entry, ...hashed }
    return { keys: keys.map(key => (key === entry ? rotated : key)), result: madeKey(rotated, secret) }
  })
}

/** The public fields of a key, without hash and salt. */
export function recordOf({ id: _, salt: __, hash: ___, ...record }: KeyEntry): KeyRecord {
  return record
}

const sameName = (one: string, other: string) => one.toLowerCase() === other.toLowerCase()

function named(keys: readonly KeyEntry[], name: string): KeyEntry {
  const entry = keys.find(key => sameName(key.name, name))
  if (entry) return entry
  throw new CorralError('key_not_found', `There is no key named "${name}". "corral key list" shows the keys.`, {
    param: 'name'
  })
}

/** Splits a corral key into id and secret. Returns undefined for any other text. */
export function parseKey(text: string): { id: string; secret: string } | undefined {
  const [, id, secret] = /^corral_([0-9a-f]{16})_([A-Za-z0-9_-]{43})$/.exec(text) ?? []
  return id === undefined ? undefined : { id, secret: secret! }
}

function newSecret() {
  const secret = randomBytes(32).toString('base64url')
  const salt = randomBytes(16).toString('base64url')
  return { secret, salt, hash: hashOf(salt, secret).toString('base64url') }
}

/** A fast hash, on purpose: nobody can try secrets of 256 random bits, and a slow hash would delay every request. */
function hashOf(salt: string, secret: string): Buffer {
  // A third faster than `createHash`, and this runs for every request.
  return hash('sha256', salt + secret, 'buffer')
}

export function matchesSecret({ salt, hash }: Pick<KeyEntry, 'salt' | 'hash'>, secret: string): boolean {
  const known = Buffer.from(hash, 'base64url')
  const sent = hashOf(salt, secret)
  return known.length === sent.length && timingSafeEqual(known, sent)
}
