import { chmodSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import type { Hardware, HardwareService, MemoryNow } from '../../../../core/contracts/hardware.ts'
import { createHardware } from '../../../../plugins/running/hardware/index.ts'

const RECORDINGS = new URL('../../../../../test/fixtures/probes/', import.meta.url)

/** Reads a recorded output without the line that names its origin. */
export function recording(name: string): string {
  const text = readFileSync(new URL(name, RECORDINGS), 'utf8')
  return text.slice(text.indexOf('\n') + 1)
}

/** Converts a text to Windows line ends. */
export const windowsLines = (text: string) => text.replaceAll('\n', '\r\n')

export function recordings(): string[] {
  return readdirSync(RECORDINGS, { recursive: true, encoding: 'utf8' }).filter(name => name.endsWith('.txt'))
}

/** Reads the files of a recording that contains several, by their paths. */
export function recordedFiles(name: string): Record<string, string> {
  const parts = recording(name).split(/^==> (.*) <==\n/m)
  const files: Record<string, string> = {}
  for (let at = 1; at < parts.length; at += 2) files[parts[at]!] = parts[at + 1]!
  return files
}

export const MIB = 2 ** 20
export const GIB = 2 ** 30

/** What rocminfo prints for a Radeon RX 7900 XT, shortened. */
export const RADEON_AGENT = `
*******
Agent 2
*******
  Name:                    gfx1100
  Marketing Name:          AMD Radeon RX 7900 XT
  Device Type:             GPU
  Chip ID:                 29772(0x744c)
  BDFID:                   768
`

/** An Intel processor's integrated GPU as the kernel lists it. */
export const INTEL_GRAPHICS = {
  '/sys/bus/pci/devices/0000:00:02.0/vendor': '0x8086\n',
  '/sys/bus/pci/devices/0000:00:02.0/device': '0xa7a0\n',
  '/sys/bus/pci/devices/0000:00:02.0/class': '0x030000\n',
  '/sys/bus/pci/devices/0000:00:02.0/uevent': 'DRIVER=i915\nPCI_SLOT_NAME=0000:00:02.0\n'
}

/** A machine with little more than a processor and memory. */
export const PLAIN: Record<string, string> = {
  '/proc/cpuinfo': recording('cpu/cpuinfo-i7-1165g7-avx512.txt'),
  '/proc/meminfo': recording('cpu/meminfo-i5-3570k-low-free-high-available.txt'),
  '/proc/self/cgroup': '0::/\n',
  '/usr/lib/x86_64-linux-gnu/libgomp.so.1': '',
  '/etc/hostname': 'recorded'
}

export interface Recorded {
  files?: Record<string, string>
  /** The fixed output of a program, or a whole shell script. */
  programs?: Record<string, string>
}

let folders = 0

/** Writes a machine's files and programs under `directory`. Returns the folders for a sysroot and a PATH. */
export function writeMachine(
  directory: string,
  { files = PLAIN, programs = {} }: Recorded
): [root: string, path: string] {
  const base = join(directory, `machine-${folders++}`)
  const [root, bin] = [join(base, 'root'), join(base, 'bin')]
  mkdirSync(root, { recursive: true })
  mkdirSync(bin)
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(dirname(join(root, path)), { recursive: true })
    writeFileSync(join(root, path), text)
  }
  for (const [name, text] of Object.entries(programs)) {
    const script = text.startsWith('#!')
    if (!script) writeFileSync(join(base, `${name}.txt`), text)
    writeFileSync(join(bin, name), script ? text : `#!/bin/sh\n/bin/cat '${join(base, `${name}.txt`)}'\n`)
    chmodSync(join(bin, name), 0o755)
  }
  return [root, bin]
}

/** Returns the hardware service of a recorded machine. */
export function hardwareOf(directory: string, recorded: Recorded, probeTimeout = 10_000): HardwareService {
  const [sysroot, path] = writeMachine(directory, recorded)
  return createHardware({ sysroot, probeTimeout, env: { PATH: path } })
}

/** Detects a recorded machine, and reads its memory afterwards. */
export async function look(directory: string, recorded: Recorded): Promise<Hardware & { now: MemoryNow }> {
  const service = hardwareOf(directory, recorded)
  const hardware = await service.detect()
  return { ...hardware, now: await service.memory() }
}

/** Makes a script with an output for each argument list. `*` matches any other. */
export function answers(cases: Record<string, string>, exitCode = 0): string {
  const branches = Object.entries(cases).map(
    ([pattern, text]) => `${pattern}) /bin/cat <<'END'\n${text.replace(/\n$/, '')}\nEND\n;;`
  )
  return `#!/bin/sh\ncase "$*" in\n${branches.join('\n')}\nesac\nexit ${exitCode}\n`
}
