import type { HardwareProblem } from '../../../core/contracts/hardware.ts'
import FACTS from './nvidia-facts.json' with { type: 'json' }
import { isInRange, pciAddress, pciId } from './pci.ts'
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
 *
 * `nvidia-facts.json` has the messages of nvidia-smi with their remedies on Linux (`problems`), and the remedies on each
 * system (`install`). `names` and `ids` have compute capabilities (https://developer.nvidia.com/cuda-gpus,
 * /cuda-legacy-gpus and https://pci-ids.ucw.cz). The first match applies. `drivers` has the first driver of each branch
 * and the highest CUDA version that it supports (CUDA's release notes, table 3).
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

/** Parses the versions of driver and CUDA from the banner or `--version`. Driver 610 renamed them to KMD and UMD. */
export function parseSmiVersions(text: string): { version?: string; cuda?: string } {
  const version = (pattern: string) =>
    new RegExp(`\\b${pattern}\\s*:\\s*(\\d{1,4}(?:\\.\\d{1,4}){1,3})`, 'i').exec(text)?.[1]
  return defined({
    version: version('KMD version') ?? version('Driver version'),
    cuda: version('CUDA UMD version') ?? version('CUDA version')
  })
}

/** Parses `nvidia-smi -L` into the sizes in GB of each GPU's MIG instances, which are in the profiles' names. */
export function parseSmiList(text: string): Map<number, number[]> {
  const instances = new Map<number, number[]>()
  for (const gpu of text.split(/^GPU (?=\d{1,3}: )/m).slice(1)) {
    const sizes = [...gpu.matchAll(/^\s+MIG \S*?(\d{1,4})gb\b/gim)].map(([, size]) => Number(size))
    instances.set(Number.parseInt(gpu, 10), sizes)
  }
  return instances
}

/** The kind of system decides how a driver is repaired. */
export type SystemKind = keyof typeof FACTS.install

/** Recognizes known problems in the output of nvidia-smi. */
export function smiProblem(text: string, where: SystemKind): HardwareProblem | undefined {
  const known = FACTS.problems.find(({ pattern }) => new RegExp(pattern, 'i').test(text))
  if (!known) return undefined
  const library = /NVML library version:\s*([\d.]+)/.exec(text)?.[1]
  return {
    code: known.code as HardwareProblem['code'],
    subject: 'NVIDIA driver',
    message: known.message + (library ? ` The libraries have version ${library}.` : ''),
    advice: (where === 'linux' && known.advice) || FACTS.install[where]
  }
}

/** Combines the output of nvidia-smi. @param instances sizes in GB of each GPU's instances, if `-L` listed them */
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

export async function nvidiaSensors(machine: Machine): Promise<SmiGpu[] | undefined> {
  const { stdout } = await machine.run('nvidia-smi', query('index,name,pci.bus_id,temperature.gpu,utilization.gpu'))
  return parseSmiCsv(stdout)
}

// ---- /proc/driver/nvidia, which exists even if nvidia-smi is missing or broken

/** Parses the version of the loaded kernel driver from /proc/driver/nvidia/version. */
export function parseDriverVersion(text: string): string | undefined {
  return /Kernel Module\b.*?\s(\d{3,4}(?:\.\d{1,4}){1,2})\b/.exec(text)?.[1]
}

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

/** Returns the compute capability of a card without a driver, or with a driver that is too old to report it. */
export function capabilityOfName(name: string): string | undefined {
  return FACTS.names.find(({ pattern }) => new RegExp(pattern, 'i').test(name))?.capability
}

export function capabilityOfId(id: string): string | undefined {
  return FACTS.ids.find(({ ids }) => isInRange(id, ids))?.capability
}

/** Returns the highest CUDA version that a driver such as `580.95.05` supports, or undefined for very old drivers. */
export function cudaFromDriver(version: string): string | undefined {
  return FACTS.drivers.find(({ branch }) => Number.parseInt(version, 10) >= branch)?.cuda
}
