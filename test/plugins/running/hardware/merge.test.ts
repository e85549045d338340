import t from 'tap'
import type { ProbeReport } from '../../../../core/contracts/hardware.ts'
import { parseRocminfo } from '../../../../plugins/running/hardware/amd.ts'
import { parseSystemProfiler } from '../../../../plugins/running/hardware/apple.ts'
import { assembleHardware, mergeGpus } from '../../../../plugins/running/hardware/find-hardware.ts'
import {
  findingsFromSmi,
  parseSmiCsv,
  parseSmiTable,
  parseSmiVersions,
  smiProblem
} from '../../../../plugins/running/hardware/nvidia.ts'
import type { Findings, Sighting } from '../../../../plugins/running/hardware/probe.ts'
import { parseVulkaninfo } from '../../../../plugins/running/hardware/vulkan-drivers.ts'
import { randomBelow } from '../../../support/random.ts'
import { trialCount } from '../../../support/trial-count.ts'
import { GIB, MIB, recording } from './support.ts'

const MEMORY = { total: 16 * GIB, available: 8 * GIB }
const merge = (...sources: (readonly Sighting[] | undefined)[]) =>
  mergeGpus(
    sources.map(source => source ?? []),
    MEMORY
  )

const csvOf = (text: string) => findingsFromSmi(parseSmiCsv(text) ?? [], parseSmiVersions(text)).gpus ?? []
const tableOf = (text: string) => findingsFromSmi(parseSmiTable(text), parseSmiVersions(text)).gpus ?? []

t.test('the detector merges sightings of one card from several sources', async t => {
  const [gpu, ...others] = merge(
    csvOf(recording('nvidia/smi-query-single-4080s-595.csv.txt')),
    [{ vendor: 'nvidia', pciBus: '0000:01:00.0', name: 'NVIDIA GeForce RTX 4080 SUPER', api: 'cuda', usable: true }],
    [
      {
        vendor: 'nvidia',
        type: 'discrete',
        name: 'NVIDIA GeForce RTX 4080 SUPER',
        pciId: '0x2702',
        api: 'vulkan',
        usable: true
      }
    ],
    [{ vendor: 'nvidia', pciBus: '0000:01:00.0', pciId: '0x2702', name: 'NVIDIA GeForce RTX 4080 SUPER' }]
  )
  t.same(others, [])
  t.same(gpu, {
    id: 'nvidia:0',
    vendor: 'nvidia',
    name: 'NVIDIA GeForce RTX 4080 SUPER',
    type: 'discrete',
    pciId: '0x2702',
    pciBus: '0000:01:00.0',
    architecture: '8.9',
    totalMemory: 16376 * MIB,
    freeMemory: 14470 * MIB,
    driver: { name: 'nvidia', version: '595.71.05', cuda: '13.2' },
    unifiedMemory: false,
    apis: ['cuda', 'vulkan'],
    usable: true
  })

  const laptop = merge(
    csvOf(
      'name, pci.bus_id, driver_version, memory.total [MiB]\nNVIDIA GeForce RTX 4070 Laptop GPU, 00000000:01:00.0, 580.95.05, 8188 MiB'
    ),
    parseVulkaninfo(recording('vulkan/vulkaninfo-summary-intel-igpu-plus-4070-laptop.txt')),
    [
      { vendor: 'intel', pciBus: '0000:00:02.0', pciId: '0xa788', usable: true },
      { vendor: 'nvidia', pciBus: '0000:01:00.0', pciId: '0x2860' }
    ]
  )
  t.match(laptop, [
    { id: 'nvidia:0', type: 'discrete', apis: ['cuda', 'vulkan'], driver: { cuda: '13.0' }, pciId: '0x2860' },
    { id: 'intel:0', type: 'integrated', apis: ['vulkan'], unifiedMemory: true, pciBus: '0000:00:02.0' }
  ])
  t.equal(laptop.length, 2)

  const cut = merge(tableOf(recording('nvidia/smi-table-2080s-610-new-banner.txt')), [
    { vendor: 'nvidia', name: 'NVIDIA GeForce RTX 2080 SUPER', pciId: '0x1e81', api: 'vulkan', usable: true }
  ])
  t.equal(cut.length, 1, 'a truncated name')
  t.match(cut, [
    { name: 'NVIDIA GeForce RTX 2080 SUPER', architecture: '7.5', driver: { version: '610.57.04', cuda: '13.3' } }
  ])
})

t.test('the detector keeps several cards of one kind apart', async t => {
  const card = (at: number) => ({
    vendor: 'nvidia' as const,
    name: 'Tesla P40',
    pciBus: `0000:0${at}:00.0`,
    totalMemory: GIB * at
  })
  const vulkan: Sighting = { vendor: 'nvidia', name: 'Tesla P40', pciId: '0x1b38', api: 'vulkan', usable: true }
  const found = merge([card(1), card(2), card(3)], [vulkan, vulkan, vulkan], [card(3), card(1), card(2)])
  t.same(
    found.map(({ id, pciBus, apis, totalMemory }) => [id, pciBus, apis, totalMemory]),
    [1, 2, 3].map(at => [`nvidia:${at - 1}`, `0000:0${at}:00.0`, ['vulkan'], GIB * at])
  )
  t.equal(merge([card(1)], [vulkan, vulkan]).length, 2, 'one source sees more of them')

  const radeon = { vendor: 'amd', api: 'rocm', usable: true } as const
  const printed: Sighting[] = [
    { ...radeon, pciId: '0x73bf', architecture: 'gfx1030', totalMemory: 16368 * MIB },
    { ...radeon, pciId: '0x164e', architecture: 'gfx1036', totalMemory: 64 * MIB }
  ]
  const radeons = merge(printed, [
    { vendor: 'amd', name: 'AMD Radeon Graphics', type: 'integrated', pciId: '0x164e', api: 'vulkan', usable: true },
    { vendor: 'amd', name: 'AMD Radeon RX 6800', type: 'discrete', pciId: '0x73bf', api: 'vulkan', usable: true }
  ])
  t.match(radeons, [
    { id: 'amd:0', architecture: 'gfx1030', type: 'discrete', apis: ['rocm', 'vulkan'], totalMemory: 16368 * MIB },
    { id: 'amd:1', architecture: 'gfx1036', type: 'integrated', unifiedMemory: true }
  ])
  t.equal(radeons.length, 2)

  const unlike: [string, Sighting, Sighting][] = [
    ['another bus address', { vendor: 'amd', pciBus: '0000:01:00.0' }, { vendor: 'amd', pciBus: '0000:02:00.0' }],
    ['another id', { vendor: 'amd', pciId: '0x744c', pciBus: '0000:01:00.0' }, { vendor: 'amd', pciId: '0x73bf' }],
    ['another architecture', { vendor: 'amd', architecture: 'gfx1100' }, { vendor: 'amd', architecture: 'gfx1036' }],
    ['another vendor', { vendor: 'amd', name: 'X' }, { vendor: 'intel', name: 'X' }],
    ['another type', { vendor: 'amd', type: 'discrete' }, { vendor: 'amd', type: 'integrated' }]
  ]
  for (const [name, a, b] of unlike) t.equal(merge([a], [b]).length, 2, name)
  t.equal(
    merge([{ vendor: 'amd', architecture: 'gfx1100' }], [{ vendor: 'amd', name: 'Radeon' }]).length,
    1,
    'no alternative is possible'
  )
})

t.test('the detector assembles one record per machine', async t => {
  const found = (name: string, findings: Findings, outcome: ProbeReport['outcome'] = 'ok') => ({
    findings,
    report: { probe: name, outcome, duration: 1 }
  })
  const assemble = (...answers: ReturnType<typeof found>[]) =>
    assembleHardware({ platform: 'linux', arch: 'x64', root: '' }, [...answers, found('memory', { memory: MEMORY })])

  const listed: Sighting[] = [
    { vendor: 'intel', pciBus: '0000:00:02.0', pciId: '0x0162' },
    { vendor: 'nvidia', pciBus: '0000:01:00.0', pciId: '0x1b06', name: 'NVIDIA GeForce GTX 1080 Ti' },
    { vendor: 'intel', pciBus: '0000:04:00.0', pciId: '0x56a2' }
  ]
  const bare = assemble(found('pci-devices', { gpus: listed }))
  t.match(bare.gpus, [
    { id: 'nvidia:0', architecture: '6.1', usable: false, type: 'discrete', apis: [] },
    { id: 'intel:1', type: 'discrete', usable: true, unifiedMemory: false },
    { id: 'intel:0', type: 'integrated', usable: true, unifiedMemory: true }
  ])
  t.match(bare.problems, [{ code: 'driver_not_loaded', subject: /NVIDIA/ }])
  t.equal(bare.problems.length, 1)

  const mismatch = smiProblem(recording('nvidia/smi-err-nvml-version-mismatch.txt'), 'linux')!
  const broken = found('nvidia-smi', { problems: [mismatch] }, 'failed')
  const card: Sighting = { vendor: 'nvidia', name: 'NVIDIA L4', pciBus: '0000:01:00.0', api: 'cuda', usable: true }
  t.match(assemble(broken, found('nvidia-driver', { gpus: [card] })), {
    gpus: [{ name: 'NVIDIA L4', usable: false, apis: [] }],
    problems: [{ code: 'driver_mismatch' }]
  })
  t.match(assemble(broken), { gpus: [{ id: 'nvidia:0', usable: false, type: 'unknown' }] }, 'the driver implies a card')
  const vulkan: Sighting = { ...card, api: 'vulkan' }
  t.match(
    assemble(broken, found('nvidia-driver', { gpus: [card] }), found('vulkaninfo', { gpus: [vulkan] })),
    { gpus: [{ usable: true, apis: ['vulkan'] }] },
    'the fallback works'
  )
  const noDevice = smiProblem('No devices were found', 'linux')!
  t.same(assemble(found('nvidia-smi', { problems: [noDevice] })).gpus, [])

  const h100 = parseSmiCsv(recording('nvidia/smi-query-h100-mig-590.csv.txt'))!
  const versions = parseSmiVersions(recording('nvidia/smi-version-590.txt'))
  const mig = (instances?: Map<number, number[]>) =>
    assemble(found('nvidia-smi', findingsFromSmi(h100, versions, instances)))
  const part = mig(new Map([[0, [10, 10]]]))
  t.match(part, {
    gpus: [{ usable: true, totalMemory: 10 * GIB }],
    problems: [{ code: 'partitioned', subject: 'nvidia:0', message: /of 10 GB \(of 2 instances\)/ }]
  })
  t.notOk('freeMemory' in part.gpus[0]!, "the card's free memory is not the instance's")
  t.match(mig(new Map([[0, []]])), { gpus: [{ usable: false, apis: [] }], problems: [{ message: /no instances/ }] })
  t.equal(mig(new Map([[0, []]])).problems.length, 1)
  t.notOk('totalMemory' in mig().gpus[0]!, 'the size of an instance is unknown')

  for (const gb10 of [
    csvOf(recording('nvidia/smi-query-gb10-na-mem.csv.txt')),
    tableOf(recording('nvidia/smi-table-gb10-not-supported-mem.txt')),
    tableOf(recording('nvidia/smi-table-jetson-orin-540.txt'))
  ]) {
    t.match(assemble(found('nvidia-smi', { gpus: gb10 })).gpus, [
      { type: 'integrated', unifiedMemory: true, totalMemory: 16 * GIB, freeMemory: 8 * GIB, usable: true }
    ])
  }
  const limited = assembleHardware({ platform: 'linux', arch: 'arm64', root: '' }, [
    found('nvidia-smi', { gpus: csvOf(recording('nvidia/smi-query-gb10-na-mem.csv.txt')) }),
    found('memory', { memory: { total: 120 * GIB, available: 4 * GIB, limit: 6 * GIB } })
  ])
  t.match(limited.gpus, [{ totalMemory: 6 * GIB, freeMemory: 4 * GIB }], 'within the limit of a container')

  const radeon: Sighting = { vendor: 'amd', pciId: '0x744c', type: 'discrete', usable: true }
  const locked = assemble(found('device-nodes', { noDeviceAccess: true }), found('pci-devices', { gpus: [radeon] }))
  t.match(locked, { gpus: [{ usable: false }], problems: [{ code: 'no_permission', advice: /render,video/ }] })
  const spoken = assemble(
    found('device-nodes', { noDeviceAccess: true }),
    found('pci-devices', { gpus: [radeon] }),
    found('rocminfo', { gpus: parseRocminfo(recording('rocm/rocminfo-gfx1151-strix-halo-wsl.txt'))! })
  )
  t.match(spoken.gpus, [{ usable: false }, { architecture: 'gfx1151', usable: true, apis: ['rocm'] }])

  const drivers = found('vulkan-drivers', { vulkanDrivers: ['amd'] })
  t.same(assemble(found('pci-devices', { gpus: [radeon] }), drivers).gpus[0]!.apis, ['vulkan'])
  t.same(
    assemble(found('pci-devices', { gpus: [radeon] }), found('vulkaninfo', { gpus: [] }), drivers).gpus[0]!.apis,
    [],
    'vulkaninfo is more reliable'
  )

  const nouveau: Sighting = { vendor: 'nvidia', pciId: '0x2204', driver: { name: 'nouveau' }, usable: false }
  t.match(assemble(found('pci-devices', { gpus: [nouveau] })), {
    gpus: [{ usable: false, architecture: '8.6', name: 'NVIDIA GPU (0x2204)' }],
    problems: [{ code: 'driver_not_loaded', message: /its driver is nouveau/, advice: /ubuntu-drivers/ }]
  })
  t.match(assemble(found('vulkaninfo', {}, 'timed_out')).problems, [{ code: 'probe_failed', subject: 'vulkaninfo' }])

  const segfault = found('nvidia-smi', {}, 'failed')
  t.match(assemble(segfault).problems, [{ code: 'probe_failed', subject: 'nvidia-smi' }])
  t.same(assemble(found('nvidia-smi', {}, 'absent'), found('vulkaninfo', {}, 'failed')).problems, [])

  const mac = (root: string, model: string, name: string) =>
    assembleHardware({ platform: 'darwin', arch: 'arm64', root }, [
      found('sysctl', { cpu: { model } }),
      found('memory', { memory: { total: 16 * GIB, available: 10 * GIB } }),
      found('system_profiler', {
        gpus: parseSystemProfiler(recording(`macos/system_profiler-displays-${name}.json.txt`))!
      })
    ])
  t.match(mac('', 'Apple M5 Max', 'm5max'), {
    arch: 'arm64',
    problems: [],
    gpus: [
      {
        id: 'apple:0',
        architecture: 'metal4',
        apis: ['metal'],
        unifiedMemory: true,
        totalMemory: Math.floor((16 * GIB * 2) / 3)
      }
    ]
  })
  t.match(mac('/recorded', 'Intel(R) Core(TM) i7', 'intel-dual-gpu'), {
    arch: 'x64',
    gpus: [
      { id: 'amd:0', totalMemory: 4 * GIB, unifiedMemory: false },
      { id: 'intel:0', unifiedMemory: true }
    ]
  })
  t.match(assemble(), { cpu: { model: 'unknown', threads: 1, features: [] }, gpus: [], libraries: [] })
})

t.test('no card is lost or duplicated, whatever the sources report', async t => {
  const random = randomBelow(7)
  const MODELS = [
    { pciId: '0x744c', name: 'One' },
    { pciId: '0x2330', name: 'Two' },
    { pciId: '0x56a0', name: 'Three' }
  ]
  for (let round = 0; round < trialCount(1000); round++) {
    // Cards differ in their bus addresses. Each source sees some of them, by address, id or name.
    const cards = Array.from({ length: 1 + random(4) }, (_, at) => ({
      vendor: (['nvidia', 'amd', 'intel'] as const)[random(3)]!,
      pciBus: `0000:0${at}:00.0`,
      ...MODELS[random(3)]!
    }))
    const source = () =>
      cards
        .filter(() => random(4) > 0)
        .map(({ vendor, ...facts }): Sighting => {
          const least = random(3)
          return {
            vendor,
            ...Object.fromEntries(Object.entries(facts).filter((_, at) => at === least || random(3) > 0))
          }
        })
    const sources = [cards, source(), source(), source()]
    const found = merge(...sources)
    const ids = found.map(({ id }) => id)
    if (!t.equal(new Set(ids).size, ids.length)) break
    const places = found.map(({ pciBus }) => pciBus).filter(place => place !== undefined)
    if (new Set(places).size !== cards.length || found.length !== cards.length) {
      t.fail('each card once', { cards, sources, found })
      break
    }
  }
})
