import { createHash, randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { chmod, lstat, mkdir, rm, writeFile } from 'node:fs/promises'
import { homedir, hostname } from 'node:os'
import { join } from 'node:path'
import { type Static, Type } from 'typebox'
import { readJsonFile, writeJsonFile } from '../../../core/system/json-file.ts'
import { packageRoot } from '../../../core/system/package-info.ts'

/** Settings for starting a node. Its machine can override them. */
const MemberSchema = Type.Object({
  port: Type.Integer(),
  /** Its data directory on its machine. By default the one of the user who runs Ray there. */
  home: Type.Optional(Type.String()),
  command: Type.Array(Type.String())
})
export type MemberSettings = Static<typeof MemberSchema>

const RecordSchema = Type.Object({
  version: Type.Literal(1),
  /** Address of Ray's head, such as `10.0.0.5:6379`. */
  address: Type.String(),
  /** Whether corral started the head on this machine. If so, the server of this data directory keeps it alive. */
  own: Type.Boolean(),
  member: Type.Optional(Type.String()),
  members: MemberSchema
})
/** The cluster that `corral cluster up` has started or found. */
export type RayRecord = Static<typeof RecordSchema>

export type RayPlaces = ReturnType<typeof rayPlaces>

/** Maximum length of a socket's path (107) without the part that Ray and a driver append. */
const MAX_TEMP_LENGTH = 36

/** Returns where Ray's files are: which cluster it is, the token that corral made, and Ray's own files (`temp`). */
export function rayPlaces(home: string) {
  const folder = join(home, 'cluster')
  const usual = join(folder, 'ray')
  const digest = createHash('sha256').update(home).digest('hex').slice(0, 10)
  const temp = usual.length <= MAX_TEMP_LENGTH ? usual : `/tmp/corral-ray-${process.getuid?.() ?? 0}-${digest}`
  return { folder, record: join(folder, 'ray.json'), token: join(folder, 'token'), temp }
}

/** Creates the folders. @throws Error if another user has created Ray's */
export async function makePlaces({ folder, temp }: RayPlaces): Promise<void> {
  for (const path of [folder, temp]) await mkdir(path, { recursive: true, mode: 0o700 })
  const found = await lstat(temp)
  if (!found.isDirectory() || found.uid !== process.getuid?.()) {
    throw new Error(`${temp} belongs to another user. Remove it, or choose a data directory with a shorter path.`)
  }
  await chmod(temp, 0o700)
}

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

/** Creates the token of a cluster that corral starts, if it does not exist. */
export async function ensureToken({ token }: RayPlaces): Promise<void> {
  const text = `${randomBytes(32).toString('hex')}\n`
  await writeFile(token, text, { mode: 0o600, flag: 'wx' }).catch(error => {
    if (error.code !== 'EEXIST') throw error
  })
}

/**
 * Returns the file with a cluster's token: the configured file, the file that the environment names, that of a cluster
 * started by corral, or the file in the home directory that Ray itself reads. Undefined if there is none, or if the
 * environment contains the token.
 */
export function findToken(places: RayPlaces, named: string, env: NodeJS.ProcessEnv): string | undefined {
  if (named !== '') return named
  if (env.RAY_AUTH_TOKEN || env.RAY_AUTH_TOKEN_PATH) return env.RAY_AUTH_TOKEN ? undefined : env.RAY_AUTH_TOKEN_PATH
  return [places.token, join(homedir(), '.ray', 'auth_token')].find(path => existsSync(path))
}

export const ownCommand = (): string[] => [process.execPath, join(packageRoot, 'scripts', 'corral.mjs')]

/** Variables that a node inherits from the environment in which Ray was started there. */
const INHERITED_VARIABLES = /^(CORRAL_(MODELS|LLAMA_CPP|LOG_LEVEL|CONFIG)|HF_\w+)$/

/** Returns the variable that tells a machine's supervisor how to start corral there. */
export function memberVariable(home: string, env: NodeJS.ProcessEnv): Record<string, string> {
  const environment = Object.fromEntries(Object.entries(env).filter(([name]) => INHERITED_VARIABLES.test(name)))
  return { CORRAL_CLUSTER_MEMBER: JSON.stringify({ home, command: ownCommand(), environment }) }
}

/** Identifies this gateway to the cluster, also after a restart. */
export const gatewayName = (home: string): string =>
  `${hostname()}-${createHash('sha256').update(home).digest('hex').slice(0, 10)}`

/** Options for the program's `head` command, which starts a head or keeps a running one. */
export function headOptions(places: RayPlaces, { address }: RayRecord): object {
  return { address, temp: places.temp, folder: places.folder, name: hostname() }
}

export function upOptions(places: RayPlaces, { address, members }: RayRecord): object {
  return { address, temp: `${places.temp}-driver`, ...members }
}
