import type { RuntimeDescriptor } from '../../../core/contracts/builds.ts'
import { cpu } from './cpu.ts'
import { cuda12 } from './cuda-12.ts'
import { cuda13 } from './cuda-13.ts'
import { metal } from './metal.ts'
import { rocm } from './rocm.ts'
import { sycl } from './sycl.ts'
import { vulkan } from './vulkan.ts'

/** The kinds of builds that corral knows by itself; of equal ones the earlier is tried first. */
export const builtInKinds: RuntimeDescriptor[] = [metal, cuda13, cuda12, rocm, sycl, vulkan, cpu]
