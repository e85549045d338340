import t from 'tap'
import {
  cardsInBrokenJson,
  foldPartitions,
  parseAmdSmi,
  parseKfdNode,
  parseRocminfo,
  parseRocmSmi,
  rocminfoProblem
} from '../../../../plugins/running/hardware/amd.ts'
import { amdChip, gfxFromTargetVersion, gfxName } from '../../../../plugins/running/hardware/amd-chips.ts'
import { amdMemory, toSighting } from '../../../../plugins/running/hardware/listed-cards.ts'
import type { Sighting } from '../../../../plugins/running/hardware/probe.ts'
import { GIB, MIB, recordedFiles, recording, windowsLines } from './support.ts'

/** Parses each node of a recording, in order. */
function kfdNodes(name: string): (Sighting | undefined)[] {
  const files = Object.entries(recordedFiles(name)).filter(([path]) => path.endsWith('/properties'))
  const ids = new Set(files.map(([path]) => /nodes\/(\d+)\//.exec(path)![1]!))
  return [...ids].map(id => {
    const banks = files.filter(([path]) => path.includes(`nodes/${id}/mem_banks/`)).map(([, text]) => text)
    return parseKfdNode(files.find(([path]) => path.endsWith(`nodes/${id}/properties`))?.[1] ?? '', banks)
  })
}

t.test('parses AMD devices from the kernel', async t => {
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
  for (const [version, gfx] of versions) t.equal(gfxFromTargetVersion(version), gfx, String(version))
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

  const minimal = kfdNodes('rocm/kfd-topology-gfx1151-minimal.txt')
  t.equal(minimal[0], undefined, 'a processor')
  t.match(minimal[1], { vendor: 'amd', architecture: 'gfx1151' })

  const cpx = kfdNodes('rocm/kfd-topology-mi300x-cpx.txt').flatMap(node => node ?? [])
  t.equal(cpx.length, 2)
  t.match(cpx, [
    { architecture: 'gfx942', pciId: '0x74a1', pciBus: '0000:05:00.0' },
    { architecture: 'gfx942', pciBus: '0000:05:00.1' }
  ])
  t.notOk('totalMemory' in cpx[0]!, '0 is unknown')
  const folded = foldPartitions(cpx)
  t.equal(folded.gpus.length, 1, 'partitions are not separate cards')
  t.match(folded.problems, [{ code: 'partitioned', message: /2 compute partitions/ }])
  t.equal(foldPartitions([...cpx, { ...cpx[0]!, pciBus: '0000:85:00.0' }]).gpus.length, 2)

  const [, vega] = kfdNodes('rocm/kfd-topology-vega10-old-no-gfxver.txt')
  t.match(vega, {
    pciId: '0x6860',
    pciBus: '0000:19:00.0',
    totalMemory: 16368 * MIB
  })
  t.notOk('architecture' in vega!)
  t.equal(parseKfdNode('simd_count 4\nvendor_id 32902\n', []), undefined, 'from another vendor')
})

t.test('parses AMD cards in sysfs', async t => {
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
  t.match(toSighting(radeon, undefined), { vendor: 'amd', pciId: '0x744c', pciBus: '0000:03:00.0', usable: true })
  const driver = (name: string) => radeon.uevent.replace('amdgpu', name)
  t.equal(toSighting({ ...radeon, uevent: driver('vfio-pci') }, undefined)?.usable, false)
  t.equal(toSighting({ ...radeon, uevent: 'PCI_ID=1002:744C\n' }, undefined)?.usable, false, 'no driver')
  t.match(toSighting({ vendor: '0x8086', device: '0x56a0' }, '0000:03:00.0'), {
    pciId: '0x56a0',
    pciBus: '0000:03:00.0'
  })
  t.equal(toSighting({ ...radeon, vendor: '0x10de', uevent: driver('nvidia') }, undefined)?.usable, undefined)
  t.equal(toSighting({ ...radeon, vendor: '0x10de', uevent: driver('nouveau') }, undefined)?.usable, false)
  t.equal(toSighting({ ...radeon, vendor: '0x1a03' }, undefined), undefined, 'a server display chip')
  t.equal(toSighting({ ...radeon, class: '0x020000' }, undefined), undefined, 'a network card')
  t.match(toSighting({ ...radeon, class: '0x120000', device: '0x74a1' }, undefined), { pciId: '0x74a1' })
  t.equal(toSighting({}, undefined), undefined)
})

t.test('parses the output of AMD tools', async t => {
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
  t.notOk('totalMemory' in cardsInBrokenJson(half)[0]!, 'only names are used from broken JSON')
  t.same(cardsInBrokenJson('{"card0": {"GPU use (%)": "0"'), [])
  t.match(
    parseRocmSmi('{"card10":{"Card series":"C"},"card2":{"Card series":"B"},"card0":{"Card series":"AMD A"}}'),
    [{ name: 'AMD A' }, { name: 'AMD B' }, { name: 'AMD C' }],
    'in order'
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
  t.same(parseRocminfo(cpu), [], 'a processor is not a GPU')
  const nameless =
    'Agent 2\n  Name:     gfx1100\n  Marketing Name:          \n  Vendor Name:   AMD\n  Device Type:   GPU\n'
  t.notOk('name' in parseRocminfo(nameless)![0]!, 'an empty value does not continue on the next line')
  const apu =
    'Agent 2\n  Name:  gfx1151\n  Device Type:  GPU\n  BDFID:  50432\n  Memory Properties:       APU\n  Pool Info:\n    Pool 1\n' +
    '      Segment:  GLOBAL; FLAGS: COARSE GRAINED\n      Size:   32490760(0x1efc508) KB\n'
  t.match(parseRocminfo(apu), [{ type: 'integrated', pciBus: '0000:c5:00.0' }])
  t.notOk('totalMemory' in parseRocminfo(apu)![0]!, 'borrowed memory is not dedicated')
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
