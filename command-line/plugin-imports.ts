import { existsSync } from 'node:fs'
import { register } from 'node:module'

/** `corral/plugin` of the corral that runs: beside this file where all of it is a bundle. */
function pluginEntry(): string {
  const bundled = new URL('./plugin.js', import.meta.url)
  return (existsSync(bundled) ? bundled : new URL('../core/plugins/public-api.js', import.meta.url)).href
}

/**
 * A plugin that is installed beside `config.yaml` finds no package `corral` in its own folders, or another one. This gives
 * it the entry `corral/plugin` of the corral that loads it, so that classes such as CorralError are the same ones too.
 */
const HOOK = `
const answer = ${JSON.stringify({ url: pluginEntry(), format: 'module', shortCircuit: true })}
export const resolve = (specifier, context, next) => specifier === 'corral/plugin' ? answer : next(specifier, context)
`

let registered = false

/** Lets plugins import `corral/plugin` wherever they are installed. Starts a thread, so only where there are plugins. */
export function letPluginsImportCorral(): void {
  if (registered) return
  registered = true
  register(`data:text/javascript,${encodeURIComponent(HOOK)}`)
}
