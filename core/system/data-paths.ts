import { homedir } from 'node:os'
import { join, resolve } from 'node:path'

/** Where corral keeps what lasts. All paths are absolute. */
export interface DataPaths {
  home: string
  models: string
  /** What is being downloaded; on the disk of the models, so that it becomes one without being copied. */
  downloads: string
  /** Files that clients sent for making models of; on the disk of the models too. */
  blobs: string
  runtimes: string
  cache: string
  logs: string
  /** Names the process that serves this directory. */
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
