import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import Fastify from 'fastify'
import { pino } from 'pino'
import t from 'tap'
import { Value } from 'typebox/value'
import type { PluginContext } from '../../../core/plugins/plugin.ts'
import { type DataPaths, dataPaths } from '../../../core/system/data-paths.ts'
import { createHardware } from '../../../plugins/running/hardware/index.ts'
import runtimes, { createConfiguredRuntimes } from '../../../runtimes/llama-cpp/index.ts'
import type { RuntimesOptions } from '../../../runtimes/llama-cpp/options.ts'
import { CUDA_DEVICE, fakeServer, hardwareService, memoryLog, plainMachine, writePrograms } from './fake-build.ts'

/** Creates the plugin's context on a machine without GPUs, whose detection takes until `looked`. */
function contextWith(paths: DataPaths, looked?: Promise<void>): PluginContext {
  const found = hardwareService(plainMachine)
  const hardware = {
    ...found,
    detect: async () => {
      await looked
      return await found.detect()
    }
  }
  const config = { models: {} }
  return { config, log: pino({ level: 'silent' }), paths, service: () => hardware } as unknown as PluginContext
}

t.test('the plugin searches for a build without delaying the start', async t => {
  const home = t.testdir()
  const folder = writePrograms(join(home, 'theirs'), { 'llama-server': fakeServer() })
  const options = { ...(Value.Create(runtimes.options) as RuntimesOptions), sources: ['system'], llama_cpp: folder }
  const paths = dataPaths(join(home, 'data'), undefined)
  let look = () => {}
  const looked = new Promise<void>(resolve => {
    look = resolve
  })
  const offer = await runtimes.setup(contextWith(paths, looked), options)
  const service = offer.services!.runtimes!
  t.equal(service.report().state, 'idle')
  const app = Fastify()
  t.teardown(() => app.close())
  await offer.hooks!(app, {})
  await offer.start!()
  await app.listen({ port: 0 })
  t.equal(service.report().state, 'searching', 'the server listens while the search continues')
  look()
  while (service.report().state === 'searching') await sleep(10)
  t.match(service.report(), {
    state: 'ready',
    chosen: { directory: folder, kind: 'cpu', runtime: 'cpu' },
    attempts: [{ source: 'system', outcome: 'chosen' }]
  })
  await offer.stop!()
  t.ok(readdirSync(paths.runtimes).some(name => name.endsWith('.build.json')))
})

t.test('the plugin survives a failed search', async t => {
  const home = t.testdir()
  const options = { ...(Value.Create(runtimes.options) as RuntimesOptions), llama_cpp: join(home, 'nothing') }
  const paths = dataPaths(join(home, 'data'), undefined)
  const context = contextWith(paths)
  const offer = await runtimes.setup(context, options)
  const service = offer.services!.runtimes!
  await offer.start!()
  await t.rejects(service.build(), { code: 'runtime_missing', status: 503 })
  t.match(service.report(), {
    state: 'failed',
    attempts: [
      { source: 'system', outcome: 'failed' },
      { runtime: 'cpu', source: 'release', outcome: 'not tried' },
      { runtime: 'cpu', source: 'source', outcome: 'not tried' }
    ]
  })
  await offer.stop!()
  t.notOk(existsSync(paths.runtimes), 'nothing was written')
})

t.test('detected hardware decides the reported ranking', async t => {
  const home = t.testdir()
  const smi = `#!/bin/sh
case "$1" in
  --query-gpu=*)
    values=
    IFS=,
    for field in \${1#--query-gpu=}; do
      case $field in
        index) value=0;; name) value="NVIDIA H100 80GB HBM3";; pci.bus_id) value=00000000:0F:00.0;;
        memory.total) value="81559 MiB";; memory.free) value="81079 MiB";; memory.used) value="4 MiB";;
        driver_version) value=580.95.05;; compute_cap) value=9.0;; mig.mode.current) value=Disabled;; *) value="[N/A]";;
      esac
      values="$values\${values:+, }$value"
    done
    echo "$(echo "\${1#--query-gpu=}" | sed 's/,/, /g')"; echo "$values";;
  -L) echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)";;
  --version) echo "DRIVER version      : 580.95.05"; echo "CUDA Version        : 13.0";;
  *) echo "| NVIDIA-SMI 580.95.05    Driver Version: 580.95.05    CUDA Version: 13.0     |";;
esac
`
  const found = async (name: string, devices?: string[]) => {
    const bin = writePrograms(join(home, name), {
      'nvidia-smi': smi,
      'llama-server': fakeServer(devices ? { devices } : {})
    })
    const env = { PATH: `${bin}:/usr/bin:/bin` }
    const options = { ...(Value.Create(runtimes.options) as RuntimesOptions), sources: ['system' as const] }
    const paths = dataPaths(join(home, `${name}-data`), undefined)
    const log = memoryLog()
    const hardware = createHardware({ sysroot: '', probeTimeout: 10_000, env })
    const service = createConfiguredRuntimes({ options, paths, env, log, hardware })
    await service.build()
    const report = service.report()
    await service.stop()
    return { report, log }
  }
  const uses = await found('uses', [CUDA_DEVICE])
  t.match(uses.report, {
    hardware: { gpus: [{ vendor: 'nvidia', architecture: '9.0' }] },
    ranking: [{ runtime: 'cuda-13', usable: true }],
    chosen: { kind: 'cuda', runtime: 'cuda-13', devices: [{ id: 'CUDA0' }] }
  })
  t.equal(uses.report.chosen?.warnings, undefined)
  const idle = await found('idle')
  t.match(idle.report.chosen, { kind: 'cpu', warnings: [/on the processor only.*NVIDIA H100 80GB HBM3/] })
  t.ok(idle.log.warnings.some(line => /on the processor only.*NVIDIA H100/.test(line)))
})
