import { existsSync } from 'node:fs'
import { register } from 'node:module'
import { Worker } from 'node:worker_threads'
import { culpritNow, pluginAtFault } from '../core/plugins/running-plugin.ts'
import { shippedText } from './shipped-text.ts'

/** How long plugins may block the process until signals end it, until it is reported, and until the process is ended. */
const TICK_MS = 1000
export const BLOCKED_TICKS = { signals: 2, report: 5, end: 60 }

/** Name of the function that the watching thread calls in the blocked main thread. */
const ASK = Symbol.for('corral.blocked')
const SIGNALS = ['SIGTERM', 'SIGINT', 'SIGHUP'] as const

let report = (message: string): void => console.error(message)
let isWatching = false

/** Sends reports about plugins to `log` instead of standard error. */
export function reportPluginsBy(log: (message: string) => void): void {
  report = log
}

/**
 * Detects from another thread when a plugin blocks the process, and reports or ends it after these ticks. Blocking code
 * of corral itself is ignored.
 * @param ticks and tick (milliseconds) are for tests
 */
export function watchPlugins(ticks = BLOCKED_TICKS, tick = TICK_MS): void {
  if (isWatching) return
  isWatching = true
  const beats = new Int32Array(new SharedArrayBuffer(4))
  let handlers: (() => void) | undefined
  Object.assign(globalThis, {
    [ASK](stage: keyof typeof BLOCKED_TICKS) {
      const culprit = culpritNow()
      if (culprit === undefined) return false
      handlers ??= withoutHandlers()
      if (stage === 'report')
        report(`${culprit} blocks the server, so no requests are answered. SIGTERM ends the server immediately.`)
      if (stage === 'end') report(`${culprit} still blocks the server, so the server is stopped.`)
      return true
    }
  })
  const beat = () => {
    Atomics.add(beats, 0, 1)
    handlers?.()
    handlers = undefined
  }
  setInterval(beat, tick).unref()
  const workerData = { beats, tick, ticks }
  new Worker(shippedText('plugin-watcher.cjs'), { eval: true, execArgv: [], workerData }).unref()
}

/** Restores the default effect of signals. @returns a function that restores the handlers */
function withoutHandlers(): () => void {
  const handled = SIGNALS.map(signal => [signal, process.rawListeners(signal)] as const)
  for (const signal of SIGNALS) process.removeAllListeners(signal)
  return () => {
    for (const [signal, listeners] of handled) {
      for (const listener of listeners) process.on(signal, listener as NodeJS.SignalsListener)
    }
  }
}

const reported = new Set<string>()

/** Reports an uncaught error if a plugin caused it. @returns whether the server can continue */
export function survivesFault(error: unknown): boolean {
  const plugin = pluginAtFault(error)
  if (!plugin) return false
  const why = error instanceof Error ? (error.stack ?? error.message) : String(error)
  const outcome = plugin.optional ? 'The server continues, because the plugin is optional' : 'The server stops'
  const message = `Plugin "${plugin.name}" threw an uncaught error. ${outcome}. ${why}`
  // An error in a repeating timer would fill the log.
  if (!reported.has(message) && reported.size < 1000) report(message)
  reported.add(message)
  return plugin.optional === true
}

/** Reports the plugin that called `process.exit`, if any. Call this in an "exit" handler. */
export function reportExit(code: number): void {
  const plugin = pluginAtFault()
  if (!plugin) return
  report(`Plugin "${plugin.name}" ended the server with process.exit(${code}).`)
  process.exitCode = code === 0 ? 1 : code
}

/** The `corral/plugin` entry of the running corral: beside this file in a bundle. */
function pluginEntry(): string {
  const bundled = new URL('./plugin.js', import.meta.url)
  return (existsSync(bundled) ? bundled : new URL('../core/plugins/public-api.js', import.meta.url)).href
}

/**
 * A plugin beside `config.yaml` finds no `corral` package in its own folders, or the wrong one. This resolves
 * `corral/plugin` to the corral that loads it, so that both share classes such as CorralError. A plugin that is loaded
 * again after a change has a version in its address, which the modules beside it inherit.
 */
const HOOK = `
const answer = ${JSON.stringify({ url: pluginEntry(), format: 'module', shortCircuit: true })}
export async function resolve(specifier, context, next) {
  if (specifier === 'corral/plugin') return answer
  const found = await next(specifier, context)
  const [version] = specifier.startsWith('.') && /[?]corral=[0-9a-f]+$/.exec(context.parentURL) || ['']
  return { ...found, url: found.url + version }
}
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
