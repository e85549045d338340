import { AsyncLocalStorage } from 'node:async_hooks'
import { dirname, sep } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { FoundPlugin } from './plugin.ts'

type Runner = Pick<FoundPlugin, 'name' | 'path' | 'optional'>

const running = new AsyncLocalStorage<Runner>()
const outside = new Set<Runner>()

/**
 * Runs code of a plugin, so that `pluginAtFault` knows it by everything that the code starts. Plugins that come with
 * corral are run as they are: the context costs time at each promise of the whole process.
 */
export function runAs<Result>(plugin: Runner, work: () => Result): Result {
  if (plugin.path === undefined) return work()
  outside.add(plugin)
  return running.run(plugin, work)
}

/** Functions of a plugin, each of which runs as the plugin. */
export function runningAs<Functions extends object>(plugin: Runner, functions: Functions): Functions {
  if (plugin.path === undefined) return functions
  const wrapped = Object.entries(functions).map(([name, call]) => [
    name,
    call && ((...values: unknown[]) => runAs(plugin, () => call.apply(functions, values)))
  ])
  return Object.fromEntries(wrapped)
}

/**
 * The outside plugin that has thrown an error, or whose code runs now: the plugin whose file is first in the stack, else
 * the plugin that started what runs. Undefined if it is corral itself.
 * @param error what was thrown; if absent, the calls that are running count
 */
export function pluginAtFault(error?: unknown): Runner | undefined {
  return (
    pluginInStack(error instanceof Error ? (error.stack ?? '') : error === undefined ? currentStack() : '') ??
    running.getStore()
  )
}

function currentStack(): string {
  const { stackTraceLimit } = Error
  Error.stackTraceLimit = 200
  const { stack = '' } = new Error('where')
  Error.stackTraceLimit = stackTraceLimit
  return stack
}

function pluginInStack(stack: string): Runner | undefined {
  for (const [, url] of stack.matchAll(/\(?(file:\/\/[^\s)]+|\/[^\s:)]+)(?::\d+){2}\)?$/gm)) {
    const path = url!.startsWith('file:') ? fileURLToPath(url!.replace(/(?::\d+){2}$/, '')) : url!
    const found = [...outside].find(plugin => plugin.path === path) ?? ownerOf(path)
    if (found) return found
  }
  return undefined
}

/** The plugin whose folder a file is in, unless several share the folder. */
function ownerOf(path: string): Runner | undefined {
  const folders = [...outside].map(plugin => ({ plugin, folder: dirname(plugin.path!) + sep }))
  const holding = folders
    .filter(({ folder }) => path.startsWith(folder))
    .sort((a, b) => b.folder.length - a.folder.length)
  return holding[0]?.folder === holding[1]?.folder ? undefined : holding[0]?.plugin
}
