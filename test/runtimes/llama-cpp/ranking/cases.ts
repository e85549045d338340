import type { Hardware } from '../../../../core/contracts/hardware.ts'
import { amd, apple, INTEGRATED, iGpu, intel, machine, nvidia, other, problem, UNKNOWN_SYSTEM } from './machines.ts'

const VULKAN_SEEN = { apis: ['vulkan' as const] }

/** Machines, and the kinds that can work on each, best first. */
export const CASES: [what: string, hardware: Hardware, order: string][] = [
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
    'unknown compute capability',
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

  // NVIDIA: broken installations
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
    'broken card beside working integrated graphics',
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
    machine([amd('RX 7900 XT without ROCm', 'gfx1100')], { libraries: ['vulkan'] }),
    'vulkan rocm cpu'
  ],
  [
    'RX 7900 XT, ROCm found only by its tools',
    machine([amd('AMD Radeon RX 7900 XT', 'gfx1100', { apis: ['rocm'] })], { libraries: ['vulkan'] }),
    'rocm vulkan cpu'
  ],
  [
    'RX 7900 XT without any library',
    machine([amd('AMD Radeon RX 7900 XT', 'gfx1100')], { libraries: [] }),
    'rocm vulkan cpu'
  ],
  ['RX 6700 XT', machine([amd('AMD Radeon RX 6700 XT', 'gfx1031', { apis: ['rocm'] })]), 'vulkan rocm cpu'],
  ['RX 6600 XT', machine([amd('AMD Radeon RX 6600 XT', 'gfx1032', VULKAN_SEEN)]), 'vulkan rocm cpu'],
  ['RX 5700 XT', machine([amd('AMD Radeon RX 5700 XT', 'gfx1010')]), 'vulkan rocm cpu'],
  ['Vega 10', machine([amd('AMD Radeon RX Vega 64', 'gfx900')]), 'vulkan cpu'],
  ['Pro VII', machine([amd('AMD Radeon Pro VII', 'gfx906')]), 'vulkan cpu'],
  ['MI300X', machine([amd('AMD Instinct MI300X', 'gfx942')]), 'rocm cpu'],
  ['MI300X with its early name', machine([amd('AMD Instinct MI300X', 'gfx941')]), 'rocm cpu'],
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
  ['an unnamed card, ROCm is installed', machine([amd('AMD Radeon', undefined)]), 'rocm vulkan cpu'],
  [
    'RX 6800 beside integrated graphics',
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
    'Arc B70 beside integrated graphics',
    machine([intel('Intel Arc Pro B70', { apis: ['sycl'], gib: 32 }), intel('Intel Graphics', INTEGRATED)]),
    'sycl vulkan cpu'
  ],
  ['integrated graphics only', machine([iGpu]), 'vulkan sycl cpu'],
  [
    'integrated graphics only, with oneAPI',
    machine([iGpu], { libraries: ['vulkan', 'sycl', 'level-zero'] }),
    'vulkan sycl cpu'
  ],
  ['integrated graphics, libvulkan is missing', machine([iGpu], { libraries: [] }), 'vulkan sycl cpu'],
  [
    'vulkaninfo sees none',
    machine([iGpu], { probes: [{ probe: 'vulkaninfo', outcome: 'ok', duration: 1 }] }),
    'sycl cpu'
  ],

  // Apple
  ['M5 Max', machine([apple('Apple M5 Max')], { platform: 'darwin', arch: 'arm64' }), 'metal cpu'],
  ['a Mac that does not report its graphics', machine([], { platform: 'darwin', arch: 'arm64' }), 'metal cpu'],
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

  // the installed libraries are unknown
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
    'RTX 4090 beside AMD integrated graphics',
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
    'GTX 1080 Ti, Arc A580 and integrated graphics',
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
