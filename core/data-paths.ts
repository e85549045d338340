import { homedir } from 'node:os'
import { join, resolve } from 'node:path'

/** Where corral keeps what lasts. All paths are absolute. */
export interface DataPaths {
  home: string
  models: string
  runtimes: string
  cache: string
  logs: string
  /** Names the process that serves this directory. */
  ownerFile: string
}

/** The data directory's folders: `home` is CORRAL_HOME or `~/.corral`; models may lie elsewhere (CORRAL_MODELS). */
export function dataPaths(home: string | undefined, models: string | undefined): DataPaths {
  const root = resolve(home || join(homedir(), '.corral'))
  return {
    home: root,
    models: models ? resolve(models) : join(root, 'models'),
    runtimes: join(root, 'runtimes'),
    cache: join(root, 'cache'),
    logs: join(root, 'logs'),
    ownerFile: join(root, 'owner.json')
  }
}
