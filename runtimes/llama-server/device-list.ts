import type { BuildDevice } from '../../core/contracts/builds.ts'

/*
 * What `llama-server --list-devices` prints: on standard output the list (common_print_available_devices in llama.cpp's
 * common/arg.cpp), on standard error what the backends say of the devices they found (ggml_cuda_init in
 * ggml/src/ggml-cuda/ggml-cuda.cu).
 */

const MIB = 1024 * 1024
/** Listed beside GPUs, but the processor does their work. */
const NO_GPU_ID = /^(CPU|BLAS)/i
const SOFTWARE_RENDERER = /llvmpipe|lavapipe|softpipe|swiftshader|microsoft basic render/i

/** Bytes; undefined where it is no number, or 0, which stands for not known. */
function mebibytes(text: string): number | undefined {
  return /^\d{1,9}$/.test(text) && Number(text) > 0 ? Number(text) * MIB : undefined
}

/**
 * The GPUs in the list, without software renderers; undefined when there is no list in these lines. A device that is
 * listed may still be unusable: see `whyUnusable`.
 */
export function parseDevices(lines: readonly string[]): BuildDevice[] | undefined {
  const start = lines.findIndex(line => line.trim() === 'Available devices:')
  if (start < 0) return undefined
  const devices: BuildDevice[] = []
  for (const line of lines.slice(start + 1)) {
    // Names may hold colons and brackets: an id has no blank in it, and the last bracket is the one that counts.
    const match = /^\s+(\S+?): (.*) \((\S+) MiB, (\S+) MiB free\)\s*$/.exec(line)
    if (!match) continue
    const [, id, description, total, free] = match as unknown as [string, string, string, string, string]
    if (NO_GPU_ID.test(id) || SOFTWARE_RENDERER.test(description)) continue
    const totalMemory = mebibytes(total)
    const freeMemory = free === '0' && totalMemory !== undefined ? 0 : mebibytes(free)
    devices.push({
      id,
      description,
      ...(totalMemory === undefined ? {} : { totalMemory }),
      ...(freeMemory === undefined ? {} : { freeMemory })
    })
  }
  return devices
}

/** What the backends say besides the list. */
export interface DeviceLog {
  /** By id of the device: compute capability such as `8.6`, or gfx1030 without the suffixes of features. */
  architectures: Record<string, string>
  /** Compute capabilities that the build holds code for; absent where it does not say. */
  builtFor?: string[]
  /** Why a backend found no device. */
  failure?: { code: 'driver_too_old' | 'driver_mismatch' | 'no_device' | 'failed'; message: string }
}

function failureCode(message: string): NonNullable<DeviceLog['failure']>['code'] {
  if (/driver version is insufficient/i.test(message)) return 'driver_too_old'
  if (/unsupported display driver/i.test(message)) return 'driver_mismatch'
  return /no \S+-capable device/i.test(message) ? 'no_device' : 'failed'
}

/** `750` → `7.5`, `1210` → `12.1`; undefined for anything else. */
function computeCapability(arch: string): string | undefined {
  const digits = /^(\d{1,2})(\d)0[a-z]?$/.exec(arch.trim())
  return digits ? `${digits[1]}.${digits[2]}` : undefined
}

export function parseDeviceLog(lines: readonly string[]): DeviceLog {
  const log: DeviceLog = { architectures: {} }
  let backend = 'CUDA'
  for (const line of lines) {
    // Newer builds put time and level before each line.
    const found = /\bfound \d+ (\w+) devices?\b/.exec(line)
    if (found) backend = found[1]!
    const device = /\bDevice (\d+): (?:.*), (?:compute capability (\d+\.\d+)|(gfx[0-9a-f]+))\b/.exec(line)
    if (device) log.architectures[`${backend}${device[1]}`] = (device[2] ?? device[3])!
    const archs = /\bARCHS = ([\w,]+)/.exec(line)
    if (archs) log.builtFor = archs[1]!.split(',').flatMap(arch => computeCapability(arch) ?? [])
    const failure = /\bfailed to initialize \w+: (.+?)\s*$/.exec(line)
    if (failure) log.failure = { code: failureCode(failure[1]!), message: failure[1]! }
  }
  return log
}

const capabilityNumber = (capability: string) => {
  const [major, minor] = capability.split('.')
  return Number(major) * 100 + Number(minor)
}

/**
 * A sentence on why a listed device cannot run this build's code, undefined where nothing speaks against it. As
 * ggml_cuda_highest_compiled_arch has it, code for the device's capability or an older one is needed.
 */
export function whyUnusable(device: Pick<BuildDevice, 'id' | 'description'>, log: DeviceLog): string | undefined {
  const capability = log.architectures[device.id]
  if (!capability || !/^\d+\.\d+$/.test(capability) || !log.builtFor || log.builtFor.length === 0) return undefined
  if (log.builtFor.some(arch => capabilityNumber(arch) <= capabilityNumber(capability))) return undefined
  const oldest = log.builtFor.reduce((least, arch) => (capabilityNumber(arch) < capabilityNumber(least) ? arch : least))
  return (
    `${device.description} has compute capability ${capability}, and this build holds code for ${oldest} and newer ` +
    'only: an older CUDA build is needed.'
  )
}
