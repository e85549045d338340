import { createHash } from 'node:crypto'
import { realpath } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { Type } from 'typebox'
import { isSystemError } from '../errors.ts'
import { foreignWriter } from '../system/file-writers.ts'
import { readJsonFile, writeJsonFile } from '../system/json-file.ts'
import { packageRoot } from '../system/package-info.ts'
import { ConfigError, type ConfigProblem } from './config-error.ts'
import { type ConfigFile, type ConfigPlaces, isNamed } from './config-file.ts'

/** Configuration files that the user trusts: the digests of their contents by path. */
const TrustSchema = Type.Object({ version: Type.Literal(1), files: Type.Record(Type.String(), Type.String()) })

const trustPath = (home: string) => join(home, 'trusted-configs.json')
const digestOf = (bytes: Buffer | string) => createHash('sha256').update(bytes).digest('hex')

/** The file has settings that need trust, and the user has not trusted it. */
export class UntrustedConfig extends ConfigError {
  readonly path: string
  readonly bytes: Buffer
  /** The data directory, which contains the list of trusted files. */
  readonly home: string

  constructor(
    { path, shownAs, bytes }: ConfigFile,
    settings: readonly ConfigProblem[],
    home: string,
    hasChanged: boolean
  ) {
    const problems = explained(settings, 'is accepted only in a file that you trust (corral config trust).')
    const why = hasChanged
      ? 'has changed since you trusted it'
      : 'is in the working directory, and you have not trusted it'
    super(problems, {
      title: `${shownAs} ${why}. These settings can run programs, admit callers or send data elsewhere:`,
      hint: `Read ${path}. If you trust it, run "corral config trust" in ${dirname(path)}, or name the file with --config.`
    })
    this.path = path
    this.bytes = bytes
    this.home = home
  }
}

/**
 * Explains why a file's settings that need trust are not accepted. Undefined if they are. A file is trusted if only the
 * user and administrators can write it and one of these is true: it was named explicitly, it is in the data directory
 * or in corral's own checkout, or its current content was trusted.
 * @param problems the settings in question
 */
export async function distrust(
  file: ConfigFile,
  places: ConfigPlaces,
  home: string,
  problems: readonly ConfigProblem[]
): Promise<ConfigError | undefined> {
  const { path, shownAs, bytes } = file
  const writer = await foreignWriter(path)
  if (writer) {
    return new ConfigError(explained(problems, 'is not accepted, because others can change the file.'), {
      title: `${shownAs} can be changed by others: ${writer.who} can write ${writer.path}.`,
      hint: `Run "${writer.remedy}" if you trust what is in ${path} now, or move the file to a folder that only you can write.`
    })
  }
  const own = [home, packageRoot].map(folder => join(folder, 'config.yaml'))
  const real = await realPath(path)
  // The text to be written is based on a file that was trusted a moment ago.
  if (isNamed(places) || places.text !== undefined || own.includes(path)) return undefined
  if ((await Promise.all(own.map(realPath))).includes(real)) return undefined
  const known = (await trustedFiles(home))[real]
  return known === digestOf(bytes) ? undefined : new UntrustedConfig(file, problems, home, known !== undefined)
}

const explained = (settings: readonly ConfigProblem[], why: string) =>
  settings.map(problem => ({ ...problem, message: `${problem.setting} ${why}` }))

/** The trusted files, with the SHA-256 of their trusted contents. @throws Error if the list cannot be read */
export async function trustedFiles(home: string): Promise<Record<string, string>> {
  const read = await readJsonFile(trustPath(home), TrustSchema)
  if (read?.fault !== undefined)
    throw new Error(`${trustPath(home)} cannot be used: ${read.fault}. Delete it, and trust the files again.`)
  return read?.value.files ?? {}
}

/** Trusts a file as long as it contains these bytes. Without bytes, the file is no longer trusted. */
export async function setTrust(home: string, path: string, bytes: Buffer | string | undefined): Promise<void> {
  const { [await realPath(path)]: _, ...others } = await trustedFiles(home)
  const files = bytes === undefined ? others : { ...others, [await realPath(path)]: digestOf(bytes) }
  await writeJsonFile(trustPath(home), { version: 1, files }, { mode: 0o600, pretty: true })
}

/** Keeps a file trusted that corral itself has changed for its user. */
export async function renewTrust(home: string, path: string, before: string, after: string): Promise<void> {
  const known = (await trustedFiles(home))[await realPath(path)]
  if (known === digestOf(before)) await setTrust(home, path, after)
}

/** Resolves links in the path. Returns the path unchanged if nothing is there. */
async function realPath(path: string): Promise<string> {
  try {
    return await realpath(path)
  } catch (error) {
    if (isSystemError(error, 'ENOENT', 'ENOTDIR', 'EACCES')) return path
    throw error
  }
}
