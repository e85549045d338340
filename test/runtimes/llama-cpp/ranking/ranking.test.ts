import t from 'tap'
import type { RuntimeDescriptor } from '../../../../core/contracts/builds.ts'
import type { Hardware } from '../../../../core/contracts/hardware.ts'
import { builtInKinds } from '../../../../runtimes/llama-cpp/kinds/index.ts'
import { compareVersions } from '../../../../runtimes/llama-cpp/kinds/scores.ts'
import { rankRuntimes } from '../../../../runtimes/llama-cpp/ranking.ts'
import { amd, gpu, iGpu, machine, nvidia, problem } from './machines.ts'
import { CASES, candidate, NAMES, order } from './support.ts'

t.test('ranks the kinds of builds that can work on a machine', async t => {
  for (const [what, hardware, expected] of CASES) {
    const names = what.includes('a release without ROCm') ? NAMES.filter(name => !name.includes('rocm')) : NAMES
    t.equal(order(hardware, names), expected, what)
    for (const one of rankRuntimes(builtInKinds, hardware, names)) {
      t.ok(one.reasons.length > 0 && one.score >= 0 && one.score <= 100, `${what}: ${one.runtime} is explained`)
      t.ok(
        one.gpus.every(id => hardware.gpus.some(gpu => gpu.id === id && gpu.usable)),
        `${what}: ${one.runtime} uses working devices`
      )
      if (one.score === 0) t.same([one.usable, one.gpus, one.assets], [false, [], []])
    }
    t.equal(order({ ...hardware, gpus: hardware.gpus.toReversed() }, names), expected, `${what}, in reverse order`)
  }
})

t.test('names what is missing and how to fix it', async t => {
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
      /made with version 12\.8, but the driver supports 12\.4/,
      /update the driver/
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
      /has no working driver/,
      /restart/
    ],
    [
      machine([nvidia('RTX 3060', '8.6', '', undefined, { driverName: 'nouveau' })]),
      'cuda-13',
      /nouveau, which does not support CUDA/,
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
    [machine([amd('AMD Radeon', undefined)]), 'rocm', /is unknown/, /rocminfo/],
    [machine([amd('AMD Instinct MI300X', 'gfx941')]), 'rocm', /gfx941, an old name of gfx942/, /ROCm/],
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
      /no Vulkan driver for/,
      /mesa-vulkan-drivers/
    ],
    [machine([gpu('intel', 'Intel Arc A770')]), 'sycl', /oneAPI/, /intel-oneapi/],
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
  t.same(
    missing(machine([nvidia('NVIDIA H100', '9.0', '610.1', '13.4')]), 'cuda-13'),
    [],
    'nothing is missing without a GPU'
  )
  t.same(missing(machine([]), 'cpu'), [])
  const p40 = candidate(CASES.find(([what]) => what === 'RTX 3090 and three P40')![1], 'cuda-13')
  t.match(p40.reasons, [/uses NVIDIA GeForce RTX 3090 /, /leaves Tesla P40 \(3\) idle/])
  t.match(
    p40.missing,
    [/Tesla P40 has compute capability/, /made with version 13\.4/].map(what => ({ what })),
    'equal cards are reported once'
  )
  const server = CASES.find(([what]) => what === "H100 beside a server's console")![1]
  t.match(candidate(server, 'cuda-13'), { score: 100, reasons: [/uses NVIDIA H100/] })
  t.match(candidate(machine([], { cpu: { model: 'Core 2', threads: 2, features: ['sse3'] } }), 'cpu').reasons, [
    /Core 2/,
    /no AVX2/
  ])
})

t.test('ranks kinds from plugins', async t => {
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
    'ties stay in order'
  )
  t.match(
    ranking.find(({ runtime }) => runtime === 'broken'),
    { score: 0, usable: false, reasons: [/no idea/] }
  )
  t.equal(order(hardware, []), 'cuda-13 cuda-12 vulkan cpu', 'an empty list shows nothing')
  t.same(new Set(builtInKinds.map(({ name }) => name)).size, builtInKinds.length)
})

t.test('compares versions number by number', async t => {
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
