import { createHash, randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { chmod, lstat, mkdir, rm, writeFile } from 'node:fs/promises'
import { homedir, hostname } from 'node:os'
import { join } from 'node:path'
import { type Static, Type } from 'typebox'
import { readJsonFile, writeJsonFile } from '../../../core/system/json-file.ts'
import { packageRoot } from '../../../core/system/package-info.ts'

/** What a member is started with; the same on all nodes where a node says nothing else. */
const MemberSchema = Type.Object({
  /** Where members listen. */
  port: Type.Integer(),
  /** Their data directory, on each of their machines; that of the user who runs Ray there where absent. */
  home: Type.Optional(Type.String()),
  /** How corral is started there. */
  command: Type.Array(Type.String())
})
export type MemberSettings = Static<typeof MemberSchema>

const RecordSchema = Type.Object({
  version: Type.Literal(1),
  /** Of Ray's head, such as `10.0.0.5:6379`. */
  address: Type.String(),
  /** Whether the head is this machine's, started by corral and kept alive by the server of this data directory. */
  own: Type.Boolean(),
  /** The data directory of a member beside the head. */
  member: Type.Optional(Type.String()),
  members: MemberSchema
})
/** The cluster that `corral cluster up` has made or found. */
export type RayRecord = Static<typeof RecordSchema>

/** Where what belongs to Ray is. */
export interface RayPlaces {
  folder: string
  /** Says which cluster it is. */
  record: string
  /** Of a cluster of corral's own. */
  token: string
  /** Ray's own files; its sockets must have short paths. */
  temp: string
}

/** Characters that a socket's path may have (107), without those that Ray and a driver append to its folder. */
const MAX_TEMP = 36

export function rayPlaces(home: string): RayPlaces {
  const folder = join(home, 'cluster')
  const usual = join(folder, 'ray')
  const digest = createHash('sha256').update(home).digest('hex').slice(0, 10)
  const temp = usual.length <= MAX_TEMP ? usual : `/tmp/corral-ray-${process.getuid?.() ?? 0}-${digest}`
  return { folder, record: join(folder, 'ray.json'), token: join(folder, 'token'), temp }
}

/** Makes the folders. @throws Error where somebody else has made that of Ray's files */
export async function makePlaces({ folder, temp }: RayPlaces): Promise<void> {
  for (const path of [folder, temp]) await mkdir(path, { recursive: true, mode: 0o700 })
  const found = await lstat(temp)
  if (!found.isDirectory() || found.uid !== process.getuid?.()) {
    throw new Error(`${temp} belongs to somebody else. Remove it, or choose a data directory with a shorter path.`)
  }
  await chmod(temp, 0o700)
}

/** The cluster of this data directory; undefined where there is none. @throws Error where the file cannot be used */
export async function readRecord({ record }: RayPlaces): Promise<RayRecord | undefined> {
  const read = await readJsonFile(record, RecordSchema)
  if (read?.fault === undefined) return read?.value
  throw new Error(`${record} cannot be used: ${read.fault}. Delete it and run "corral cluster up" again.`)
}

export async function writeRecord({ record }: RayPlaces, value: RayRecord): Promise<void> {
  await writeJsonFile(record, value, { mode: 0o600, pretty: true })
}

export async function removeRecord({ record }: RayPlaces): Promise<void> {
  await rm(record, { force: true })
}

/** Makes the token of a cluster of corral's own, where there is none yet. */
export async function ensureToken({ token }: RayPlaces): Promise<void> {
  const text = `${randomBytes(32).toString('hex')}\n`
  await writeFile(token, text, { mode: 0o600, flag: 'wx' }).catch(error => {
    if (error.code !== 'EEXIST') throw error
  })
}

/**
 * The file with the token of a cluster: the one that is named, that of the environment, that of a cluster of corral's own,
 * or the one in the home directory, where Ray itself looks. Undefined where there is none, or the environment has the token
 * itself.
 */
export function findToken(places: RayPlaces, named: string, env: NodeJS.ProcessEnv): string | undefined {
  if (named !== '') return named
  if (env.RAY_AUTH_TOKEN || env.RAY_AUTH_TOKEN_PATH) return env.RAY_AUTH_TOKEN ? undefined : env.RAY_AUTH_TOKEN_PATH
  return [places.token, join(homedir(), '.ray', 'auth_token')].find(path => existsSync(path))
}

/** How this corral is started, as for members that have it at the same place. */
export const ownCommand = (): string[] => [process.execPath, join(packageRoot, 'scripts', 'corral.mjs')]

/** What a member takes over of the environment that its node is started in. */
const TAKEN_OVER = /^(CORRAL_(MODELS|LLAMA_CPP|LOG_LEVEL|CONFIG)|HF_\w+)$/

/** What tells a node's supervisor of how its corral is to be started there. */
export function memberVariable(home: string, env: NodeJS.ProcessEnv): Record<string, string> {
  const environment = Object.fromEntries(Object.entries(env).filter(([name]) => TAKEN_OVER.test(name)))
  return { CORRAL_CLUSTER_MEMBER: JSON.stringify({ home, command: ownCommand(), environment }) }
}

/** What names this front to the cluster: the same after a restart. */
export function frontName(home: string): string {
  return `${hostname()}-${createHash('sha256').update(home).digest('hex').slice(0, 10)}`
}

/** What `head` of the program is told, to start a head or to leave it running. */
export function headOptions(places: RayPlaces, { address }: RayRecord): object {
  return { address, temp: places.temp, folder: places.folder, name: hostname() }
}

/** What `up` of the program is told. */
export function upOptions(places: RayPlaces, { address, members }: RayRecord): object {
  return { address, temp: `${places.temp}-driver`, ...members }
}
