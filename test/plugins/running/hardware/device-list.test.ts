import t from 'tap'
import { parseDeviceLog, parseDevices, whyUnusable } from '../../../../runtimes/llama-server/server-facts.ts'
import { MIB, recordings, runForLines } from './support.ts'

const device = (id: string, description: string, total?: number, free?: number) => ({
  id,
  description,
  ...(total === undefined ? {} : { totalMemory: total * MIB }),
  ...(free === undefined ? {} : { freeMemory: free * MIB })
})
const NO_LOG = { architectures: {} }

const TABLE: [string, ReturnType<typeof device>[] | undefined, ReturnType<typeof parseDeviceLog>][] = [
  [
    'cuda-3090-plus-3xp40',
    [
      device('CUDA0', 'NVIDIA GeForce RTX 3090', 24154, 406),
      device('CUDA1', 'Tesla P40', 24438, 22942),
      device('CUDA2', 'Tesla P40', 24438, 24144),
      device('CUDA3', 'Tesla P40', 24438, 24144)
    ],
    { architectures: { CUDA0: '8.6', CUDA1: '6.1', CUDA2: '6.1', CUDA3: '6.1' } }
  ],
  [
    'cuda-gtx1060-archs-too-new',
    [device('CUDA0', 'NVIDIA GeForce GTX 1060 6GB', 6063, 5900)],
    {
      architectures: { CUDA0: '6.1' },
      builtFor: ['7.5', '8.0', '8.6', '8.9', '9.0', '10.0', '10.3', '11.0', '12.0', '12.1']
    }
  ],
  [
    'cuda-wsl-toolbx-driver-insufficient',
    undefined,
    {
      architectures: {},
      failure: { code: 'driver_too_old', message: 'CUDA driver version is insufficient for CUDA runtime version' }
    }
  ],
  ['metal-m1-8gb-mtl0-blas', [device('MTL0', 'Apple M1', 5461, 5460)], NO_LOG],
  ['metal-m3max', [device('Metal', 'Apple M3 Max', 98304, 98303)], NO_LOG],
  ['none-cpu-build', [], NO_LOG],
  [
    'prefix-cuda-build-no-device-2026',
    [],
    { architectures: {}, failure: { code: 'no_device', message: 'no CUDA-capable device is detected' } }
  ],
  [
    'rocm-gfx906-xnack-suffix',
    [device('ROCm0', 'AMD Radeon RX 6800', 16368, 16342), device('ROCm1', 'AMD Radeon Pro VII', 16368, 16348)],
    { architectures: { ROCm0: 'gfx1030', ROCm1: 'gfx906' } }
  ],
  [
    'rpc-multi-cuda',
    [
      device('CUDA0', 'NVIDIA GeForce RTX XXXX'),
      device('CUDA1', 'NVIDIA GeForce GTX YYYY'),
      device('RPC[IP1:PORT1]', 'RPC[IP1:PORT1]'),
      device('RPC[IP2:PORT2]', 'RPC[IP2:PORT2]')
    ],
    { architectures: { CUDA0: '8.6', CUDA1: '7.5' } }
  ],
  [
    'sycl-b70-plus-igpu',
    [
      device('SYCL0', 'Intel(R) Arc(TM) Pro B70 Graphics', 32656, 31665),
      device('SYCL1', 'Intel(R) Graphics', 29115, 11642)
    ],
    NO_LOG
  ],
  ['sycl-lunar-lake-shared', [device('SYCL0', 'Intel(R) Arc(TM) Graphics', 29283, 6959)], NO_LOG],
  ['vulkan-llvmpipe-plus-3060', [device('Vulkan1', 'NVIDIA GeForce RTX 3060', 12288, 11000)], NO_LOG]
]

t.test('parses recorded device lists', async t => {
  const recorded = recordings().filter(name => name.startsWith('list-devices')).length
  t.equal(TABLE.length, recorded, 'every recording has its row')
  for (const [name, devices, log] of TABLE) {
    const lines = runForLines(`list-devices/${name}.txt`)
    for (const form of [lines, lines.map(line => `${line}\r`)]) {
      t.same(parseDevices(form), devices, name)
      t.same(parseDeviceLog(form), log, name)
    }
  }
})

t.test('selects the listed devices that the build has code for', async t => {
  const listed = (name: string) => {
    const lines = runForLines(`list-devices/${name}.txt`)
    const log = parseDeviceLog(lines)
    return (parseDevices(lines) ?? []).map(each => whyUnusable(each, log))
  }
  t.match(listed('cuda-gtx1060-archs-too-new'), [/GTX 1060 6GB has compute capability 6\.1.*7\.5 and newer/])
  t.same(
    listed('cuda-3090-plus-3xp40'),
    [undefined, undefined, undefined, undefined],
    'the build does not report its architectures'
  )
  t.same(listed('rocm-gfx906-xnack-suffix'), [undefined, undefined])
  const archs = [
    'found 1 CUDA devices',
    '  Device 0: X, compute capability 12.1, VMM: yes',
    'CUDA : ARCHS = 500,1200a |'
  ]
  t.equal(whyUnusable({ id: 'CUDA0', description: 'X' }, parseDeviceLog(archs)), undefined)
  t.same(parseDeviceLog(archs).builtFor, ['5.0', '12.0'])
})

t.test('handles unusual device lines', async t => {
  const list = [
    'Available devices:',
    '  CUDA0: A: B (C) (D, 5 MiB) (2 MiB, 0 MiB free)',
    '  CPU: x (9 MiB, 9 MiB free)'
  ]
  t.same(parseDevices(list), [device('CUDA0', 'A: B (C) (D, 5 MiB)', 2, 0)], 'a full device is still listed')
  t.equal(parseDevices(['usage: llama-server']), undefined)
  t.same(parseDevices(['Available devices:', '  Vulkan0: X (99999999999999999999 MiB, -3 MiB free)']), [
    device('Vulkan0', 'X')
  ])
  const failures: [string, string][] = [
    ['ggml_cuda_init: failed to initialize ROCm: no ROCm-capable device is detected', 'no_device'],
    [
      '0.00.010.000 E ggml_cuda_init: failed to initialize CUDA: system has unsupported display driver / cuda driver combination',
      'driver_mismatch'
    ],
    ['ggml_cuda_init: failed to initialize CUDA: unknown error', 'failed']
  ]
  for (const [line, code] of failures) t.equal(parseDeviceLog([line]).failure?.code, code, line)
  const prefixed = [
    '0.00.1 I ggml_cuda_init: found 1 ROCm devices (Total VRAM: 1 MiB):',
    '0.00.2 I   Device 0: A, B, gfx90a:sramecc+ (0x90a), VMM: no'
  ]
  t.same(parseDeviceLog(prefixed).architectures, { ROCm0: 'gfx90a' })
})
