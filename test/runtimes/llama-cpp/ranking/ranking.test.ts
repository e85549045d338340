import t from 'tap'
import type { RuntimeDescriptor } from '../../../../core/contracts/builds.ts'
import type { Hardware } from '../../../../core/contracts/hardware.ts'
import { cuda12, cuda13 } from '../../../../runtimes/llama-cpp/kinds/cuda.ts'
import { builtInKinds, respectingEnvironment, vulkan } from '../../../../runtimes/llama-cpp/kinds/index.ts'
import { rocm } from '../../../../runtimes/llama-cpp/kinds/rocm.ts'
import { compareVersions } from '../../../../runtimes/llama-cpp/kinds/scores.ts'
import { chooseArchives, rankRuntimes, whyUnsupported } from '../../../../runtimes/llama-cpp/ranking.ts'
import { BUNDLED_LISTING } from '../../../../runtimes/llama-cpp/sources/release.ts'
import {
  answers,
  INTEL_GRAPHICS,
  look,
  PLAIN,
  type Recorded,
  recordedFiles,
  recording
} from '../../../plugins/running/hardware/support.ts'
import { readFixture } from '../../../support/fixture.ts'
import { amd, INTEGRATED, machine, nvidia, UNKNOWN_SYSTEM } from './machines.ts'
import { CASES, candidate, MISSING, NAMES, order } from './support.ts'

t.test('the ranking orders the kinds of builds that can work on a machine', async t => {
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

t.test('the ranking names what is missing and how to fix it', async t => {
  const missing = (hardware: Hardware, runtime: string) => candidate(hardware, runtime).missing
  for (const { hardware, runtime, what, fix = '' } of MISSING) {
    const found = missing(hardware, runtime).find(one => new RegExp(what).test(one.what))
    t.ok(found, `${runtime}: ${what} among ${JSON.stringify(missing(hardware, runtime))}`)
    t.match(found?.fix ?? '', new RegExp(fix))
  }
  const nothing = missing(machine([nvidia('NVIDIA H100', '9.0', '610.1', '13.4')]), 'cuda-13')
  t.same(nothing, [], 'nothing is missing without a GPU')
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

t.test('the ranking includes kinds from plugins', async t => {
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
  const runtimes = ranking.slice(0, 3).map(({ runtime }) => runtime)
  t.same(runtimes, ['cuda-13', 'npu', 'cuda-12'], 'ties stay in order')
  const found = ranking.find(({ runtime }) => runtime === 'broken')
  t.match(found, { score: 0, usable: false, reasons: [/no idea/] })
  t.equal(order(hardware, []), 'cuda-13 cuda-12 vulkan cpu', 'an empty list shows nothing')
  t.same(new Set(builtInKinds.map(({ name }) => name)).size, builtInKinds.length)
})

t.test('the ranking compares versions number by number', async t => {
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

const tables = readFixture<{
  archives: [kind: string, system: string, archives?: string][]
  devices: [kind: string, id: string, description: string, used: boolean][]
}>('archive-cases.yaml')

t.test('the release source chooses archives from the current file names', async t => {
  const asset = (name: string) => ({ name, browser_download_url: `https://x/${name}`, size: 1 })
  const chosen = (kind: string, hardware: Hardware, names: readonly string[] = NAMES) => {
    const found = chooseArchives(builtInKinds.find(({ name }) => name === kind)!, hardware, names.map(asset))
    return found?.map(({ name }) => name).join(' ')
  }
  const linux = machine([nvidia('RTX 4090', '8.9', '610.1', '13.4')])
  const on = (platform: string, arch: string) => ({ ...linux, platform, arch })
  const T = `llama-${BUNDLED_LISTING.tag}-bin`
  for (const [kind, system, archives] of tables.archives) {
    const [platform, arch] = system.split(' ') as [string, string]
    t.equal(chosen(kind, on(platform, arch)), archives?.replaceAll('TAG', T), `${kind} on ${system}`)
  }
  const older = chosen('rocm', on('win32', 'x64'), ['llama-b9000-bin-win-hip-radeon-x64.zip'])
  t.equal(older, 'llama-b9000-bin-win-hip-radeon-x64.zip')
  t.equal(
    chosen(
      'sycl',
      linux,
      NAMES.filter(name => !name.includes('fp16'))
    ),
    `${T}-ubuntu-sycl-fp32-x64.tar.gz`
  )

  // Several versions: the highest that the driver supports, compared as numbers, or the lowest.
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
  t.equal(candidate(glibc('2.36'), 'cuda-13').assets.length, 2, 'the ranking still lists them, with what is missing')
  t.match(order(glibc('2.36')), /^cuda-13 /)
  const why = whyUnsupported(cuda13, glibc('2.36'))
  t.match(why, /archive of CUDA 13 \(NVIDIA\) needs glibc 2\.38; this system has 2\.36/)
  for (const [kind, hardware] of [
    [cuda13, linux],
    [cuda13, on('win32', 'x64')],
    [cuda12, on('linux', 'riscv64')],
    [vulkan, glibc('2.36')]
  ] as const) {
    t.equal(whyUnsupported(kind, hardware), undefined)
  }
  t.ok(chosen('cuda-13', { ...linux, ...UNKNOWN_SYSTEM }), 'unknown')
  t.same(candidate({ ...linux, ...UNKNOWN_SYSTEM }, 'cuda-13').missing, [])
})

t.test('the release source sets the environment, and lists devices that show that it works', async t => {
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
  t.same(respectingEnvironment(cuda13, {}).environment?.(mixed), cuda13.environment?.(mixed))
  const respected = respectingEnvironment(cuda13, { CUDA_VISIBLE_DEVICES: '0' }).environment?.(mixed)
  t.same(respected, {}, "the user's choice is respected")
  t.equal(respectingEnvironment(vulkan, {}), vulkan)

  for (const [name, id, description, used] of tables.devices) {
    const kind = builtInKinds.find(kind => kind.name === name)!
    t.equal(kind.usesDevice({ id, description }, []), used, `${name} ${id}`)
  }
})

/** A machine that prints the recorded output of a program (and fails with a code), and has files. */
interface Machine {
  what: string
  order: string
  prints?: [program: string, recording: string, code?: number]
  files?: string[]
}

const VULKAN = { ...PLAIN, '/usr/lib/x86_64-linux-gnu/libvulkan.so.1': '' }
const FILES: Record<string, Record<string, string>> = { plain: PLAIN, vulkan: VULKAN, intel: INTEL_GRAPHICS }

function machineOf({ prints, files = [] }: Machine): Recorded {
  const found = files.map(name => FILES[name] ?? (name.endsWith('.txt') ? recordedFiles(name) : { [name]: '' }))
  if (!prints) return { files: Object.assign({}, ...found) }
  const [program, name, code] = prints
  const output = recording(name)
  return {
    files: Object.assign({}, ...found),
    programs: { [program]: code === undefined ? output : answers({ '*': output }, code) }
  }
}

/** The archives are for x64 on every test machine. */
t.test('ranks builds for recorded machines', async t => {
  const directory = t.testdir()
  const names = BUNDLED_LISTING.names
  for (const machine of readFixture<{ machines: Machine[] }>('recorded-machines.yaml').machines) {
    const hardware = { ...(await look(directory, machineOf(machine))), arch: 'x64' }
    const ranking = rankRuntimes(builtInKinds, hardware, names).filter(({ usable }) => usable)
    t.equal(ranking.map(({ runtime }) => runtime).join(' '), machine.order, machine.what)
  }
})
