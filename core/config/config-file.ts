import { access, constants, readFile, stat } from 'node:fs/promises'
import { homedir } from 'node:os'
import { isAbsolute, join, relative, resolve } from 'node:path'
import { errorMessage, isSystemError } from '../errors.ts'
import { ConfigError } from './config-error.ts'
import type { ConfigFlags } from './overrides.ts'

export interface ConfigPlaces {
  flags: ConfigFlags
  env: NodeJS.ProcessEnv
  cwd: string
  /** Whether to ignore a config.yaml in the working directory, as commands do that only talk to a server. */
  ignoresFolder?: boolean
  /** Absolute path of the file that was found before: it is read again without a search. */
  file?: string | undefined
  /** Text to use instead of the file's content. The file need not exist. */
  text?: string | undefined
}

export interface ConfigFile {
  path: string
  /** The file's name in messages: relative to the working directory if it is inside. */
  shownAs: string
  bytes: Buffer
  /** The place that it was found in, if the user did not name it. */
  foundIn: string | undefined
}

/** Makes a path absolute: `~/` is the user's home, and a relative path starts at `base`. An empty path stays empty. */
export function expandPath(text: string, base: string): string {
  if (text === '') return ''
  return text === '~' || /^~[/\\]/.test(text) ? join(homedir(), text.slice(1)) : resolve(base, text)
}

export const isNamed = ({ flags, env }: ConfigPlaces) =>
  flags.config !== undefined || Boolean(env.CORRAL_CONFIG?.trim())

/** `--config`, otherwise CORRAL_CONFIG, otherwise config.yaml in the working directory or the data directory. */
export async function findFile(places: ConfigPlaces, home: string): Promise<ConfigFile | undefined> {
  const { flags, env, cwd, file: known, text } = places
  const named = known === undefined ? (flags.config ?? (env.CORRAL_CONFIG?.trim() || undefined)) : undefined
  const given = known ?? (named === undefined ? undefined : expandPath(named, cwd))
  const usual = [
    ...(places.ignoresFolder ? [] : [{ path: join(cwd, 'config.yaml'), foundIn: 'the working directory' }]),
    { path: join(home, 'config.yaml'), foundIn: 'the data directory' }
  ]
  const candidates = given === undefined ? usual : [{ path: given, foundIn: undefined }]
  for (const { path, foundIn } of candidates) {
    const inside = relative(cwd, path)
    const shownAs = inside.startsWith('..') || isAbsolute(inside) ? path : inside
    if (known !== undefined && text !== undefined) return { path, shownAs, bytes: Buffer.from(text), foundIn }
    try {
      // A second read of a pipe would wait forever.
      if (known !== undefined && (await stat(path)).isFIFO())
        throw new Error('it is a pipe, which can be read only once')
      return { path, shownAs, bytes: await readFile(path), foundIn }
    } catch (error) {
      const isMissing = isSystemError(error, 'ENOENT', 'ENOTDIR')
      if (isMissing && foundIn !== undefined) continue
      // Other code reports that the data directory belongs to another user.
      if (isSystemError(error, 'EACCES') && foundIn === 'the data directory') {
        const refusal: unknown = await access(home, constants.X_OK).catch(error => error)
        if (refusal) continue
      }
      const where = named === undefined ? shownAs : flags.config === undefined ? 'env CORRAL_CONFIG' : 'flag --config'
      const other = isSystemError(error, 'EISDIR') ? 'it is a folder' : errorMessage(error)
      const why = isMissing ? 'it does not exist' : other
      const message = `The configuration file ${path || '""'} cannot be read: ${why}.`
      throw new ConfigError([{ where, file: path, message }])
    }
  }
  return undefined
}

/** The data directory, which only a flag or the environment can set, and where it was set. */
export function findHome({ flags, env, cwd }: ConfigPlaces): { home: string | undefined; origin: string } {
  if (flags.home === '') {
    throw new ConfigError([{ where: 'flag --home', setting: 'home', message: 'home must be a path; got "".' }])
  }
  if (flags.home !== undefined) return { home: expandPath(flags.home, cwd), origin: 'flag --home' }
  const variable = env.CORRAL_HOME?.trim()
  if (!variable) return { home: undefined, origin: 'default' }
  return { home: expandPath(variable, cwd), origin: 'env CORRAL_HOME' }
}
