import { CorralError } from '../errors.ts'
import { formatDuration } from '../system/duration.ts'

type Step = 'setup' | 'register' | 'start'
export type PluginErrorCode =
  | `plugin_${'name_invalid' | 'duplicate' | 'api_unsupported' | 'options_invalid' | 'cycle' | 'timeout'}`
  | `plugin_${'service_missing' | 'service_conflict' | 'service_undeclared' | 'offer_mismatch' | `${Step}_failed`}`

/** A plugin that cannot be used, with a stable code and a sentence that says why and what to do. */
export class PluginError extends Error {
  override readonly name = 'PluginError'
  readonly code: PluginErrorCode
  readonly plugin: string

  constructor(code: PluginErrorCode, plugin: string, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause })
    this.code = code
    this.plugin = plugin
  }
}

/** The error of a plugin's hook that failed in a request. The log says why. */
export function hookFailure(plugin: string, hook: string, cause: unknown): CorralError {
  const message = `The plugin "${plugin}" failed in its hook "${hook}". The server's log says why.`
  return new CorralError('internal', message, { cause })
}

export class DeadlineError extends Error {}

/** The error of a plugin's hook that did not end in time. @param limit milliseconds */
export function hookTimeout(plugin: string, hook: string, limit: number): CorralError {
  const took = `The plugin "${plugin}" took longer than ${formatDuration(limit)} in its hook "${hook}"`
  return new CorralError('hook_timeout', `${took} (limits.hook_timeout). Fix or remove the plugin, or raise the limit.`)
}

/** Waits for work until a deadline. @throws DeadlineError after `deadline` milliseconds */
export async function within<T>(deadline: number, work: () => T | Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const expired = new Promise<never>((_, reject) => {
    const late = () => reject(new DeadlineError(`it took longer than ${formatDuration(deadline)}`))
    // Timers beyond 2^31 ms fire immediately, so such a deadline means no deadline.
    if (deadline < 2 ** 31) timer = setTimeout(late, deadline)
  })
  try {
    return await Promise.race([(async () => work())(), expired])
  } finally {
    clearTimeout(timer)
  }
}
