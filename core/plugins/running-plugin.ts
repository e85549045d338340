import { AsyncLocalStorage } from 'node:async_hooks'
import { dirname, sep } from 'node:path'
import { fileURLToPath } from 'node:url'
import { packageRoot } from '../system/package-info.ts'
import type { FoundPlugin } from './plugin.ts'

type Runner = Pick<FoundPlugin, 'name' | 'path' | 'optional'>

const running = new AsyncLocalStorage<Runner>()
/** The latest version of each outside plugin. */
const outside = new Map<string, Runner>()

/**
 * Runs code of a plugin, so that `pluginAtFault` recognizes it in everything that the code starts. Built-in plugins run
 * without this context, because it costs time at each promise of the whole process.
 */
export function runAs<Result>(plugin: Runner, work: () => Result): Result {
  if (plugin.path === undefined) return work()
  outside.set(`${plugin.name} ${plugin.path}`, plugin)
  return running.run(plugin, work)
}

/** Wraps functions of a plugin, so that each runs as the plugin. */
export function runningAs<Functions extends object>(plugin: Runner, functions: Functions): Functions {
  if (plugin.path === undefined) return functions
  const wrapped = Object.entries(functions).map(([name, call]) => [
    name,
    call && ((...values: unknown[]) => runAs(plugin, () => call.apply(functions, values)))
  ])
  return Object.fromEntries(wrapped)
}

/**
 * The outside plugin that has thrown an error, or whose code is running: the plugin whose file is first in the stack,
 * otherwise the plugin that started the code. Undefined if it is corral itself.
 * @param error what was thrown; if absent, the current stack is used
 */
export function pluginAtFault(error?: unknown): Runner | undefined {
  const stack = error instanceof Error ? (error.stack ?? '') : error === undefined ? currentStack() : ''
  for (const { path } of framesOf(stack)) {
    const found = ownerOf(path)
    if (found) return found
  }
  return running.getStore()
}

/** The plugin whose code is running, or a file that is not corral's. Undefined if it is corral itself. */
export function culpritNow(): string | undefined {
  const plugin = pluginAtFault()
  const frame = framesOf(currentStack()).find(({ path }) =>
    // Files of corral and of the packages that it depends on are no plugin's.
    plugin?.path === undefined ? !path.startsWith(packageRoot + sep) : ownerOf(path) === plugin
  )
  const place = frame && `${frame.path}:${frame.line}`
  if (plugin) return `Plugin "${plugin.name}"${place ? ` (${place})` : ''}`
  return place && `The module ${place}`
}

function currentStack(): string {
  const { stackTraceLimit } = Error
  Error.stackTraceLimit = 200
  const { stack = '' } = new Error('where')
  Error.stackTraceLimit = stackTraceLimit
  return stack
}

/** The stack frames that are in files, innermost first. */
function framesOf(stack: string): { path: string; line: string }[] {
  const frames = stack.matchAll(/(?:\(|at (?:async )?)((?:file:\/\/\/|\/|[A-Za-z]:\\)[^\n)]*?):(\d+):\d+\)?$/gm)
  return [...frames].map(([, place, line]) => {
    return { path: place!.startsWith('file:') ? fileURLToPath(place!.split('?')[0]!) : place!, line: line! }
  })
}

/** The plugin whose folder contains a file, unless several plugins share the folder. */
function ownerOf(path: string): Runner | undefined {
  const exact = [...outside.values()].find(plugin => plugin.path === path)
  if (exact) return exact
  const folders = [...outside.values()].map(plugin => ({ plugin, folder: dirname(plugin.path!) + sep }))
  const holding = folders
    .filter(({ folder }) => path.startsWith(folder))
    .sort((a, b) => b.folder.length - a.folder.length)
  return holding[0]?.folder === holding[1]?.folder ? undefined : holding[0]?.plugin
}
