import { symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { Value } from 'typebox/value'
import { HardwareSchema } from '../../../../core/contracts/hardware.ts'
import { createHardware } from '../../../../plugins/running/hardware/index.ts'
import {
  answers,
  GIB,
  hardwareOf,
  look,
  MIB,
  PLAIN,
  RADEON_AGENT,
  type Recorded,
  recordedFiles,
  recording,
  writeMachine
} from './support.ts'

const H100 = answers({
  '*--query-gpu*':
    'index, name, uuid, pci.bus_id, pci.device_id, driver_version, memory.total [MiB], memory.free [MiB], compute_cap, mig.mode.current\n' +
    '0, NVIDIA H100 80GB HBM3, GPU-1, 00000000:04:00.0, 0x233010DE, 580.95.05, 81559 MiB, 81000 MiB, 9.0, Disabled',
  '*--version*': recording('nvidia/smi-version-590.txt').replaceAll('590.48.01', '580.95.05').replace('13.1', '13.0')
})

const outcomes = (hardware: { probes: { probe: string; outcome: string }[] }) =>
  Object.fromEntries(hardware.probes.map(({ probe, outcome }) => [probe, outcome]))

t.test('the detector finds NVIDIA machines', async t => {
  const directory = t.testdir()
  const h100 = await look(directory, { programs: { 'nvidia-smi': H100 } })
  t.match(h100, {
    platform: 'linux',
    arch: 'x64',
    gpus: [
      {
        id: 'nvidia:0',
        name: 'NVIDIA H100 80GB HBM3',
        type: 'discrete',
        architecture: '9.0',
        totalMemory: 81559 * MIB,
        driver: { version: '580.95.05', cuda: '13.0' },
        apis: ['cuda'],
        usable: true
      }
    ],
    problems: [],
    now: { gpus: { 'nvidia:0': { total: 81559 * MIB, free: 81000 * MIB } }, host: { total: 16262132 * 1024 } }
  })
  t.ok(Value.Check(HardwareSchema, h100))

  const older = await look(directory, {
    programs: {
      'nvidia-smi': answers({
        '*compute_cap*': 'Field "compute_cap" is not a valid field to query.',
        '*--query-gpu*':
          'index, name, pci.bus_id, driver_version, memory.total [MiB], memory.free [MiB]\n' +
          '0, NVIDIA GeForce RTX 4070 Ti SUPER, 00000000:01:00.0, 550.127.05, 16376 MiB, 15918 MiB',
        '*--version*': 'Invalid combination of input arguments. Please run "nvidia-smi -h" for help.',
        '*': recording('nvidia/smi-table-4070tis-550.txt')
      })
    }
  })
  t.match(older.gpus, [
    { name: 'NVIDIA GeForce RTX 4070 Ti SUPER', architecture: '8.9', driver: { version: '550.127.05', cuda: '12.4' } }
  ])

  const tableOnly = await look(directory, { programs: { 'nvidia-smi': recording('nvidia/smi-table-4070tis-550.txt') } })
  t.match(tableOnly.gpus, [{ totalMemory: 16376 * MIB, driver: { cuda: '12.4' }, architecture: '8.9', usable: true }])
  t.same(tableOnly.now.gpus, {}, 'the table does not report free memory')

  const mig = await look(directory, {
    programs: {
      'nvidia-smi': answers({
        '*--query-gpu*': recording('nvidia/smi-query-h100-mig-590.csv.txt'),
        '-L': 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n  MIG 1g.10gb     Device  0: (UUID: MIG-1)',
        '*': recording('nvidia/smi-version-590.txt')
      })
    }
  })
  t.match(mig, { gpus: [{ totalMemory: 10 * GIB, driver: { cuda: '13.1' } }], problems: [{ code: 'partitioned' }] })
  t.same(mig.now.gpus, {})

  const spark = await look(directory, {
    files: {
      '/proc/cpuinfo': recording('cpu/cpuinfo-altra-max-aarch64.txt'),
      '/proc/meminfo': 'MemTotal: 127600748 kB\nMemAvailable: 118566368 kB\n'
    },
    programs: {
      lscpu: 'Architecture: aarch64\nCPU(s): 1\nModel name: Neoverse-N1\n',
      'nvidia-smi': answers({
        '*--query-gpu*': recording('nvidia/smi-query-gb10-na-mem.csv.txt'),
        '*': recording('nvidia/smi-table-gb10-not-supported-mem.txt')
      })
    }
  })
  t.match(spark, {
    arch: 'arm64',
    cpu: { model: 'Neoverse-N1' },
    gpus: [{ unifiedMemory: true, totalMemory: 127600748 * 1024, driver: { cuda: '13.0' } }]
  })
  t.same(spark.now.gpus, {}, 'a Jetson has no dedicated memory')
})

t.test('the detector reports a driver that does not work', async t => {
  const directory = t.testdir()
  const failing = (name: string) => answers({ '*': recording(`nvidia/smi-err-${name}.txt`) }, 18)
  const mismatch = await look(directory, {
    files: {
      ...PLAIN,
      '/proc/driver/nvidia/version': 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.127.05  Tue Oct',
      '/proc/driver/nvidia/gpus/0000:01:00.0/information': 'Model: \t\t NVIDIA L4\nBus Location: \t 0000:01:00.0\n'
    },
    programs: { 'nvidia-smi': failing('nvml-version-mismatch') }
  })
  t.match(mismatch, {
    gpus: [{ name: 'NVIDIA L4', architecture: '8.9', usable: false, apis: [] }],
    problems: [{ code: 'driver_mismatch', advice: /reboot/ }]
  })
  t.equal(mismatch.problems.length, 1)
  t.match(outcomes(mismatch), { 'nvidia-smi': 'failed', 'nvidia-driver': 'ok' })
  t.same(mismatch.now.gpus, {})

  const wsl = await look(directory, {
    files: { ...PLAIN, '/proc/version': 'Linux version 5.15.153.1-microsoft-standard-WSL2' },
    programs: { 'nvidia-smi': failing('cannot-communicate-wsl2') }
  })
  t.match(wsl, { gpus: [], problems: [{ code: 'driver_not_loaded', advice: /wsl --shutdown/ }] })

  const none = await look(directory, { programs: { 'nvidia-smi': failing('no-devices') } })
  t.match(none, { gpus: [], problems: [{ code: 'no_device' }] })
  t.match(outcomes(none), { 'nvidia-smi': 'ok' })

  const noDriver = await look(directory, {
    files: {
      ...PLAIN,
      '/sys/bus/pci/devices/0000:01:00.0/class': '0x030000\n',
      '/sys/bus/pci/devices/0000:01:00.0/vendor': '0x10de\n',
      '/sys/bus/pci/devices/0000:01:00.0/device': '0x1b06\n',
      '/sys/bus/pci/devices/0000:01:00.0/uevent': 'PCI_SLOT_NAME=0000:01:00.0\n',
      '/sys/bus/pci/devices/0000:02:00.0/class': '0x020000\n',
      '/usr/share/misc/pci.ids': '10de  NVIDIA Corporation\n\t1b06  GP102 [GeForce GTX 1080 Ti]\n'
    }
  })
  t.match(noDriver, {
    gpus: [{ name: 'NVIDIA GeForce GTX 1080 Ti', architecture: '6.1', usable: false }],
    problems: [{ code: 'driver_not_loaded', subject: 'NVIDIA GeForce GTX 1080 Ti' }]
  })
})

const RADEON = {
  '/sys/bus/pci/devices/0000:03:00.0/vendor': '0x1002\n',
  '/sys/bus/pci/devices/0000:03:00.0/device': '0x744c\n',
  '/sys/bus/pci/devices/0000:03:00.0/class': '0x030000\n',
  '/sys/bus/pci/devices/0000:03:00.0/uevent': 'DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0\n',
  '/sys/bus/pci/devices/0000:03:00.0/mem_info_vram_total': '21458059264\n',
  '/sys/bus/pci/devices/0000:03:00.0/mem_info_vram_used': '58059264\n',
  '/sys/bus/pci/devices/0000:03:00.0/mem_info_gtt_total': '16792432640\n',
  '/sys/bus/pci/devices/0000:03:00.0/mem_info_gtt_used': '0\n',
  '/sys/class/kfd/kfd/topology/nodes/0/properties': 'simd_count 0\n',
  '/sys/class/kfd/kfd/topology/nodes/1/properties':
    'simd_count 168\nvendor_id 4098\ndevice_id 29772\nlocation_id 768\ndomain 0\ngfx_target_version 110000\nlocal_mem_size 0\n'
}

t.test('the detector finds AMD, Intel and Apple machines', async t => {
  const directory = t.testdir()
  const radeon = await look(directory, {
    files: { ...PLAIN, ...RADEON, '/usr/share/vulkan/icd.d/radeon_icd.x86_64.json': '{}' },
    programs: { rocminfo: RADEON_AGENT }
  })
  t.match(radeon, {
    gpus: [
      {
        id: 'amd:0',
        name: 'AMD Radeon RX 7900 XT',
        type: 'discrete',
        pciBus: '0000:03:00.0',
        pciId: '0x744c',
        architecture: 'gfx1100',
        totalMemory: 21458059264,
        freeMemory: 21400000000,
        unifiedMemory: false,
        driver: { name: 'amdgpu' },
        apis: ['rocm', 'vulkan'],
        usable: true
      }
    ],
    problems: [],
    libraries: ['libgomp'],
    now: { gpus: { 'amd:0': { total: 21458059264, free: 21400000000 } } }
  })
  t.equal(radeon.gpus.length, 1)

  const files = await look(directory, { files: { ...PLAIN, ...RADEON } })
  t.match(files.gpus, [{ name: 'AMD Navi 31', architecture: 'gfx1100', apis: [], usable: true }], 'without any tool')

  const cpx = await look(directory, { files: { ...PLAIN, ...recordedFiles('rocm/kfd-topology-mi300x-cpx.txt') } })
  t.match(cpx, { gpus: [{ architecture: 'gfx942', name: 'AMD Instinct MI300' }], problems: [{ code: 'partitioned' }] })
  t.equal(cpx.gpus.length, 1)
  const vega = await look(directory, {
    files: { ...PLAIN, ...recordedFiles('rocm/kfd-topology-vega10-old-no-gfxver.txt') }
  })
  t.match(vega.gpus, [{ architecture: 'gfx900', totalMemory: 16368 * MIB, type: 'discrete' }])

  const deck = await look(directory, {
    files: {
      ...PLAIN,
      '/sys/bus/pci/devices/0000:04:00.0/class': '0x030000',
      '/sys/bus/pci/devices/0000:04:00.0/vendor': '0x1002',
      '/sys/bus/pci/devices/0000:04:00.0/device': '0x163f',
      '/sys/bus/pci/devices/0000:04:00.0/mem_info_vram_total': String(GIB),
      '/sys/bus/pci/devices/0000:04:00.0/mem_info_vram_used': '0',
      '/sys/bus/pci/devices/0000:04:00.0/mem_info_gtt_total': String(8 * GIB),
      '/sys/bus/pci/devices/0000:04:00.0/mem_info_gtt_used': String(GIB)
    },
    programs: { vulkaninfo: recording('vulkan/vulkaninfo-summary-steamdeck-radv.txt') }
  })
  t.match(deck.gpus, [
    {
      name: 'AMD Custom GPU 0405',
      type: 'integrated',
      unifiedMemory: true,
      architecture: 'gfx1033',
      totalMemory: 9 * GIB,
      freeMemory: 8 * GIB,
      apis: ['vulkan']
    }
  ])
  t.equal(deck.gpus.length, 1)
  t.same(deck.now.gpus, {}, 'it shares the machine memory')

  const vulkanOnly = await look(directory, {
    programs: { vulkaninfo: recording('vulkan/vulkaninfo-summary-venus-m2-plus-llvmpipe.txt') }
  })
  t.match(vulkanOnly.gpus, [{ vendor: 'apple', type: 'virtual', apis: ['vulkan'] }])
  t.equal(vulkanOnly.gpus.length, 1)

  const arc = await look(directory, { programs: { 'xpu-smi': recording('intel/xpu-smi-discovery-a770.txt') } })
  t.match(arc.gpus, [{ id: 'intel:0', type: 'discrete', pciId: '0x56a0', apis: [] }])
  const integrated = await look(directory, {
    files: {
      ...PLAIN,
      '/sys/bus/pci/devices/0000:00:02.0/class': '0x030000\n',
      '/sys/bus/pci/devices/0000:00:02.0/vendor': '0x8086\n',
      '/sys/bus/pci/devices/0000:00:02.0/device': '0xa788\n'
    }
  })
  t.match(integrated, { gpus: [{ type: 'integrated', unifiedMemory: true, usable: true }], problems: [] })

  const mac = await look(directory, {
    files: {},
    programs: {
      system_profiler: recording('macos/system_profiler-displays-m5max.json.txt'),
      sysctl: answers({
        '-n*': recording('macos/sysctl-memsize-16gb.txt'),
        '*': recording('macos/sysctl-cpu-m1.txt')
      })
    }
  })
  t.match(mac, {
    platform: 'darwin',
    arch: 'arm64',
    cpu: { model: 'Apple M1', threads: 8 },
    memory: { total: 16 * GIB },
    gpus: [{ id: 'apple:0', architecture: 'metal4', totalMemory: Math.floor((16 * GIB * 2) / 3) }]
  })
  t.same(mac.now.gpus, {})
})

t.test('the detector finds a machine without a GPU', async t => {
  const directory = t.testdir()
  const plain = await look(directory, {})
  t.match(plain, {
    gpus: [],
    problems: [],
    cpu: { threads: 8 },
    libraries: ['libgomp'],
    memory: { available: 14760924 * 1024 }
  })
  t.notOk('limit' in plain.memory)
  const empty = await look(directory, { files: {} })
  t.match(
    empty,
    { cpu: { model: 'unknown' }, memory: { total: 0, available: 0 }, gpus: [] },
    'nothing from this machine leaks in'
  )
  t.ok(Value.Check(HardwareSchema, empty))
  t.notOk('glibc' in empty)

  const container = await look(directory, {
    files: {
      ...PLAIN,
      '/sys/fs/cgroup/memory.max': `${4 * GIB}\n`,
      '/sys/fs/cgroup/memory.current': `${GIB}\n`,
      '/sys/fs/cgroup/memory.stat': `anon 5\ninactive_file ${GIB / 2}\n`,
      '/lib/x86_64-linux-gnu/libc.so.6': '\0GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\0'
    }
  })
  t.match(container, {
    glibc: '2.36',
    memory: { total: 16262132 * 1024, limit: 4 * GIB, available: 3.5 * GIB },
    now: { host: { total: 4 * GIB, available: 3.5 * GIB } }
  })
  const v1 = await look(directory, {
    files: {
      ...PLAIN,
      ...recordedFiles('cpu/cgroup-v1-unlimited.txt'),
      '/proc/self/cgroup': '5:memory:/docker/<cid>\n'
    }
  })
  t.notOk('limit' in v1.memory)

  const [root, path] = writeMachine(directory, { files: PLAIN })
  symlinkSync('/proc/meminfo', join(root, 'proc', 'elsewhere'))
  symlinkSync('/sys', join(root, 'sys'))
  const service = createHardware({ sysroot: root, probeTimeout: 5000, env: { PATH: path } })
  t.match(outcomes(await service.detect()), { 'pci-devices': 'absent' }, 'links cannot leave the recording')
})

t.test('detection survives programs that misbehave', async t => {
  const directory = t.testdir()
  const hanging = '#!/bin/sh\ntrap "" TERM\nwhile :; do /bin/sleep 1; done\n'
  const loud = '#!/bin/sh\nexec /usr/bin/head -c 50000000 /dev/zero\n'
  const lines = '#!/bin/sh\nwhile :; do echo a line that means nothing at all, and another one after it; done\n'
  const service = hardwareOf(
    directory,
    {
      programs: {
        'nvidia-smi': hanging,
        vulkaninfo: loud,
        rocminfo: lines,
        'sycl-ls': '#!/bin/sh\nkill -SEGV $$\n',
        'xpu-smi': 'These programs never end by themselves, so returning at all is the point.'
      }
    },
    1500
  )
  let ticks = 0
  const timer = setInterval(() => ticks++, 20)
  // The detection must return although those programs never end.
  const found = await service.detect()
  clearInterval(timer)
  t.ok(ticks > 5, 'detection does not block meanwhile')
  t.match(outcomes(found), {
    'nvidia-smi': 'timed_out',
    'sycl-ls': 'failed',
    'xpu-smi': 'unreadable',
    cpuinfo: 'ok'
  })
  for (const probe of ['vulkaninfo', 'rocminfo']) {
    t.match(outcomes(found)[probe], /^(unreadable|timed_out)$/, probe)
  }
  t.match(found, { gpus: [], problems: [{ code: 'probe_failed', subject: 'nvidia-smi' }], cpu: { threads: 8 } })
  t.ok(Value.Check(HardwareSchema, found))
  for (const report of found.probes) t.ok((report.detail?.length ?? 0) < 300)

  const slow = hardwareOf(
    directory,
    {
      programs: {
        'nvidia-smi': answers({ '*--version*': '' }).replace(
          'case',
          'case "$*" in *--version*) while :; do /bin/sleep 1; done;; *) /bin/cat <<X\nname, memory.total [MiB]\nNVIDIA L4, 23034 MiB\nX\nesac; exit\ncase'
        )
      }
    },
    // On a busy machine the answering program needs more than a second, so it gets as long as the hanging one.
    5000
  )
  t.match(
    (await slow.detect()).gpus,
    [{ name: 'NVIDIA L4', totalMemory: 23034 * MIB }],
    'the hanging query does not lose the results of the other'
  )
})

t.test('concurrent detections share one run', async t => {
  const directory = t.testdir()
  const count = join(directory, 'count')
  const counting = H100.replace('case', `echo x >>'${count}'\ncase`)
  const service = hardwareOf(directory, { programs: { 'nvidia-smi': counting } })
  const { readFileSync } = await import('node:fs')
  const calls = () => readFileSync(count, 'utf8').length / 2
  t.equal(service.known(), undefined)
  const [first, second] = await Promise.all([service.detect(), service.detect()])
  t.equal(first, second)
  t.equal(service.known(), first)
  const once = calls()
  t.equal(await service.detect(), first)
  t.equal(calls(), once, 'detected once')
  const [again, shared] = await Promise.all([service.detect({ refresh: true }), service.detect({ refresh: true })])
  t.equal(again, shared)
  t.not(again, first)
  t.equal(calls(), 2 * once, 'detected once more for all callers that refresh')

  const before = calls()
  const now = await Promise.all(Array.from({ length: 20 }, () => service.memory()))
  t.match(now[19], { gpus: { 'nvidia:0': { free: 81000 * MIB } } })
  t.equal(calls(), before + 1, 'memory is read once at a time')
  await sleep(1100)
  await service.memory()
  t.equal(calls(), before + 2)

  const fresh = hardwareOf(directory, { programs: { 'nvidia-smi': H100 } })
  t.match(await fresh.memory(), { gpus: { 'nvidia:0': { total: 81559 * MIB } } }, 'before the first detection')
})

t.test('the detector reads GPU sensors', async t => {
  const directory = t.testdir()
  const readings = (recorded: Recorded) => hardwareOf(directory, recorded).readings()
  const header = 'index, name, pci.bus_id, temperature.gpu, utilization.gpu [%]'
  const smi = (row: string) =>
    H100.replace(/^#!.*$/m, `$&\ncase "$*" in *temperature*) echo '${header}'; echo '${row}'; exit;; esac`)
  const hot = await readings({ programs: { 'nvidia-smi': smi('0, NVIDIA H100 80GB HBM3, [N/A], 71, 98 %') } })
  t.match(hot, [{ id: 'nvidia:0', name: /H100/, temperature: 71, utilization: 0.98 }])
  t.strictSame(await readings({ programs: { 'nvidia-smi': smi('0, NVIDIA H100 80GB HBM3, [N/A], [N/A], [N/A]') } }), [])

  const card = '/sys/bus/pci/devices/0000:03:00.0'
  const amd = {
    ...PLAIN,
    [`${card}/vendor`]: '0x1002\n',
    [`${card}/device`]: '0x744c\n',
    [`${card}/class`]: '0x030000\n',
    [`${card}/uevent`]: 'DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0\n',
    [`${card}/mem_info_vram_total`]: '25753026560\n',
    [`${card}/mem_info_vram_used`]: '27942912\n'
  }
  const sensors = { [`${card}/hwmon/hwmon3/temp1_input`]: '46000\n', [`${card}/gpu_busy_percent`]: '12\n' }
  t.match(await readings({ files: { ...amd, ...sensors } }), [{ temperature: 46, utilization: 0.12 }])
  t.strictSame(await readings({ files: amd }), [], 'an older driver')
  t.strictSame(await readings({ files: PLAIN }), [])
})

t.test('the detector finds this machine', async t => {
  const service = createHardware({ sysroot: '', probeTimeout: 20_000, env: process.env })
  const found = await service.detect()
  t.ok(Value.Check(HardwareSchema, found))
  t.equal(found.platform, process.platform)
  t.equal(found.arch, process.arch)
  t.ok(found.memory.total > 100e6)
  t.ok(found.memory.available <= found.memory.total)
  t.ok(found.cpu.threads >= 1)
  t.not(found.cpu.model, 'unknown')
  const { host } = await service.memory()
  t.ok(host.available > 0 && host.available <= host.total)
  t.ok(host.total <= found.memory.total)
})
