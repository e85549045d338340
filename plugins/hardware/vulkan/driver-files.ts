import type { Gpu } from '../../../core/contracts/hardware.ts'
import type { Findings } from '../findings.ts'
import { type Probe, ProbeFailure } from '../probe.ts'

/** Names of the files by which Vulkan's loader finds drivers; those of software renderers are none of these. */
const DRIVERS: [RegExp, Gpu['vendor']][] = [
  [/^(nvidia|nouveau)/i, 'nvidia'],
  [/^(radeon|amd)/i, 'amd'],
  [/^intel/i, 'intel'],
  [/^(freedreno|turnip)/i, 'qualcomm'],
  [/^asahi/i, 'apple']
]

/** https://github.com/KhronosGroup/Vulkan-Loader/blob/main/docs/LoaderDriverInterface.md#linux-driver-discovery */
const FOLDERS = ['/usr/share/vulkan/icd.d', '/etc/vulkan/icd.d', '/usr/local/share/vulkan/icd.d']

/** Vendors for which drivers are there, by the names of their files. */
export function vendorsOfDriverFiles(names: readonly string[]): Gpu['vendor'][] {
  const files = names.filter(name => name.endsWith('.json'))
  return [...new Set(DRIVERS.filter(([pattern]) => files.some(name => pattern.test(name))).map(([, vendor]) => vendor))]
}

/** Which Vulkan drivers are installed: vulkaninfo, which knows better, often is not. */
export const vulkanDriverFiles: Probe = {
  name: 'vulkan-drivers',
  platforms: ['linux'],
  async find({ files }): Promise<Findings> {
    const names = (await Promise.all(FOLDERS.map(folder => files.names(folder)))).flat()
    if (names.length === 0) throw new ProbeFailure('absent', `no Vulkan driver in ${FOLDERS.join(', ')}`)
    const vulkanDrivers = vendorsOfDriverFiles(names)
    return { vulkanDrivers, detail: vulkanDrivers.length > 0 ? vulkanDrivers.join(', ') : 'software renderers only' }
  }
}
