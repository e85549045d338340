import t from 'tap'
import {
  cardsInBrokenJson,
  parseAmdSmi,
  parseKfdNode,
  parseRocminfo,
  parseRocmSmi,
  rocminfoProblem
} from '../../../../plugins/running/hardware/amd.ts'
import {
  appleMemory,
  appleProcessor,
  parseSysctl,
  parseSystemProfiler
} from '../../../../plugins/running/hardware/apple.ts'
import { parseSyclLs, parseXpuSmi } from '../../../../plugins/running/hardware/intel.ts'
import { librariesAmong, parseLdconfig } from '../../../../plugins/running/hardware/libraries.ts'
import { parseAdapters, parseLspci, toSighting } from '../../../../plugins/running/hardware/listed-cards.ts'
import {
  groupFolders,
  groupMemory,
  parseMeminfo,
  parseVmStat
} from '../../../../plugins/running/hardware/main-memory.ts'
import {
  parseDriverCard,
  parseDriverVersion,
  parseSmiCsv,
  parseSmiList,
  parseSmiTable,
  parseSmiVersions,
  smiProblem
} from '../../../../plugins/running/hardware/nvidia.ts'
import { pciName } from '../../../../plugins/running/hardware/pci.ts'
import { parseCpuinfo, parseLscpu } from '../../../../plugins/running/hardware/processor.ts'
import { parseVulkaninfo } from '../../../../plugins/running/hardware/vulkan-drivers.ts'
import { randomBelow } from '../../../support/random.ts'
import { trialCount } from '../../../support/trial-count.ts'
import { recording, recordings } from './support.ts'

t.test('no text makes a parser throw', async t => {
  const parsers: [string, (text: string) => unknown][] = [
    ['smi csv', parseSmiCsv],
    ['smi table', parseSmiTable],
    ['smi versions', parseSmiVersions],
    ['smi list', parseSmiList],
    ['smi problem', text => smiProblem(text, 'linux')],
    ['driver', parseDriverVersion],
    ['driver card', parseDriverCard],
    ['kfd', text => parseKfdNode(text, [text])],
    ['rocminfo', parseRocminfo],
    ['rocminfo problem', rocminfoProblem],
    ['rocm-smi', parseRocmSmi],
    ['broken JSON of rocm-smi', cardsInBrokenJson],
    ['amd-smi', parseAmdSmi],
    ['xpu-smi', parseXpuSmi],
    ['sycl-ls', parseSyclLs],
    ['vulkaninfo', parseVulkaninfo],
    ['lspci', parseLspci],
    ['adapters', parseAdapters],
    ['system_profiler', parseSystemProfiler],
    ['sysctl', text => appleProcessor(parseSysctl(text))],
    ['memsize', appleMemory],
    ['vm_stat', parseVmStat],
    ['cpuinfo', parseCpuinfo],
    ['lscpu', parseLscpu],
    ['meminfo', parseMeminfo],
    ['cgroup', groupFolders],
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
