import type { Gpu, Hardware, HardwareProblem } from '../../../core/contracts/hardware.ts'
import { ACCESS_ADVICE, amdSmi, kfdTopology, rocminfo, rocmSmi } from './amd.ts'
import { appleCpu, systemProfiler } from './apple.ts'
import { syclLs, xpuSmi } from './intel.ts'
import { cLibrary, libraries } from './libraries.ts'
import { deviceNodes, drmCards, lspci, pciDevices, windowsAdapters } from './listed-cards.ts'
import { machineMemory } from './main-memory.ts'
import { mergeGpus, type Source } from './merge-gpus.ts'
import { nvidiaDriver, nvidiaSmi } from './nvidia.ts'
import { defined, type Findings, type Machine, type Probe, runProbe, type Sighting } from './probe.ts'
import { linuxCpu, ownProcessor } from './processor.ts'
import { vulkanDriverFiles, vulkaninfo } from './vulkan-drivers.ts'

/** All probes. GPU probes are ordered from the most to the least reliable. */
export const PROBES: readonly Probe[] = [
  [linuxCpu, appleCpu, machineMemory, libraries, cLibrary, deviceNodes, nvidiaSmi, nvidiaDriver, drmCards],
  [kfdTopology, rocminfo, rocmSmi, amdSmi, xpuSmi, syclLs, systemProfiler],
  [vulkaninfo, vulkanDriverFiles, pciDevices, lspci, windowsAdapters]
].flat()

type ProbeResult = Awaited<ReturnType<typeof runProbe>>

/** Runs all probes at the same time, each for at most `limit` milliseconds, and merges their results. Never rejects. */
export async function findHardware(machine: Machine, limit: number): Promise<Hardware> {
  const probes = PROBES.filter(({ platforms }) => platforms?.includes(machine.platform) ?? true)
  const results = await Promise.all(probes.map(probe => runProbe(probe, machine, limit)))
  // Node.js is the last resort for information about the processor.
  const own: ProbeResult = { report: { probe: 'node', outcome: 'ok', duration: 0 }, findings: ownProcessor(machine) }
  const hardware = assembleHardware(machine, [...results, own])
  return { ...hardware, probes: results.map(({ report }) => report) }
}

/** Programs that list only GPUs they could open, unlike files, which list every GPU. */
const OPENED_BY = ['rocminfo', 'vulkaninfo', 'xpu-smi', 'sycl-ls']

/** Returns the problem that nvidia-smi reports if the driver does not work. */
function brokenDriver(results: readonly ProbeResult[]): HardwareProblem | undefined {
  const smi = results.find(({ report }) => report.probe === 'nvidia-smi')
  if (!smi || smi.findings.gpus?.length) return undefined
  return smi.findings.problems?.find(({ code }) => code !== 'partitioned')
}

/** Collects the GPUs that each source saw, corrected by what other sources know. */
function collectSources(results: readonly ProbeResult[]): Source[] {
  const broken = brokenDriver(results)
  const noAccess = results.some(({ findings }) => findings.noDeviceAccess === true)
  const sources = results.map(({ report, findings }) =>
    (findings.gpus ?? []).map((gpu): Sighting => {
      const { api, ...rest } = gpu
      // The kernel's files only show that a driver is loaded. nvidia-smi knows whether it works.
      if (broken && gpu.vendor === 'nvidia' && report.probe === 'nvidia-driver') return { ...rest, usable: false }
      const bySystem = gpu.vendor === 'amd' || gpu.vendor === 'intel'
      if (noAccess && bySystem && !OPENED_BY.includes(report.probe)) return { ...rest, usable: false }
      return gpu
    })
  )
  const seen = sources.flat().some(({ vendor }) => vendor === 'nvidia')
  // The driver is loaded only if there is a card, but its model is unknown.
  if (broken?.code === 'driver_mismatch' && !seen) sources.push([{ vendor: 'nvidia', usable: false }])
  return sources
}

/** Describes a GPU without a working driver when no probe reported a reason. */
function unservedProblem(gpu: Gpu, noAccess: boolean): HardwareProblem {
  if (noAccess && (gpu.vendor === 'amd' || gpu.vendor === 'intel')) {
    return {
      code: 'no_permission',
      subject: gpu.name,
      message: `This user has no permission to open the device of ${gpu.name} in /dev/dri.`,
      advice: ACCESS_ADVICE
    }
  }
  const bound = gpu.driver?.name
  const message = `${gpu.name} is present, but ${bound === undefined ? 'has no working driver' : `its driver is ${bound}`}.`
  const advice: Partial<Record<Gpu['vendor'], string>> = {
    nvidia:
      'Install NVIDIA\'s own driver: "sudo ubuntu-drivers install" on Ubuntu, your distribution\'s package elsewhere, or ' +
      'https://www.nvidia.com/drivers; then restart the machine.',
    amd: 'Load the driver with "sudo modprobe amdgpu"; if it fails, "sudo dmesg | grep -i amdgpu" shows why.',
    intel: 'Load the driver with "sudo modprobe xe" (older cards: i915); new cards may need a newer kernel.'
  }
  return defined({ code: 'driver_not_loaded' as const, subject: gpu.name, message, advice: advice[gpu.vendor] })
}

function listProblems(results: readonly ProbeResult[], gpus: readonly Gpu[], platform: string): HardwareProblem[] {
  const reported = results.flatMap(({ findings }) => findings.problems ?? [])
  const noAccess = results.some(({ findings }) => findings.noDeviceAccess === true)
  const unserved = gpus.filter(gpu => {
    if (gpu.usable) return false
    const explained = reported.some(
      ({ subject }) => subject === gpu.id || (gpu.vendor === 'nvidia' && subject === 'NVIDIA driver')
    )
    return !explained && platform !== 'darwin'
  })
  return [...reported, ...unserved.map(gpu => unservedProblem(gpu, noAccess)), ...results.flatMap(probeProblem)]
}

/** Reports a probe that hangs, and a failing nvidia-smi. Other failures are not worth a warning. */
function probeProblem({ report: { probe, outcome, detail = '' }, findings }: ProbeResult): HardwareProblem[] {
  if (outcome === 'timed_out') {
    const message = `${probe} did not answer in time; its information about this machine is missing.`
    const advice =
      'Run it by hand: if it hangs there too, so does its driver, and the machine must be restarted; if it is only ' +
      'slow, give it more time with "probe_timeout" under "hardware" in config.yaml.'
    return [{ code: 'probe_failed', subject: probe, message, advice }]
  }
  if (probe !== 'nvidia-smi' || outcome === 'ok' || outcome === 'absent' || findings.problems?.length) return []
  const message = `nvidia-smi failed: ${detail}`
  return [{ code: 'probe_failed', subject: probe, message, advice: 'Run it by hand.' }]
}

/** Without vulkaninfo, assumes that an installed Vulkan driver supports the GPUs of its vendor. */
function withVulkan(gpus: readonly Gpu[], results: readonly ProbeResult[]): Gpu[] {
  if (results.some(({ report }) => report.probe === 'vulkaninfo' && report.outcome === 'ok')) return [...gpus]
  const vendors = results.flatMap(({ findings }) => findings.vulkanDrivers ?? [])
  return gpus.map(gpu =>
    gpu.usable && vendors.includes(gpu.vendor) && !gpu.apis.includes('vulkan')
      ? { ...gpu, apis: [...gpu.apis, 'vulkan' as const] }
      : gpu
  )
}

export function assembleHardware(
  machine: Pick<Machine, 'platform' | 'arch' | 'root'>,
  results: readonly ProbeResult[]
): Hardware {
  const first = <Key extends keyof Findings>(key: Key): Findings[Key] =>
    results.map(({ findings }) => findings[key]).find(value => value !== undefined)
  const cpu = first('cpu')
  const memory = { total: 0, available: 0, ...first('memory') }
  const gpus = withVulkan(mergeGpus(collectSources(results), memory), results)
  const glibc = first('glibc')
  // In a recording of a Mac, nothing else shows that the processor is made by Intel.
  const intelCpu =
    /intel/i.test(cpu?.model ?? '') || (gpus.length > 0 && gpus.every(({ vendor }) => vendor !== 'apple'))
  const intelMac = machine.platform === 'darwin' && machine.root !== '' && intelCpu
  return {
    platform: machine.platform,
    arch: intelMac ? 'x64' : machine.arch,
    ...(glibc === undefined ? {} : { glibc }),
    cpu: { model: 'unknown', threads: 1, features: [], ...cpu },
    memory,
    gpus,
    libraries: first('libraries') ?? [],
    problems: listProblems(results, gpus, machine.platform),
    probes: results.map(({ report }) => report)
  }
}
