import type { HardwareProblem } from '../../core/contracts/hardware.ts'
import { bytesOf, defined, type Findings, ProbeFailure, type Sighting } from './findings.ts'
import type { Machine, Printed } from './inspected-machine.ts'
import { pciAddress, pciId } from './pci.ts'
import type { Probe } from './probe.ts'

/* nvidia-smi (https://docs.nvidia.com/deploy/nvidia-smi): the CSV of its queries, its table, version and list. */

const MIB = 2 ** 20

export interface SmiGpu {
  index: number
  name: string
  uuid?: string
  pciBus?: string
  pciId?: string
  driver?: string
  totalMemory?: number
  freeMemory?: number
  /** Whether it shares main memory: nvidia-smi then reports none. */
  unified: boolean
  capability?: string
  /** Whether it is partitioned (multi-instance GPU). */
  mig?: boolean
}

const NO_MEMORY = /^\[?\s*(N\/A|Not Supported)\s*\]?$/i

/** `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]`, `[Unknown Error]` and the like. */
const cellText = (text: string | undefined) =>
  text === undefined || text === '' || /^\[.*\]$|^N\/A$/.test(text) ? undefined : text

const mebibytes = (text: string | undefined) => bytesOf(/^\d+(\.\d+)?/.exec(text ?? '')?.[0] ?? '', MIB)

/** Parses `--query-gpu=… --format=csv` by its header; undefined without one. */
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
    const total = cell('memory.total')
    const totalMemory = mebibytes(total)
    const freeMemory = mebibytes(cell('memory.free')) ?? (/^0( |$)/.test(cell('memory.free') ?? '') ? 0 : undefined)
    const deviceId = /^0x([0-9a-f]{4})10de$/i.exec(cell('pci.device_id') ?? '')?.[1]
    gpus.push({
      index: Number(/^\d{1,3}$/.exec(cell('index') ?? '')?.[0] ?? gpus.length),
      name: cellText(cell('name')) ?? 'NVIDIA GPU',
      unified: NO_MEMORY.test(total ?? ''),
      ...defined({
        uuid: cellText(cell('uuid')),
        pciBus: pciAddress(cell('pci.bus_id')),
        pciId: pciId(deviceId),
        driver: cellText(cell('driver_version')),
        totalMemory,
        freeMemory:
          totalMemory !== undefined && freeMemory !== undefined && freeMemory <= totalMemory ? freeMemory : undefined,
        capability: /^\d{1,2}\.\d$/.exec(cell('compute_cap') ?? '')?.[0],
        mig: cell('mig.mode.current') === undefined ? undefined : cell('mig.mode.current') === 'Enabled'
      })
    })
  }
  return gpus
}

/** Parses the table that nvidia-smi prints without arguments. It truncates names and has no free memory. */
export function parseSmiTable(text: string): SmiGpu[] {
  const gpus: SmiGpu[] = []
  let last: SmiGpu | undefined
  for (const line of text.split(/\r?\n/)) {
    const device =
      /^\|\s+(\d{1,3})\s{2,}(\S.*?)\s+(?:On|Off|N\/A|WDDM|TCC|MCDM)\s*\|\s*(\S+)\s+(?:On|Off|N\/A)\s*\|/.exec(line)
    if (device) {
      // The table may be printed twice.
      if (gpus.some(({ index }) => index === Number(device[1]))) {
        last = undefined
        continue
      }
      last = {
        index: Number(device[1]),
        name: device[2]!,
        unified: false,
        ...defined({ pciBus: pciAddress(device[3]) })
      }
      gpus.push(last)
      continue
    }
    const memory = /^\|[^|]*\|\s*(?:\d+MiB\s*\/\s*(\d+)MiB|(Not Supported|N\/A))\s*\|/.exec(line)
    if (!last || !memory) continue
    const totalMemory = mebibytes(memory[1])
    if (memory[2] !== undefined) last.unified = true
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
export function parseSmiVersions(text: string): { driver?: string; cuda?: string } {
  const version = (pattern: string) =>
    new RegExp(`\\b${pattern}\\s*:\\s*(\\d{1,4}(?:\\.\\d{1,4}){1,3})`, 'i').exec(text)?.[1]
  return defined({
    driver: version('KMD version') ?? version('Driver version'),
    cuda: version('CUDA UMD version') ?? version('CUDA version')
  })
}

/** Parses `nvidia-smi -L`: sizes in GiB of the MIG instances of each GPU, from the names of their profiles. */
export function parseSmiList(text: string): Map<number, number[]> {
  const instances = new Map<number, number[]>()
  let current: number[] | undefined
  for (const line of text.split(/\r?\n/)) {
    const gpu = /^GPU (\d{1,3}): /.exec(line)
    if (gpu) {
      current = []
      instances.set(Number(gpu[1]), current)
    }
    const size = /^\s+MIG \S*?(\d{1,4})gb\b/i.exec(line)
    if (size) current?.push(Number(size[1]))
  }
  return instances
}

/** The kind of system, which decides how a driver is fixed. */
export type SystemKind = 'linux' | 'wsl' | 'win32'

const SUBJECT = 'NVIDIA driver'

const INSTALL: Record<SystemKind, string> = {
  linux:
    'Install the driver of your distribution (Ubuntu: "sudo ubuntu-drivers install"), then load it with "sudo modprobe ' +
    'nvidia" or restart. With Secure Boot, its kernel module must be signed. Start containers with "--gpus all".',
  wsl:
    'Update the NVIDIA driver on Windows, install none inside WSL (it would hide the Windows driver), then run ' +
    '"wsl --shutdown" on Windows and start WSL again.',
  win32: 'Install the newest driver from https://www.nvidia.com/drivers and restart the machine.'
}

/** The problem that nvidia-smi reports, if it is a known one. */
export function smiProblem(text: string, where: SystemKind): HardwareProblem | undefined {
  if (/driver\/library version mismatch/i.test(text)) {
    const library = /NVML library version:\s*([\d.]+)/.exec(text)?.[1]
    return {
      code: 'driver_mismatch',
      subject: SUBJECT,
      message:
        `The loaded NVIDIA kernel driver and its libraries${library ? ` (${library})` : ''} have different versions: the ` +
        'driver was updated while in use.',
      advice:
        where === 'linux'
          ? 'Restart the machine ("sudo reboot"), or unload the old driver and load the new one. Do not install driver ' +
            "libraries in a container: it uses the host's."
          : INSTALL[where]
    }
  }
  if (
    /couldn't communicate with the NVIDIA driver|driver not loaded|couldn't find (the )?(libnvidia-ml|nvml)|NVML: (library )?not found|driver is not (loaded|installed)/i.test(
      text
    )
  ) {
    return {
      code: 'driver_not_loaded',
      subject: SUBJECT,
      message: 'nvidia-smi is installed, but the NVIDIA driver is not loaded.',
      advice: INSTALL[where]
    }
  }
  if (/GPU is lost|fallen off the bus|unable to determine the device handle/i.test(text)) {
    return {
      code: 'no_device',
      subject: SUBJECT,
      message: 'An NVIDIA GPU no longer responds to its driver.',
      advice: 'Restart the machine; if it happens again, look for "Xid" in "sudo dmesg", and check power and cooling.'
    }
  }
  if (/no devices were found|no supported (GPUs|devices) were found/i.test(text)) {
    return {
      code: 'no_device',
      subject: SUBJECT,
      message: 'The NVIDIA driver is installed, but finds no GPU: there is none, or it is switched off or hidden.',
      advice:
        where === 'linux'
          ? 'Look for it with "lspci -d 10de:"; "sudo dmesg | grep -i nvrm" shows why the driver rejected a card. Start ' +
            'containers with "--gpus all".'
          : INSTALL[where]
    }
  }
  if (
    /insufficient permissions|GPU access blocked|operation not permitted|NVML: Unknown Error|no permission/i.test(text)
  ) {
    return {
      code: 'no_permission',
      subject: SUBJECT,
      message: 'This user has no permission to open the NVIDIA devices.',
      advice:
        where === 'linux'
          ? 'Check the permissions of /dev/nvidia*. Restart a container that lost its devices, with "--gpus all".'
          : INSTALL[where]
    }
  }
  return undefined
}

const BASIC = 'index,name,uuid,pci.bus_id,pci.device_id,driver_version,memory.total,memory.free'
/** Drivers before 510 reject a query with these fields. */
const NEWER = 'compute_cap,mig.mode.current'
const GIB = 2 ** 30

const query = (fields: string) => [`--query-gpu=${fields}`, '--format=csv']

/** The parsed output of all calls; versions and instances may be missing. */
export interface SmiOutput {
  gpus: readonly SmiGpu[]
  versions: { driver?: string; cuda?: string }
  /** Sizes in GiB by index; undefined if `-L` did not list them. */
  instances?: ReadonlyMap<number, readonly number[]>
}

/** The problem of a partitioned GPU, and the part of it that programs can use: CUDA uses one instance only. */
function partition(
  gpu: SmiGpu,
  subject: string,
  sizes: readonly number[] | undefined
): { problem: HardwareProblem; sighting: Partial<Sighting> } {
  if (sizes?.length === 0) {
    return {
      sighting: { usable: false },
      problem: {
        code: 'partitioned',
        subject,
        message: `${gpu.name} is in MIG mode but has no instances, so CUDA sees no device.`,
        advice: `Create instances ("sudo nvidia-smi mig -cgi 0 -C"), or turn MIG off ("sudo nvidia-smi -i ${gpu.index} -mig 0").`
      }
    }
  }
  const size = sizes?.[0] === undefined ? undefined : Math.min(sizes[0] * GIB, gpu.totalMemory ?? sizes[0] * GIB)
  return {
    // The free memory of the whole card says nothing about one instance.
    sighting: defined({ usable: true, totalMemory: size }),
    problem: {
      code: 'partitioned',
      subject,
      message:
        `${gpu.name} is partitioned (MIG): a model gets one instance` +
        `${sizes === undefined ? '' : ` of ${sizes[0]} GiB (of ${sizes.length} instances)`}, not the whole card.`,
      advice:
        `Choose an instance with CUDA_VISIBLE_DEVICES=MIG-… ("nvidia-smi -L" lists them), or turn MIG off ` +
        `("sudo nvidia-smi -i ${gpu.index} -mig 0").`
    }
  }
}

/** Findings from the output of nvidia-smi. */
export function findingsFromSmi({ gpus, versions, instances }: SmiOutput): Findings {
  const problems: HardwareProblem[] = []
  const sightings = [...gpus]
    .sort((a, b) => a.index - b.index)
    .map((gpu, at): Sighting => {
      const version = gpu.driver ?? versions.driver
      const partitioned = gpu.mig === true ? partition(gpu, `nvidia:${at}`, instances?.get(gpu.index)) : undefined
      if (partitioned) problems.push(partitioned.problem)
      const memory = { totalMemory: gpu.totalMemory, freeMemory: gpu.freeMemory }
      return {
        vendor: 'nvidia',
        name: gpu.name,
        ...defined({
          pciBus: gpu.pciBus,
          pciId: gpu.pciId,
          architecture: gpu.capability,
          type: gpu.unified ? ('integrated' as const) : undefined
        }),
        unifiedMemory: gpu.unified,
        driver: defined({ name: 'nvidia', version, cuda: versions.cuda }),
        api: 'cuda',
        usable: true,
        ...(partitioned ? partitioned.sighting : defined(memory))
      }
    })
  const { driver, cuda } = { ...versions, ...sightings[0]?.driver }
  const detail = driver === undefined ? undefined : `driver ${driver}${cuda === undefined ? '' : `, CUDA ${cuda}`}`
  return { gpus: sightings, problems, ...defined({ detail }) }
}

async function systemKind({ platform, files }: Machine): Promise<SystemKind> {
  if (platform === 'win32') return 'win32'
  const kernel = (await files.text('/proc/version')) ?? (await files.text('/proc/sys/kernel/osrelease')) ?? ''
  return /microsoft/i.test(kernel) ? 'wsl' : 'linux'
}

/** The output of an optional call; empty if it fails. */
async function optional(call: Promise<Printed>): Promise<string> {
  try {
    return (await call).text
  } catch (error) {
    if (error instanceof ProbeFailure) return ''
    throw error
  }
}

/** Runs queries first, and falls back to the table, which truncates names. */
export const nvidiaSmi: Probe = {
  name: 'nvidia-smi',
  platforms: ['linux', 'win32'],
  async find(machine) {
    const ask = (...args: string[]) => machine.run('nvidia-smi', args)
    const wholeQuery = ask(...query(`${BASIC},${NEWER}`))
    const [full, version] = await Promise.all([wholeQuery, optional(ask('--version'))])
    let texts = `${full.text}\n${version}`
    let gpus = parseSmiCsv(full.stdout) ?? []
    if (gpus.length === 0 && /not a valid field/i.test(full.text)) {
      gpus = parseSmiCsv(await optional(ask(...query(BASIC)))) ?? []
    }
    let versions = parseSmiVersions(texts)
    if (gpus.length === 0 || versions.cuda === undefined) {
      const table = await optional(ask())
      texts += `\n${table}`
      if (gpus.length === 0) gpus = parseSmiTable(texts)
      versions = { ...parseSmiVersions(table), ...versions }
    }
    const problem = smiProblem(texts, await systemKind(machine))
    if (gpus.length === 0) {
      const findings = { problems: problem ? [problem] : [] }
      // It works and reports that there is no card.
      if (problem?.code === 'no_device') return { ...findings, detail: problem.message }
      if (problem) throw new ProbeFailure('failed', problem.message, findings)
      const what = full.failure ?? 'unknown output of nvidia-smi'
      throw new ProbeFailure(full.failure === undefined ? 'unreadable' : 'failed', `${what} ${full.text.trim()}`)
    }
    const list = gpus.some(gpu => gpu.mig) ? parseSmiList(await optional(ask('-L'))) : undefined
    const findings = findingsFromSmi({ gpus, versions, ...(list && list.size > 0 ? { instances: list } : {}) })
    return { ...findings, problems: [...(findings.problems ?? []), ...(problem ? [problem] : [])] }
  }
}

/** Current total and free memory of the GPUs; undefined if nvidia-smi does not report it. */
export async function nvidiaMemory(machine: Machine): Promise<SmiGpu[] | undefined> {
  const { stdout } = await machine.run('nvidia-smi', query('index,name,pci.bus_id,memory.total,memory.free'))
  return parseSmiCsv(stdout)
}
