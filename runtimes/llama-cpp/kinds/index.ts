import type { RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import { cpu } from './cpu.ts'
import { cuda12, cuda13 } from './cuda.ts'
import { metal } from './metal.ts'
import { rocm } from './rocm.ts'
import { sycl } from './sycl.ts'
import { vulkan } from './vulkan.ts'

/** The built-in kinds of builds. If two have the same score, the earlier one is tried first. */
export const builtInKinds: RuntimeDescriptor[] = [metal, cuda13, cuda12, rocm, sycl, vulkan, cpu]

/** Leaves the choice of GPUs to the user if the environment has any of the kind's variables. Pure. */
export function respectingEnvironment(kind: RuntimeDescriptor, env: NodeJS.ProcessEnv): RuntimeDescriptor {
  const { environment } = kind
  if (!environment) return kind
  return {
    ...kind,
    environment(hardware) {
      const variables = environment(hardware)
      return Object.keys(variables).some(name => env[name] !== undefined) ? {} : variables
    }
  }
}
