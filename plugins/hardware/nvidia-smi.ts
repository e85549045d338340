import type { HardwareProblem } from '../../core/contracts/hardware.ts'
import { bytesOf, type Findings, known, ProbeFailure, type Sighting } from './findings.ts'
import type { Machine, Printed } from './inspected-machine.ts'
import { pciAddress, pciId } from './pci.ts'
import type { Probe } from './probe.ts'

/* What nvidia-smi prints (https://docs.nvidia.com/deploy/nvidia-smi): CSV of queries, its table, its version, its list. */

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
  /** It has no memory of its own: nvidia-smi cannot tell any. */
  unified: boolean
  capability?: string
  /** Whether it is partitioned (multi-instance GPU). */
  mig?: boolean
}

const NO_MEMORY = /^\[?\s*(N\/A|Not Supported)\s*\]?$/i

/** `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]`, `[Unknown Error]` and the like. */
const told = (text: string | undefined) =>
  text === undefined || text === '' || /^\[.*\]$|^N\/A$/.test(text) ? undefined : text

const mebibytes = (text: string | undefined) => bytesOf(/^\d+(\.\d+)?/.exec(text ?? '')?.[0] ?? '', MIB)

/** The rows of `--query-gpu=… --format=csv`, by its own first line; undefined when there is none. */
export function parseSmiCsv(text: string): SmiGpu[] | undefined {
  const lines = text.split(/\r?\n/)
  const start = lines.findIndex(line => /(^|,\s*)(name|memory\.total)\b.*,/.test(line))
  if (start < 0) return undefined
  const columns = lines[start]!.split(',').map(column => column.replace(/\[.*$/, '').trim())
  const gpus: SmiGpu[] = []
  for (const line of lines.slice(start + 1)) {
    const cells = line.split(',').map(cell => cell.trim())
    // A line that was cut off, or a warning below the table.
    if (cells.length !== columns.length) continue
    const cell = (column: string) => cells[columns.indexOf(column)]
    const total = cell('memory.total')
    const totalMemory = mebibytes(total)
    const freeMemory = mebibytes(cell('memory.free')) ?? (/^0( |$)/.test(cell('memory.free') ?? '') ? 0 : undefined)
    const deviceId = /^0x([0-9a-f]{4})10de$/i.exec(cell('pci.device_id') ?? '')?.[1]
    gpus.push({
      index: Number(/^\d{1,3}$/.exec(cell('index') ?? '')?.[0] ?? gpus.length),
      name: told(cell('name')) ?? 'NVIDIA GPU',
      unified: NO_MEMORY.test(total ?? ''),
      ...known({
        uuid: told(cell('uuid')),
        pciBus: pciAddress(cell('pci.bus_id')),
        pciId: pciId(deviceId),
        driver: told(cell('driver_version')),
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

/** The devices of the table that nvidia-smi prints by itself. It cuts names short, and tells no memory as free. */
export function parseSmiTable(text: string): SmiGpu[] {
  const gpus: SmiGpu[] = []
  let last: SmiGpu | undefined
  for (const line of text.split(/\r?\n/)) {
    const device =
      /^\|\s+(\d{1,3})\s{2,}(\S.*?)\s+(?:On|Off|N\/A|WDDM|TCC|MCDM)\s*\|\s*(\S+)\s+(?:On|Off|N\/A)\s*\|/.exec(line)
    if (device) {
      // A table that was printed twice still tells of one card.
      if (gpus.some(({ index }) => index === Number(device[1]))) {
        last = undefined
        continue
      }
      last = { index: Number(device[1]), name: device[2]!, unified: false, ...known({ pciBus: pciAddress(device[3]) }) }
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
 * Versions of the driver and of CUDA, from the table's banner or from `--version`. Driver 610 renamed both: the kernel's
 * driver is the KMD, and CUDA's is the UMD.
 */
export function parseSmiVersions(text: string): { driver?: string; cuda?: string } {
  const version = (pattern: string) =>
    new RegExp(`\\b${pattern}\\s*:\\s*(\\d{1,4}(?:\\.\\d{1,4}){1,3})`, 'i').exec(text)?.[1]
  return known({
    driver: version('KMD version') ?? version('Driver version'),
    cuda: version('CUDA UMD version') ?? version('CUDA version')
  })
}

/** Sizes of the instances of partitioned GPUs in `nvidia-smi -L`, by index of the GPU: GiB, from the names of profiles. */
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

/** Where the machine is, which decides what mends a driver. */
export type Surroundings = 'linux' | 'wsl' | 'win32'

const SUBJECT = 'NVIDIA driver'

const INSTALL: Record<Surroundings, string> = {
  linux:
    'Install the driver of your distribution (Ubuntu: "sudo ubuntu-drivers install"), load it with "sudo modprobe nvidia" ' +
    'or restart the machine. With Secure Boot, its kernel module must be signed. In a container, start it with "--gpus all".',
  wsl:
    'Update the NVIDIA driver on Windows, install none within WSL (it would hide the one of Windows), then run ' +
    '"wsl --shutdown" on Windows and start again.',
  win32: 'Install the newest driver from https://www.nvidia.com/drivers and restart the machine.'
}

/** What nvidia-smi complains of; undefined where it says nothing that is known. */
export function smiProblem(text: string, where: Surroundings): HardwareProblem | undefined {
  if (/driver\/library version mismatch/i.test(text)) {
    const library = /NVML library version:\s*([\d.]+)/.exec(text)?.[1]
    return {
      code: 'driver_mismatch',
      subject: SUBJECT,
      message:
        `The NVIDIA driver in the kernel is of another version than its libraries${library ? ` (${library})` : ''}: it was ` +
        'updated while in use.',
      advice:
        where === 'linux'
          ? 'Restart the machine ("sudo reboot"), or unload the old driver and load the new one. In a container, install ' +
            "no driver libraries of its own: they come from the host's."
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
      message: 'nvidia-smi is here, but no NVIDIA driver answers it.',
      advice: INSTALL[where]
    }
  }
  if (/GPU is lost|fallen off the bus|unable to determine the device handle/i.test(text)) {
    return {
      code: 'no_device',
      subject: SUBJECT,
      message: 'An NVIDIA GPU no longer answers its driver.',
      advice: 'Restart the machine; if it happens again, look for "Xid" in "sudo dmesg", and check power and cooling.'
    }
  }
  if (/no devices were found|no supported (GPUs|devices) were found/i.test(text)) {
    return {
      code: 'no_device',
      subject: SUBJECT,
      message: 'The NVIDIA driver is installed, but finds no GPU: there is none, it is switched off, or it is hidden.',
      advice:
        where === 'linux'
          ? 'Look for it with "lspci -d 10de:"; in a container, start it with "--gpus all"; "sudo dmesg | grep -i nvrm" says ' +
            'why the driver left a card out.'
          : INSTALL[where]
    }
  }
  if (
    /insufficient permissions|GPU access blocked|operation not permitted|NVML: Unknown Error|no permission/i.test(text)
  ) {
    return {
      code: 'no_permission',
      subject: SUBJECT,
      message: 'This user may not reach the NVIDIA devices.',
      advice:
        where === 'linux'
          ? 'Check the rights of /dev/nvidia*. A container that lost its devices must be started again, with "--gpus all".'
          : INSTALL[where]
    }
  }
  return undefined
}

const BASIC = 'index,name,uuid,pci.bus_id,pci.device_id,driver_version,memory.total,memory.free'
/** Drivers before 510 refuse the whole query for these. */
const NEWER = 'compute_cap,mig.mode.current'
const GIB = 2 ** 30

const query = (fields: string) => [`--query-gpu=${fields}`, '--format=csv']

/** What was printed for all the questions; the versions and the list may be missing. */
export interface SmiAnswers {
  gpus: readonly SmiGpu[]
  versions: { driver?: string; cuda?: string }
  /** By index, GiB; undefined where `-L` did not tell. */
  instances?: ReadonlyMap<number, readonly number[]>
}

/** What is the matter with a partitioned GPU, and what of it programs can use; CUDA takes one instance only. */
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
        message: `${gpu.name} is set to be partitioned (MIG) but has no instances, so that CUDA sees no device.`,
        advice: `Make instances ("sudo nvidia-smi mig -cgi 0 -C"), or switch it off ("sudo nvidia-smi -i ${gpu.index} -mig 0").`
      }
    }
  }
  const size = sizes?.[0] === undefined ? undefined : Math.min(sizes[0] * GIB, gpu.totalMemory ?? sizes[0] * GIB)
  return {
    // What is free of the whole card says nothing about one instance.
    sighting: known({ usable: true, totalMemory: size }),
    problem: {
      code: 'partitioned',
      subject,
      message:
        `${gpu.name} is partitioned (MIG): a model gets one instance` +
        `${sizes === undefined ? '' : ` of ${sizes.length}, of ${sizes[0]} GiB`}, not the whole card.`,
      advice:
        `Choose an instance with CUDA_VISIBLE_DEVICES=MIG-… ("nvidia-smi -L" lists them), or switch partitioning off ` +
        `("sudo nvidia-smi -i ${gpu.index} -mig 0").`
    }
  }
}

/** Findings from what nvidia-smi answered. */
export function smiFindings({ gpus, versions, instances }: SmiAnswers): Findings {
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
        ...known({
          pciBus: gpu.pciBus,
          pciId: gpu.pciId,
          architecture: gpu.capability,
          type: gpu.unified ? ('integrated' as const) : undefined
        }),
        unifiedMemory: gpu.unified,
        driver: known({ name: 'nvidia', version, cuda: versions.cuda }),
        api: 'cuda',
        usable: true,
        ...(partitioned ? partitioned.sighting : known(memory))
      }
    })
  const { driver, cuda } = { ...versions, ...sightings[0]?.driver }
  const detail = driver === undefined ? undefined : `driver ${driver}${cuda === undefined ? '' : `, CUDA ${cuda}`}`
  return { gpus: sightings, problems, ...known({ detail }) }
}

async function surroundings({ platform, files }: Machine): Promise<Surroundings> {
  if (platform === 'win32') return 'win32'
  const kernel = (await files.text('/proc/version')) ?? (await files.text('/proc/sys/kernel/osrelease')) ?? ''
  return /microsoft/i.test(kernel) ? 'wsl' : 'linux'
}

/** What a question that is not needed gives; its failure is no failure of the whole. */
async function orNothing(answer: Promise<Printed>): Promise<string> {
  try {
    return (await answer).text
  } catch (error) {
    if (error instanceof ProbeFailure) return ''
    throw error
  }
}

/** NVIDIA's own tool: queries first; its table, which cuts names short, where those give nothing. */
export const nvidiaSmi: Probe = {
  name: 'nvidia-smi',
  platforms: ['linux', 'win32'],
  async find(machine) {
    const ask = (...args: string[]) => machine.run('nvidia-smi', args)
    const wholeQuery = ask(...query(`${BASIC},${NEWER}`))
    const [full, version] = await Promise.all([wholeQuery, orNothing(ask('--version'))])
    let texts = `${full.text}\n${version}`
    let gpus = parseSmiCsv(full.stdout) ?? []
    if (gpus.length === 0 && /not a valid field/i.test(full.text)) {
      gpus = parseSmiCsv(await orNothing(ask(...query(BASIC)))) ?? []
    }
    let versions = parseSmiVersions(texts)
    if (gpus.length === 0 || versions.cuda === undefined) {
      const table = await orNothing(ask())
      texts += `\n${table}`
      if (gpus.length === 0) gpus = parseSmiTable(texts)
      versions = { ...parseSmiVersions(table), ...versions }
    }
    const problem = smiProblem(texts, await surroundings(machine))
    if (gpus.length === 0) {
      const findings = { problems: problem ? [problem] : [] }
      // It works, and says that there is no card.
      if (problem?.code === 'no_device') return { ...findings, detail: problem.message }
      if (problem) throw new ProbeFailure('failed', problem.message, findings)
      const what = full.failure ?? 'nvidia-smi printed nothing that is known'
      throw new ProbeFailure(full.failure === undefined ? 'unreadable' : 'failed', `${what} ${full.text.trim()}`)
    }
    const list = gpus.some(gpu => gpu.mig) ? parseSmiList(await orNothing(ask('-L'))) : undefined
    const findings = smiFindings({ gpus, versions, ...(list && list.size > 0 ? { instances: list } : {}) })
    return { ...findings, problems: [...(findings.problems ?? []), ...(problem ? [problem] : [])] }
  }
}

/** Total and free memory of the GPUs now; undefined where nvidia-smi does not tell. */
export async function nvidiaMemory(machine: Machine): Promise<SmiGpu[] | undefined> {
  const { stdout } = await machine.run('nvidia-smi', query('index,name,pci.bus_id,memory.total,memory.free'))
  return parseSmiCsv(stdout)
}
