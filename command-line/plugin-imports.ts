import { existsSync } from 'node:fs'
import { register } from 'node:module'

/** The `corral/plugin` entry of the running corral: beside this file in a bundle. */
function pluginEntry(): string {
  const bundled = new URL('./plugin.js', import.meta.url)
  return (existsSync(bundled) ? bundled : new URL('../core/plugins/public-api.js', import.meta.url)).href
}

/**
 * A plugin beside `config.yaml` finds no `corral` package in its own folders, or the wrong one. This resolves
 * `corral/plugin` to the corral that loads it, so that both share classes such as CorralError.
 */
const HOOK = `
const answer = ${JSON.stringify({ url: pluginEntry(), format: 'module', shortCircuit: true })}
export const resolve = (specifier, context, next) => specifier === 'corral/plugin' ? answer : next(specifier, context)
`

let registered = false

/**
 * Lets plugins import `corral/plugin` wherever they are installed. Starts a thread, so call it only if there are
 * plugins.
 */
export function letPluginsImportCorral(): void {
  if (registered) return
  registered = true
  register(`data:text/javascript,${encodeURIComponent(HOOK)}`)
}
