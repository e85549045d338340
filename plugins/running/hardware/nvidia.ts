import type { HardwareProblem } from '../../../core/contracts/hardware.ts'
import { pciAddress, pciId } from './pci.ts'
import {
  defined,
  type Findings,
  getField,
  type Machine,
  optionalOutput,
  type Probe,
  ProbeFailure,
  type Sighting,
  sighting,
  toBytes
} from './probe.ts'

/*
 * NVIDIA's GPUs, from the kernel driver's files and from nvidia-smi's queries, table, version and list
 * (https://docs.nvidia.com/deploy/nvidia-smi).
 */

const MIB = 2 ** 20
const GIB = 2 ** 30

/** Fields that every card listed by NVIDIA's own tools has. */
const OF_NVIDIA = { vendor: 'nvidia', api: 'cuda', usable: true } as const

/** A GPU as nvidia-smi reports it. nvidia-smi reports no memory for GPUs that share main memory. */
export interface SmiGpu extends Sighting {
  index: number
  /** Whether the card is partitioned (multi-instance GPU). */
  mig?: boolean
  /** Degrees Celsius. */
  temperature?: number
  /** From 0 to 1. */
  utilization?: number
}

/** Values such as `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]` and `[Unknown Error]` are missing. */
const cellText = (text: string | undefined) =>
  text === undefined || text === '' || /^\[.*\]$|^N\/A$/.test(text) ? undefined : text

const mebibytes = (text: string | undefined) => toBytes(/^\d+(\.\d+)?/.exec(text ?? '')?.[0] ?? '', MIB)

/** Parses `--query-gpu=… --format=csv` by its header. Returns undefined without a header. */
export function parseSmiCsv(text: string): SmiGpu[] | undefined {
  const lines = text.split(/\r?\n/)
  const start = lines.findIndex(line => /(^|,\s*)(name|memory\.total)\b.*,/.test(line))
  if (start < 0) return undefined
  const columns = lines[start]!.split(',').map(column => column.replace(/\[.*$/, '').trim())
  const gpus: SmiGpu[] = []
  for (const line of lines.slice(start + 1)) {
    const cells = line.split(',').map(cell => cell.trim())
    // A truncated line, or a warning below the table.
    if (cells.length !== columns.length) continue
    const cell = (column: string) => cells[columns.indexOf(column)]
    const totalMemory = mebibytes(cell('memory.total'))
    const free = cell('memory.free') ?? ''
    const freeMemory = /^0( |$)/.test(free) ? 0 : mebibytes(free)
    const unified = /^\[?\s*(N\/A|Not Supported)\s*\]?$/i.test(cell('memory.total') ?? '')
    const version = cellText(cell('driver_version'))
    const mig = cell('mig.mode.current')
    const temperature = /^\d{1,3}(?= |$)/.exec(cell('temperature.gpu') ?? '')?.[0]
    const utilization = /^(\d{1,2}|100)(?= |$)/.exec(cell('utilization.gpu') ?? '')?.[0]
    gpus.push({
      index: Number(/^\d{1,3}$/.exec(cell('index') ?? '')?.[0] ?? gpus.length),
      ...sighting({
        ...OF_NVIDIA,
        name: cellText(cell('name')) ?? 'NVIDIA GPU',
        type: unified ? 'integrated' : undefined,
        unifiedMemory: unified,
        pciBus: pciAddress(cell('pci.bus_id')),
        pciId: pciId(/^0x([0-9a-f]{4})10de$/i.exec(cell('pci.device_id') ?? '')?.[1]),
        driver: version === undefined ? undefined : { version },
        totalMemory,
        freeMemory:
          totalMemory !== undefined && freeMemory !== undefined && freeMemory <= totalMemory ? freeMemory : undefined,
        architecture: /^\d{1,2}\.\d$/.exec(cell('compute_cap') ?? '')?.[0]
      }),
      ...(mig !== undefined && { mig: mig === 'Enabled' }),
      ...(temperature !== undefined && { temperature: Number(temperature) }),
      ...(utilization !== undefined && { utilization: Number(utilization) / 100 })
    })
  }
  return gpus
}

/** Parses the table that nvidia-smi prints without arguments. It truncates names and does not show free memory. */
export function parseSmiTable(text: string): SmiGpu[] {
  const gpus: SmiGpu[] = []
  let last: SmiGpu | undefined
  for (const line of text.split(/\r?\n/)) {
    const device =
      /^\|\s+(\d{1,3})\s{2,}(\S.*?)\s+(?:On|Off|N\/A|WDDM|TCC|MCDM)\s*\|\s*(\S+)\s+(?:On|Off|N\/A)\s*\|/.exec(line)
    if (device) {
      const index = Number(device[1])
      last = {
        index,
        ...sighting({ ...OF_NVIDIA, name: device[2], unifiedMemory: false, pciBus: pciAddress(device[3]) })
      }
      // The table may be printed twice.
      if (!gpus.some(gpu => gpu.index === index)) gpus.push(last)
      continue
    }
    const memory = /^\|[^|]*\|\s*(?:\d+MiB\s*\/\s*(\d+)MiB|(Not Supported|N\/A))\s*\|/.exec(line)
    if (!last || !memory) continue
    const totalMemory = mebibytes(memory[1])
    if (memory[2] !== undefined) Object.assign(last, { type: 'integrated', unifiedMemory: true })
    else if (totalMemory !== undefined) last.totalMemory = totalMemory
    // The lines below belong to other tables.
    last = undefined
  }
  return gpus
}

/**
 * Parses the versions of the driver and of CUDA from the table's banner or `--version`. Driver 610 renamed them to KMD
 * (kernel) and UMD (CUDA).
 */
export function parseSmiVersions(text: string): { version?: string; cuda?: string } {
  const version = (pattern: string) =>
    new RegExp(`\\b${pattern}\\s*:\\s*(\\d{1,4}(?:\\.\\d{1,4}){1,3})`, 'i').exec(text)?.[1]
  return defined({
    version: version('KMD version') ?? version('Driver version'),
    cuda: version('CUDA UMD version') ?? version('CUDA version')
  })
}

/**
 * Parses `nvidia-smi -L` into the sizes in GB of each GPU's MIG instances, which the names of their profiles contain.
 */
export function parseSmiList(text: string): Map<number, number[]> {
  const instances = new Map<number, number[]>()
  for (const gpu of text.split(/^GPU (?=\d{1,3}: )/m).slice(1)) {
    const sizes = [...gpu.matchAll(/^\s+MIG \S*?(\d{1,4})gb\b/gim)].map(([, size]) => Number(size))
    instances.set(Number.parseInt(gpu, 10), sizes)
  }
  return instances
}

/** The kind of system decides how a driver is repaired. */
export type SystemKind = 'linux' | 'wsl' | 'win32'

const INSTALL: Record<SystemKind, string> = {
  linux:
    'Install the driver of your distribution (Ubuntu: "sudo ubuntu-drivers install"), then load it with "sudo modprobe ' +
    'nvidia" or restart. With Secure Boot, its kernel module must be signed. Start containers with "--gpus all".',
  wsl:
    'Update the NVIDIA driver on Windows. Do not install one inside WSL, because it would hide the Windows driver. Then run ' +
    '"wsl --shutdown" on Windows and start WSL again.',
  win32: 'Install the newest driver from https://www.nvidia.com/drivers and restart the machine.'
}

/**
 * Known error messages of nvidia-smi, with their meaning and the remedy on Linux. `INSTALL` has the remedy for other
 * systems.
 */
const PROBLEMS: { pattern: RegExp; code: HardwareProblem['code']; message: string; advice: string }[] = [
  {
    pattern: /driver\/library version mismatch/i,
    code: 'driver_mismatch',
    message:
      'The loaded NVIDIA kernel driver and its libraries have different versions: the driver was updated while in use.',
    advice:
      'Restart the machine ("sudo reboot"), or unload the old driver and load the new one. Do not install driver ' +
      "libraries in a container: it uses the host's."
  },
  {
    pattern:
      /couldn't communicate with the NVIDIA driver|driver not loaded|couldn't find (the )?(libnvidia-ml|nvml)|NVML: (library )?not found|driver is not (loaded|installed)/i,
    code: 'driver_not_loaded',
    message: 'nvidia-smi is installed, but the NVIDIA driver is not loaded.',
    advice: INSTALL.linux
  },
  {
    pattern: /GPU is lost|fallen off the bus|unable to determine the device handle/i,
    code: 'no_device',
    message: 'An NVIDIA GPU no longer responds to its driver.',
    advice: 'Restart the machine; if it happens again, look for "Xid" in "sudo dmesg", and check power and cooling.'
  },
  {
    pattern: /no devices were found|no supported (GPUs|devices) were found/i,
    code: 'no_device',
    message: 'The NVIDIA driver is installed, but finds no GPU: there is none, or it is switched off or hidden.',
    advice:
      'Look for it with "lspci -d 10de:"; "sudo dmesg | grep -i nvrm" shows why the driver rejected a card. Start ' +
      'containers with "--gpus all".'
  },
  {
    pattern: /insufficient permissions|GPU access blocked|operation not permitted|NVML: Unknown Error|no permission/i,
    code: 'no_permission',
    message: 'This user has no permission to open the NVIDIA devices.',
    advice: 'Check the permissions of /dev/nvidia*. Restart a container that lost its devices, with "--gpus all".'
  }
]

/** Recognizes known problems in the output of nvidia-smi. */
export function smiProblem(text: string, where: SystemKind): HardwareProblem | undefined {
  const known = PROBLEMS.find(({ pattern }) => pattern.test(text))
  if (!known) return undefined
  const library = /NVML library version:\s*([\d.]+)/.exec(text)?.[1]
  return {
    code: known.code,
    subject: 'NVIDIA driver',
    message: known.message + (library ? ` The libraries have version ${library}.` : ''),
    advice: where === 'linux' ? known.advice : INSTALL[where]
  }
}

/**
 * Combines the output of nvidia-smi into findings.
 * @param instances sizes in GB of the instances of each GPU, or undefined if `-L` did not list them
 */
export function findingsFromSmi(
  gpus: readonly SmiGpu[],
  versions: ReturnType<typeof parseSmiVersions>,
  instances?: ReadonlyMap<number, readonly number[]>
): Findings {
  const problems: HardwareProblem[] = []
  const sightings = gpus
    .toSorted((a, b) => a.index - b.index)
    .map(({ index, mig, ...gpu }, at): Sighting => {
      const whole = { ...gpu, driver: { name: 'nvidia', ...versions, ...gpu.driver } }
      if (!mig) return whole
      const sizes = instances?.get(index)
      const problem = migProblem(gpu.name, index, sizes)
      problems.push({ code: 'partitioned', subject: `nvidia:${at}`, ...problem })
      // CUDA uses one instance only, so the free memory of the whole card is irrelevant.
      const size = sizes?.[0] === undefined ? undefined : Math.min(sizes[0] * GIB, gpu.totalMemory ?? Infinity)
      return sighting({ ...whole, usable: sizes?.length !== 0, totalMemory: size, freeMemory: undefined })
    })
  const { version, cuda } = { ...versions, ...sightings[0]?.driver }
  const detail = version === undefined ? undefined : `driver ${version}${cuda === undefined ? '' : `, CUDA ${cuda}`}`
  return { gpus: sightings, problems, ...defined({ detail }) }
}

function migProblem(name: string | undefined, index: number, sizes: readonly number[] | undefined) {
  const orOff = `or turn MIG off ("sudo nvidia-smi -i ${index} -mig 0").`
  if (sizes?.length === 0) {
    return {
      message: `${name} is in MIG mode but has no instances, so CUDA sees no device.`,
      advice: `Create instances ("sudo nvidia-smi mig -cgi 0 -C"), ${orOff}`
    }
  }
  const part = sizes === undefined ? 'one instance' : `one instance of ${sizes[0]} GB (of ${sizes.length} instances)`
  return {
    message: `${name} is partitioned (MIG): a model gets ${part}, not the whole card.`,
    advice: `Choose an instance with CUDA_VISIBLE_DEVICES=MIG-… ("nvidia-smi -L" lists them), ${orOff}`
  }
}

async function systemKind({ platform, files }: Machine): Promise<SystemKind> {
  if (platform === 'win32') return 'win32'
  const kernel = (await files.text('/proc/version')) ?? (await files.text('/proc/sys/kernel/osrelease')) ?? ''
  return /microsoft/i.test(kernel) ? 'wsl' : 'linux'
}

const BASIC = 'index,name,pci.bus_id,pci.device_id,driver_version,memory.total,memory.free'
/** Drivers before 510 reject a query with these fields. */
const NEWER = 'compute_cap,mig.mode.current'

const query = (fields: string) => [`--query-gpu=${fields}`, '--format=csv']

/** Tries queries first, and falls back to the table, which truncates names. */
export const nvidiaSmi: Probe = {
  name: 'nvidia-smi',
  platforms: ['linux', 'win32'],
  async find(machine) {
    const optional = (...args: string[]) => optionalOutput(machine, 'nvidia-smi', ...args)
    const wholeQuery = machine.run('nvidia-smi', query(`${BASIC},${NEWER}`))
    const [full, version] = await Promise.all([wholeQuery, optional('--version')])
    let texts = `${full.text}\n${version}`
    let gpus = parseSmiCsv(full.stdout) ?? []
    if (gpus.length === 0 && /not a valid field/i.test(full.text))
      gpus = parseSmiCsv(await optional(...query(BASIC))) ?? []
    let versions = parseSmiVersions(texts)
    if (gpus.length === 0 || versions.cuda === undefined) {
      const table = await optional()
      texts += `\n${table}`
      if (gpus.length === 0) gpus = parseSmiTable(texts)
      versions = { ...parseSmiVersions(table), ...versions }
    }
    const problem = smiProblem(texts, await systemKind(machine))
    const problems = problem ? [problem] : []
    if (gpus.length === 0) {
      // nvidia-smi works and reports that there is no card.
      if (problem?.code === 'no_device') return { problems, detail: problem.message }
      if (problem) throw new ProbeFailure('failed', problem.message, { problems })
      const what = full.failure ?? 'unknown output of nvidia-smi'
      throw new ProbeFailure(full.failure === undefined ? 'unreadable' : 'failed', `${what} ${full.text.trim()}`)
    }
    const list = gpus.some(gpu => gpu.mig) ? parseSmiList(await optional('-L')) : undefined
    const findings = findingsFromSmi(gpus, versions, list?.size ? list : undefined)
    return { ...findings, problems: [...(findings.problems ?? []), ...problems] }
  }
}

/** Reads the current total and free memory of the GPUs. Returns undefined if nvidia-smi does not report it. */
export async function nvidiaMemory(machine: Machine): Promise<SmiGpu[] | undefined> {
  const { stdout } = await machine.run('nvidia-smi', query('index,name,pci.bus_id,memory.total,memory.free'))
  return parseSmiCsv(stdout)
}

/** Reads the sensors of the GPUs. Returns undefined if nvidia-smi does not report them. */
export async function nvidiaSensors(machine: Machine): Promise<SmiGpu[] | undefined> {
  const { stdout } = await machine.run('nvidia-smi', query('index,name,pci.bus_id,temperature.gpu,utilization.gpu'))
  return parseSmiCsv(stdout)
}

// ---- /proc/driver/nvidia, which exists even if nvidia-smi is missing or broken

/** Parses the version of the loaded kernel driver from /proc/driver/nvidia/version. */
export function parseDriverVersion(text: string): string | undefined {
  return /Kernel Module\b.*?\s(\d{3,4}(?:\.\d{1,4}){1,2})\b/.exec(text)?.[1]
}

/** Parses /proc/driver/nvidia/gpus/<bus>/information. */
export function parseDriverCard(text: string): { name?: string; pciBus?: string } {
  const model = getField(text, 'Model')
  return defined({
    name: model === 'Unknown' ? undefined : model,
    pciBus: pciAddress(getField(text, 'Bus Location'))
  })
}

export const nvidiaDriver: Probe = {
  name: 'nvidia-driver',
  platforms: ['linux'],
  async find({ files }): Promise<Findings> {
    const text = await files.text('/proc/driver/nvidia/version')
    if (text === undefined) throw new ProbeFailure('absent', 'there is no /proc/driver/nvidia/version')
    const version = parseDriverVersion(text)
    const gpus: Sighting[] = []
    for (const bus of await files.names('/proc/driver/nvidia/gpus')) {
      const card = parseDriverCard((await files.text(`/proc/driver/nvidia/gpus/${bus}/information`)) ?? '')
      gpus.push(sighting({ ...OF_NVIDIA, pciBus: pciAddress(bus), ...card, driver: { name: 'nvidia', version } }))
    }
    if (version !== undefined) return { gpus, detail: `driver ${version}` }
    throw new ProbeFailure('unreadable', 'no version in /proc/driver/nvidia/version', { gpus })
  }
}

// ---- Compute capabilities (https://developer.nvidia.com/cuda-gpus and /cuda-legacy-gpus), for cards without a driver
// and for drivers that are too old to report them

/** Name → capability. The first match applies. */
const BY_NAME: [RegExp, string][] = [
  [/\bGB10\b|DGX Spark/i, '12.1'],
  [/\bG?B300\b/i, '10.3'],
  [/\bG?B[12]00\b/i, '10.0'],
  [/\bThor\b/i, '11.0'],
  [/\bOrin\b/i, '8.7'],
  [/\bXavier\b/i, '7.2'],
  [/RTX PRO \d+.*Blackwell|RTX 50[5-9]0/i, '12.0'],
  [/\bGH200\b|\bH[128]00\b|\bH20\b/i, '9.0'],
  [/\bL(4|20|40S?|2)\b|RTX \d{4} (SFF )?Ada|RTX 40[5-9]0/i, '8.9'],
  [/\bA(2|10[GM]?|16|40)\b|RTX A\d{4}|RTX 30[5-9]0|RTX 2050|MX570/i, '8.6'],
  [/\bA(30|100|800)\b|CMP 170HX/i, '8.0'],
  [/RTX 20[678]0|GTX 16[3-6]0|TITAN RTX|Quadro RTX|\bT(4|4G|[1-9]00|1[02]00)\b|MX450|MX550|CMP [345]0HX/i, '7.5'],
  [/TITAN V\b|\bG?V100|Quadro GV100/i, '7.0'],
  [/\bP100\b|GP100/i, '6.0'],
  [/GTX 10[1-8]0|GT 10[13]0|TITAN Xp?\b(?!.*Maxwell)|\bP(4|6|40|[1-6]0{2,3})\b|MX(1[135]0|[23][1-5]0)/i, '6.1'],
  [/GTX 9[5-8]0|TITAN X\b|\bM(4|6|40|60|[2-6]000)\b/i, '5.2'],
  [/GTX 750|GTX 745|9[34]0M|\bM10\b|Quadro K[126]20/i, '5.0'],
  [/\bK80\b/i, '3.7']
]

/** First and last PCI device id: capability, by the chips' ranges in https://pci-ids.ucw.cz. */
const BY_ID =
  '1340-13bf:5.0 13c0-1436:5.2 15f0-15ff:6.0 1617-17ff:5.2 1b00-1d56:6.1 1d81-1df6:7.0 1e02-1fff:7.5 2080-20ff:8.0 ' +
  '2182-21d1:7.5 2200-22bf:8.6 2300-23ff:9.0 2414-25ff:8.6 2681-28ff:8.9 2901-29ff:10.0 2b85-2dff:12.0 2e12-2e12:12.1 ' +
  '2f04-2f80:12.0 3182-31ff:10.3'

export function capabilityOfName(name: string): string | undefined {
  return BY_NAME.find(([pattern]) => pattern.test(name))?.[1]
}

export function capabilityOfId(id: string): string | undefined {
  const number = Number.parseInt(id, 16)
  for (const [, first, last, capability] of BY_ID.matchAll(/(\w+)-(\w+):(\S+)/g)) {
    if (number >= Number.parseInt(first!, 16) && number <= Number.parseInt(last!, 16)) return capability
  }
  return undefined
}

/** First driver of a branch: highest CUDA version that it supports (CUDA's release notes, table 3). */
const CUDA_OF_DRIVER =
  '610:13.3 595:13.2 590:13.1 580:13.0 575:12.9 570:12.8 565:12.7 560:12.6 555:12.5 550:12.4 545:12.3 535:12.2 ' +
  '530:12.1 525:12.0 520:11.8 515:11.7 510:11.6 495:11.5 470:11.4 460:11.2 450:11.0 440:10.2 418:10.1 410:10.0'

/** Returns the highest CUDA version that a driver such as `580.95.05` supports, or undefined for very old drivers. */
export function cudaFromDriver(version: string): string | undefined {
  const branch = Number.parseInt(version, 10)
  const row = CUDA_OF_DRIVER.split(' ').find(row => branch >= Number.parseInt(row, 10))
  return row?.split(':')[1]
}
