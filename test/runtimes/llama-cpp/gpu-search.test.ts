import { existsSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import type { Build, BuildSource } from '../../../core/contracts/builds.ts'
import type { Hardware } from '../../../core/contracts/hardware.ts'
import { CorralError } from '../../../core/errors.ts'
import { SourceUnavailable } from '../../../core/system/compile.ts'
import { BuildsDirectory, isRecent, machineFingerprint } from '../../../runtimes/llama-cpp/builds-directory.ts'
import { verifyBuild } from '../../../runtimes/llama-cpp/verify-build.ts'
import { readFixture } from '../../support/fixture.ts'
import {
  candidateIn,
  fakeServer,
  gpuMachine,
  H100,
  hardwareService,
  maker,
  plainMachine,
  runtimesWith,
  source,
  testKinds,
  WORKS,
  writePrograms
} from './fake-build.ts'
import { problem } from './ranking/machines.ts'

const LISTS_NOTHING = fakeServer({
  complaints: ['ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected']
})
const CRASHES = '#!/bin/sh\nkill -SEGV $$'

/** Creates a source with a llama-server on PATH. */
function onPath(folder: string, devices?: string[]): BuildSource {
  writePrograms(folder, { 'llama-server': fakeServer(devices ? { devices } : {}) })
  const candidate = candidateIn(folder, { id: 'system-1', kind: 'unknown', source: 'system', origin: folder })
  return source('system', async () => candidate, { instant: true })
}

const gpus = (machine: Hardware = gpuMachine) => ({ hardware: hardwareService(machine) })
const outcomes = (report: ReturnType<ReturnType<typeof runtimesWith>['report']>) =>
  report.attempts.map(({ runtime, source, outcome }) => `${runtime ?? 'any'} ${source} ${outcome}`)

t.test('the search chooses a build on a machine with a GPU', async t => {
  interface Case {
    what: string
    /** The servers of the kinds: all of `WORKS` by default. */
    servers?: Record<string, string>
    /** The device that the build on PATH lists; null if it lists none. */
    system?: string | null
    machine?: 'plain' | 'broken driver'
    id: string
    asked?: string[]
    warning?: string
    reason?: string
  }
  const machines = {
    plain: plainMachine,
    'broken driver': {
      ...gpuMachine,
      gpus: [{ ...H100, usable: false }],
      problems: problem('driver_mismatch', 'nvidia-smi', 'Reboot.').problems
    }
  }
  const serverOf = (kind: string, text: string) =>
    ({ works: WORKS[kind]!, 'lists nothing': LISTS_NOTHING, crashes: CRASHES })[text] ?? WORKS[text] ?? new Error(text)
  for (const { what, ...given } of readFixture<Case[]>('chosen-builds.yaml')) {
    t.test(what, async t => {
      const { system, machine, id, asked = [], warning = '', reason = '' } = given
      const home = t.testdir()
      const directory = join(home, 'runtimes')
      const servers = Object.entries(given.servers ?? {}).map(([kind, text]) => [kind, serverOf(kind, text)])
      const { source, asked: really } = maker(directory, given.servers ? Object.fromEntries(servers) : WORKS)
      const path = system === undefined ? [] : [onPath(join(home, 'path'), system === null ? undefined : [system])]
      const runtimes = runtimesWith(directory, [...path, source], gpus(machine && machines[machine]))
      const build = await runtimes.build()
      t.equal(build.id, id)
      t.same(really, asked)
      t.equal(build.warnings?.length ?? 0, warning ? 1 : 0)
      t.match(build.warnings?.[0] ?? '', new RegExp(warning))
      t.match(runtimes.log.warnings.join('\n'), new RegExp(warning), 'also in the log')
      const report = runtimes.report()
      t.match(report.chosen, { id, warnings: build.warnings })
      t.match(report.attempts.flatMap(({ reasons }) => reasons).join('\n'), new RegExp(reason))
      t.equal(report.attempts.filter(({ outcome }) => outcome === 'chosen').length, 1)
      t.match(report.release, { list: 'snapshot' })
      t.equal(report.ranking.length, testKinds.length)
    })
  }
})

t.test('the search reports which sources were tried for which kinds', async t => {
  const directory = t.testdir()
  const first = maker(directory, { 'cuda-13': CRASHES }, 'first')
  const second = maker(directory, { vulkan: WORKS.vulkan! }, 'second')
  const runtimes = runtimesWith(directory, [first.source, second.source], gpus())
  t.match(await runtimes.build(), {
    id: 'second-vulkan',
    runtime: 'vulkan',
    kind: 'vulkan',
    devices: [{ id: 'Vulkan0' }]
  })
  t.same(outcomes(runtimes.report()), [
    'cuda-13 first failed',
    'cuda-13 second unavailable',
    'cuda-12 first unavailable',
    'cuda-12 second unavailable',
    'vulkan first unavailable',
    'vulkan second chosen',
    'cpu first not tried',
    'cpu second not tried'
  ])
  t.match(runtimes.report(), { state: 'ready', hardware: { gpus: [{ id: 'nvidia:0' }] } })
  t.match(runtimes.report().ranking[0], { runtime: 'cuda-13', usable: true, gpus: ['nvidia:0'] })
})

t.test('an unavailable source is not tried for every kind', async t => {
  const failures: [string, Error][] = [
    ['a source', new SourceUnavailable('no network')],
    ['a server of releases', new CorralError('hub_unreachable', 'no network')]
  ]
  for (const [what, failure] of failures) {
    const directory = t.testdir()
    const broken = maker(directory, { 'cuda-13': failure, 'cuda-12': failure, vulkan: failure, cpu: failure }, 'broken')
    const other = maker(directory, { cpu: WORKS.cpu! }, 'other')
    const runtimes = runtimesWith(directory, [broken.source, other.source], gpus())
    const build = await runtimes.build()
    t.equal(build.id, 'other-cpu', what)
    t.same(broken.asked, ['cuda-13'], what)
    t.match(build.warnings, [/CUDA 13: broken: no network/])
    t.same(new BuildsDirectory(directory).failedAttempts(), [], 'network errors are not blamed on the machine')
  }
})

t.test('a build that failed verification is fetched again only after a change', async t => {
  const directory = t.testdir()
  const servers: Record<string, string> = { 'cuda-13': LISTS_NOTHING, cpu: WORKS.cpu! }
  const start = async (machine: Hardware, description?: string) => {
    const { source, asked } = maker(directory, servers, 'made', description === undefined ? {} : { description })
    const runtimes = runtimesWith(directory, [source], gpus(machine))
    const build = await runtimes.build()
    await runtimes.stop()
    return { build, asked, report: runtimes.report() }
  }
  t.same((await start(gpuMachine)).asked, ['cuda-13', 'cuda-12', 'vulkan', 'cpu'])
  t.match(new BuildsDirectory(directory).failedAttempts(), [
    { source: 'made', runtime: 'cuda-13', reason: /lists no device/ }
  ])
  t.notOk(existsSync(join(directory, 'made-cuda-13')), 'it takes no disk space meanwhile')

  const again = await start(gpuMachine)
  t.equal(again.build.id, 'made-cpu')
  t.same(again.asked, ['cuda-12', 'vulkan'], 'an unavailable build is requested again')
  t.match(again.report.attempts[0], {
    runtime: 'cuda-13',
    outcome: 'failed',
    reasons: [/it failed on 2.*lists no device/]
  })
  t.match(again.build.warnings, [/CUDA 13: made: it failed on/], 'with the same warnings')

  const updated = { ...gpuMachine, gpus: [{ ...H100, driver: { version: '590.1', cuda: '13.1' } }] }
  servers['cuda-13'] = WORKS['cuda-13']!
  t.equal((await start(updated)).build.id, 'made-cuda-13', 'another driver may fix it')
  t.equal((await start(gpuMachine, 'other settings')).build.id, 'made-cuda-13')
})

t.test('failures expire', async t => {
  const machine = machineFingerprint(gpuMachine)
  const now = Date.parse('2026-11-21T12:00:00Z')
  const busy = { ...gpuMachine, gpus: [{ ...H100, freeMemory: 1 }], memory: { total: 1, available: 1 } }
  t.equal(machineFingerprint(busy), machine, 'regardless of free memory')
  t.not(machineFingerprint({ ...gpuMachine, gpus: [] }), machine)
  t.not(machineFingerprint({ ...gpuMachine, libraries: [] }), machine)
  t.ok(isRecent({ at: '2026-11-21T01:00:00Z', machine }, machine, now))
  t.notOk(isRecent({ at: '2026-11-20T11:00:00Z', machine }, machine, now), 'after a day')
  t.notOk(isRecent({ at: '2026-11-21T01:00:00Z', machine: 'other' }, machine, now))
})

t.test('the search retries a failed build when there is nothing else', async t => {
  const directory = t.testdir()
  const servers: Record<string, string> = { 'cuda-13': LISTS_NOTHING }
  const { source, asked } = maker(directory, servers)
  const search = () => runtimesWith(directory, [source], gpus()).build()
  await t.rejects(search(), {
    code: 'runtime_missing',
    message: /cuda-13 from made: .*lists no device.*vulkan from made: no vulkan here/
  })
  servers['cuda-13'] = WORKS['cuda-13']!
  asked.length = 0
  t.equal((await search()).id, 'made-cuda-13')
  t.same(asked, ['cuda-12', 'vulkan', 'cpu', 'cuda-13'])
})

t.test('a recorded GPU build must still list its devices', async t => {
  const directory = t.testdir()
  const { source, asked } = maker(directory, WORKS)
  const start = (machine = gpuMachine) => runtimesWith(directory, [source], gpus(machine))
  t.equal((await start().build()).id, 'made-cuda-13')
  t.equal((await start().build()).id, 'made-cuda-13')
  t.same(asked, ['cuda-13'], 'reused')

  // The driver is gone, and the same llama-server no longer lists any device.
  const record = JSON.parse(readFileSync(join(directory, 'made-cuda-13.build.json'), 'utf8'))
  const server = fakeServer()
  writePrograms(join(directory, 'made-cuda-13'), { 'llama-server': server })
  const { createHash } = await import('node:crypto')
  const { statSync, writeFileSync } = await import('node:fs')
  const now = statSync(record.build.executables.server)
  record.files['llama-server'] = now.size
  record.build.digest = createHash('sha256').update(server).digest('hex')
  record.server = { size: now.size, mtimeMs: now.mtimeMs }
  writeFileSync(join(directory, 'made-cuda-13.build.json'), JSON.stringify(record))
  const runtimes = start()
  t.equal((await runtimes.build()).id, 'made-cuda-13', 'fetched again')
  t.same(asked, ['cuda-13', 'cuda-13'])
  t.ok(
    runtimes.log.warnings.some(line => /made-cuda-13, verified on .*, does not work any more: it lists no/.test(line))
  )
})

t.test('a stored choice has priority over the ranking', async t => {
  const directory = t.testdir()
  const { source, asked } = maker(directory, WORKS)
  await runtimesWith(directory, [source], gpus()).build()
  await runtimesWith(directory, [source], gpus()).build({}, 'vulkan')
  t.same(
    readdirSync(directory)
      .filter(name => name.endsWith('.json'))
      .sort(),
    ['made-cuda-13.build.json', 'made-vulkan.build.json']
  )

  await new BuildsDirectory(directory).select({ selected: 'made-vulkan' })
  const chosen = runtimesWith(directory, [source], gpus())
  t.match(await chosen.build(), {
    id: 'made-vulkan',
    warnings: ['vulkan is used instead of CUDA 13: "corral runtime use" chose another build.']
  })
  const found = chosen.report().attempts.find(({ outcome }) => outcome === 'chosen')
  t.match(found, { runtime: 'vulkan', reasons: [/chosen with "corral runtime use"/] })

  await new BuildsDirectory(directory).select({ selected: 'made-gone' })
  const gone = runtimesWith(directory, [source], gpus())
  t.equal((await gone.build()).id, 'made-cuda-13')
  t.ok(gone.log.warnings.some(line => /made-gone, chosen .*cannot be used: it is no longer installed/.test(line)))

  writePrograms(join(directory, 'made-vulkan'), { 'llama-server': CRASHES })
  await new BuildsDirectory(directory).select({ selected: 'made-vulkan' })
  const broken = runtimesWith(directory, [source], gpus())
  t.equal((await broken.build()).id, 'made-cuda-13')
  t.ok(broken.log.warnings.some(line => /made-vulkan, chosen .*cannot be used: .*is not reused: /.test(line)))
  t.same(asked, ['cuda-13', 'vulkan'])
})

t.test('a build that the user installed serves as a fallback and is not removed', async t => {
  const directory = t.testdir()
  const install = async (id: string, runtime: string, from: string) => {
    const folder = writePrograms(join(directory, id), { 'llama-server': WORKS[runtime]! })
    const descriptor = testKinds.find(({ name }) => name === runtime)!
    const candidate = candidateIn(folder, { id, kind: descriptor.kind, runtime, source: from })
    const build = await verifyBuild(candidate, { hardware: gpuMachine, runtime: descriptor })
    await new BuildsDirectory(directory).save(build, { installed: true })
  }
  await install('archive-1-cuda-13', 'cuda-13', 'archive')
  await install('made-9-vulkan', 'vulkan', 'made')
  const offline = maker(directory, {})
  const runtimes = runtimesWith(directory, [offline.source], gpus())
  t.equal((await runtimes.build()).id, 'archive-1-cuda-13')
  t.same(offline.asked, [], 'without the network')
  t.equal((await runtimes.build({}, 'vulkan')).id, 'made-9-vulkan')

  const wants = (build: Build) => build.id !== 'made-9-vulkan'
  const { source: online, asked } = maker(directory, { vulkan: WORKS.vulkan! }, 'made', { wants })
  t.equal((await runtimesWith(directory, [online], gpus()).build({}, 'vulkan')).id, 'made-vulkan')
  t.same(asked, ['vulkan'], 'the settings want another one')
  t.ok(existsSync(join(directory, 'made-9-vulkan', 'llama-server')), 'the installed build stays')

  rmSync(join(directory, 'archive-1-cuda-13', 'llama-server'))
  const damaged = runtimesWith(directory, [maker(directory, { 'cuda-13': WORKS['cuda-13']! }).source], gpus())
  t.equal((await damaged.build()).id, 'made-cuda-13')
  t.match(
    damaged.report().installed.find(({ build }) => build.id === 'archive-1-cuda-13'),
    { state: 'failed', failure: /ENOENT|no such file/ },
    'a damaged build is reported and left to the user'
  )
})
