import t from 'tap'
import type { Hardware } from '../../core/hardware.ts'
import type { RuntimeDescriptor } from '../../core/runtimes.ts'
import { cuda12 } from '../../runtimes/kinds/cuda-12.ts'
import { cuda13 } from '../../runtimes/kinds/cuda-13.ts'
import { builtInKinds } from '../../runtimes/kinds/index.ts'
import { rocm } from '../../runtimes/kinds/rocm.ts'
import { sycl } from '../../runtimes/kinds/sycl.ts'
import { heedingUser } from '../../runtimes/kinds/users-choice.ts'
import { compareVersions } from '../../runtimes/kinds/versions.ts'
import { vulkan } from '../../runtimes/kinds/vulkan.ts'
import { chooseArchives, rankRuntimes, systemObstacle } from '../../runtimes/ranking.ts'
import { snapshot } from '../../runtimes/release-snapshot.ts'
import { amd, apple, intel, machine, nvidia, other } from './machines.ts'

const NAMES = snapshot.assets.map(({ name }) => name)
const INTEGRATED = { type: 'integrated', unifiedMemory: true } as const
const UNKNOWN_SYSTEM: Partial<Hardware> = {
  glibc: undefined,
  libraries: [],
  probes: [{ probe: 'libraries', outcome: 'absent', duration: 1 }]
}
const VULKAN_SEEN = { apis: ['vulkan' as const] }

/** The names of the kinds that can work, best first. */
const order = (hardware: Hardware, names: readonly string[] = NAMES) =>
  rankRuntimes(builtInKinds, hardware, names)
    .filter(({ usable }) => usable)
    .map(({ runtime }) => runtime)
    .join(' ')

const candidate = (hardware: Hardware, runtime: string, names: readonly string[] = NAMES) =>
  rankRuntimes(builtInKinds, hardware, names).find(one => one.runtime === runtime)!

const problem = (code: Hardware['problems'][number]['code'], subject: string, advice?: string) => ({
  problems: [{ code, subject, message: `${subject}: ${code}`, ...(advice && { advice }) }]
})

const iGpu = intel('Intel UHD Graphics', INTEGRATED)
const CASES: [what: string, hardware: Hardware, order: string][] = [
  ['nothing', machine([]), 'cpu'],
  ['no libraries either', machine([], { libraries: [] }), 'cpu'],

  // NVIDIA: driver and compute capability
  [
    'H100, driver 580',
    machine([nvidia('NVIDIA H100 80GB HBM3', '9.0', '580.95.05', '13.0')]),
    'cuda-13 cuda-12 vulkan cpu'
  ],
  [
    'RTX 4080 S, driver 595',
    machine([nvidia('NVIDIA GeForce RTX 4080 SUPER', '8.9', '595.71.05', '13.2')]),
    'cuda-13 cuda-12 vulkan cpu'
  ],
  [
    'RTX 2080 S, driver 610',
    machine([nvidia('NVIDIA GeForce RTX 2080 SUPER', '7.5', '610.57.04', '13.3')]),
    'cuda-13 cuda-12 vulkan cpu'
  ],
  [
    'RTX 4070 Ti S, driver 550',
    machine([nvidia('NVIDIA GeForce RTX 4070 Ti SUPER', '8.9', '550.127.05', '12.4')]),
    'cuda-12 vulkan cpu'
  ],
  [
    'driver 575, the last of CUDA 12',
    machine([nvidia('NVIDIA GeForce RTX 3090', '8.6', '575.64', '12.9')]),
    'cuda-12 vulkan cpu'
  ],
  [
    'driver 580 without a word on CUDA',
    machine([nvidia('NVIDIA L4', '8.9', '580.65.06')]),
    'cuda-13 cuda-12 vulkan cpu'
  ],
  ['driver 579 without a word on CUDA', machine([nvidia('NVIDIA L4', '8.9', '579.99')]), 'cuda-12 vulkan cpu'],
  ['driver 525.60.13, the oldest', machine([nvidia('NVIDIA A100', '8.0', '525.60.13', '12.0')]), 'cuda-12 vulkan cpu'],
  ['driver 525.60.11', machine([nvidia('NVIDIA A100', '8.0', '525.60.11')]), 'vulkan cpu'],
  ['driver 470', machine([nvidia('NVIDIA GeForce GTX 780', '3.5', '470.256.02', '11.4')]), 'vulkan cpu'],
  ['Kepler with CUDA 12', machine([nvidia('Tesla K80', '3.7', '535.10', '12.2')]), 'vulkan cpu'],
  [
    'newer libraries beside an older driver',
    machine([nvidia('NVIDIA H100', '9.0', '550.54.15', '13.0')]),
    'cuda-13 cuda-12 vulkan cpu'
  ],
  [
    'GTX 1080 Ti, driver 580',
    machine([nvidia('NVIDIA GeForce GTX 1080 Ti', '6.1', '580.95.05', '13.0')]),
    'cuda-12 vulkan cpu'
  ],
  [
    'Tesla V100, driver 580',
    machine([nvidia('Tesla V100-SXM2-32GB', '7.0', '580.65.06', '13.0')]),
    'cuda-12 vulkan cpu'
  ],
  [
    'GTX 1660, driver 580',
    machine([nvidia('NVIDIA GeForce GTX 1660', '7.5', '580.65.06', '13.0')]),
    'cuda-13 cuda-12 vulkan cpu'
  ],
  [
    'capability not told',
    machine([nvidia('NVIDIA GeForce RTX 4070 Laptop GPU', undefined, '580.95')]),
    'cuda-13 cuda-12 vulkan cpu'
  ],
  ['RTX 5090', machine([nvidia('NVIDIA GeForce RTX 5090', '12.0', '590.48.01', '13.1')]), 'cuda-13 cuda-12 vulkan cpu'],
  [
    'nouveau',
    machine([nvidia('NVIDIA GeForce RTX 3060', '8.6', '25.0', undefined, { driverName: 'nouveau', apis: ['vulkan'] })]),
    'vulkan cpu'
  ],
  [
    'Windows, L40S, driver 555',
    machine([nvidia('NVIDIA L40S', '8.9', '555.85', '12.5')], { platform: 'win32' }),
    'cuda-12 vulkan cpu'
  ],
  [
    'Windows, RTX 2080 S, driver 610',
    machine([nvidia('NVIDIA GeForce RTX 2080 SUPER', '7.5', '610.62', '13.3')], { platform: 'win32', libraries: [] }),
    'cuda-13 cuda-12 vulkan cpu'
  ],
  [
    'Windows, driver 527.41',
    machine([nvidia('NVIDIA A10', '8.6', '527.41')], { platform: 'win32' }),
    'cuda-12 vulkan cpu'
  ],
  ['Windows, driver 527.37', machine([nvidia('NVIDIA A10', '8.6', '527.37')], { platform: 'win32' }), 'vulkan cpu'],
  [
    'Jetson Orin',
    machine([nvidia('Orin (nvgpu)', '8.7', '540.4.0', '12.6', INTEGRATED)], { arch: 'arm64', libraries: [] }),
    'vulkan cpu'
  ],
  [
    'DGX Spark',
    machine([nvidia('NVIDIA GB10', '12.1', '580.126.09', '13.0', INTEGRATED)], { arch: 'arm64' }),
    'cuda-13 vulkan cpu'
  ],
  [
    'Windows on ARM with NVIDIA',
    machine([nvidia('NVIDIA N1X', '12.1', '590.1', '13.1', INTEGRATED)], { platform: 'win32', arch: 'arm64' }),
    'cuda-13 cpu'
  ],
  [
    'H100 in MIG mode',
    machine([nvidia('NVIDIA H100 PCIe', '9.0', '590.48.01', '13.1')], problem('partitioned', 'nvidia:0', 'see it')),
    'cuda-13 cuda-12 cpu'
  ],

  // NVIDIA: what is broken
  ['library and kernel module differ', machine([], problem('driver_mismatch', 'nvidia-smi', 'sudo reboot')), 'cpu'],
  [
    'the same, and the card was seen on the bus',
    machine(
      [nvidia('NVIDIA GeForce RTX 3080', undefined, '', undefined, { usable: false, apis: [] })],
      problem('driver_mismatch', 'nvidia-smi', 'sudo reboot')
    ),
    'cpu'
  ],
  [
    'broken card beside working graphics of the processor',
    machine(
      [nvidia('NVIDIA GeForce RTX 3080', '8.6', '', undefined, { usable: false, apis: [] }), iGpu],
      problem('driver_not_loaded', 'nvidia:0')
    ),
    'vulkan sycl cpu'
  ],

  // AMD
  ['RX 7900 XT', machine([amd('AMD Radeon RX 7900 XT', 'gfx1100')]), 'rocm vulkan cpu'],
  ['RX 9070 XT', machine([amd('AMD Radeon RX 9070 XT', 'gfx1201')]), 'rocm vulkan cpu'],
  ['RX 6800', machine([amd('AMD Radeon RX 6800', 'gfx1030')]), 'rocm vulkan cpu'],
  [
    'RX 7900 XT without ROCm',
    machine([amd('AMD Radeon RX 7900 XT', 'gfx1100')], { libraries: ['vulkan'] }),
    'vulkan rocm cpu'
  ],
  [
    'RX 7900 XT, ROCm seen by its tools only',
    machine([amd('AMD Radeon RX 7900 XT', 'gfx1100', { apis: ['rocm'] })], { libraries: ['vulkan'] }),
    'rocm vulkan cpu'
  ],
  [
    'RX 7900 XT with no library at all',
    machine([amd('AMD Radeon RX 7900 XT', 'gfx1100')], { libraries: [] }),
    'rocm vulkan cpu'
  ],
  ['RX 6700 XT', machine([amd('AMD Radeon RX 6700 XT', 'gfx1031', { apis: ['rocm'] })]), 'vulkan rocm cpu'],
  ['RX 6600 XT', machine([amd('AMD Radeon RX 6600 XT', 'gfx1032', VULKAN_SEEN)]), 'vulkan rocm cpu'],
  ['RX 5700 XT', machine([amd('AMD Radeon RX 5700 XT', 'gfx1010')]), 'vulkan rocm cpu'],
  ['Vega 10', machine([amd('AMD Radeon RX Vega 64', 'gfx900')]), 'vulkan cpu'],
  ['Pro VII', machine([amd('AMD Radeon Pro VII', 'gfx906')]), 'vulkan cpu'],
  ['MI300X', machine([amd('AMD Instinct MI300X', 'gfx942')]), 'rocm cpu'],
  ['MI300X by its early name', machine([amd('AMD Instinct MI300X', 'gfx941')]), 'rocm cpu'],
  ['MI250', machine([amd('AMD Instinct MI250', 'gfx90a'), amd('AMD Instinct MI250', 'gfx90a')]), 'rocm cpu'],
  [
    'MI50 (gfx906) without Vulkan driver',
    machine([amd('AMD Instinct MI50', 'gfx906')], { probes: [{ probe: 'vulkaninfo', outcome: 'ok', duration: 1 }] }),
    'cpu'
  ],
  ['Radeon 780M', machine([amd('AMD Radeon 780M', 'gfx1103', INTEGRATED)]), 'vulkan rocm cpu'],
  ['Radeon 890M', machine([amd('AMD Radeon 890M', 'gfx1150', INTEGRATED)]), 'vulkan rocm cpu'],
  [
    'Steam Deck',
    machine([amd('AMD Custom GPU 0405', 'gfx1033', { ...INTEGRATED, ...VULKAN_SEEN })], { libraries: [] }),
    'vulkan rocm cpu'
  ],
  ['Strix Halo', machine([amd('AMD Radeon 8060S', 'gfx1151', INTEGRATED)]), 'rocm vulkan cpu'],
  [
    'Strix Halo without ROCm',
    machine([amd('AMD Radeon 8060S', 'gfx1151', INTEGRATED)], { libraries: ['vulkan'] }),
    'vulkan rocm cpu'
  ],
  ['Strix Halo, a release without ROCm', machine([amd('AMD Radeon 8060S', 'gfx1151', INTEGRATED)]), 'vulkan cpu'],
  ['a card that nobody names, ROCm is installed', machine([amd('AMD Radeon', undefined)]), 'rocm vulkan cpu'],
  [
    'RX 6800 beside the processor’s own',
    machine([
      amd('AMD Radeon RX 6800', 'gfx1030', { gib: 16 }),
      amd('AMD Radeon Graphics', 'gfx1036', { ...INTEGRATED, gib: 0.5 })
    ]),
    'rocm vulkan cpu'
  ],
  [
    'Radeon whose driver is not loaded',
    machine([amd('AMD Radeon RX 7600', 'gfx1102', { usable: false })], problem('driver_not_loaded', 'amd:0')),
    'cpu'
  ],
  [
    'Windows, RX 7900 XTX without HIP SDK',
    machine([amd('AMD Radeon RX 7900 XTX', 'gfx1100')], { platform: 'win32', libraries: [] }),
    'vulkan rocm cpu'
  ],

  // Intel
  [
    'Arc A770 with oneAPI',
    machine([intel('Intel Arc A770')], { libraries: ['vulkan', 'sycl', 'level-zero'] }),
    'sycl vulkan cpu'
  ],
  [
    'Arc A770, oneAPI without driver',
    machine([intel('Intel Arc A770')], { libraries: ['vulkan', 'sycl'] }),
    'vulkan sycl cpu'
  ],
  ['Arc A770 without', machine([intel('Intel Arc A770')]), 'vulkan sycl cpu'],
  [
    'Arc B70 beside the processor’s own',
    machine([intel('Intel Arc Pro B70', { apis: ['sycl'], gib: 32 }), intel('Intel Graphics', INTEGRATED)]),
    'sycl vulkan cpu'
  ],
  ['the processor’s own only', machine([iGpu]), 'vulkan sycl cpu'],
  [
    'the processor’s own only, with oneAPI',
    machine([iGpu], { libraries: ['vulkan', 'sycl', 'level-zero'] }),
    'vulkan sycl cpu'
  ],
  ['the processor’s own, libvulkan is missing', machine([iGpu], { libraries: [] }), 'vulkan sycl cpu'],
  [
    'vulkaninfo sees none',
    machine([iGpu], { probes: [{ probe: 'vulkaninfo', outcome: 'ok', duration: 1 }] }),
    'sycl cpu'
  ],

  // Apple
  ['M5 Max', machine([apple('Apple M5 Max')], { platform: 'darwin', arch: 'arm64' }), 'metal cpu'],
  ['a Mac that tells no graphics', machine([], { platform: 'darwin', arch: 'arm64' }), 'metal cpu'],
  [
    'Intel Mac',
    machine([intel('Intel UHD Graphics 630', INTEGRATED), amd('AMD Radeon Pro 5300M', undefined)], {
      platform: 'darwin'
    }),
    'cpu'
  ],
  [
    'Venus on a Mac',
    machine([other('apple', 'Virtio-GPU Venus (Apple M2)', { type: 'virtual', apis: ['vulkan'] })], { arch: 'arm64' }),
    'vulkan cpu'
  ],

  // nobody could look which libraries there are
  ['RX 7900 XT', machine([amd('AMD Radeon RX 7900 XT', 'gfx1100')], UNKNOWN_SYSTEM), 'rocm vulkan cpu'],
  ['RX 6700 XT', machine([amd('AMD Radeon RX 6700 XT', 'gfx1031')], UNKNOWN_SYSTEM), 'vulkan rocm cpu'],
  ['Radeon 780M', machine([amd('AMD Radeon 780M', 'gfx1103', INTEGRATED)], UNKNOWN_SYSTEM), 'vulkan rocm cpu'],
  ['Arc A770', machine([intel('Intel Arc A770')], UNKNOWN_SYSTEM), 'vulkan sycl cpu'],
  ['L4', machine([nvidia('NVIDIA L4', '8.9', '580.65.06')], UNKNOWN_SYSTEM), 'cuda-13 cuda-12 vulkan cpu'],

  // others
  [
    'Adreno',
    machine([other('qualcomm', 'Adreno (TM) 740', { ...INTEGRATED, ...VULKAN_SEEN })], { arch: 'arm64' }),
    'cpu vulkan'
  ],
  [
    "H100 beside a server's console",
    machine([nvidia('NVIDIA H100', '9.0', '610.1', '13.4', { gib: 80 }), other('other', 'ASPEED Graphics Family')]),
    'cuda-13 cuda-12 vulkan cpu'
  ],
  ["a server's console", machine([other('other', 'ASPEED Graphics Family')]), 'cpu'],
  ['s390x', machine([], { arch: 's390x' }), 'cpu'],
  ['riscv64, no archive', machine([], { arch: 'riscv64' }), 'cpu'],

  // several
  [
    'laptop: Intel and RTX 4070',
    machine([iGpu, nvidia('NVIDIA GeForce RTX 4070 Laptop GPU', '8.9', '580.95.05', '13.0', { gib: 8 })]),
    'cuda-13 cuda-12 vulkan cpu sycl'
  ],
  [
    'RTX 4090 beside the AMD processor’s own',
    machine([
      nvidia('NVIDIA GeForce RTX 4090', '8.9', '580.95', '13.0', { gib: 24 }),
      amd('AMD Radeon Graphics', 'gfx1036', { ...INTEGRATED, gib: 2 })
    ]),
    'cuda-13 cuda-12 vulkan cpu rocm'
  ],
  [
    'RTX 3090 and three P40',
    machine([
      nvidia('NVIDIA GeForce RTX 3090', '8.6', '580.95', '13.0', { gib: 24 }),
      ...[1, 2, 3].map(() => nvidia('Tesla P40', '6.1', '580.95', '13.0', { gib: 24 }))
    ]),
    'cuda-12 vulkan cuda-13 cpu'
  ],
  [
    'RTX 4090 and GTX 1060',
    machine([
      nvidia('NVIDIA GeForce RTX 4090', '8.9', '580.95', '13.0', { gib: 24 }),
      nvidia('NVIDIA GeForce GTX 1060', '6.1', '580.95', '13.0', { gib: 6 })
    ]),
    'cuda-12 cuda-13 vulkan cpu'
  ],
  [
    'GTX 1080 Ti, Arc A580 and the processor’s own',
    machine([iGpu, nvidia('NVIDIA GeForce GTX 1080 Ti', '6.1', '580.95', '13.0'), intel('Intel Arc A580')]),
    'cuda-12 vulkan cpu sycl'
  ],
  [
    'RTX 3060 and a Radeon with twice its memory',
    machine([
      nvidia('NVIDIA GeForce RTX 3060', '8.6', '580.95', '13.0', { gib: 12 }),
      amd('AMD Radeon RX 7900 XTX', 'gfx1100', { gib: 24 })
    ]),
    'rocm cuda-13 vulkan cuda-12 cpu'
  ],
  [
    'one of two NVIDIA cards fell off the bus',
    machine(
      [
        nvidia('NVIDIA RTX A6000', '8.6', '580.95', '13.0'),
        nvidia('NVIDIA RTX A6000', '8.6', '', undefined, { usable: false })
      ],
      problem('no_device', 'nvidia:1')
    ),
    'cuda-13 cuda-12 vulkan cpu'
  ]
]

t.test('which kinds of builds can work on a machine, the best first', async t => {
  for (const [what, hardware, expected] of CASES) {
    const names = what.includes('a release without ROCm') ? NAMES.filter(name => !name.includes('rocm')) : NAMES
    t.equal(order(hardware, names), expected, what)
    for (const one of rankRuntimes(builtInKinds, hardware, names)) {
      t.ok(one.reasons.length > 0 && one.score >= 0 && one.score <= 100, `${what}: ${one.runtime} is explained`)
      t.ok(
        one.gpus.every(id => hardware.gpus.some(gpu => gpu.id === id && gpu.usable)),
        `${what}: ${one.runtime} uses what works`
      )
      if (one.score === 0) t.same([one.usable, one.gpus, one.assets], [false, [], []])
    }
    t.equal(order({ ...hardware, gpus: hardware.gpus.toReversed() }, names), expected, `${what}, the other way round`)
  }
})

t.test('what is missing, and what mends it', async t => {
  const missing = (hardware: Hardware, runtime: string) => candidate(hardware, runtime).missing
  const rtx = (version: string, cuda?: string) => machine([nvidia('NVIDIA GeForce RTX 4070', '8.9', version, cuda)])
  const cases: [hardware: Hardware, runtime: string, what: RegExp, fix?: RegExp][] = [
    [
      rtx('550.127.05', '12.4'),
      'cuda-13',
      /needs the NVIDIA driver 580 or newer; 550\.127\.05 is installed/,
      /driver 580/
    ],
    [rtx('470.10'), 'cuda-12', /needs the NVIDIA driver 525\.60\.13 or newer; 470\.10 is installed/, /driver 580/],
    [
      rtx('550.127.05', '12.4'),
      'cuda-12',
      /made with version 12\.8, newer than the driver's \(12\.4\)/,
      /Update the driver/
    ],
    [
      machine([nvidia('GTX 1080 Ti', '6.1', '470.10')]),
      'cuda-12',
      /525\.60\.13 or newer/,
      /driver 580, the last one for such cards/
    ],
    [
      machine([nvidia('GTX 1080 Ti', '6.1', '580.95', '13.0')]),
      'cuda-13',
      /compute capability 6\.1; CUDA 13 needs 7\.5/
    ],
    [
      machine([], problem('driver_mismatch', 'nvidia-smi', 'sudo reboot')),
      'cuda-13',
      /driver_mismatch/,
      /^sudo reboot$/
    ],
    [
      machine([], problem('driver_mismatch', 'nvidia-smi', 'sudo reboot')),
      'cuda-12',
      /driver_mismatch/,
      /^sudo reboot$/
    ],
    [
      machine([nvidia('RTX 3080', '8.6', '', undefined, { usable: false })]),
      'cuda-12',
      /no driver serves it/,
      /restart/
    ],
    [
      machine([nvidia('RTX 3060', '8.6', '', undefined, { driverName: 'nouveau' })]),
      'cuda-13',
      /nouveau, which has no CUDA/,
      /nvidia-driver/
    ],
    [
      machine([nvidia('NVIDIA H100', '9.0', '590.1', '13.1')], problem('partitioned', 'nvidia:0', 'nvidia-smi -L')),
      'cuda-13',
      /partitioned/,
      /nvidia-smi -L/
    ],
    [
      machine([amd('RX 6700 XT', 'gfx1031')]),
      'rocm',
      /mostly have no code for gfx1031/,
      /HSA_OVERRIDE_GFX_VERSION=10\.3\.0/
    ],
    [machine([amd('RX Vega 64', 'gfx900')]), 'rocm', /no code for gfx900/, /Vulkan/],
    [
      machine([amd('RX 7900 XT', 'gfx1100')], { libraries: [] }),
      'rocm',
      /was not found/,
      /https:\/\/rocm\.docs\.amd\.com/
    ],
    [machine([amd('AMD Radeon', undefined)]), 'rocm', /is not known/, /rocminfo/],
    [machine([amd('AMD Instinct MI300X', 'gfx941')]), 'rocm', /gfx941, as early ones did/, /ROCm/],
    [
      machine([amd('RX 7600', 'gfx1102')], problem('no_permission', '/dev/kfd', 'sudo usermod -aG render $USER')),
      'rocm',
      /no_permission/,
      /usermod/
    ],
    [machine([iGpu], { libraries: [] }), 'vulkan', /libvulkan\.so\.1/, /sudo apt install libvulkan1/],
    [
      machine([iGpu], { probes: [{ probe: 'vulkaninfo', outcome: 'ok', duration: 1 }] }),
      'vulkan',
      /No Vulkan driver serves/,
      /mesa-vulkan-drivers/
    ],
    [machine([intel('Intel Arc A770')]), 'sycl', /oneAPI/, /intel-oneapi/],
    [
      machine([nvidia('Orin', '8.7', '540.4.0', '12.6')], { arch: 'arm64' }),
      'cuda-12',
      /no CUDA 12 .* archive for linux arm64/,
      /CORRAL_LLAMA_CPP/
    ],
    [
      machine([nvidia('H100', '9.0', '610.1', '13.4')], { glibc: '2.36' }),
      'cuda-13',
      /needs glibc 2\.38; this system has 2\.36/,
      /ubuntu:24\.04/
    ],
    [machine([], { glibc: undefined }), 'cpu', /needs glibc 2\.34, and no glibc was found/, /compile/]
  ]
  for (const [hardware, runtime, what, fix] of cases) {
    const found = missing(hardware, runtime).find(one => what.test(one.what))
    t.ok(found, `${runtime}: ${what} among ${JSON.stringify(missing(hardware, runtime))}`)
    if (fix) t.match(found?.fix, fix)
  }
  t.same(missing(machine([nvidia('NVIDIA H100', '9.0', '610.1', '13.4')]), 'cuda-13'), [], 'nothing where nothing is')
  t.same(missing(machine([]), 'cpu'), [])
  const p40 = candidate(CASES.find(([what]) => what === 'RTX 3090 and three P40')![1], 'cuda-13')
  t.match(p40.reasons, [/uses NVIDIA GeForce RTX 3090 /, /leaves Tesla P40 \(3\) idle/])
  t.match(
    p40.missing,
    [/Tesla P40 has compute capability/, /made with version 13\.4/].map(what => ({ what })),
    'equal cards are told once'
  )
  const server = CASES.find(([what]) => what === "H100 beside a server's console")![1]
  t.match(candidate(server, 'cuda-13'), { score: 100, reasons: [/uses NVIDIA H100/] })
  t.match(candidate(machine([], { cpu: { model: 'Core 2', threads: 2, features: ['sse3'] } }), 'cpu').reasons, [
    /Core 2/,
    /no AVX2/
  ])
})

t.test('archives by live names', async t => {
  const asset = (name: string) => ({ name, browser_download_url: `https://x/${name}`, size: 1 })
  const chosen = (kind: string, hardware: Hardware, names: readonly string[] = NAMES) => {
    const found = chooseArchives(builtInKinds.find(({ name }) => name === kind)!, hardware, names.map(asset))
    return found && [found.archive.name, ...found.companions.map(({ name }) => name)].join(' ')
  }
  const linux = machine([nvidia('RTX 4090', '8.9', '610.1', '13.4')])
  const windows = machine([nvidia('RTX 4090', '8.9', '610.1', '13.4')], { platform: 'win32' })
  const on = (platform: string, arch: string) => machine([], { platform, arch })
  const T = `llama-${snapshot.tag}-bin`
  const table: [kind: string, hardware: Hardware, archives: string | undefined][] = [
    ['cpu', linux, `${T}-ubuntu-x64.tar.gz`],
    ['cpu', on('linux', 'arm64'), `${T}-ubuntu-arm64.tar.gz`],
    ['cpu', on('linux', 's390x'), `${T}-ubuntu-s390x.tar.gz`],
    ['cpu', on('darwin', 'x64'), `${T}-macos-x64.tar.gz`],
    ['cpu', on('darwin', 'arm64'), `${T}-macos-arm64.tar.gz`],
    ['cpu', windows, `${T}-win-cpu-x64.zip`],
    ['cpu', on('win32', 'arm64'), `${T}-win-cpu-arm64.zip`],
    ['cpu', on('linux', 'riscv64'), undefined],
    ['cpu', on('freebsd', 'x64'), undefined],
    ['metal', on('darwin', 'arm64'), `${T}-macos-arm64.tar.gz`],
    ['metal', on('darwin', 'x64'), undefined],
    ['cuda-12', linux, `${T}-ubuntu-cuda-12.8-x64.tar.gz cudart-${T}-ubuntu-cuda-12.8-x64.tar.gz`],
    ['cuda-13', linux, `${T}-ubuntu-cuda-13.4-x64.tar.gz cudart-${T}-ubuntu-cuda-13.4-x64.tar.gz`],
    ['cuda-13', on('linux', 'arm64'), `${T}-ubuntu-cuda-13.4-arm64.tar.gz cudart-${T}-ubuntu-cuda-13.4-arm64.tar.gz`],
    ['cuda-12', on('linux', 'arm64'), undefined],
    ['cuda-12', windows, `${T}-win-cuda-12.4-x64.zip cudart-llama-bin-win-cuda-12.4-x64.zip`],
    ['cuda-13', windows, `${T}-win-cuda-13.4-x64.zip cudart-llama-bin-win-cuda-13.4-x64.zip`],
    ['cuda-13', on('win32', 'arm64'), `${T}-win-cuda-13.4-arm64.zip cudart-llama-bin-win-cuda-13.4-arm64.zip`],
    ['rocm', linux, `${T}-ubuntu-rocm-10.0-x64.tar.gz`],
    ['rocm', windows, `${T}-win-rocm-10.0-x64.zip`],
    ['vulkan', linux, `${T}-ubuntu-vulkan-x64.tar.gz`],
    ['vulkan', on('linux', 'arm64'), `${T}-ubuntu-vulkan-arm64.tar.gz`],
    ['vulkan', windows, `${T}-win-vulkan-x64.zip`],
    ['sycl', linux, `${T}-ubuntu-sycl-fp16-x64.tar.gz`],
    ['sycl', windows, `${T}-win-sycl-x64.zip`]
  ]
  for (const [kind, hardware, archives] of table) {
    t.equal(chosen(kind, hardware), archives, `${kind} on ${hardware.platform} ${hardware.arch}`)
  }
  t.equal(chosen('rocm', windows, ['llama-b9000-bin-win-hip-radeon-x64.zip']), 'llama-b9000-bin-win-hip-radeon-x64.zip')
  t.equal(
    chosen(
      'sycl',
      linux,
      NAMES.filter(name => !name.includes('fp16'))
    ),
    `${T}-ubuntu-sycl-fp32-x64.tar.gz`
  )

  // Several versions: the highest that the driver serves, numbers compared as numbers; else the lowest.
  const versions = ['12.4', '12.10', '12.8', '12.9'].flatMap(version =>
    ['', 'cudart-'].map(prefix => `${prefix}llama-b1-bin-ubuntu-cuda-${version}-x64.tar.gz`)
  )
  const served = (cuda: string | undefined) =>
    chosen('cuda-12', machine([nvidia('RTX 4090', '8.9', '550.1', cuda)]), versions)?.split(' ')[0]
  t.equal(served('12.8'), 'llama-b1-bin-ubuntu-cuda-12.8-x64.tar.gz')
  t.equal(served('12.9'), 'llama-b1-bin-ubuntu-cuda-12.9-x64.tar.gz')
  t.equal(served('13.0'), 'llama-b1-bin-ubuntu-cuda-12.10-x64.tar.gz')
  t.equal(served(undefined), 'llama-b1-bin-ubuntu-cuda-12.10-x64.tar.gz')
  t.equal(served('12.2'), 'llama-b1-bin-ubuntu-cuda-12.4-x64.tar.gz')
  t.equal(
    chosen('rocm', linux, [
      'llama-b1-bin-ubuntu-rocm-7.14-x64.tar.gz',
      'llama-b1-bin-ubuntu-rocm-10.0-x64.tar.gz',
      'llama-b1-bin-ubuntu-rocm-7.2-x64.tar.gz'
    ]),
    'llama-b1-bin-ubuntu-rocm-10.0-x64.tar.gz'
  )

  // A release that is still uploading has the archive before its libraries.
  t.equal(
    chosen(
      'cuda-13',
      linux,
      NAMES.filter(name => !name.startsWith('cudart'))
    ),
    undefined
  )
  t.same(
    candidate(
      linux,
      'cuda-13',
      NAMES.filter(name => !name.startsWith('cudart'))
    ).assets,
    []
  )
  t.equal(chosen('cpu', linux, ['llama-b1-bin-ubuntu-x64.tar.gz.sha256', 'xllama-b1-bin-ubuntu-x64.tar.gz']), undefined)

  // The C library.
  const glibc = (version: string | undefined) => ({ ...linux, glibc: version })
  t.ok(chosen('cuda-13', glibc('2.38')))
  t.equal(chosen('cuda-13', glibc('2.36')), undefined)
  t.ok(chosen('vulkan', glibc('2.36')))
  t.equal(chosen('vulkan', glibc('2.31')), undefined)
  t.equal(chosen('cpu', glibc(undefined)), undefined, 'musl')
  t.equal(
    candidate(glibc('2.36'), 'cuda-13').assets.length,
    2,
    'the ranking still names them, and says what is missing'
  )
  t.match(order(glibc('2.36')), /^cuda-13 /)
  t.match(
    systemObstacle(cuda13, glibc('2.36')),
    /archive of CUDA 13 \(NVIDIA\) needs glibc 2\.38; this system has 2\.36/
  )
  for (const [kind, hardware] of [
    [cuda13, linux],
    [cuda13, windows],
    [cuda12, on('linux', 'riscv64')],
    [vulkan, glibc('2.36')]
  ] as const) {
    t.equal(systemObstacle(kind, hardware), undefined)
  }
  t.ok(chosen('cuda-13', { ...linux, ...UNKNOWN_SYSTEM }), 'nobody knows')
  t.same(candidate({ ...linux, ...UNKNOWN_SYSTEM }, 'cuda-13').missing, [])
})

t.test('environment, and devices that tell that it works', async t => {
  const six = amd('AMD Radeon RX 6800', 'gfx1030')
  const own = amd('AMD Radeon Graphics', 'gfx1036', INTEGRATED)
  const old = nvidia('GTX 1060', '6.1', '580.95', '13.0')
  const recent = nvidia('RTX 4090', '8.9', '580.95', '13.0')
  const cases: [kind: RuntimeDescriptor, hardware: Hardware, environment: Record<string, string>][] = [
    [rocm, machine([six, own]), { HIP_VISIBLE_DEVICES: '0' }],
    [rocm, machine([own, six]), { HIP_VISIBLE_DEVICES: '1' }],
    [rocm, machine([six, amd('Vega', 'gfx900'), six]), { HIP_VISIBLE_DEVICES: '0,2' }],
    [rocm, machine([six, six]), {}],
    [rocm, machine([own]), {}],
    [rocm, machine([]), {}],
    [cuda13, machine([old, recent]), { CUDA_DEVICE_ORDER: 'PCI_BUS_ID', CUDA_VISIBLE_DEVICES: '1' }],
    [cuda12, machine([old, recent]), {}],
    [cuda13, machine([recent]), {}],
    [cuda13, machine([old]), {}],
    [builtInKinds.at(-1)!, machine([], { platform: 'darwin', arch: 'arm64' }), { GGML_METAL_DEVICES: '0' }],
    [builtInKinds.at(-1)!, machine([]), {}]
  ]
  for (const [kind, hardware, environment] of cases) t.same(kind.environment?.(hardware), environment, kind.name)

  const mixed = machine([old, recent])
  t.same(heedingUser(cuda13, {}).environment?.(mixed), cuda13.environment?.(mixed))
  t.same(heedingUser(cuda13, { CUDA_VISIBLE_DEVICES: '0' }).environment?.(mixed), {}, 'who has chosen is heeded')
  t.equal(heedingUser(vulkan, {}), vulkan)

  const devices: [kind: RuntimeDescriptor, id: string, description: string, used: boolean][] = [
    [cuda13, 'CUDA0', 'NVIDIA GeForce RTX 4090', true],
    [cuda13, 'RPC[10.0.0.2:50052]', 'CUDA', false],
    [rocm, 'ROCm1', 'AMD Radeon RX 6800', true],
    [vulkan, 'Vulkan1', 'NVIDIA GeForce RTX 3060', true],
    [vulkan, 'Vulkan0', 'llvmpipe (LLVM 17.0.6, 256 bits)', false],
    [sycl, 'SYCL0', 'Intel(R) Arc(TM) Pro B70 Graphics', true],
    [builtInKinds[0]!, 'MTL0', 'Apple M1', true],
    [builtInKinds[0]!, 'Metal', 'Apple M3 Max', true],
    [builtInKinds[0]!, 'BLAS', 'Accelerate', false],
    [builtInKinds.at(-1)!, 'CUDA0', 'NVIDIA GeForce RTX 4090', false]
  ]
  for (const [kind, id, description, used] of devices)
    t.equal(kind.usesDevice({ id, description }, []), used, `${kind.name} ${id}`)
})

t.test('kinds that plugins bring', async t => {
  const own: RuntimeDescriptor = {
    name: 'npu',
    kind: 'unknown',
    title: 'NPU',
    fit: () => ({ score: 100, reasons: ['It is there.'], missing: [], gpus: [] }),
    archives: [],
    usesDevice: () => true
  }
  const broken: RuntimeDescriptor = {
    ...own,
    name: 'broken',
    fit() {
      throw new Error('no idea')
    }
  }
  const hardware = machine([nvidia('NVIDIA L4', '8.9', '610.1', '13.4')])
  const ranking = rankRuntimes([broken, ...builtInKinds, own], hardware, NAMES)
  t.same(
    ranking.slice(0, 3).map(({ runtime }) => runtime),
    ['cuda-13', 'npu', 'cuda-12'],
    'equal ones stay in order'
  )
  t.match(
    ranking.find(({ runtime }) => runtime === 'broken'),
    { score: 0, usable: false, reasons: [/no idea/] }
  )
  t.equal(order(hardware, []), 'cuda-13 cuda-12 vulkan cpu', 'an empty list says nothing')
  t.same(new Set(builtInKinds.map(({ name }) => name)).size, builtInKinds.length)
})

t.test('versions are compared number by number', async t => {
  for (const [a, b, sign] of [
    ['580.95.05', '580', 1],
    ['580', '580.0.0', 0],
    ['525.60.13', '525.60.11', 1],
    ['12.10', '12.9', 1],
    ['7.5', '12.0', -1],
    ['', '0', 0],
    ['rubbish', '1', -1]
  ] as const) {
    t.equal(Math.sign(compareVersions(a, b)), sign, `${a} ${b}`)
  }
})
