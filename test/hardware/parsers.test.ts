import t from 'tap'
import { parseAmdSmi } from '../../plugins/hardware/amd/amd-smi.ts'
import { amdChip, gfxName, gfxOfTargetVersion } from '../../plugins/hardware/amd/gfx.ts'
import { foldPartitions, type KfdNode, parseKfdNode } from '../../plugins/hardware/amd/kfd-topology.ts'
import { cardsInBrokenJson, parseRocmSmi } from '../../plugins/hardware/amd/rocm-smi.ts'
import { parseRocminfo, rocminfoProblem } from '../../plugins/hardware/amd/rocminfo.ts'
import { appleMemory, appleProcessor, metalBudget, parseSysctl } from '../../plugins/hardware/apple/sysctl.ts'
import { parseSystemProfiler } from '../../plugins/hardware/apple/system-profiler.ts'
import { parseSyclLs } from '../../plugins/hardware/intel/sycl-ls.ts'
import { parseXpuSmi } from '../../plugins/hardware/intel/xpu-smi.ts'
import { glibcVersion } from '../../plugins/hardware/libraries/c-library.ts'
import { librariesAmong, parseLdconfig } from '../../plugins/hardware/libraries/libraries.ts'
import { groupFolders, groupMemory, groupPaths, withinLimits } from '../../plugins/hardware/memory/cgroup.ts'
import { parseMeminfo, parseVmStat } from '../../plugins/hardware/memory/meminfo.ts'
import { capabilityOfId, capabilityOfName, cudaOfDriver } from '../../plugins/hardware/nvidia/compute-capability.ts'
import { parseDriverCard, parseDriverVersion } from '../../plugins/hardware/nvidia/proc-driver.ts'
import { parseSmiCsv, parseSmiList, parseSmiTable, parseSmiVersions } from '../../plugins/hardware/nvidia/smi-output.ts'
import { smiProblem } from '../../plugins/hardware/nvidia/smi-problem.ts'
import { addressOfLocation, pciAddress, pciId } from '../../plugins/hardware/pci/address.ts'
import { parseLspci } from '../../plugins/hardware/pci/lspci.ts'
import { pciName, soldAs } from '../../plugins/hardware/pci/pci-names.ts'
import { amdMemory, cardOf } from '../../plugins/hardware/pci/sysfs-cards.ts'
import { parseAdapters } from '../../plugins/hardware/pci/windows-adapters.ts'
import { parseCpuinfo, parseLscpu } from '../../plugins/hardware/processor/cpuinfo.ts'
import { vendorsOfDriverFiles } from '../../plugins/hardware/vulkan/driver-files.ts'
import { parseVulkaninfo } from '../../plugins/hardware/vulkan/vulkaninfo.ts'
import { GIB, MIB, recordedFiles, recording, recordings } from './support.ts'

const windowsLines = (text: string) => text.replaceAll('\n', '\r\n')

t.test('nvidia-smi: queries', async t => {
  const super4080 = {
    index: 0,
    name: 'NVIDIA GeForce RTX 4080 SUPER',
    pciBus: '0000:01:00.0',
    driver: '595.71.05',
    totalMemory: 16376 * MIB,
    freeMemory: 14470 * MIB,
    capability: '8.9',
    unified: false
  }
  const single = recording('nvidia/smi-query-single-4080s-595.csv.txt')
  t.match(parseSmiCsv(single), [super4080])
  t.match(parseSmiCsv(windowsLines(single)), [super4080])
  const bare = single.replaceAll(' MiB', '').replace(/ \[MiB\]/g, '')
  t.match(parseSmiCsv(bare), [super4080], 'without units')
  t.equal(parseSmiCsv(single)?.[0]?.mig, undefined)

  const h100 = parseSmiCsv(recording('nvidia/smi-query-h100-mig-590.csv.txt'))
  t.match(h100, [{ name: 'NVIDIA H100 80GB HBM3', totalMemory: 81559 * MIB, capability: '9.0', mig: true }])
  const gb10 = parseSmiCsv(recording('nvidia/smi-query-gb10-na-mem.csv.txt'))
  t.match(gb10, [{ unified: true, name: 'NVIDIA GPU' }])
  t.notOk('totalMemory' in gb10![0]! || 'freeMemory' in gb10![0]!, 'no numbers where there are none')

  const header = 'index, name, pci.bus_id, pci.device_id, driver_version, memory.total [MiB], memory.free [MiB]'
  const rows: [string, object[]][] = [
    [
      '1, Tesla P40, 00000000:81:00.0, 0x1B3810DE, 550.54.15, 23040 MiB, 0 MiB',
      [{ index: 1, pciId: '0x1b38', freeMemory: 0 }]
    ],
    [
      '0, X, 0000000F:01:00.0, 0x0, [N/A], [Not Supported], [Not Supported]',
      [{ pciBus: '000f:01:00.0', unified: true }]
    ],
    ['0, X, 00000000:01:00.0, 0x0, 580, [Insufficient Permissions], 3 MiB', [{ unified: false }]],
    ['0, X, 00000000:01:00.0, 0x0, 580, 99999999999999 MiB, 3 MiB', [{ unified: false }]],
    ['0, X, 00000000:01:00.0, 0x0, 580, 100 MiB, 300 MiB', [{ totalMemory: 100 * MIB }]],
    ['0, NVIDIA GeForce RTX 30', []],
    ['WARNING: infoROM is corrupted at gpu 0000:01:00.0', []]
  ]
  for (const [row, expected] of rows) t.match(parseSmiCsv(`${header}\n${row}`), expected, row)
  t.notOk(parseSmiCsv(`${header}\n${rows[3]![0]}`)![0]!.totalMemory, 'beyond all reason')
  t.notOk(parseSmiCsv(`${header}\n${rows[4]![0]}`)![0]!.freeMemory, 'more free than there is')
  t.same(parseSmiCsv(`${header}\n`), [])
  for (const text of ['', 'No devices were found', 'Field "compute_cap" is not a valid field to query.']) {
    t.equal(parseSmiCsv(text), undefined, text)
  }
  const eight = Array.from(
    { length: 8 },
    (_, at) => `${at}, NVIDIA H200, 00000000:0${at}:00.0, 0x0, 580, 143771 MiB, 1 MiB`
  )
  t.equal(parseSmiCsv([header, ...eight].join('\n'))?.length, 8)
})

t.test('nvidia-smi: table, versions, list', async t => {
  const tables: [string, object, object][] = [
    ['single-4080s-595', { pciBus: '0000:01:00.0', totalMemory: 16376 * MIB }, { driver: '595.71.05', cuda: '13.2' }],
    ['2080s-610-new-banner', { totalMemory: 8192 * MIB }, { driver: '610.57.04', cuda: '13.3' }],
    ['windows-2080s-610-wddm', { totalMemory: 8192 * MIB }, { driver: '610.62', cuda: '13.3' }],
    ['windows-l40s-tcc-555', { name: 'NVIDIA L40S', totalMemory: 46068 * MIB }, { driver: '555.85', cuda: '12.5' }],
    ['4070tis-550', { totalMemory: 16376 * MIB }, { driver: '550.127.05', cuda: '12.4' }],
    ['jetson-orin-540', { name: 'Orin (nvgpu)', unified: true }, { driver: '540.4.0', cuda: '12.6' }],
    ['gb10-not-supported-mem', { name: 'NVIDIA GB10', unified: true }, { driver: '580.126.09', cuda: '13.0' }]
  ]
  for (const [name, gpu, versions] of tables) {
    for (const text of [
      recording(`nvidia/smi-table-${name}.txt`),
      windowsLines(recording(`nvidia/smi-table-${name}.txt`))
    ]) {
      const gpus = parseSmiTable(text)
      t.equal(gpus.length, 1, `${name}: processes are no devices`)
      t.match(gpus[0], { index: 0, ...gpu }, name)
      t.notOk('freeMemory' in gpus[0]!, 'total less used is not what is free')
      t.same(parseSmiVersions(text), versions, name)
    }
  }
  const table = recording('nvidia/smi-table-4070tis-550.txt')
  const row = table.split('\n').slice(8, 11).join('\n')
  const two = parseSmiTable(`${table}\n${row.replace('|   0 ', '|   1 ').replace('01:00.0', '41:00.0')}`)
  t.match(two, [{ index: 0 }, { index: 1, pciBus: '0000:41:00.0' }])

  t.same(parseSmiVersions(recording('nvidia/smi-version-590.txt')), { driver: '590.48.01', cuda: '13.1' })
  t.same(parseSmiVersions(recording('nvidia/smi-version-610.txt')), { driver: '610.57.04', cuda: '13.3' })
  t.same(parseSmiVersions('CUDA Version: N/A'), {})

  const list = parseSmiList(
    [
      'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)',
      '  MIG 3g.40gb     Device  0: (UUID: MIG-1)',
      '  MIG 1g.10gb+me  Device  1: (UUID: MIG-2)',
      'GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-1)'
    ].join('\n')
  )
  t.same(
    [...list],
    [
      [0, [40, 10]],
      [1, []]
    ]
  )
})

t.test('nvidia-smi: problems', async t => {
  const problems: [string, string | undefined][] = [
    [recording('nvidia/smi-err-nvml-version-mismatch.txt'), 'driver_mismatch'],
    [recording('nvidia/smi-err-cannot-communicate-wsl2.txt'), 'driver_not_loaded'],
    [recording('nvidia/smi-err-no-devices.txt'), 'no_device'],
    ["NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", 'driver_not_loaded'],
    ['Failed to initialize NVML: Unknown Error', 'no_permission'],
    ['Failed to initialize NVML: GPU access blocked by the operating system', 'no_permission'],
    ['Failed to initialize NVML: Insufficient Permissions', 'no_permission'],
    ['Unable to determine the device handle for GPU0000:01:00.0: GPU is lost.  Reboot the system', 'no_device'],
    [recording('nvidia/smi-table-4070tis-550.txt'), undefined],
    [recording('nvidia/smi-query-single-4080s-595.csv.txt'), undefined],
    ['', undefined]
  ]
  for (const [text, code] of problems) t.equal(smiProblem(text, 'linux')?.code, code, text.slice(0, 60))
  t.match(smiProblem(problems[0]![0], 'linux'), { message: /550\.144/, advice: /sudo reboot/ })
  t.match(smiProblem(problems[1]![0], 'wsl')?.advice, /on Windows.*wsl --shutdown/)
  t.match(smiProblem(problems[1]![0], 'linux')?.advice, /modprobe nvidia/)
})

t.test('NVIDIA: what no tool tells', async t => {
  const names: [string, string | undefined][] = [
    ['NVIDIA GeForce RTX 5090', '12.0'],
    ['NVIDIA GeForce RTX 4070 Laptop GPU', '8.9'],
    ['NVIDIA GeForce RTX 3060 Ti', '8.6'],
    ['NVIDIA GeForce RTX 2080 ...', '7.5'],
    ['NVIDIA GeForce GTX 1660 SUPER', '7.5'],
    ['NVIDIA GeForce GTX 1080 Ti', '6.1'],
    ['NVIDIA GeForce GTX 970', '5.2'],
    ['NVIDIA GeForce GTX 750 Ti', '5.0'],
    ['NVIDIA H100 80GB HBM3', '9.0'],
    ['NVIDIA GH200 480GB', '9.0'],
    ['NVIDIA A100-SXM4-80GB', '8.0'],
    ['NVIDIA A10', '8.6'],
    ['NVIDIA L4', '8.9'],
    ['NVIDIA L40S', '8.9'],
    ['NVIDIA RTX A6000', '8.6'],
    ['NVIDIA RTX 6000 Ada Generation', '8.9'],
    ['NVIDIA RTX PRO 6000 Blackwell Workstation Edition', '12.0'],
    ['NVIDIA B200', '10.0'],
    ['NVIDIA GB10', '12.1'],
    ['Tesla T4', '7.5'],
    ['Tesla V100-SXM2-16GB', '7.0'],
    ['Tesla P100-PCIE-16GB', '6.0'],
    ['Tesla P40', '6.1'],
    ['Tesla K80', '3.7'],
    ['Quadro RTX 6000', '7.5'],
    ['Quadro P2000', '6.1'],
    ['NVIDIA TITAN V', '7.0'],
    ['NVIDIA TITAN RTX', '7.5'],
    ['Orin (nvgpu)', '8.7'],
    ['NVIDIA Thor', '11.0'],
    ['NVIDIA Something 9', undefined]
  ]
  for (const [name, capability] of names) t.equal(capabilityOfName(name), capability, name)
  const ids: [string, string | undefined][] = [
    ['0x1b06', '6.1'],
    ['0x1b38', '6.1'],
    ['0x15f8', '6.0'],
    ['0x1db4', '7.0'],
    ['0x1eb8', '7.5'],
    ['0x2184', '7.5'],
    ['0x20b0', '8.0'],
    ['0x2204', '8.6'],
    ['0x2330', '9.0'],
    ['0x2684', '8.9'],
    ['0x2860', '8.9'],
    ['0x2901', '10.0'],
    ['0x2b85', '12.0'],
    ['0x0100', undefined]
  ]
  for (const [id, capability] of ids) t.equal(capabilityOfId(id), capability, id)
  const drivers: [string, string | undefined][] = [
    ['580.95.05', '13.0'],
    ['579.99', '12.9'],
    ['550.127.05', '12.4'],
    ['535.54.03', '12.2'],
    ['610.62', '13.3'],
    ['700.1', '13.3'],
    ['390.87', undefined],
    ['', undefined]
  ]
  for (const [version, cuda] of drivers) t.equal(cudaOfDriver(version), cuda, version)

  const closed =
    'NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.127.05  Tue Oct  8 03:22:07 UTC 2024\nGCC version:  gcc 12'
  const open =
    'NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder)  Tue Sep'
  t.equal(parseDriverVersion(closed), '550.127.05')
  t.equal(parseDriverVersion(open), '580.95.05')
  t.equal(parseDriverVersion('hello'), undefined)
  t.same(parseDriverCard('Model: \t\t NVIDIA GeForce RTX 4090\nIRQ:   \t 160\nBus Location: \t 0000:01:00.0\n'), {
    name: 'NVIDIA GeForce RTX 4090',
    pciBus: '0000:01:00.0'
  })
})

/** The nodes of a recording, in order. */
function kfdNodes(name: string): KfdNode[] {
  const files = recordedFiles(name)
  const node = (path: string) => /nodes\/(\d+)\//.exec(path)![1]!
  return [...new Set(Object.keys(files).map(node))].map(id => ({
    properties: Object.entries(files).find(([path]) => path.endsWith(`nodes/${id}/properties`))?.[1] ?? '',
    banks: Object.keys(files)
      .filter(path => path.includes(`nodes/${id}/mem_banks/`) && path.endsWith('/properties'))
      .map(path => ({ properties: files[path]!, used: files[path.replace('properties', 'used_memory')] }))
  }))
}

t.test('AMD: the kernel', async t => {
  const versions: [number, string | undefined][] = [
    [110501, 'gfx1151'],
    [90402, 'gfx942'],
    [90010, 'gfx90a'],
    [90012, 'gfx90c'],
    [100306, 'gfx1036'],
    [80003, 'gfx803'],
    [120001, 'gfx1201'],
    [0, undefined],
    [90016, undefined],
    [-1, undefined],
    [Number.NaN, undefined],
    [1e15, undefined]
  ]
  for (const [version, gfx] of versions) t.equal(gfxOfTargetVersion(version), gfx, String(version))
  t.equal(gfxName('amdgcn-amd-amdhsa--gfx906:sramecc+:xnack-'), 'gfx906')
  t.equal(gfxName('gfx'), undefined)
  const chips: [string, string, boolean][] = [
    ['0x73df', 'gfx1031', false],
    ['0x744c', 'gfx1100', false],
    ['0x1900', 'gfx1103', true],
    ['0x1586', 'gfx1151', true],
    ['0x163f', 'gfx1033', true],
    ['0x164e', 'gfx1036', true],
    ['0x73ff', 'gfx1032', false],
    ['0x73bf', 'gfx1030', false],
    ['0x74a1', 'gfx942', false],
    ['0x6860', 'gfx900', false],
    ['0x740f', 'gfx90a', false]
  ]
  for (const [id, gfx, integrated] of chips) t.match(amdChip(id), { gfx, integrated }, id)
  t.equal(amdChip('0x0001'), undefined)
  t.match(amdChip(undefined, 'gfx1151'), { name: 'AMD Strix Halo', integrated: true })
  t.match(amdChip(undefined, 'gfx1103'), { name: 'AMD GPU (gfx1103)', integrated: true })
  t.equal(amdChip('0x0001', 'gfx1151'), undefined, 'another chip')
  t.equal(amdChip(undefined, 'gfx9999'), undefined)

  const minimal = kfdNodes('rocm/kfd-topology-gfx1151-minimal.txt').map(parseKfdNode)
  t.equal(minimal[0], undefined, 'a processor')
  t.match(minimal[1], { vendor: 'amd', architecture: 'gfx1151' })

  const cpx = kfdNodes('rocm/kfd-topology-mi300x-cpx.txt').flatMap(node => parseKfdNode(node) ?? [])
  t.equal(cpx.length, 2)
  t.match(cpx, [
    { architecture: 'gfx942', pciId: '0x74a1', pciBus: '0000:05:00.0' },
    { architecture: 'gfx942', pciBus: '0000:05:00.1' }
  ])
  t.notOk('totalMemory' in cpx[0]!, '0 is not known')
  const folded = foldPartitions(cpx)
  t.equal(folded.gpus.length, 1, 'partitions are no cards')
  t.match(folded.problems, [{ code: 'partitioned', message: /2 compute partitions/ }])
  t.equal(foldPartitions([...cpx, { ...cpx[0]!, pciBus: '0000:85:00.0' }]).gpus.length, 2)

  const [, vega] = kfdNodes('rocm/kfd-topology-vega10-old-no-gfxver.txt').map(parseKfdNode)
  t.match(vega, {
    pciId: '0x6860',
    pciBus: '0000:19:00.0',
    totalMemory: 16368 * MIB,
    freeMemory: 17163091968 - 14102528
  })
  t.notOk('architecture' in vega!)
  t.equal(parseKfdNode({ properties: 'simd_count 4\nvendor_id 32902\n', banks: [] }), undefined, 'of another vendor')
})

t.test('AMD: cards in sysfs', async t => {
  const memory = (vram: number, gtt: number, used = 0) => ({
    mem_info_vram_total: `${vram}\n`,
    mem_info_vram_used: `${used}\n`,
    mem_info_gtt_total: `${gtt}\n`,
    mem_info_gtt_used: '0\n'
  })
  const table: [string, ReturnType<typeof memory>, string | undefined, object][] = [
    [
      'card',
      memory(16 * GIB, 32 * GIB, GIB),
      '0x744c',
      { type: 'discrete', totalMemory: 16 * GIB, freeMemory: 15 * GIB }
    ],
    ['apu', memory(GIB / 2, 8 * GIB), '0x163f', { type: 'integrated', unifiedMemory: true, totalMemory: 8.5 * GIB }],
    [
      'carve-out',
      memory(96 * GIB, 16 * GIB),
      '0x1586',
      { type: 'integrated', unifiedMemory: false, totalMemory: 96 * GIB }
    ],
    ['unknown, small', memory(GIB / 2, 8 * GIB), '0x0001', { type: 'integrated', unifiedMemory: true }],
    ['unknown, large', memory(32 * GIB, 64 * GIB), undefined, { type: 'discrete', unifiedMemory: false }]
  ]
  for (const [name, files, id, expected] of table) t.match(amdMemory(files, id), expected, name)
  t.same(amdMemory({ mem_info_vram_total: 'junk' }, '0x744c'), {})
  t.same(amdMemory({}, undefined), {})

  const radeon = {
    vendor: '0x1002\n',
    device: '0x744c\n',
    class: '0x030000\n',
    uevent: 'DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_ID=1002:744C\nPCI_SLOT_NAME=0000:03:00.0\n'
  }
  t.match(cardOf(radeon, undefined, 'drm'), { vendor: 'amd', pciId: '0x744c', pciBus: '0000:03:00.0', usable: true })
  const driver = (name: string) => radeon.uevent.replace('amdgpu', name)
  t.equal(cardOf({ ...radeon, uevent: driver('vfio-pci') }, undefined, 'pci')?.usable, false)
  t.equal(cardOf({ ...radeon, uevent: 'PCI_ID=1002:744C\n' }, undefined, 'pci')?.usable, false, 'no driver')
  t.equal(cardOf({ vendor: '0x8086', device: '0x56a0' }, '0000:03:00.0', 'drm')?.usable, true)
  t.equal(cardOf({ ...radeon, vendor: '0x10de', uevent: driver('nvidia') }, undefined, 'drm')?.usable, undefined)
  t.equal(cardOf({ ...radeon, vendor: '0x10de', uevent: driver('nouveau') }, undefined, 'drm')?.usable, false)
  t.equal(cardOf({ ...radeon, vendor: '0x1a03' }, undefined, 'pci'), undefined, 'the display of a server')
  t.equal(cardOf({ ...radeon, class: '0x020000' }, undefined, 'pci'), undefined, 'a network card')
  t.match(cardOf({ ...radeon, class: '0x120000', device: '0x74a1' }, undefined, 'pci'), { pciId: '0x74a1' })
  t.equal(cardOf({}, undefined, 'drm'), undefined)
})

t.test('AMD: tools', async t => {
  const cards: [string, object[] | undefined][] = [
    [
      'json-rx6700xt-rocm612',
      [
        {
          pciId: '0x73df',
          pciBus: '0000:07:00.0',
          architecture: 'gfx1031',
          totalMemory: 12272 * MIB,
          name: 'AMD Radeon RX 6700/6700 XT / 6800M'
        }
      ]
    ],
    [
      'showmeminfo-json-7900xt',
      [
        {
          name: 'AMD Radeon RX 7900 XT',
          pciId: '0x744c',
          architecture: 'gfx1100',
          totalMemory: 21458059264,
          freeMemory: 21458059264 - 27856896
        }
      ]
    ],
    [
      'csv-6800-plus-raphael-igpu',
      [
        { pciId: '0x73bf', architecture: 'gfx1030', totalMemory: 16368 * MIB, freeMemory: 17163091968 - 692142080 },
        { pciId: '0x164e', architecture: 'gfx1036', totalMemory: 64 * MIB }
      ]
    ],
    ['text-showmeminfo-4gb', [{ totalMemory: 4080 * MIB, freeMemory: 4278190080 - 108814336 }]],
    ['json-radeon780m-phoenix', undefined]
  ]
  for (const [name, expected] of cards) {
    const text = recording(`rocm/rocm-smi-${name}.txt`)
    for (const form of [
      text,
      windowsLines(text),
      `WARNING: AMD GPU device(s) is/are in a low-power state.\n\n${text}`
    ]) {
      const found = parseRocmSmi(form)
      t.equal(found?.length, expected?.length, name)
      if (expected) t.match(found, expected, name)
    }
  }
  t.match(cardsInBrokenJson(recording('rocm/rocm-smi-json-radeon780m-phoenix.txt')), [
    { pciId: '0x1900', pciBus: '0000:c4:00.0', name: 'AMD Phoenix3' }
  ])
  const half = recording('rocm/rocm-smi-json-rx6700xt-rocm612.txt').slice(0, -200)
  t.notOk('totalMemory' in cardsInBrokenJson(half)[0]!, 'of what is broken only names are believed')
  t.same(cardsInBrokenJson('{"card0": {"GPU use (%)": "0"'), [])
  t.match(
    parseRocmSmi('{"card10":{"Card series":"C"},"card2":{"Card series":"B"},"card0":{"Card series":"AMD A"}}'),
    [{ name: 'AMD A' }, { name: 'AMD B' }, { name: 'AMD C' }],
    'in their order'
  )
  t.match(parseRocmSmi('GPU[0]\t\t: Card Series: \t\tAMD Radeon RX 9070 XT\nGPU[0]\t\t: GFX Version: \t\tgfx1201\n'), [
    { name: 'AMD Radeon RX 9070 XT', architecture: 'gfx1201' }
  ])
  t.same(parseRocmSmi('{}'), [])
  t.same(parseRocmSmi('{"card0": null, "card1": 3, "system": {"Driver version": "6"}}'), [])
  t.equal(parseRocmSmi('null'), undefined)

  const strix = parseRocminfo(recording('rocm/rocminfo-gfx1151-strix-halo-wsl.txt'))
  t.match(strix, [{ name: 'AMD Radeon(TM) 8060S Graphics', architecture: 'gfx1151', pciId: '0x1586' }])
  t.notOk('totalMemory' in strix![0]!)
  const mi300 = parseRocminfo(recording('rocm/rocminfo-mi300x-gfx941.txt'))
  t.equal(mi300?.length, 1)
  t.match(mi300, [
    {
      name: 'AMD Instinct MI300X',
      architecture: 'gfx941',
      pciId: '0x74a1',
      pciBus: '0000:03:00.0',
      totalMemory: 134201344 * 1024
    }
  ])
  const cpu = 'Agent 1\n*******\n  Name:   AMD Ryzen 9\n  Device Type:             CPU\n'
  t.same(parseRocminfo(cpu), [], 'a processor is no GPU')
  const nameless =
    'Agent 2\n  Name:     gfx1100\n  Marketing Name:          \n  Vendor Name:   AMD\n  Device Type:   GPU\n'
  t.notOk('name' in parseRocminfo(nameless)![0]!, 'what is empty does not go on in the next line')
  const apu =
    'Agent 2\n  Name:  gfx1151\n  Device Type:  GPU\n  BDFID:  50432\n  Memory Properties:       APU\n  Pool Info:\n    Pool 1\n' +
    '      Segment:  GLOBAL; FLAGS: COARSE GRAINED\n      Size:   32490760(0x1efc508) KB\n'
  t.match(parseRocminfo(apu), [{ type: 'integrated', pciBus: '0000:c5:00.0' }])
  t.notOk('totalMemory' in parseRocminfo(apu)![0]!, 'what it could have is not its own')
  t.match(parseRocminfo(apu.replace('APU', '')), [{ totalMemory: 32490760 * 1024 }])
  t.equal(parseRocminfo('ROCk module is NOT loaded, possibly no GPU devices'), undefined)
  const complaints: [string, string | undefined][] = [
    ['ROCk module is NOT loaded, possibly no GPU devices', 'driver_not_loaded'],
    ['Unable to open /dev/kfd read-write: Permission denied\nuser is not member of "render" group', 'no_permission'],
    ['ROCk module is loaded', undefined]
  ]
  for (const [text, code] of complaints) t.equal(rocminfoProblem(text)?.code, code, text)

  const text = recording('rocm/amd-smi-static-780m-unsupported.txt')
  const phoenix = { pciId: '0x1900', pciBus: '0000:65:00.0', driver: { name: 'amdgpu' }, usable: true, api: 'rocm' }
  t.match(parseAmdSmi(text), [phoenix])
  t.match(parseAmdSmi(windowsLines(text)), [phoenix])
  t.notOk('totalMemory' in parseAmdSmi(text)![0]!)
  const large = `${text}    VRAM:\n        TYPE: GDDR6\n        SIZE: 24560 MB\n`
    .replace('OAM_ID: N/A', 'OAM_ID: N/A\n        TARGET_GRAPHICS_VERSION: gfx1100')
    .replace('GPU: 0', 'GPU: 1')
  t.match(parseAmdSmi(text + large), [phoenix, { totalMemory: 24560 * MIB, architecture: 'gfx1100' }])
  t.equal(parseAmdSmi('usage: amd-smi'), undefined)
  const short =
    'CPU: 0\n    SMU:\n        FW_VERSION: 85\n\nGPU: 0\n    ASIC:\n        Market Name: AMD Radeon RX 7900 XTX\n        TARGET_GRAPHICS_VERSION: gfx1100\n'
  t.match(parseAmdSmi(short), [{ name: 'AMD Radeon RX 7900 XTX', architecture: 'gfx1100', usable: true }])
  t.match(parseAmdSmi(text.replace('NAME: amdgpu', 'NAME: vfio-pci')), [{ usable: false }])
})

t.test('Intel', async t => {
  const a770 = { vendor: 'intel', type: 'discrete', name: 'Intel(R) Arc(TM) A770 Graphics', pciId: '0x56a0' }
  const text = recording('intel/xpu-smi-discovery-a770.txt')
  t.match([...parseXpuSmi(text)], [[0, a770]])
  t.match([...parseXpuSmi(windowsLines(text))], [[0, a770]])
  const framed = [
    '+-----------+----------------------------------------------------------+',
    '| Device ID | Device Information                                       |',
    '+-----------+----------------------------------------------------------+',
    '| 0         | Device Name: Intel(R) Data Center GPU Flex 170           |',
    '|           | Vendor Name: Intel(R) Corporation                        |',
    '|           | PCI BDF Address: 0000:4d:00.0                            |',
    '|           | Memory Physical Size: 14248.00 MiB                       |',
    '+-----------+----------------------------------------------------------+',
    '| 1         | Device Name: Intel(R) Data Center GPU Flex 140           |',
    '|           | Vendor Name: Intel(R) Corporation                        |'
  ].join('\n')
  t.match(
    [...parseXpuSmi(framed).values()],
    [{ pciBus: '0000:4d:00.0', totalMemory: 14248 * MIB }, { name: 'Intel(R) Data Center GPU Flex 140' }]
  )
  t.equal(parseXpuSmi('No device discovered').size, 0)

  const listed = [
    '[opencl:cpu][opencl:0] Intel(R) OpenCL, 13th Gen Intel(R) Core(TM) i7-13700K OpenCL 3.0 (Build 0) [2024.18.10.0.08_160000]',
    '[level_zero:gpu][level_zero:0] Intel(R) oneAPI Unified Runtime over Level-Zero, Intel(R) Arc(TM) A770 Graphics 12.55.8 [1.3.29735+27]',
    '[level_zero:gpu][level_zero:1] Intel(R) oneAPI Unified Runtime over Level-Zero V2, Intel(R) Graphics [0xe223] 20.2.0 [1.14.37020]',
    '[ext_oneapi_level_zero:gpu:0] Intel(R) Level-Zero, Intel(R) Arc(TM) A380 Graphics 1.3 [1.3.26516]',
    '[opencl:gpu][opencl:1] Intel(R) OpenCL Graphics, Intel(R) Arc(TM) A770 Graphics OpenCL 3.0 NEO [24.22.29735.27]'
  ].join('\n')
  t.match(parseSyclLs(listed), [
    { name: 'Intel(R) Arc(TM) A770 Graphics', api: 'sycl' },
    { name: 'Intel(R) Graphics [0xe223]', pciId: '0xe223' },
    { name: 'Intel(R) Arc(TM) A380 Graphics', api: 'sycl' }
  ])
})

t.test('Apple', async t => {
  t.same(parseSystemProfiler(recording('macos/system_profiler-displays-m5max.json.txt')), [
    {
      vendor: 'apple',
      name: 'Apple M5 Max',
      type: 'integrated',
      unifiedMemory: true,
      architecture: 'metal4',
      api: 'metal',
      usable: true
    }
  ])
  t.match(parseSystemProfiler(recording('macos/system_profiler-displays-intel-dual-gpu.json.txt')), [
    { vendor: 'intel', type: 'integrated', unifiedMemory: true },
    { vendor: 'amd', type: 'discrete', totalMemory: 4 * GIB, unifiedMemory: false }
  ])
  for (const text of ['', '{', '[]', 'null', '{"SPDisplaysDataType":3}'])
    t.equal(parseSystemProfiler(text), undefined, text)
  t.same(parseSystemProfiler('{"SPDisplaysDataType":[null,{},{"_name":7}]}'), [])
  const vendors: [string, string, string][] = [
    ['Intel', 'Intel UHD Graphics 630', 'intel'],
    ['sppci_vendor_AMD', 'Radeon RX 580', 'amd'],
    ['0x10de', 'GT 750M', 'nvidia'],
    ['Intel (0x8086)', 'HD 4000', 'intel'],
    ['', 'AMD Radeon Pro', 'amd']
  ]
  for (const [vendor, name, expected] of vendors) {
    const display = { sppci_model: name, spdisplays_vendor: vendor, spdisplays_vram: '1.5 GB' }
    t.equal(parseSystemProfiler(JSON.stringify({ SPDisplaysDataType: [display] }))?.[0]?.vendor, expected, vendor)
  }

  const m1 = parseSysctl(
    `${recording('macos/sysctl-cpu-m1.txt')}hw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_I8MM: 0`
  )
  t.same(appleProcessor(m1), { model: 'Apple M1', cores: 8, threads: 8, features: ['asimddp'] })
  const i7 = parseSysctl(
    `${recording('macos/sysctl-cpu-intel-i7-9750h.txt')}machdep.cpu.features: SSE4.2 AVX1.0 F16C FMA\n` +
      'machdep.cpu.leaf7_features: AVX2 BMI2\n'
  )
  t.match(appleProcessor(i7), { cores: 6, threads: 12, features: ['sse42', 'avx', 'avx2', 'fma', 'f16c', 'bmi2'] })
  const single = parseSysctl(
    'machdep.cpu.brand_string: Intel(R) X\nhw.optional.avx1_0: 1\nhw.optional.avx2_0: 1\nhw.optional.fma: 0\n'
  )
  t.same(appleProcessor(single)?.features, ['avx', 'avx2'])
  t.equal(appleProcessor(parseSysctl('junk')), undefined)
  const memory = recording('macos/sysctl-memsize-16gb.txt')
  t.equal(appleMemory(memory), 16 * GIB)
  t.equal(appleMemory(`hw.memsize: ${memory}`), 16 * GIB)
  t.equal(appleMemory('junk'), undefined)
  t.equal(Math.floor(metalBudget(8 * GIB) / MIB), 5461, 'as a Mac with 8 GB says')
  t.equal(metalBudget(128 * GIB), 98304 * MIB, 'as a Mac with 128 GB says')
  const pages =
    'Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free:        100.\n' +
    'Pages active:   500.\nPages inactive:  200.\nPages speculative: 10.\nPages purgeable: 1.\n'
  t.equal(parseVmStat(pages), 311 * 16384)
  t.equal(parseVmStat('junk'), undefined)
})

t.test('Vulkan', async t => {
  const table: [string, object[]][] = [
    [
      'summary-intel-igpu-plus-4070-laptop',
      [
        { vendor: 'intel', type: 'integrated', pciId: '0xa788', driver: { version: '25.0.7' } },
        { vendor: 'nvidia', type: 'discrete', pciId: '0x2860', driver: { version: '580.95.05' }, api: 'vulkan' }
      ]
    ],
    ['summary-steamdeck-radv', [{ vendor: 'amd', type: 'integrated', pciId: '0x163f', name: 'AMD Custom GPU 0405' }]],
    ['summary-venus-m2-plus-llvmpipe', [{ vendor: 'apple', type: 'virtual', name: 'Virtio-GPU Venus (Apple M2)' }]],
    ['rx6600xt-amd-proprietary', [{ vendor: 'amd', type: 'discrete', pciId: '0x73ff' }]],
    [
      'qualcomm-multiline-driverinfo',
      [
        {
          vendor: 'qualcomm',
          type: 'integrated',
          name: 'Qualcomm(R) Adreno(TM) X1-85 GPU',
          driver: { version: '0.851.0' }
        }
      ]
    ]
  ]
  for (const [name, expected] of table) {
    const text = recording(`vulkan/vulkaninfo-${name}.txt`)
    for (const form of [text, windowsLines(text)]) {
      const found = parseVulkaninfo(form)
      t.equal(found?.length, expected.length, name)
      t.match(found, expected, name)
    }
  }
  t.equal(parseVulkaninfo('ERROR: [Loader Message] Code 0 : no drivers'), undefined)
  const dozen =
    'GPU0:\n\tvendorID = 0x10de\n\tdeviceType = PHYSICAL_DEVICE_TYPE_DISCRETE_GPU\n\tdeviceName = Microsoft Direct3D12 (NVIDIA GeForce RTX 3060)\n'
  t.same(parseVulkaninfo(dozen), [], 'Direct3D in disguise')
  t.same(vendorsOfDriverFiles(['radeon_icd.x86_64.json', 'lvp_icd.x86_64.json', 'nvidia_icd.json', 'x.txt']), [
    'nvidia',
    'amd'
  ])
  t.same(vendorsOfDriverFiles(['lvp_icd.x86_64.json']), [])
})

t.test('PCI', async t => {
  const found = [
    { vendor: 'intel', pciBus: '0000:00:02.0', pciId: '0x0162' },
    { vendor: 'nvidia', pciBus: '0000:01:00.0', pciId: '0x1b06' },
    { vendor: 'intel', pciBus: '0000:04:00.0', pciId: '0x56a2' }
  ]
  const blocks = recording('cpu/lspci-arc-a580-plus-gtx1080ti.txt')
  t.match(parseLspci(blocks), found)
  t.match(parseLspci(windowsLines(blocks)), found)
  t.equal(parseLspci(blocks).length, 3)
  const named =
    'Slot:\t0000:01:00.0\nClass:\tVGA compatible controller [0300]\nVendor:\tNVIDIA Corporation [10de]\n' +
    'Device:\tGP102 [GeForce GTX 1080 Ti] [1b06]\nDriver:\tnouveau\nModule:\tnouveau\n\n' +
    'Slot:\t0000:02:00.0\nClass:\tEthernet controller [0200]\nVendor:\tIntel Corporation [8086]\nDevice:\tI210 [1533]\n\n' +
    'Slot:\t0000:03:00.0\nClass:\tVGA compatible controller [0300]\nVendor:\tASPEED Technology, Inc. [1a03]\nDevice:\tASPEED [2000]\n'
  t.same(parseLspci(named), [
    {
      vendor: 'nvidia',
      pciBus: '0000:01:00.0',
      pciId: '0x1b06',
      name: 'NVIDIA GeForce GTX 1080 Ti',
      driver: { name: 'nouveau' },
      usable: false
    }
  ])
  const lines =
    '00:02.0 VGA compatible controller [0300]: Intel Corporation Raptor Lake-S GT1 [UHD Graphics 770] [8086:a780] (rev 04)\n' +
    '03:00.0 VGA compatible controller: Advanced Micro Devices, Inc. [AMD/ATI] Navi 31 [Radeon RX 7900 XT/7900 XTX] (rev c8)\n' +
    '04:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)\n' +
    '05:00.0 Audio device [0403]: NVIDIA Corporation AD102 High Definition Audio Controller [10de:22ba]\n'
  t.match(parseLspci(lines), [
    { vendor: 'intel', pciId: '0xa780', name: 'Intel UHD Graphics 770' },
    { vendor: 'amd', pciBus: '0000:03:00.0', name: 'AMD Radeon RX 7900 XT/7900 XTX' },
    { vendor: 'nvidia', pciId: '0x2330', name: 'NVIDIA H100 SXM5 80GB' }
  ])
  t.equal(parseLspci(lines).length, 3)

  const list =
    '1002  Advanced Micro Devices, Inc. [AMD/ATI]\n\t744c  Navi 31 [Radeon RX 7900 XT]\n\t\t1002 0e3b  A card\n10de  NVIDIA Corporation\n\t1b06  GP102 [GeForce GTX 1080 Ti]\n8086  Intel Corporation\n\t56a0  DG2 [Arc A770]\n'
  t.equal(pciName({ vendor: 'nvidia', pciId: '0x1b06' }, list), 'NVIDIA GeForce GTX 1080 Ti')
  t.equal(pciName({ vendor: 'amd', pciId: '0x744c' }, list), 'AMD Radeon RX 7900 XT')
  t.equal(pciName({ vendor: 'intel', pciId: '0x56a0' }, list), 'Intel Arc A770')
  t.equal(pciName({ vendor: 'amd', pciId: '0x1b06' }, list), undefined, 'the id of another vendor')
  t.equal(pciName({ vendor: 'amd', pciId: '0x744c' }, ''), undefined)
  t.equal(soldAs('amd', 'AMD Thing'), 'AMD Thing')

  const places: [string | undefined, string | undefined][] = [
    ['00000000:0C:00.0', '0000:0c:00.0'],
    ['0000000F:01:00.0', '000f:01:00.0'],
    ['01:00.0', '0000:01:00.0'],
    ['N/A', undefined],
    [undefined, undefined]
  ]
  for (const [text, place] of places) t.equal(pciAddress(text), place)
  t.equal(addressOfLocation(1280), '0000:05:00.0')
  t.equal(addressOfLocation(6400), '0000:19:00.0')
  t.equal(addressOfLocation(0), undefined)
  t.same(
    [pciId('0x73DF'), pciId('1b06'), pciId(29857), pciId('0x36334330'), pciId('x')],
    ['0x73df', '0x1b06', '0x74a1', undefined, undefined]
  )

  t.match(
    parseAdapters(
      '[{"Name":"AMD Radeon RX 7800 XT","PNPDeviceID":"PCI\\\\VEN_1002&DEV_747E&SUBSYS_1","DriverVersion":"32.0.1","ConfigManagerErrorCode":0},' +
        '{"Name":"Microsoft Remote Display Adapter","PNPDeviceID":"SWD\\\\REMOTE","ConfigManagerErrorCode":0}]'
    ),
    [{ vendor: 'amd', pciId: '0x747e', usable: true }]
  )
  t.match(
    parseAdapters('{"Name":"Intel(R) Arc(TM)","PNPDeviceID":"PCI\\\\VEN_8086&DEV_56A0","ConfigManagerErrorCode":43}'),
    [{ vendor: 'intel', usable: false }]
  )
  t.equal(parseAdapters('Get-CimInstance : not found'), undefined)
})

t.test('processors', async t => {
  const table: [string, object, string[], string[]][] = [
    [
      'i7-2600k-avx1-only',
      { model: 'Intel(R) Core(TM) i7-2600K CPU @ 3.40GHz', cores: 4, threads: 8 },
      ['sse42', 'avx'],
      ['avx2', 'fma', 'f16c', 'bmi2', 'avx512f']
    ],
    [
      'core-ultra-256v-avx2-no-avx512',
      { cores: 8, threads: 8 },
      ['avx2', 'fma', 'f16c', 'bmi2', 'avx_vnni'],
      ['avx512f', 'avx512_vnni']
    ],
    ['i7-1165g7-avx512', { cores: 4, threads: 8 }, ['avx512f', 'avx512_vnni', 'avx512_vbmi'], ['avx_vnni', 'amx_int8']],
    ['altra-max-aarch64', { model: 'Neoverse N1' }, ['asimd', 'asimddp', 'asimdhp'], ['sve', 'i8mm', 'avx']]
  ]
  for (const [name, facts, has, lacks] of table) {
    const text = recording(`cpu/cpuinfo-${name}.txt`)
    for (const form of [text, windowsLines(text)]) {
      const cpu = parseCpuinfo(form)
      t.match(cpu, facts, name)
      for (const feature of has) t.ok(cpu?.features?.includes(feature), `${name} has ${feature}`)
      for (const feature of lacks) t.notOk(cpu?.features?.includes(feature), `${name} lacks ${feature}`)
    }
  }
  const one = recording('cpu/cpuinfo-i7-2600k-avx1-only.txt').trimEnd()
  const two = [0, 1].map(socket => one.replace(/physical id\t: 0/, `physical id\t: ${socket}`)).join('\n\n')
  t.match(parseCpuinfo(two), { cores: 8, threads: 16 }, 'two sockets')
  t.equal(parseCpuinfo('nothing'), undefined)

  const wrapped = recording('cpu/cpuinfo-core2-no-avx-flags.txt')
  const core2 = parseLscpu(
    `CPU(s):  2\nModel name:  Intel(R) Core(TM)2 Duo\nCore(s) per socket:  2\nSocket(s):  1\n${wrapped}`
  )
  t.same(core2, { model: 'Intel(R) Core(TM)2 Duo', cores: 2, threads: 2, features: ['ssse3'] })
  t.same(parseLscpu(wrapped), { features: ['ssse3'] })
  const newer = wrapped.replace(
    'dtherm ida',
    'sse4_\n                             2 av\n                             x f16c'
  )
  t.same(parseLscpu(newer)?.features, ['ssse3', 'sse42', 'avx', 'f16c'], 'words that were cut in two')
  t.equal(parseLscpu('lscpu: failed'), undefined)
})

t.test('memory and its limits', async t => {
  const text = recording('cpu/meminfo-i5-3570k-low-free-high-available.txt')
  t.same(parseMeminfo(text), { total: 16262132 * 1024, available: 14760924 * 1024 })
  const old = text.replace(/^MemAvailable.*\n/m, '')
  t.equal(parseMeminfo(old)?.available, (234596 + 184464 + 14232772) * 1024, 'of an old kernel')
  t.equal(parseMeminfo('junk'), undefined)
  t.equal(parseMeminfo('MemTotal: 0 kB\n'), undefined)
  t.equal(parseMeminfo('MemTotal: 100 kB\nMemAvailable: 500 kB\n')?.available, 102400, 'never more than there is')

  const v1 = recordedFiles('cpu/cgroup-v1-unlimited.txt')
  const v2 = recordedFiles('cpu/cgroup-v2-unlimited.txt')
  const ofV1 = groupPaths(v1['/proc/985/cgroup']!)
  t.same(ofV1, [{ version: 1, mount: '/sys/fs/cgroup/memory', path: '/docker/<cid>' }])
  t.same(groupFolders(ofV1[0]!), [
    '/sys/fs/cgroup/memory/docker/<cid>',
    '/sys/fs/cgroup/memory/docker',
    '/sys/fs/cgroup/memory'
  ])
  t.same(groupPaths(v2['/proc/2233801/cgroup']!), [{ version: 2, mount: '/sys/fs/cgroup', path: '/' }], 'it leads out')
  t.same(groupFolders({ version: 2, mount: '/sys/fs/cgroup', path: '/' }), ['/sys/fs/cgroup'])

  const mounts =
    '31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n' +
    '35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime shared:3 - cgroup cgroup rw,memory\n' +
    '41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n'
  t.same(
    groupPaths('4:memory:/docker/abc/within\n3:cpuset:/\n0::/x/../y\n', mounts),
    [
      { version: 1, mount: '/sys/fs/cgroup/memory', path: '/within' },
      { version: 2, mount: '/sys/fs/cgroup/unified', path: '/' }
    ],
    'both versions, and a mount that begins within the group'
  )
  t.same(groupPaths('4:memory:/elsewhere\n', mounts), [{ version: 1, mount: '/sys/fs/cgroup/memory', path: '/' }])
  t.same(groupPaths('junk'), [])

  const unlimited = (limits: (string | undefined)[]) => groupMemory({ limits, usage: '1000\n', stat: undefined })
  t.equal(unlimited([v1['/sys/fs/cgroup/memory/docker/<cid>/memory.limit_in_bytes']]), undefined)
  const scope = '/sys/fs/cgroup/user.slice/user-1000.slice/session-520.scope'
  t.equal(unlimited([v2[`${scope}/memory.max`], v2[`${scope}/memory.high`]]), undefined)
  t.equal(unlimited([undefined, 'junk']), undefined)
  t.same(groupMemory({ limits: ['4000\n', '3000\n'], usage: '2500\n', stat: 'anon 1\ninactive_file 500\n' }), {
    limit: 3000,
    used: 2000
  })
  t.same(groupMemory({ limits: ['4000'], usage: '100', stat: 'inactive_file 10\ntotal_inactive_file 60\n' }), {
    limit: 4000,
    used: 40
  })
  const machine = { total: 10_000, available: 6000 }
  t.same(withinLimits(machine, []), { available: 6000 })
  t.same(withinLimits(machine, [{ limit: 20_000, used: 19_999 }]), { available: 6000 }, 'no limit at all')
  t.same(
    withinLimits(machine, [
      { limit: 4000, used: 1000 },
      { limit: 8000, used: 7500 }
    ]),
    { limit: 4000, available: 500 }
  )
  t.same(withinLimits(machine, [{ limit: 4000, used: 5000 }]), { limit: 4000, available: 0 })
})

t.test('libraries', async t => {
  const printed =
    "765 libs found in cache `/etc/ld.so.cache'\n\tlibvulkan.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libvulkan.so.1\n" +
    '\tlibssl.so.3 (libc6) => /lib/i386-linux-gnu/libssl.so.3\n\tlibamdhip64.so.6 (libc6,x86-64) => /opt/rocm/lib/libamdhip64.so.6\n' +
    '\tlibgomp.so.1 (libc6,AArch64) => /lib/aarch64-linux-gnu/libgomp.so.1\n'
  t.same(parseLdconfig(printed, 'x64'), ['libvulkan.so.1', 'libamdhip64.so.6'])
  t.same(parseLdconfig(printed, 'arm64'), ['libgomp.so.1'])
  t.same(librariesAmong(parseLdconfig(printed, 'x64')), ['vulkan', 'hip'])
  t.same(
    librariesAmong([
      'libze_loader.so.1',
      'libgomp.so.1',
      'libssl.so.3',
      'libcuda.so.1',
      'libsycl.so.8',
      'libcudart.so.13'
    ]),
    ['level-zero', 'sycl', 'cuda', 'cudart-13', 'libgomp', 'openssl3']
  )
  t.same(librariesAmong(['vulkan-1.dll', 'nvcuda.dll']), ['vulkan', 'cuda'])
  t.same(librariesAmong(['libvulkan.so.1.3.275', 'libgomp.so']), [])
  t.equal(glibcVersion('GNU C Library (Ubuntu GLIBC 2.39-0ubuntu8.4) stable release version 2.39.'), '2.39')
  t.equal(glibcVersion('musl'), undefined)
})

t.test('no text makes a parser throw', async t => {
  const parsers: [string, (text: string) => unknown][] = [
    ['smi csv', parseSmiCsv],
    ['smi table', parseSmiTable],
    ['smi versions', parseSmiVersions],
    ['smi list', parseSmiList],
    ['smi problem', text => smiProblem(text, 'linux')],
    ['driver', parseDriverVersion],
    ['driver card', parseDriverCard],
    ['kfd', text => parseKfdNode({ properties: text, banks: [{ properties: text, used: text }] })],
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
    ['cgroup', text => groupPaths(text, text).map(groupFolders)],
    ['group', text => groupMemory({ limits: [text], usage: text, stat: text })],
    ['ldconfig', text => librariesAmong(parseLdconfig(text, 'x64'))],
    ['card', text => cardOf({ vendor: text, device: text, uevent: text, mem_info_vram_total: text }, text, 'drm')],
    ['pci names', text => pciName({ vendor: 'amd', pciId: '0x744c' }, text)]
  ]
  let seed = 1
  const random = (below: number) => {
    seed = (seed * 1103515245 + 12345) % 2 ** 31
    return seed % below
  }
  const texts = recordings().map(recording)
  const inputs = [
    ...texts,
    '\0'.repeat(1000),
    '|'.repeat(5000),
    ',\n'.repeat(5000),
    '[{"card0":['.repeat(500),
    ' '.repeat(20_000)
  ]
  for (let round = 0; round < 300; round++) {
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
  let slowest = 0
  for (const [name, parse] of parsers) {
    for (const input of inputs) {
      const began = performance.now()
      try {
        parse(input)
      } catch (error) {
        t.fail(`${name}: ${error}`, { input: input.slice(0, 200) })
      }
      slowest = Math.max(slowest, performance.now() - began)
    }
  }
  t.ok(slowest < 5000, `none of ${parsers.length * inputs.length} takes for ever`)
})
