import type { Gpu } from '../../../core/contracts/hardware.ts'
import { pciId, VENDORS, vendorFromId, vendorFromName } from './pci.ts'
import { defined, type Findings, type Probe, ProbeFailure, programProbe, type Sighting, sighting } from './probe.ts'

const SOFTWARE = /llvmpipe|lavapipe|softpipe|swiftshader|microsoft basic render/i

const TYPES: Record<string, Gpu['type']> = {
  PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: 'discrete',
  PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: 'integrated',
  PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: 'virtual'
}

/** Parses the fields of each device. A line without ` = ` continues the value above and is not needed. */
function devicesIn(text: string): Map<string, string>[] {
  const devices = text.split(/^\s*GPU\d{1,3}:\s*$/m).slice(1)
  // The long form repeats names in later sections. Only the first values describe the device.
  return devices.map(device => {
    const fields = [...device.matchAll(/^[ \t]*(\w+)[ \t]+= ?(.*?)\s*$/gm)]
    return new Map(fields.reverse().map(([, key, value]) => [key!, value!]))
  })
}

/** Converts NVIDIA's `580.95.5.0` to 580.95.05. */
function nvidiaVersion(version: string): string | undefined {
  const [, major, minor, patch] = /^(\d{3,4})\.(\d{1,3})(?:\.(\d{1,3}))?(?:\.\d+)?$/.exec(version) ?? []
  const parts = Number(patch ?? 0) === 0 ? [minor] : [minor, patch]
  return major && [major, ...parts.map(part => part!.padStart(2, '0'))].join('.')
}

function driverOf(device: ReadonlyMap<string, string>): Gpu['driver'] {
  const version = device.get('driverVersion') ?? ''
  const ofNvidia = device.get('driverID') === 'DRIVER_ID_NVIDIA_PROPRIETARY' ? nvidiaVersion(version) : undefined
  const inInfo = /^(?:Mesa )?(\d+\.\d+(?:\.\d+)*)/.exec(device.get('driverInfo') ?? '')?.[1]
  // Older vulkaninfo prints the version as one number.
  const dotted = /^\d+(\.\d+)+$/.test(version) ? version : undefined
  return defined({ name: device.get('driverName'), version: ofNvidia ?? inInfo ?? dotted })
}

/** Parses `vulkaninfo --summary`. Returns undefined if it has no list of devices. */
export function parseVulkaninfo(text: string): Sighting[] | undefined {
  const devices = devicesIn(text)
  if (devices.length === 0) return undefined
  return devices.flatMap((device): Sighting[] => {
    const name = device.get('deviceName') ?? ''
    const type = device.get('deviceType') ?? ''
    if (name === '' || /_CPU$/.test(type) || SOFTWARE.test(name)) return []
    const driver = device.get('driverID') ?? ''
    // Vulkan on top of Direct3D lacks features that llama.cpp needs.
    if (driver === 'DRIVER_ID_MESA_DOZEN' || /Microsoft Direct3D12/i.test(name)) return []
    const byId = vendorFromId(device.get('vendorID')?.toLowerCase())
    return [
      sighting({
        vendor: byId === 'other' ? vendorFromName(name) : byId,
        // Mesa appends its driver and chip to the name.
        name: name.replace(/ \((RADV|LLVM|ACO)\b[^()]*\)$/, ''),
        // Venus forwards calls to the host's GPU.
        type: driver === 'DRIVER_ID_MESA_VENUS' ? 'virtual' : (TYPES[type] ?? 'unknown'),
        unifiedMemory: TYPES[type] === 'integrated',
        pciId: pciId(device.get('deviceID')),
        driver: driverOf(device),
        api: 'vulkan',
        usable: true
      })
    ]
  })
}

export const vulkaninfo = programProbe('vulkaninfo', ['linux', 'win32'], ['vulkaninfo', '--summary'], stdout => {
  const gpus = parseVulkaninfo(stdout)
  return gpus && { gpus, ...(gpus.length === 0 && { detail: 'software renderers only' }) }
})

/** https://github.com/KhronosGroup/Vulkan-Loader/blob/main/docs/LoaderDriverInterface.md#linux-driver-discovery */
const FOLDERS = ['/usr/share/vulkan/icd.d', '/etc/vulkan/icd.d', '/usr/local/share/vulkan/icd.d']

/** Returns the vendors with installed drivers, by the names of their manifests. */
export function vendorsFromDriverFiles(names: readonly string[]): Gpu['vendor'][] {
  const files = names.filter(name => name.endsWith('.json'))
  return VENDORS.filter(({ vulkan }) => files.some(name => new RegExp(vulkan, 'i').test(name))).map(
    ({ vendor }) => vendor
  )
}

/** Finds installed Vulkan drivers. vulkaninfo is often not installed. */
export const vulkanDriverFiles: Probe = {
  name: 'vulkan-drivers',
  platforms: ['linux'],
  async find({ files }): Promise<Findings> {
    const names = (await Promise.all(FOLDERS.map(folder => files.names(folder)))).flat()
    if (names.length === 0) throw new ProbeFailure('absent', `no Vulkan driver in ${FOLDERS.join(', ')}`)
    const vulkanDrivers = vendorsFromDriverFiles(names)
    return { vulkanDrivers, detail: vulkanDrivers.length > 0 ? vulkanDrivers.join(', ') : 'software renderers only' }
  }
}
