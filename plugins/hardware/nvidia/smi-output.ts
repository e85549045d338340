import { bytesOf, known } from '../findings.ts'
import { pciAddress, pciId } from '../pci/address.ts'

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
