import type { RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import { cpu } from './cpu.ts'
import { cuda12, cuda13 } from './cuda.ts'
import { metal } from './metal.ts'
import { rocm } from './rocm.ts'
import { sycl } from './sycl.ts'
import { vulkan } from './vulkan.ts'

/** The kinds of builds that corral knows by itself; of equal ones the earlier is tried first. */
export const builtInKinds: RuntimeDescriptor[] = [metal, cuda13, cuda12, rocm, sycl, vulkan, cpu]

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
