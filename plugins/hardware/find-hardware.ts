import type { Gpu, Hardware, HardwareProblem, ProbeReport } from '../../core/contracts/hardware.ts'
import { amdSmi, kfdTopology, rocminfo, rocmSmi } from './amd.ts'
import { systemProfiler } from './apple.ts'
import type { Findings, Sighting } from './findings.ts'
import type { Machine } from './inspected-machine.ts'
import { syclLs, xpuSmi } from './intel.ts'
import { cLibrary, libraries } from './libraries.ts'
import { machineMemory } from './main-memory.ts'
import { mergeGpus, type Source } from './merge-gpus.ts'
import { nvidiaDriver } from './nvidia-driver.ts'
import { nvidiaSmi } from './nvidia-smi.ts'
import { askProbe, type Probe } from './probe.ts'
import { appleCpu, linuxCpu, ownProcessor } from './processor.ts'
import { deviceNodes, drmCards, lspci, pciDevices, windowsAdapters } from './system-cards.ts'
import { vulkanDriverFiles, vulkaninfo } from './vulkan-drivers.ts'

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

/** What one probe told. */
export interface Answer {
  report: ProbeReport
  findings: Findings
}

/**
 * Asks all sources of a machine at once, and makes one record of what they tell. Never rejects.
 * @param limit milliseconds that each source has
 */
export async function findHardware(machine: Machine, limit: number): Promise<Hardware> {
  const asked = PROBES.filter(({ platforms }) => platforms?.includes(machine.platform) ?? true)
  const answers: Answer[] = await Promise.all(asked.map(probe => askProbe(probe, machine, limit)))
  // Where no source tells of the processor, Node knows the least.
  const own: Answer = { report: { probe: 'node', outcome: 'ok', duration: 0 }, findings: ownProcessor(machine) }
  const hardware = assembleHardware(machine, [...answers, own])
  return { ...hardware, probes: answers.map(({ report }) => report) }
}

/** Programs that have spoken to the GPUs they list, unlike files that say that there are some. */
const SPEAKING = ['rocminfo', 'vulkaninfo', 'xpu-smi', 'sycl-ls']

/** Why nvidia-smi found the driver not to work, where it did. */
function brokenDriver(answers: readonly Answer[]): HardwareProblem | undefined {
  const smi = answers.find(({ report }) => report.probe === 'nvidia-smi')
  if (!smi || smi.findings.gpus?.length) return undefined
  return smi.findings.problems?.find(({ code }) => code !== 'partitioned')
}

/** What each source saw, in view of what others know of it. */
function sourcesOf(answers: readonly Answer[]): Source[] {
  const broken = brokenDriver(answers)
  const noAccess = answers.some(({ findings }) => findings.noDeviceAccess === true)
  const sources = answers.map(({ report, findings }) =>
    (findings.gpus ?? []).map((gpu): Sighting => {
      const { api, ...rest } = gpu
      // The kernel's files say that a driver is there; its own tool, that it does not work.
      if (broken && gpu.vendor === 'nvidia' && report.probe === 'nvidia-driver') return { ...rest, usable: false }
      const bySystem = gpu.vendor === 'amd' || gpu.vendor === 'intel'
      if (noAccess && bySystem && !SPEAKING.includes(report.probe)) return { ...rest, usable: false }
      return gpu
    })
  )
  const seen = sources.flat().some(({ vendor }) => vendor === 'nvidia')
  // There is a card, or its driver would not be loaded; but nobody can tell which.
  if (broken?.code === 'driver_mismatch' && !seen) sources.push([{ vendor: 'nvidia', usable: false }])
  return sources
}

/** The problem of a GPU that no driver serves, where no probe has told why. */
function unservedProblem(gpu: Gpu, noAccess: boolean): HardwareProblem {
  if (noAccess && (gpu.vendor === 'amd' || gpu.vendor === 'intel')) {
    return {
      code: 'no_permission',
      subject: gpu.name,
      message: `${gpu.name} is here, but this user may not open its device in /dev/dri.`,
      advice:
        'Run "sudo usermod -aG render,video $USER" and log in again; in a container, start it with ' +
        '"--device /dev/dri --device /dev/kfd".'
    }
  }
  const held = gpu.driver?.name
  const message = `${gpu.name} is here, but ${held === undefined ? 'no driver serves it' : `its driver is ${held}`}.`
  const advice: Partial<Record<Gpu['vendor'], string>> = {
    nvidia:
      'Install NVIDIA\'s own driver: "sudo ubuntu-drivers install" on Ubuntu, your distribution\'s package elsewhere, or ' +
      'https://www.nvidia.com/drivers; then restart the machine.',
    amd: 'Load the driver with "sudo modprobe amdgpu"; "sudo dmesg | grep -i amdgpu" says why it does not start.',
    intel: 'Load the driver with "sudo modprobe xe" (older cards: i915); newer cards need a newer kernel.'
  }
  return {
    code: 'driver_not_loaded',
    subject: gpu.name,
    message,
    ...(advice[gpu.vendor] && { advice: advice[gpu.vendor]! })
  }
}

function problemsOf(answers: readonly Answer[], gpus: readonly Gpu[], platform: string): HardwareProblem[] {
  const told = answers.flatMap(({ findings }) => findings.problems ?? [])
  const noAccess = answers.some(({ findings }) => findings.noDeviceAccess === true)
  const unserved = gpus.filter(gpu => {
    if (gpu.usable) return false
    const known = told.some(
      ({ subject }) => subject === gpu.id || (gpu.vendor === 'nvidia' && subject === 'NVIDIA driver')
    )
    return !known && platform !== 'darwin'
  })
  return [...told, ...unserved.map(gpu => unservedProblem(gpu, noAccess)), ...answers.flatMap(probeProblem)]
}

/** A source that hangs, or NVIDIA's tool when it fails without a known reason: what it would tell may be much. */
function probeProblem({ report: { probe, outcome, detail = '' }, findings }: Answer): HardwareProblem[] {
  const subject = probe
  if (outcome === 'timed_out') {
    return [
      {
        code: 'probe_failed',
        subject,
        message: `${probe} gave no answer in time, so that what it would tell of this machine is missing.`,
        advice:
          'Run it by hand: where it hangs too, its driver does, and the machine must be restarted; where it is only slow, ' +
          'give it more time with "probe_timeout" under "hardware" in config.yaml.'
      }
    ]
  }
  const unclear = probe === 'nvidia-smi' && outcome !== 'ok' && outcome !== 'absent' && !findings.problems?.length
  return unclear
    ? [
        {
          code: 'probe_failed',
          subject,
          message: `nvidia-smi tells nothing of this machine: ${detail}`,
          advice: 'Run it by hand.'
        }
      ]
    : []
}

/** A Vulkan driver that is installed reaches the GPUs of its vendor, where vulkaninfo is not there to tell. */
function withVulkan(gpus: readonly Gpu[], answers: readonly Answer[]): Gpu[] {
  if (answers.some(({ report }) => report.probe === 'vulkaninfo' && report.outcome === 'ok')) return [...gpus]
  const vendors = answers.flatMap(({ findings }) => findings.vulkanDrivers ?? [])
  return gpus.map(gpu =>
    gpu.usable && vendors.includes(gpu.vendor) && !gpu.apis.includes('vulkan')
      ? { ...gpu, apis: [...gpu.apis, 'vulkan' as const] }
      : gpu
  )
}

/** Hardware from what all probes told. */
export function assembleHardware(
  machine: Pick<Machine, 'platform' | 'arch' | 'root'>,
  answers: readonly Answer[]
): Hardware {
  const first = <Key extends keyof Findings>(key: Key): Findings[Key] =>
    answers.map(({ findings }) => findings[key]).find(value => value !== undefined)
  const cpu = first('cpu')
  const memory = { total: 0, available: 0, ...first('memory') }
  const gpus = withVulkan(mergeGpus(sourcesOf(answers), memory), answers)
  const glibc = first('glibc')
  // A recording of a Mac with an Intel processor has no other sign of it.
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
    problems: problemsOf(answers, gpus, machine.platform),
    probes: answers.map(({ report }) => report)
  }
}
