import { amdSmi } from './amd/amd-smi.ts'
import { kfdTopology } from './amd/kfd-topology.ts'
import { rocmSmi } from './amd/rocm-smi.ts'
import { rocminfo } from './amd/rocminfo.ts'
import { systemProfiler } from './apple/system-profiler.ts'
import { deviceNodes } from './device-nodes.ts'
import { syclLs } from './intel/sycl-ls.ts'
import { xpuSmi } from './intel/xpu-smi.ts'
import { cLibrary } from './libraries/c-library.ts'
import { libraries } from './libraries/libraries.ts'
import { machineMemory } from './memory/machine-memory.ts'
import { nvidiaDriver } from './nvidia/proc-driver.ts'
import { nvidiaSmi } from './nvidia/smi.ts'
import { lspci } from './pci/lspci.ts'
import { drmCards, pciDevices } from './pci/sysfs-cards.ts'
import { windowsAdapters } from './pci/windows-adapters.ts'
import type { Probe } from './probe.ts'
import { appleCpu, linuxCpu } from './processor/processor.ts'
import { vulkanDriverFiles } from './vulkan/driver-files.ts'
import { vulkaninfo } from './vulkan/vulkaninfo.ts'

/** All sources; of those that tell of GPUs, the ones that know best come first. */
export const PROBES: readonly Probe[] = [
  linuxCpu,
  appleCpu,
  machineMemory,
  libraries,
  cLibrary,
  deviceNodes,
  nvidiaSmi,
  nvidiaDriver,
  drmCards,
  kfdTopology,
  rocminfo,
  rocmSmi,
  amdSmi,
  xpuSmi,
  syclLs,
  systemProfiler,
  vulkaninfo,
  vulkanDriverFiles,
  pciDevices,
  lspci,
  windowsAdapters
]
