import t from 'tap'
import {
  capabilityOfId,
  capabilityOfName,
  cudaFromDriver,
  parseDriverCard,
  parseDriverVersion,
  parseSmiCsv,
  parseSmiList,
  parseSmiTable,
  parseSmiVersions,
  smiProblem
} from '../../../../plugins/running/hardware/nvidia.ts'
import { MIB, recording, windowsLines } from './support.ts'

t.test('parses nvidia-smi queries', async t => {
  const super4080 = {
    index: 0,
    name: 'NVIDIA GeForce RTX 4080 SUPER',
    pciBus: '0000:01:00.0',
    driver: { version: '595.71.05' },
    totalMemory: 16376 * MIB,
    freeMemory: 14470 * MIB,
    architecture: '8.9',
    unifiedMemory: false
  }
  const single = recording('nvidia/smi-query-single-4080s-595.csv.txt')
  t.match(parseSmiCsv(single), [super4080])
  t.match(parseSmiCsv(windowsLines(single)), [super4080])
  const bare = single.replaceAll(' MiB', '').replace(/ \[MiB\]/g, '')
  t.match(parseSmiCsv(bare), [super4080], 'without units')
  t.equal(parseSmiCsv(single)?.[0]?.mig, undefined)

  const h100 = parseSmiCsv(recording('nvidia/smi-query-h100-mig-590.csv.txt'))
  t.match(h100, [{ name: 'NVIDIA H100 80GB HBM3', totalMemory: 81559 * MIB, architecture: '9.0', mig: true }])
  const gb10 = parseSmiCsv(recording('nvidia/smi-query-gb10-na-mem.csv.txt'))
  t.match(gb10, [{ unifiedMemory: true, name: 'NVIDIA GPU' }])
  t.notOk('totalMemory' in gb10![0]! || 'freeMemory' in gb10![0]!, 'missing numbers stay missing')

  t.match(gb10, [{ temperature: 35, utilization: 0 }])
  const sensors: [string, object][] = [
    ['0, NVIDIA H100 80GB HBM3, 00000000:0F:00.0, 71, 100 %', { index: 0, temperature: 71, utilization: 1 }],
    ['1, Tesla P40, 00000000:81:00.0, 9, 7 %', { temperature: 9, utilization: 0.07 }],
    ['0, X, 00000000:01:00.0, [N/A], [N/A]', { temperature: undefined, utilization: undefined }],
    ['0, X, 00000000:01:00.0, [GPU is lost], [Unknown Error]', { temperature: undefined, utilization: undefined }],
    ['0, X, 00000000:01:00.0, ERR!, 255 %', { temperature: undefined, utilization: undefined }]
  ]
  for (const [row, expected] of sensors) {
    const [found] = parseSmiCsv(`index, name, pci.bus_id, temperature.gpu, utilization.gpu [%]\n${row}`)!
    for (const [name, value] of Object.entries(expected)) t.equal(found![name as 'index'], value, `${row}: ${name}`)
  }

  const header = 'index, name, pci.bus_id, pci.device_id, driver_version, memory.total [MiB], memory.free [MiB]'
  const rows: [string, object[]][] = [
    [
      '1, Tesla P40, 00000000:81:00.0, 0x1B3810DE, 550.54.15, 23040 MiB, 0 MiB',
      [{ index: 1, pciId: '0x1b38', freeMemory: 0 }]
    ],
    [
      '0, X, 0000000F:01:00.0, 0x0, [N/A], [Not Supported], [Not Supported]',
      [{ pciBus: '000f:01:00.0', unifiedMemory: true }]
    ],
    ['0, X, 00000000:01:00.0, 0x0, 580, [Insufficient Permissions], 3 MiB', [{ unifiedMemory: false }]],
    ['0, X, 00000000:01:00.0, 0x0, 580, 99999999999999 MiB, 3 MiB', [{ unifiedMemory: false }]],
    ['0, X, 00000000:01:00.0, 0x0, 580, 100 MiB, 300 MiB', [{ totalMemory: 100 * MIB }]],
    ['0, NVIDIA GeForce RTX 30', []],
    ['WARNING: infoROM is corrupted at gpu 0000:01:00.0', []]
  ]
  for (const [row, expected] of rows) t.match(parseSmiCsv(`${header}\n${row}`), expected, row)
  t.notOk(parseSmiCsv(`${header}\n${rows[3]![0]}`)![0]!.totalMemory, 'an implausible size')
  t.notOk(parseSmiCsv(`${header}\n${rows[4]![0]}`)![0]!.freeMemory, 'more free than total')
  t.same(parseSmiCsv(`${header}\n`), [])
  for (const text of ['', 'No devices were found', 'Field "compute_cap" is not a valid field to query.']) {
    t.equal(parseSmiCsv(text), undefined, text)
  }
  const eight = Array.from(
    { length: 8 },
    (_, at) => `${at}, NVIDIA H200, 00000000:0${at}:00.0, 0x0, 580, 143771 MiB, 1 MiB`
  )
  t.equal(parseSmiCsv([header, ...eight].join('\n'))?.length, 8)
})

t.test('parses the table, versions and list of nvidia-smi', async t => {
  const tables: [string, object, object][] = [
    ['single-4080s-595', { pciBus: '0000:01:00.0', totalMemory: 16376 * MIB }, { version: '595.71.05', cuda: '13.2' }],
    ['2080s-610-new-banner', { totalMemory: 8192 * MIB }, { version: '610.57.04', cuda: '13.3' }],
    ['windows-2080s-610-wddm', { totalMemory: 8192 * MIB }, { version: '610.62', cuda: '13.3' }],
    ['windows-l40s-tcc-555', { name: 'NVIDIA L40S', totalMemory: 46068 * MIB }, { version: '555.85', cuda: '12.5' }],
    ['4070tis-550', { totalMemory: 16376 * MIB }, { version: '550.127.05', cuda: '12.4' }],
    ['jetson-orin-540', { name: 'Orin (nvgpu)', unifiedMemory: true }, { version: '540.4.0', cuda: '12.6' }],
    ['gb10-not-supported-mem', { name: 'NVIDIA GB10', unifiedMemory: true }, { version: '580.126.09', cuda: '13.0' }]
  ]
  for (const [name, gpu, versions] of tables) {
    for (const text of [
      recording(`nvidia/smi-table-${name}.txt`),
      windowsLines(recording(`nvidia/smi-table-${name}.txt`))
    ]) {
      const gpus = parseSmiTable(text)
      t.equal(gpus.length, 1, `${name}: processes are not devices`)
      t.match(gpus[0], { index: 0, ...gpu }, name)
      t.notOk('freeMemory' in gpus[0]!, 'total minus used is not the free memory')
      t.same(parseSmiVersions(text), versions, name)
    }
  }
  const table = recording('nvidia/smi-table-4070tis-550.txt')
  const row = table.split('\n').slice(8, 11).join('\n')
  const two = parseSmiTable(`${table}\n${row.replace('|   0 ', '|   1 ').replace('01:00.0', '41:00.0')}`)
  t.match(two, [{ index: 0 }, { index: 1, pciBus: '0000:41:00.0' }])

  t.same(parseSmiVersions(recording('nvidia/smi-version-590.txt')), { version: '590.48.01', cuda: '13.1' })
  t.same(parseSmiVersions(recording('nvidia/smi-version-610.txt')), { version: '610.57.04', cuda: '13.3' })
  t.same(parseSmiVersions('CUDA Version: N/A'), {})

  const list = parseSmiList(
    [
      'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)',
      '  MIG 3g.40gb     Device  0: (UUID: MIG-1)',
      '  MIG 1g.10gb+me  Device  1: (UUID: MIG-2)',
      'GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-1)'
    ].join('\n')
  )
  t.same(
    [...list],
    [
      [0, [40, 10]],
      [1, []]
    ]
  )
})

t.test('explains the problems that nvidia-smi reports', async t => {
  const problems: [string, string | undefined][] = [
    [recording('nvidia/smi-err-nvml-version-mismatch.txt'), 'driver_mismatch'],
    [recording('nvidia/smi-err-cannot-communicate-wsl2.txt'), 'driver_not_loaded'],
    [recording('nvidia/smi-err-no-devices.txt'), 'no_device'],
    ["NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", 'driver_not_loaded'],
    ['Failed to initialize NVML: Unknown Error', 'no_permission'],
    ['Failed to initialize NVML: GPU access blocked by the operating system', 'no_permission'],
    ['Failed to initialize NVML: Insufficient Permissions', 'no_permission'],
    ['Unable to determine the device handle for GPU0000:01:00.0: GPU is lost.  Reboot the system', 'no_device'],
    [recording('nvidia/smi-table-4070tis-550.txt'), undefined],
    [recording('nvidia/smi-query-single-4080s-595.csv.txt'), undefined],
    ['', undefined]
  ]
  for (const [text, code] of problems) t.equal(smiProblem(text, 'linux')?.code, code, text.slice(0, 60))
  t.match(smiProblem(problems[0]![0], 'linux'), { message: /550\.144/, advice: /sudo reboot/ })
  t.match(smiProblem(problems[1]![0], 'wsl')?.advice, /on Windows.*wsl --shutdown/)
  t.match(smiProblem(problems[1]![0], 'linux')?.advice, /modprobe nvidia/)
})

t.test('infers NVIDIA facts that no tool reports', async t => {
  const names: [string, string | undefined][] = [
    ['NVIDIA GeForce RTX 5090', '12.0'],
    ['NVIDIA GeForce RTX 4070 Laptop GPU', '8.9'],
    ['NVIDIA GeForce RTX 3060 Ti', '8.6'],
    ['NVIDIA GeForce RTX 2080 ...', '7.5'],
    ['NVIDIA GeForce GTX 1660 SUPER', '7.5'],
    ['NVIDIA GeForce GTX 1080 Ti', '6.1'],
    ['NVIDIA GeForce GTX 970', '5.2'],
    ['NVIDIA GeForce GTX 750 Ti', '5.0'],
    ['NVIDIA H100 80GB HBM3', '9.0'],
    ['NVIDIA GH200 480GB', '9.0'],
    ['NVIDIA A100-SXM4-80GB', '8.0'],
    ['NVIDIA A10', '8.6'],
    ['NVIDIA L4', '8.9'],
    ['NVIDIA L40S', '8.9'],
    ['NVIDIA RTX A6000', '8.6'],
    ['NVIDIA RTX 6000 Ada Generation', '8.9'],
    ['NVIDIA RTX PRO 6000 Blackwell Workstation Edition', '12.0'],
    ['NVIDIA B200', '10.0'],
    ['NVIDIA GB10', '12.1'],
    ['Tesla T4', '7.5'],
    ['Tesla V100-SXM2-16GB', '7.0'],
    ['Tesla P100-PCIE-16GB', '6.0'],
    ['Tesla P40', '6.1'],
    ['Tesla K80', '3.7'],
    ['Quadro RTX 6000', '7.5'],
    ['Quadro P2000', '6.1'],
    ['NVIDIA TITAN V', '7.0'],
    ['NVIDIA TITAN RTX', '7.5'],
    ['Orin (nvgpu)', '8.7'],
    ['NVIDIA Thor', '11.0'],
    ['NVIDIA Something 9', undefined]
  ]
  for (const [name, capability] of names) t.equal(capabilityOfName(name), capability, name)
  const ids: [string, string | undefined][] = [
    ['0x1b06', '6.1'],
    ['0x1b38', '6.1'],
    ['0x15f8', '6.0'],
    ['0x1db4', '7.0'],
    ['0x1eb8', '7.5'],
    ['0x2184', '7.5'],
    ['0x20b0', '8.0'],
    ['0x2204', '8.6'],
    ['0x2330', '9.0'],
    ['0x2684', '8.9'],
    ['0x2860', '8.9'],
    ['0x2901', '10.0'],
    ['0x2b85', '12.0'],
    ['0x0100', undefined]
  ]
  for (const [id, capability] of ids) t.equal(capabilityOfId(id), capability, id)
  const drivers: [string, string | undefined][] = [
    ['580.95.05', '13.0'],
    ['579.99', '12.9'],
    ['550.127.05', '12.4'],
    ['535.54.03', '12.2'],
    ['610.62', '13.3'],
    ['700.1', '13.3'],
    ['390.87', undefined],
    ['', undefined]
  ]
  for (const [version, cuda] of drivers) t.equal(cudaFromDriver(version), cuda, version)

  const closed =
    'NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.127.05  Tue Oct  8 03:22:07 UTC 2024\nGCC version:  gcc 12'
  const open =
    'NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder)  Tue Sep'
  t.equal(parseDriverVersion(closed), '550.127.05')
  t.equal(parseDriverVersion(open), '580.95.05')
  t.equal(parseDriverVersion('hello'), undefined)
  t.same(parseDriverCard('Model: \t\t NVIDIA GeForce RTX 4090\nIRQ:   \t 160\nBus Location: \t 0000:01:00.0\n'), {
    name: 'NVIDIA GeForce RTX 4090',
    pciBus: '0000:01:00.0'
  })
})
