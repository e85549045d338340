import t from 'tap'
import {
  amdChip,
  foldPartitions,
  gfxFromTargetVersion,
  gfxName,
  parseKfdNode,
  parseRocminfo,
  rocminfoProblem
} from '../../../../plugins/running/hardware/amd.ts'
import {
  appleMemory,
  appleProcessor,
  metalBudget,
  parseSysctl,
  parseSystemProfiler
} from '../../../../plugins/running/hardware/apple.ts'
import { parseSyclLs, parseXpuSmi } from '../../../../plugins/running/hardware/intel.ts'
import { glibcVersion, librariesAmong, parseLdconfig } from '../../../../plugins/running/hardware/libraries.ts'
import { amdMemory, parseAdapters, toSighting } from '../../../../plugins/running/hardware/listed-cards.ts'
import {
  groupFolders,
  groupMemory,
  parseMeminfo,
  parseVmStat,
  withinLimits
} from '../../../../plugins/running/hardware/main-memory.ts'
import {
  capabilityOfId,
  capabilityOfName,
  cudaFromDriver,
  parseDriverCard,
  parseDriverVersion,
  parseSmiCsv,
  parseSmiList,
  parseSmiTable,
  parseSmiVersions,
  smiProblem
} from '../../../../plugins/running/hardware/nvidia.ts'
import { addressFromLocation, pciAddress, pciId, pciName } from '../../../../plugins/running/hardware/pci.ts'
import { parseCpuinfo, parseLscpu } from '../../../../plugins/running/hardware/processor.ts'
import { parseVulkaninfo, vendorsFromDriverFiles } from '../../../../plugins/running/hardware/vulkan-drivers.ts'
import { parseDevices } from '../../../../runtimes/llama-server/server-facts.ts'
import { readFixture } from '../../../support/fixture.ts'
import { randomBelow } from '../../../support/random.ts'
import { trialCount } from '../../../support/trial-count.ts'
import { recording, recordings, windowsLines } from './support.ts'

/** Parsers of one text, whatever it contains. */
const TEXT_PARSERS: Record<string, (text: string) => unknown> = {
  parseSmiCsv,
  parseSmiTable,
  parseSmiVersions,
  parseSmiList,
  parseDriverVersion,
  parseDriverCard,
  parseRocminfo,
  rocminfoProblem,
  parseXpuSmi,
  parseSyclLs,
  parseVulkaninfo,
  parseAdapters,
  parseSystemProfiler,
  appleProcessor: text => appleProcessor(parseSysctl(text)),
  appleMemory,
  parseVmStat,
  parseCpuinfo,
  parseLscpu,
  parseMeminfo,
  groupFolders,
  glibcVersion
}

const PARSERS: Record<string, (...given: any[]) => unknown> = {
  ...TEXT_PARSERS,
  ...{ smiProblem, capabilityOfName, capabilityOfId, cudaFromDriver, amdChip, gfxFromTargetVersion, gfxName },
  ...{ parseKfdNode, foldPartitions, amdMemory, toSighting, metalBudget, vendorsFromDriverFiles },
  ...{ pciName, pciAddress, addressFromLocation, pciId },
  ...{ groupMemory, withinLimits, parseLdconfig, librariesAmong, parseDevices }
}

interface Case {
  about?: string
  given: unknown
  is: unknown
}

/** Converts maps to lists, and undefined to null. */
const plain = (value: unknown): unknown =>
  JSON.parse(JSON.stringify(value ?? null, (_, one) => (one instanceof Map ? [...one] : one)))

for (const [name, cases] of Object.entries(readFixture<Record<string, Case[]>>('hardware-parsers.yaml'))) {
  t.test(name, async t => {
    for (const { about, given, is } of cases) {
      const list = Array.isArray(given) ? given : [given]
      for (const form of [(text: string) => text, windowsLines]) {
        const texts = list.map(one => {
          if (one?.recording) return form(recording(one.recording))
          return one?.lines ? form(recording(one.lines)).split('\n') : (one ?? undefined)
        })
        t.strictSame(plain(PARSERS[name]!(...texts)), is, about ?? JSON.stringify(given).slice(0, 100))
      }
    }
  })
}

t.test('every recorded device list has a result', async t => {
  const { parseDevices } = readFixture<{ parseDevices: { given: { lines?: string } }[] }>('hardware-parsers.yaml')
  const lists = recordings().filter(name => name.startsWith('list-devices'))
  for (const list of lists)
    t.ok(
      parseDevices.some(({ given }) => given?.lines === list),
      list
    )
})

t.test('no text makes a parser throw', async t => {
  const parsers: [string, (text: string) => unknown][] = [
    ...Object.entries(TEXT_PARSERS),
    ['smi problem', text => smiProblem(text, 'linux')],
    ['kfd', text => parseKfdNode(text, [text])],
    ['group', text => groupMemory({ limits: [text], usage: text, stat: text })],
    ['ldconfig', text => librariesAmong(parseLdconfig(text, 'x64'))],
    ['card', text => toSighting({ vendor: text, device: text, uevent: text, mem_info_vram_total: text }, text)],
    ['pci names', text => pciName({ vendor: 'amd', pciId: '0x744c' }, text)]
  ]
  const random = randomBelow(1)
  const texts = recordings().map(recording)
  const inputs = [
    ...texts,
    '\0'.repeat(1000),
    '|'.repeat(5000),
    ',\n'.repeat(5000),
    '[{"card0":['.repeat(500),
    ' '.repeat(20_000)
  ]
  for (let round = 0; round < trialCount(100); round++) {
    const text = texts[random(texts.length)]!
    const at = random(text.length)
    const other = texts[random(texts.length)]!
    const bytes = Array.from({ length: 40 }, () => String.fromCharCode(random(700))).join('')
    inputs.push(
      text.slice(0, at),
      text.slice(at),
      text.slice(0, at) + bytes + text.slice(at),
      text.slice(0, at) + other.slice(random(other.length))
    )
  }
  const thrown: string[] = []
  let [slowest, all] = [0, 0]
  for (const [name, parse] of parsers) {
    for (const input of inputs) {
      const began = performance.now()
      try {
        parse(input)
      } catch (error) {
        thrown.push(`${name}: ${error} with ${JSON.stringify(input.slice(0, 200))}`)
      }
      const took = performance.now() - began
      slowest = Math.max(slowest, took)
      all += took
    }
  }
  t.same(thrown, [])
  t.ok(slowest < all / 2, `none of ${parsers.length * inputs.length} takes as long as all others together`)
})
