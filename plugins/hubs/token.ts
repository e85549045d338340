import { readFile } from 'node:fs/promises'
import { CorralError, isSystemError, messageOf } from '../../core/errors.ts'

/** Where a token may stand, in this order. */
export interface TokenSources {
  setting: string
  /** Environment variables. */
  variables: readonly string[]
  /** The file of the hub's own client; undefined where it is not to be used. */
  file: string | undefined
}

/**
 * The token to use, read anew each time: a login counts from then on. Undefined where there is none.
 * @throws CorralError `hub_forbidden` when there is one that cannot be read or sent
 */
export async function findToken(sources: TokenSources, env: NodeJS.ProcessEnv): Promise<string | undefined> {
  if (sources.setting) return sources.setting
  for (const variable of sources.variables) {
    const token = env[variable]?.trim()
    if (token) return checked(token, `The token in ${variable}`)
  }
  if (sources.file === undefined) return undefined
  try {
    const token = (await readFile(sources.file, 'utf8')).trim()
    return token ? checked(token, `The token in ${sources.file}`) : undefined
  } catch (error) {
    if (isSystemError(error, 'ENOENT', 'ENOTDIR')) return undefined
    if (error instanceof CorralError) throw error
    throw new CorralError(
      'hub_forbidden',
      `The token in ${sources.file} cannot be read (${messageOf(error)}). Make it readable, or set the token in config.yaml.`,
      { cause: error }
    )
  }
}

function checked(token: string, where: string): string {
  if (/^[\x21-\x7e]+$/.test(token)) return token
  throw new CorralError('hub_forbidden', `${where} holds characters that no token has. Set it anew.`)
}

/** The header that carries a token. */
export function bearer(token: string | undefined): Record<string, string> | undefined {
  return token === undefined ? undefined : { authorization: `Bearer ${token}` }
}
