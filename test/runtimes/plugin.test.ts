import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { pino } from 'pino'
import t from 'tap'
import { Value } from 'typebox/value'
import { type DataPaths, dataPaths } from '../../core/data-paths.ts'
import type { PluginContext } from '../../core/plugin.ts'
import runtimes from '../../runtimes/index.ts'
import type { RuntimesOptions } from '../../runtimes/options.ts'
import { fakeServer, hardwareService, plainMachine, writePrograms } from './fake-build.ts'

/** What the plugin is given on a machine without GPUs, whose detection takes its time. */
function contextWith(paths: DataPaths): PluginContext {
  const found = hardwareService(plainMachine)
  const hardware = { ...found, detect: () => sleep(300).then(() => found.detect()) }
  return { log: pino({ level: 'silent' }), paths, service: () => hardware } as unknown as PluginContext
}

t.test('the plugin looks for a build without holding up the start', async t => {
  const home = t.testdir()
  const slow = fakeServer().replace('case', 'sleep 0.5\ncase')
  const folder = writePrograms(join(home, 'theirs'), { 'llama-server': slow })
  const options = { ...(Value.Create(runtimes.options) as RuntimesOptions), sources: ['system'], llama_cpp: folder }
  const paths = dataPaths(join(home, 'data'), undefined)
  const context = contextWith(paths)
  const offer = await runtimes.setup(context, options)
  const service = offer.services!.runtimes!
  t.equal(service.report().state, 'idle')
  await offer.start!()
  t.equal(service.report().state, 'searching', 'started, and still looking')
  while (service.report().state === 'searching') await sleep(10)
  t.match(service.report(), {
    state: 'ready',
    chosen: { directory: folder, kind: 'cpu', runtime: 'cpu' },
    attempts: [{ source: 'system', outcome: 'chosen' }]
  })
  await offer.stop!()
  t.ok(readdirSync(paths.runtimes).some(name => name.endsWith('.build.json')))
})

t.test('a failed search leaves the plugin running', async t => {
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
