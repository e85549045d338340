import t from 'tap'
import { builtInKinds } from '../../../../runtimes/llama-cpp/kinds/index.ts'
import { rankRuntimes } from '../../../../runtimes/llama-cpp/ranking.ts'
import { BUNDLED_LISTING } from '../../../../runtimes/llama-cpp/sources/release.ts'
import {
  answers,
  INTEL_GRAPHICS,
  look,
  PLAIN,
  type Recorded,
  recordedFiles,
  recording
} from '../../../plugins/running/hardware/support.ts'
import { readFixture } from '../../../support/fixture.ts'

/** A machine that prints the recorded output of a program (and fails with a code), and has files. */
interface Machine {
  what: string
  order: string
  prints?: [program: string, recording: string, code?: number]
  files?: string[]
}

const VULKAN = { ...PLAIN, '/usr/lib/x86_64-linux-gnu/libvulkan.so.1': '' }
const FILES: Record<string, Record<string, string>> = { plain: PLAIN, vulkan: VULKAN, intel: INTEL_GRAPHICS }

function machineOf({ prints, files = [] }: Machine): Recorded {
  const found = files.map(name => FILES[name] ?? (name.endsWith('.txt') ? recordedFiles(name) : { [name]: '' }))
  if (!prints) return { files: Object.assign({}, ...found) }
  const [program, name, code] = prints
  const output = recording(name)
  return {
    files: Object.assign({}, ...found),
    programs: { [program]: code === undefined ? output : answers({ '*': output }, code) }
  }
}

/** The archives are for x64 on every test machine. */
t.test('ranks builds for recorded machines', async t => {
  const directory = t.testdir()
  const names = BUNDLED_LISTING.names
  for (const machine of readFixture<{ machines: Machine[] }>('recorded-machines.yaml').machines) {
    const hardware = { ...(await look(directory, machineOf(machine))), arch: 'x64' }
    const ranking = rankRuntimes(builtInKinds, hardware, names).filter(({ usable }) => usable)
    t.equal(ranking.map(({ runtime }) => runtime).join(' '), machine.order, machine.what)
  }
})
