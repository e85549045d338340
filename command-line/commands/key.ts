import { setTimeout as sleep } from 'node:timers/promises'
import { CorralError } from '../../core/errors.ts'
import { abortAfter } from '../../core/system/abort-signals.ts'
import { readOwner } from '../../core/system/data-directory.ts'
import {
  createKey,
  type KeyRecord,
  keyFilePath,
  type MadeKey,
  type NewKey,
  readKeys,
  recordOf,
  revokeKey,
  rotateKey
} from '../../plugins/people/security/key-file.ts'
import { LimitMistake, parseExpiry, parseKeyLimits } from '../../plugins/people/security/key-limits.ts'
import { EXIT, failure, Interrupted } from '../command-failure.ts'
import { type CommandContext, configPlaces, type Options, openConfig, usageFailure } from '../context.ts'
import { formatTable, printNote, printResult, relativeTime } from '../output.ts'
import { atTerminal, confirm } from '../questions.ts'
import { planAddresses, readServerSettings, recordedAddress, toServerSettings } from '../server-address.ts'
import { createClient, healthAt } from '../server-client.ts'
import { ask } from '../server-connection.ts'

type CreateOptions = Options<'yes' | 'json', 'models' | 'limit' | 'expires'> & { role?: NewKey['role'] }

const HEALTH_TIMEOUT_MS = 5000

export async function keyList(context: CommandContext, { json }: Options): Promise<void> {
  printResult(json, await (await openKeys(context)).list(), formatKeys)
}

export async function keyRevoke(context: CommandContext, name: string): Promise<void> {
  const record = await (await openKeys(context)).revoke(name)
  printNote(`The key "${record.name}" was revoked.`)
}

export async function keyRotate(context: CommandContext, name: string, { json }: Options): Promise<void> {
  const made = await (await openKeys(context)).rotate(name)
  printResult(json, made, ({ key }) => key)
  printNote(`The old key "${made.record.name}" was revoked. The new one is shown only now.`)
}

export async function keyCreate(context: CommandContext, name: string, options: CreateOptions): Promise<void> {
  const wanted = newKey(name, options)
  const keys = await openKeys(context)
  if (!(await keys.required())) {
    printNote(
      'This is the first key. From now on every request needs a key, even on this machine, and revoking the last key does not change ' +
        'that. The corral commands of the user who runs the server keep working without one.'
    )
    // Scripts continue without a confirmation.
    if (!options.yes && atTerminal() && !(await confirm('Make it?', false))) {
      printNote('No key was created.')
      throw new Interrupted(EXIT.failure)
    }
  }
  const made = await keys.create(wanted)
  printResult(options.json, made, ({ key }) => key)
  const { record } = made
  printNote(
    `Created the key "${record.name}" with the role ${record.role}. It is shown only now. Send it as "Authorization: Bearer <key>".`
  )
}

function newKey(name: string, { role, models, limit, expires }: CreateOptions): NewKey {
  try {
    return {
      name,
      ...(role && { role }),
      ...(models !== undefined && { models: models.split(',').map(each => each.trim()) }),
      ...(limit !== undefined && { limits: parseKeyLimits(limit) }),
      ...(expires !== undefined && { expires: parseExpiry(expires, new Date()) })
    }
  } catch (error) {
    if (error instanceof LimitMistake) throw usageFailure(error.message)
    throw error
  }
}

/** The keys of a data directory, or of a server on another machine. */
async function openKeys(context: CommandContext): Promise<ReturnType<typeof keysElsewhere>> {
  const settings = (await readServerSettings(configPlaces(context))) ?? toServerSettings(await openConfig(context))
  const owner = await readOwner(settings.paths)
  const { named, local, byFlag } = planAddresses(settings)
  const isHere = named === undefined || (owner !== undefined && recordedAddress(owner.address) === named)
  if (!isHere && !(local && !byFlag && (await healthAt({ address: named }, HEALTH_TIMEOUT_MS)) !== 'ok'))
    return keysElsewhere(context)

  const path = keyFilePath(settings.paths)
  const followed = async <Result>(change: Promise<Result>): Promise<Result> => {
    const result = await change.catch(error => {
      if (!(error instanceof CorralError) || error.code !== 'insufficient_storage') throw error
      const why = `the disk of ${settings.paths.home} is full`
      throw failure(`The key was not saved: ${why}. Free some space and try again.`, error)
    })
    // The server watches the file. Asking makes sure that it has read it before this command ends.
    if (owner?.socket === undefined) return result
    const signal = abortAfter(HEALTH_TIMEOUT_MS)
    const client = createClient({ address: 'http://localhost', socket: owner.socket, apiKey: undefined, signal })
    // A server that cannot be asked notices the change within a second.
    await client.json('GET', '/api/keys').catch(() => sleep(1000))
    return result
  }
  return {
    required: async () => settings.apiKey !== undefined || (await readKeys(path)) !== undefined,
    list: async () => ((await readKeys(path)) ?? []).map(recordOf),
    create: wanted => followed(createKey(path, wanted)),
    revoke: name => followed(revokeKey(path, name)),
    rotate: name => followed(rotateKey(path, name))
  }
}

function keysElsewhere(context: CommandContext) {
  const whenNone = { whenNone: 'fail' } as const
  const at = (name: string) => `/api/keys/${encodeURIComponent(name)}`
  const all = () => ask<{ required: boolean; keys: KeyRecord[] }>(context, 'GET', '/api/keys', undefined, whenNone)
  return {
    /** Whether every request already needs a key. */
    required: async () => (await all()).required,
    list: async () => (await all()).keys,
    create: (wanted: NewKey) => ask<MadeKey>(context, 'POST', '/api/keys', wanted, whenNone),
    revoke: async (name: string) =>
      (await ask<{ record: KeyRecord }>(context, 'DELETE', at(name), undefined, whenNone)).record,
    rotate: (name: string) => ask<MadeKey>(context, 'POST', `${at(name)}/rotate`, {}, whenNone)
  }
}

function formatKeys(records: KeyRecord[], now = new Date()): string {
  const rows = records.map(({ name, role, models, limits, created, expires }) => [
    name,
    role,
    models?.join(' ') ?? 'all',
    Object.entries(limits ?? {})
      .map(([limit, value]) => `${limit}=${value}`)
      .join(' ') || '-',
    relativeTime(created, now),
    expires === undefined ? 'never' : expiryText(expires, now)
  ])
  return formatTable(['NAME', 'ROLE', 'MODELS', 'LIMITS', 'CREATED', 'EXPIRES'], rows)
}

const TWO_DAYS_MS = 2 * 24 * 3_600_000

/** A distant date is shown in full, because "in 2 months" is too vague to plan with. */
const expiryText = (expires: string, now: Date) =>
  Date.parse(expires) - now.getTime() > TWO_DAYS_MS ? expires.slice(0, 10) : relativeTime(expires, now)
