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
import type { ListedKey } from '../../plugins/people/security/key-routes.ts'
import { EXIT, Interrupted } from '../command-failure.ts'
import { type CommandContext, configPlaces, type Options, openConfig, usageFailure } from '../context.ts'
import { formatTable, printNote, printResult, relativeTime } from '../output.ts'
import { atTerminal, confirm } from '../questions.ts'
import { planAddresses, readServerSettings, toServerSettings } from '../server-address.ts'
import { ask, unlessNoServer } from '../server-connection.ts'

type CreateOptions = Options<'yes' | 'json', 'models' | 'limit' | 'expires'> & { role?: NewKey['role'] }

export async function keyList(context: CommandContext, { json }: Options): Promise<void> {
  printResult(json, (await openKeys(context)).keys, formatKeys)
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
  if (!keys.required) {
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

/** The keys of the server, or of a data directory whose server is not running. */
async function openKeys(context: CommandContext) {
  const settings = (await readServerSettings(configPlaces(context))) ?? toServerSettings(await openConfig(context))
  const send = <Reply>(method: 'GET' | 'POST' | 'DELETE', path = '', body?: object) =>
    ask<Reply>(context, method, `/api/keys${path}`, body, { whenNone: 'fail' })
  const listing = send<{ required: boolean; keys: ListedKey[] }>('GET')
  const found = await (planAddresses(settings).local ? unlessNoServer(listing) : listing)
  if (found) {
    const at = (name: string) => `/${encodeURIComponent(name)}`
    return {
      ...found,
      create: (wanted: NewKey) => send<MadeKey>('POST', '', wanted),
      revoke: async (name: string) => (await send<{ record: KeyRecord }>('DELETE', at(name))).record,
      rotate: (name: string) => send<MadeKey>('POST', `${at(name)}/rotate`, {})
    }
  }
  const path = keyFilePath(settings.paths)
  const keys = await readKeys(path)
  return {
    /** Whether every request already needs a key. */
    required: settings.apiKey !== undefined || keys !== undefined,
    keys: (keys ?? []).map(recordOf),
    create: (wanted: NewKey) => createKey(path, wanted),
    revoke: (name: string) => revokeKey(path, name),
    rotate: (name: string) => rotateKey(path, name)
  }
}

function formatKeys(records: ListedKey[], now = new Date()): string {
  const rows = records.map(({ name, role, models, limits, created, expires, last_used_at: used }) => [
    name,
    role,
    models?.join(' ') ?? 'all',
    Object.entries(limits ?? {})
      .map(([limit, value]) => `${limit}=${value}`)
      .join(' ') || '-',
    relativeTime(created, now),
    expires === undefined ? 'never' : expiryText(expires, now),
    used === undefined ? '-' : relativeTime(used, now)
  ])
  return formatTable(['NAME', 'ROLE', 'MODELS', 'LIMITS', 'CREATED', 'EXPIRES', 'LAST USED'], rows)
}

const TWO_DAYS_MS = 2 * 24 * 3_600_000

/** A distant date is shown in full, because "in 2 months" is too vague to plan with. */
const expiryText = (expires: string, now: Date) =>
  Date.parse(expires) - now.getTime() > TWO_DAYS_MS ? expires.slice(0, 10) : relativeTime(expires, now)
