import t from 'tap'
import type { RuntimeDescriptor } from '../../../../core/contracts/builds.ts'
import type { Hardware } from '../../../../core/contracts/hardware.ts'
import { builtInKinds } from '../../../../runtimes/llama-cpp/kinds/index.ts'
import { compareVersions } from '../../../../runtimes/llama-cpp/kinds/scores.ts'
import { rankRuntimes } from '../../../../runtimes/llama-cpp/ranking.ts'
import { machine, nvidia } from './machines.ts'
import { CASES, candidate, MISSING, NAMES, order } from './support.ts'

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
  const runtimes = ranking.slice(0, 3).map(({ runtime }) => runtime)
  t.same(runtimes, ['cuda-13', 'npu', 'cuda-12'], 'ties stay in order')
  const found = ranking.find(({ runtime }) => runtime === 'broken')
  t.match(found, { score: 0, usable: false, reasons: [/no idea/] })
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
