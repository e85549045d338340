import t from 'tap'
import { glibcVersion, librariesAmong, parseLdconfig } from '../../../../plugins/running/hardware/libraries.ts'
import {
  groupFolders,
  groupMemory,
  parseMeminfo,
  withinLimits
} from '../../../../plugins/running/hardware/main-memory.ts'
import { parseCpuinfo, parseLscpu } from '../../../../plugins/running/hardware/processor.ts'
import { recordedFiles, recording, windowsLines } from './support.ts'

t.test('parses processors', async t => {
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
    ['altra-max-aarch64', { model: undefined }, ['asimd', 'asimddp', 'asimdhp'], ['sve', 'i8mm', 'avx']]
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
  t.same(parseLscpu(newer)?.features, ['ssse3', 'sse42', 'avx', 'f16c'], 'words that were split')
  t.equal(parseLscpu('lscpu: failed'), undefined)
})

t.test('parses memory and its limits', async t => {
  const text = recording('cpu/meminfo-i5-3570k-low-free-high-available.txt')
  t.same(parseMeminfo(text), { total: 16262132 * 1024, available: 14760924 * 1024 })
  const old = text.replace(/^MemAvailable.*\n/m, '')
  t.equal(parseMeminfo(old)?.available, (234596 + 184464 + 14232772) * 1024, 'an old kernel')
  t.equal(parseMeminfo('junk'), undefined)
  t.equal(parseMeminfo('MemTotal: 0 kB\n'), undefined)
  t.equal(parseMeminfo('MemTotal: 100 kB\nMemAvailable: 500 kB\n')?.available, 102400, 'never more than the total')

  const v1 = recordedFiles('cpu/cgroup-v1-unlimited.txt')
  const v2 = recordedFiles('cpu/cgroup-v2-unlimited.txt')
  const folders = (cgroup: string) => groupFolders(cgroup).map(({ version, folder }) => `${version} ${folder}`)
  t.same(folders(v1['/proc/985/cgroup']!), [
    '1 /sys/fs/cgroup/memory/docker/<cid>',
    '1 /sys/fs/cgroup/memory/docker',
    '1 /sys/fs/cgroup/memory'
  ])
  t.same(folders(v2['/proc/2233801/cgroup']!), ['2 /sys/fs/cgroup'], 'a path that leads out of the mount')
  t.same(
    folders('4:memory:/docker/abc\n3:cpuset:/\n0::/x/../y\n'),
    [
      '1 /sys/fs/cgroup/memory/docker/abc',
      '1 /sys/fs/cgroup/memory/docker',
      '1 /sys/fs/cgroup/memory',
      '2 /sys/fs/cgroup'
    ],
    'both versions'
  )
  t.same(groupFolders('junk'), [])

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
  t.same(withinLimits(machine, []), machine)
  t.same(withinLimits(machine, [{ limit: 20_000, used: 19_999 }]), machine, 'no limit')
  t.same(
    withinLimits(machine, [
      { limit: 4000, used: 1000 },
      { limit: 8000, used: 7500 }
    ]),
    { total: 10_000, limit: 4000, available: 500 }
  )
  t.same(withinLimits(machine, [{ limit: 4000, used: 5000 }]), { total: 10_000, limit: 4000, available: 0 })
})

t.test('finds libraries', async t => {
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
