import { homedir } from 'node:os'
import { join, resolve } from 'node:path'

/** Where corral stores its data. All paths are absolute. */
export interface DataPaths {
  home: string
  models: string
  /** Unfinished downloads, on the same disk as the models, so that they become models without being copied. */
  downloads: string
  /** Uploaded files for new models, also on the models' disk. */
  blobs: string
  runtimes: string
  cache: string
  logs: string
  /** Names the process that owns this directory. */
  ownerFile: string
}

/** The data directory's folders: `home` is CORRAL_HOME or `~/.corral`; models may be elsewhere (CORRAL_MODELS). */
export function dataPaths(home: string | undefined, models: string | undefined): DataPaths {
  const root = resolve(home || join(homedir(), '.corral'))
  const modelsRoot = models ? resolve(models) : join(root, 'models')
  return {
    home: root,
    models: modelsRoot,
    downloads: join(modelsRoot, '.downloads'),
    blobs: join(modelsRoot, '.blobs'),
    runtimes: join(root, 'runtimes'),
    cache: join(root, 'cache'),
    logs: join(root, 'logs'),
    ownerFile: join(root, 'owner.json')
  }
}
