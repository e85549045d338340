import { register } from 'node:module'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { packageRoot } from '../core/system/package-info.ts'

/**
 * A plugin that is installed beside `config.yaml` finds no package `corral` in its own folders. This gives it the entry
 * `corral/plugin` of the corral that loads it, so that classes such as CorralError are the same ones too.
 */
const HOOK = `
const parentURL = ${JSON.stringify(pathToFileURL(join(packageRoot, 'package.json')).href)}
export const resolve = (specifier, context, next) =>
  next(specifier, specifier === 'corral/plugin' ? { ...context, parentURL } : context)
`

let registered = false

/** Lets plugins import `corral/plugin` wherever they are installed. Starts a thread, so only where there are plugins. */
export function letPluginsImportCorral(): void {
  if (registered) return
  registered = true
  register(`data:text/javascript,${encodeURIComponent(HOOK)}`)
}
