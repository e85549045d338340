import { homedir } from 'node:os'
import type { FastifyRequest } from 'fastify'
import type { CorralError } from '../errors.ts'
import type { DataPaths } from '../system/data-paths.ts'

export interface ServerFolder {
  path: string
  shown: string
}

/** Folders whose paths only admins may see. A folder inside another one comes first. */
export function serverFolders({ home, models }: Pick<DataPaths, 'home' | 'models'>): ServerFolder[] {
  const folders = [
    { path: models, shown: '<models>' },
    { path: home, shown: '<data directory>' },
    { path: homedir(), shown: '~' }
  ]
  return folders.filter(({ path }) => path.length > 1).sort((a, b) => b.path.length - a.path.length)
}

/** A JSON value with these folders' paths replaced in all texts. */
export function withoutServerPaths<Value>(value: Value, folders: readonly ServerFolder[]): Value {
  if (typeof value === 'string') {
    return folders.reduce<string>((text, { path, shown }) => {
      // Most texts contain none.
      if (!text.includes(path)) return text
      const escaped = path.replace(/[^\w/]/g, '\\$&')
      return text.replace(new RegExp(`(?<![\\w.~>-])${escaped}(?![\\w-]|\\.\\w)`, 'g'), () => shown)
    }, value) as Value
  }
  if (Array.isArray(value)) return value.map(each => withoutServerPaths(each, folders)) as Value
  if (value === null || typeof value !== 'object') return value
  const fields = Object.entries(value).map(([name, each]) => [name, withoutServerPaths(each, folders)])
  return Object.fromEntries(fields) as Value
}

/** An error for the client: only admins, including users of the private socket, see paths of the server's folders. */
export function clientError(error: CorralError, { caller, server }: FastifyRequest): CorralError {
  // A request without a caller is not an admin's.
  if (caller?.role === 'admin') return error
  const { folders } = server
  return error.reworded(withoutServerPaths(error.message, folders), withoutServerPaths(error.details, folders))
}
