import t from 'tap'
import {
  appleMemory,
  appleProcessor,
  metalBudget,
  parseSysctl,
  parseSystemProfiler
} from '../../../../plugins/running/hardware/apple.ts'
import { parseSyclLs, parseXpuSmi } from '../../../../plugins/running/hardware/intel.ts'
import { parseAdapters, parseLspci } from '../../../../plugins/running/hardware/listed-cards.ts'
import { parseVmStat } from '../../../../plugins/running/hardware/main-memory.ts'
import {
  addressFromLocation,
  marketingName,
  pciAddress,
  pciId,
  pciName
} from '../../../../plugins/running/hardware/pci.ts'
import { parseVulkaninfo, vendorsFromDriverFiles } from '../../../../plugins/running/hardware/vulkan-drivers.ts'
import { GIB, MIB, recording, windowsLines } from './support.ts'

t.test('parses the output of Intel tools', async t => {
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

t.test('parses the output of Apple tools', async t => {
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
  t.equal(appleProcessor(parseSysctl('junk')), undefined)
  const memory = recording('macos/sysctl-memsize-16gb.txt')
  t.equal(appleMemory(memory), 16 * GIB)
  t.equal(appleMemory(`hw.memsize: ${memory}`), 16 * GIB)
  t.equal(appleMemory('junk'), undefined)
  t.equal(Math.floor(metalBudget(8 * GIB) / MIB), 5461, 'as a Mac with 8 GB reports')
  t.equal(metalBudget(128 * GIB), 98304 * MIB, 'as a Mac with 128 GB reports')
  const pages =
    'Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free:        100.\n' +
    'Pages active:   500.\nPages inactive:  200.\nPages speculative: 10.\nPages purgeable: 1.\n'
  t.equal(parseVmStat(pages), 311 * 16384)
  t.equal(parseVmStat('junk'), undefined)
})

t.test('parses vulkaninfo', async t => {
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
  t.same(vendorsFromDriverFiles(['radeon_icd.x86_64.json', 'lvp_icd.x86_64.json', 'nvidia_icd.json', 'x.txt']), [
    'nvidia',
    'amd'
  ])
  t.same(vendorsFromDriverFiles(['lvp_icd.x86_64.json']), [])
})

t.test('parses PCI lists and Windows adapters', async t => {
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
  const list =
    '1002  Advanced Micro Devices, Inc. [AMD/ATI]\n\t744c  Navi 31 [Radeon RX 7900 XT]\n\t\t1002 0e3b  A card\n10de  NVIDIA Corporation\n\t1b06  GP102 [GeForce GTX 1080 Ti]\n8086  Intel Corporation\n\t56a0  DG2 [Arc A770]\n'
  t.equal(pciName({ vendor: 'nvidia', pciId: '0x1b06' }, list), 'NVIDIA GeForce GTX 1080 Ti')
  t.equal(pciName({ vendor: 'amd', pciId: '0x744c' }, list), 'AMD Radeon RX 7900 XT')
  t.equal(pciName({ vendor: 'intel', pciId: '0x56a0' }, list), 'Intel Arc A770')
  t.equal(pciName({ vendor: 'amd', pciId: '0x1b06' }, list), undefined, 'the id of another vendor')
  t.equal(pciName({ vendor: 'amd', pciId: '0x744c' }, ''), undefined)
  t.equal(marketingName('amd', 'AMD Thing'), 'AMD Thing')

  const places: [string | undefined, string | undefined][] = [
    ['00000000:0C:00.0', '0000:0c:00.0'],
    ['0000000F:01:00.0', '000f:01:00.0'],
    ['01:00.0', '0000:01:00.0'],
    ['N/A', undefined],
    [undefined, undefined]
  ]
  for (const [text, place] of places) t.equal(pciAddress(text), place)
  t.equal(addressFromLocation(1280), '0000:05:00.0')
  t.equal(addressFromLocation(6400), '0000:19:00.0')
  t.equal(addressFromLocation(0), undefined)
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
