import type { RuntimeDescriptor } from '../../../core/contracts/builds.ts'

/**
 * A kind that leaves the choice of GPUs to whoever made it already: its variables are given all or not at all, since
 * some say what the numbers in others mean. Pure.
 */
export function heedingUser(kind: RuntimeDescriptor, env: NodeJS.ProcessEnv): RuntimeDescriptor {
  const { environment } = kind
  if (!environment) return kind
  return {
    ...kind,
    environment(hardware) {
      const given = environment(hardware)
      return Object.keys(given).some(name => env[name] !== undefined) ? {} : given
    }
  }
}
