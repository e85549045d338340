import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import t from 'tap'
import type { Build, BuildSource, Runtimes } from '../../../core/contracts/builds.ts'
import type { EngineExit } from '../../../core/contracts/engines.ts'
import { CorralError } from '../../../core/errors.ts'
import { packageRoot } from '../../../core/system/package-info.ts'
import { BuildsDirectory } from '../../../runtimes/llama-cpp/builds-directory.ts'
import {
  candidateIn,
  fakeServer,
  gpuMachine,
  hardwareService,
  maker,
  noReleases,
  runtimesWith,
  source,
  testKinds,
  WORKS,
  writePrograms
} from './fake-build.ts'

/** Creates engines that start on all builds except the broken ones. */
function engines(broken: Record<string, string> = {}) {
  const started: { build: string; environment: Record<string, string> | undefined }[] = []
  const exits: ((exit: EngineExit) => void)[] = []
  const start = async (build: Build, environment?: Readonly<Record<string, string>>) => {
    started.push({ build: build.id, environment: environment && { ...environment } })
    const cause = broken[build.id]
    if (cause) {
      const code = cause === 'out_of_gpu_memory' ? 'insufficient_memory' : 'runtime_missing'
      throw new CorralError(code, `It does not start: ${cause}.`, { details: { cause } })
    }
    const exited = new Promise<EngineExit>(resolve => exits.push(resolve))
    return { build, exited }
  }
  /** Starts an engine on the default build, or on a chosen one. */
  const startOn = (runtimes: Pick<Runtimes, 'startOn' | 'environment'>, choice?: string) =>
    runtimes.startOn({ name: 'owner/model', choice }, build => start(build, runtimes.environment(build)), {})
  return { started, exits, startOn }
}

const gpuHardware = () => ({ hardware: hardwareService(gpuMachine) })

t.test('each model may have its own build', async t => {
  const directory = t.testdir()
  const { source, asked } = maker(directory)
  const { started, startOn } = engines()
  const runtimes = runtimesWith(directory, [source], gpuHardware())
  t.equal((await startOn(runtimes)).build.id, 'made-cuda-13')
  t.equal((await startOn(runtimes, 'cuda')).build.id, 'made-cuda-13', 'the default build is of that kind')
  t.equal((await startOn(runtimes, 'Vulkan')).build.id, 'made-vulkan')
  const both = await Promise.all([startOn(runtimes, 'cpu'), startOn(runtimes, 'cpu')])
  const ids = both.map(({ build }) => build.id)
  t.same(ids, ['made-cpu', 'made-cpu'])
  t.equal((await startOn(runtimes, 'made-vulkan')).build.id, 'made-vulkan', 'by its id')
  t.same(asked, ['cuda-13', 'vulkan', 'cpu'], 'each is provided once')
  t.equal((await runtimes.build()).id, 'made-cuda-13', 'the default build stays the same')
  t.same((await runtimes.build({}, 'cpu')).warnings, undefined, 'choosing the processor causes no warning')
  t.match(started[0], { environment: { GGML_TEST_KIND: 'cuda-13' } }, 'with the variables of its kind')
  t.same(started.find(({ build }) => build === 'made-cpu')?.environment, {})
  t.same(
    runtimes
      .report()
      .installed.map(({ build, state }) => `${build.id} ${state}`)
      .sort(),
    ['made-cpu installed', 'made-cuda-13 in use', 'made-vulkan installed']
  )

  await t.rejects(runtimes.build({}, 'tpu'), {
    code: 'runtime_missing',
    message: /no llama\.cpp build "tpu"\. Kinds are cuda-13, cuda-12, vulkan, cpu; installed are made-/
  })
  const plain = runtimesWith(t.testdir(), [source])
  await t.rejects(plain.build({}, 'vulkan'), {
    code: 'runtime_missing',
    message: /Vulkan cannot work on this machine: no such GPU \(buy one\)/
  })
  t.equal(asked.length, 3, 'an impossible build is not fetched')
})

t.test('a build that fails after all is replaced by the next best one', async t => {
  const directory = t.testdir()
  const { source, asked } = maker(directory)
  const { started, startOn } = engines({ 'made-cuda-13': 'gpu_not_supported_by_build' })
  const runtimes = runtimesWith(directory, [source], gpuHardware())
  const engine = await startOn(runtimes)
  t.equal(engine.build.id, 'made-cuda-12')
  const builds = started.map(({ build }) => build)
  t.same(builds, ['made-cuda-13', 'made-cuda-12'], 'started once more')
  t.ok(
    runtimes.log.warnings.some(line =>
      /made-cuda-13 does not work here .*"owner\/model" is started on made-cuda-12/.test(line)
    )
  )
  t.match(new BuildsDirectory(directory).records(), [
    { build: { id: 'made-cuda-12' } },
    { build: { id: 'made-cuda-13' }, failure: { reason: /gpu_not_supported_by_build/ } }
  ])
  t.match(new BuildsDirectory(directory).failedAttempts(), [{ source: 'made', runtime: 'cuda-13' }])
  const found = runtimes.report().installed.find(({ build }) => build.id === 'made-cuda-13')
  t.match(found, { state: 'failed', failure: /gpu_not_supported_by_build/ })
  t.match((await runtimes.build()).warnings, [/cuda-12 is used instead of CUDA 13/])
  await startOn(runtimes)
  t.equal(started.at(-1)?.build, 'made-cuda-12', 'the next engine starts on it directly')

  const later = runtimesWith(directory, [source], gpuHardware())
  t.equal((await later.build()).id, 'made-cuda-12', 'also after a restart')
  t.same(asked, ['cuda-13', 'cuda-12'], 'without fetching it again')
})

t.test('when no other build starts, the original failure is reported', async t => {
  const directory = t.testdir()
  const made = maker(directory, { cpu: WORKS.cpu! }).source
  const { started, startOn } = engines({ 'made-cpu': 'illegal_instruction' })
  const runtimes = runtimesWith(directory, [made])
  await t.rejects(startOn(runtimes), { code: 'runtime_missing', message: /illegal_instruction/ })
  t.equal(started.length, 1, 'not twice on the same build')
  await t.rejects(startOn(runtimes), { code: 'runtime_missing', message: /illegal_instruction/ })
  t.equal(started.length, 2, 'the next request may try again')

  const folder = writePrograms(join(directory, 'path'), { 'llama-server': fakeServer() })
  const onPath = candidateIn(folder, { id: 'system-1', kind: 'unknown', source: 'system' })
  const system = source('system', async () => onPath, { instant: true })
  const theirs = engines({ 'system-1': 'library_missing' })
  const alone = () => runtimesWith(join(directory, 'alone'), [system])
  for (const runtimes of [alone(), alone()]) {
    await t.rejects(theirs.startOn(runtimes), { message: /library_missing/ })
    await t.rejects(theirs.startOn(runtimes), { message: /library_missing/ }, 'also a build on PATH')
  }
  t.equal(theirs.started.length, 4)

  const memory = engines({ 'made-cpu': 'out_of_gpu_memory' })
  const other = runtimesWith(t.testdir(), [maker(t.testdir(), { cpu: WORKS.cpu! }).source])
  await t.rejects(memory.startOn(other), { code: 'insufficient_memory' })
  t.equal(memory.started.length, 1, 'a lack of memory is not blamed on the build')
})

t.test('a named build is never replaced', async t => {
  const directory = t.testdir()
  const { source: made, asked } = maker(join(directory, 'runtimes'))
  const folder = writePrograms(join(directory, 'theirs'), { 'llama-server': fakeServer() })
  const theirs = candidateIn(folder, { id: 'system-1', kind: 'unknown', source: 'system', required: true })
  const named: BuildSource = source('system', async () => theirs, { instant: true })
  const { startOn } = engines({ 'system-1': 'library_missing', 'made-vulkan': 'driver_too_old' })
  const runtimes = runtimesWith(join(directory, 'runtimes'), [named, made], gpuHardware())
  await t.rejects(startOn(runtimes), { code: 'runtime_missing', message: /library_missing/ })
  t.same(asked, [])
  t.match((await runtimes.build()).warnings, [/Models run on the processor only/], 'an idle GPU causes a warning')
  await t.rejects(startOn(runtimes, 'vulkan'), { code: 'runtime_missing', message: /driver_too_old/ })
  t.same(asked, ['vulkan'], 'a model with a choice has its own build')

  rmSync(join(folder, 'llama-server'))
  const gone = runtimesWith(join(directory, 'runtimes'), [named, made], gpuHardware())
  await t.rejects(gone.build(), { code: 'runtime_missing' })
  t.equal((await gone.build({}, 'vulkan')).id, 'made-vulkan', 'also when the named build is broken')
})

t.test('a deleted build is provided again and the model starts', async t => {
  const directory = t.testdir()
  const { source, asked } = maker(directory, { cpu: WORKS.cpu! })
  const start = async (build: Build) => {
    if (!existsSync(build.executables.server)) {
      throw new CorralError('runtime_missing', 'gone', { details: { cause: 'executable_missing' } })
    }
    return { build, exited: new Promise(() => {}) }
  }
  const runtimes = runtimesWith(directory, [source])
  await runtimes.build()
  rmSync(join(directory, 'made-cpu'), { recursive: true })
  t.equal((await runtimes.startOn({ name: 'owner/model' }, start, {})).build.id, 'made-cpu')
  t.same(asked, ['cpu', 'cpu'])
})

t.test('a build with engines is not removed', async t => {
  const directory = t.testdir()
  const { source } = maker(directory)
  const { exits, startOn } = engines()
  const runtimes = runtimesWith(directory, [source], gpuHardware())
  await runtimes.build()
  await startOn(runtimes, 'vulkan')
  await t.rejects(runtimes.remove('made-vulkan'), { code: 'runtime_in_use' })
  exits[0]!({ code: 0, signal: null, expected: true })
  await new Promise(resolve => setImmediate(resolve))
  await runtimes.remove('made-vulkan')
  t.notOk(existsSync(join(directory, 'made-vulkan')))
  const ids = runtimes.report().installed.map(({ build }) => build.id)
  t.same(ids, ['made-cuda-13'])
})

t.test('the runtimes service reports hardware and ranking without a build, and accepts kinds from plugins', async t => {
  const directory = t.testdir()
  const names = ['llama-b9-bin-x.tar.gz']
  let listings = 0
  const releases = {
    ...noReleases,
    listing: async () => {
      listings++
      return { tag: 'b9', list: 'live' as const, names }
    }
  }
  const without = runtimesWith(directory, [maker(directory).source], { releases })
  await without.rank()
  t.match(without.report(), { state: 'idle', hardware: { platform: 'linux' }, release: { list: 'snapshot' } })
  t.equal(listings, 0, 'the release server is not used unless the sources need it')

  const release = { ...maker(directory).source, name: 'release' }
  const runtimes = runtimesWith(directory, [release], { ...gpuHardware(), releases })
  t.same(runtimes.report(), {
    state: 'idle',
    ranking: [],
    release: { tag: without.report().release.tag, list: 'snapshot' },
    attempts: [],
    installed: []
  })
  runtimes.addRuntime({
    ...testKinds[0]!,
    name: 'cuda-14',
    title: 'CUDA 14',
    fit: () => ({ ...testKinds[0]!.fit(gpuMachine), score: 99 })
  })
  t.throws(() => runtimes.addRuntime(testKinds[0]!), /named "cuda-13" already/)
  await runtimes.rank()
  t.match(runtimes.report(), { state: 'idle', release: { tag: 'b9', list: 'live' }, ranking: [{ runtime: 'cuda-14' }] })
  const left = new AbortController()
  left.abort(new Error('left'))
  await t.rejects(runtimes.rank({ signal: left.signal }), { message: 'left' })
})

t.test('kill -9 during a search leaves no usable-looking build', async t => {
  const directory = join(t.testdir({ runtimes: {} }), 'runtimes')
  const module = (path: string) => JSON.stringify(pathToFileURL(join(packageRoot, 'dist', path)).href)
  const script = join(directory, '..', 'corral.mjs')
  writeFileSync(
    script,
    `import { runtimesWith, source, writePrograms, hardwareService, gpuMachine } from ${module('test/runtimes/llama-cpp/fake-build.js')}
const directory = ${JSON.stringify(directory)}
const maker = source('made', async () => {
  writePrograms(directory + '/unfinished-1', { 'llama-server': 'half' })
  writePrograms(directory + '/made-cuda-13', { 'llama-server': 'half' })
  process.send('half')
  await new Promise(resolve => setTimeout(resolve, 60_000))
})
await runtimesWith(directory, [maker], { hardware: hardwareService(gpuMachine) }).build()`
  )
  const corral = spawn(process.execPath, [script], { stdio: ['ignore', 'ignore', 'inherit', 'ipc'] })
  await once(corral, 'message')
  corral.kill('SIGKILL')
  await once(corral, 'exit')
  // The lock outlives its process for a while. The test does not wait for that.
  rmSync(`${directory}.lock`, { recursive: true, force: true })
  const { source: made, asked } = maker(directory)
  const runtimes = runtimesWith(directory, [made], gpuHardware())
  t.equal((await runtimes.build()).id, 'made-cuda-13')
  t.same(asked, ['cuda-13'])
  t.same(readdirSync(directory).sort(), ['made-cuda-13', 'made-cuda-13.build.json'])
})

t.test('two processes can provide different builds at the same time', async t => {
  const directory = t.testdir()
  const makers = [maker(directory), maker(directory)]
  const [one, two] = makers.map(({ source }) => runtimesWith(directory, [source], gpuHardware()))
  const builds = await Promise.all([one!.build(), two!.build({}, 'vulkan'), two!.build()])
  const ids = builds.map(({ id }) => id)
  t.same(ids, ['made-cuda-13', 'made-vulkan', 'made-cuda-13'])
  t.same(makers.flatMap(({ asked }) => asked).sort(), ['cuda-13', 'vulkan'], 'each is provided by one of them')
})
