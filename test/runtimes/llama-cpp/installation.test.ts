import { createHash } from 'node:crypto'
import { existsSync, readdirSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import type { Build } from '../../../core/contracts/builds.ts'
import type { Progress } from '../../../core/contracts/progress.ts'
import { CorralError } from '../../../core/errors.ts'
import { type BuildRecord, BuildsDirectory } from '../../../runtimes/llama-cpp/builds-directory.ts'
import {
  createInstallation,
  findInstalled,
  getState,
  modelThatNeeds
} from '../../../runtimes/llama-cpp/installation.ts'
import { builtInKinds } from '../../../runtimes/llama-cpp/kinds/index.ts'
import { writePrograms } from './fake-build.ts'
import { archive, BROKEN, build, CPU, failure, record, world } from './installation-world.ts'
import { machine } from './ranking/machines.ts'

t.test('corral resolves a name to a build', async t => {
  const records = [
    record('release-b9-cpu'),
    record('release-b1000-cpu'),
    record('release-b2000-cpu', { failure }),
    record('archive-renamed-cpu-1a2b3c4d', { provenAt: '2026-05-01T00:00:00.000Z' }, { source: 'archive' }),
    record('release-b5-cuda-12', {}, { runtime: 'cuda-12', kind: 'cuda' })
  ]
  const id = (choice: string, among = records) => findInstalled(among, choice, builtInKinds).build.id
  t.equal(id('release-b9-cpu'), 'release-b9-cpu')
  t.equal(id('RELEASE-B9-CPU'), 'release-b9-cpu')
  t.equal(id('cpu'), 'release-b1000-cpu', 'the newest that works, by number')
  t.equal(id('cpu', [records[2]!]), 'release-b2000-cpu', 'a failed one, if there is no other')
  t.equal(id('cuda'), 'release-b5-cuda-12')
  t.equal(id('CUDA-12'), 'release-b5-cuda-12')
  t.throws(() => id('vulkan'), { code: 'runtime_not_found', message: /corral runtime install vulkan/ })
  t.throws(() => id('nothing'), { code: 'runtime_not_found', message: /release-b9-cpu, .*Kinds are: .*cuda-13/ })

  const state = (of: Partial<BuildRecord>, selection = {}, current?: Build) =>
    getState(record('a', of), selection, current)
  t.equal(state({}), 'installed')
  t.equal(state({}, { selected: 'a', previous: 'a' }, build('a')), 'in use')
  t.equal(state({}, { selected: 'a' }, build('b')), 'selected')
  t.equal(state({}, { selected: 'b', previous: 'a' }), 'previous')
  t.equal(state({ failure }, { selected: 'a' }), 'failed')
})

t.test('corral stores the selection', async t => {
  const directory = t.testdir()
  t.same(new BuildsDirectory(directory).selection(), {})
  t.same(new BuildsDirectory(join(directory, 'nowhere')).selection(), {})
  writeFileSync(join(directory, 'selection.json'), '{"selected":"a","previous":3,"failed":null}')
  t.same(new BuildsDirectory(directory).selection(), { selected: 'a' })
  writeFileSync(join(directory, 'selection.json'), '{"selec')
  t.same(new BuildsDirectory(directory).selection(), {}, 'ignores a selection that was damaged by hand')
})

t.test('corral installs builds', async t => {
  const { installation, directory, publish, server, lines } = await world(t)
  await publish('b100')
  await publish('b200')
  const steps: Progress[] = []
  const newest = await installation.install({}, { onProgress: step => steps.push(step) })
  t.match(newest, { id: 'release-b200-cpu', runtime: 'cpu', source: 'release', version: /0\.5\.0/ })
  t.same([...new Set(steps.map(({ phase }) => phase))], ['downloading', 'unpacking', 'proving'])
  t.match(installation.list(), [{ build: { id: 'release-b200-cpu' }, state: 'installed', size: Number }])

  const count = server.requests.filter(({ host }) => host === 'storage').length
  t.same(await installation.install({ runtime: 'CPU' }, {}), newest, 'an installed build is not fetched again')
  const pointers = 1
  t.equal(server.requests.filter(({ host }) => host === 'storage').length, count + pointers)
  t.equal((await installation.install({ runtime: 'cpu', version: 'b100' }, {})).id, 'release-b100-cpu', 'side by side')
  t.same(readdirSync(directory).sort(), [
    'release-b100-cpu',
    'release-b100-cpu.build.json',
    'release-b200-cpu',
    'release-b200-cpu.build.json'
  ])

  writeFileSync(join(directory, 'release-b100-cpu', 'llama-server'), 'damaged')
  t.equal((await installation.install({ version: 'b100' }, {})).id, 'release-b100-cpu')
  t.ok(lines.some(line => /release-b100-cpu is damaged and will be installed again/.test(line)))

  const refused: [Parameters<typeof installation.install>[0], object][] = [
    [{ runtime: 'abacus' }, { code: 'runtime_not_found', message: /no kind.*"abacus".*cuda-12/ }],
    [{ runtime: 'vulkan' }, { code: 'runtime_not_found', message: /No release of llama\.cpp has a vulkan archive/ }],
    [{ version: 'b1' }, { code: 'runtime_not_found', message: /no release "b1"/ }]
  ]
  for (const [request, expected] of refused) await t.rejects(installation.install(request, {}), expected as Error)
})

t.test('a build that fails verification leaves nothing', async t => {
  const { installation, directory, publish } = await world(t)
  await publish('b100', BROKEN)
  await t.rejects(installation.install({}, {}), {
    code: 'runtime_missing',
    message: /was removed because .*GLIBC_2\.39 not found/
  })
  t.same(readdirSync(directory), ['selection.json'])
  t.match(new BuildsDirectory(directory).selection(), { failed: { 'release-b100-cpu': { reason: /GLIBC/ } } })
  t.same(installation.list(), [])

  const abort = new AbortController()
  const reason = new Error('enough')
  const called = installation.install(
    {},
    {
      signal: abort.signal,
      onProgress: ({ phase }) => phase === 'unpacking' && abort.abort(reason)
    }
  )
  t.equal(await called.catch(error => error), reason)
  t.same(readdirSync(directory), ['selection.json'], 'neither does an aborted one')
})

t.test('two concurrent installations, and leftovers of a killed one', async t => {
  const { deps, installation, directory, publish, server } = await world(t)
  await publish('b100')
  await installation.install({}, {})
  for (const name of ['unfinished-1234', 'release-b99-cpu'])
    writePrograms(join(directory, name), { 'llama-server': BROKEN })
  await publish('b200')
  server.requests.length = 0
  const builds = await Promise.all([installation.install({}, {}), createInstallation(deps).install({}, {})])
  t.equal(builds[0].id, 'release-b200-cpu')
  t.same(builds[1].id, builds[0].id)
  const fetched = server.requests.filter(({ host, path }) => host === 'storage' && path.includes(CPU('b200')))
  t.equal(fetched.length, 1, 'fetched once')
  t.same(
    readdirSync(directory, { withFileTypes: true }).flatMap(entry => (entry.isDirectory() ? entry.name : [])),
    ['release-b100-cpu', 'release-b200-cpu'],
    'files without a record are removed'
  )
})

t.test('corral installs local archives', async t => {
  const { installation, directory, lines } = await world(t)
  const data = await archive(t, 'b300')
  const folder = join(directory, '..')
  writeFileSync(join(folder, 'a'), 'not an archive')
  const path = join(folder, CPU('b300'))
  writeFileSync(path, data)
  const digest = createHash('sha256').update(data).digest('hex')
  const mark = digest.slice(0, 8)
  await t.rejects(installation.install({ archive: path, sha256: '0'.repeat(64) }, {}), {
    code: 'checksum_mismatch',
    message: new RegExp(`has the SHA-256 ${digest}, not 0{64}`)
  })
  t.same(readdirSync(directory), [])
  const installed = await installation.install({ archive: path, sha256: digest.toUpperCase() }, {})
  t.match(installed, {
    id: `archive-b300-cpu-${mark}`,
    runtime: 'cpu',
    source: 'archive',
    origin: `${CPU('b300')} (sha256 ${digest})`
  })
  t.ok(
    lines.some(line => line.includes(`has the SHA-256 ${digest}`)),
    'the digest is reported'
  )

  const renamed = join(folder, 'renamed.tgz')
  renameSync(path, renamed)
  t.equal((await installation.install({ archive: renamed }, {})).id, installed.id, 'the same archive is installed once')
  await installation.remove(installed.id)
  t.match(
    await installation.install({ archive: renamed }, {}),
    { id: `archive-b300-build-${mark}`, kind: 'cpu' },
    'the folder names the release, and verification finds the kind'
  )
  await installation.remove(`archive-b300-build-${mark}`)
  t.match(await installation.install({ archive: renamed, runtime: 'cpu' }, {}), {
    id: `archive-b300-cpu-${mark}`,
    runtime: 'cpu'
  })
  await installation.remove(`archive-b300-cpu-${mark}`)

  writeFileSync(join(folder, 'cut.tar.gz'), data.subarray(0, data.length - 100))
  const refused: [string, object][] = [
    [join(folder, 'nowhere.tar.gz'), { code: 'invalid_request', message: /no such file/ }],
    [join(folder, 'a'), { code: 'invalid_request', message: /not an archive that corral can unpack/ }],
    [join(folder, 'cut.tar.gz'), { code: 'invalid_request', message: /cut\.tar\.gz cannot be used: it is damaged/ }]
  ]
  for (const [archive, expected] of refused) await t.rejects(installation.install({ archive }, {}), expected as Error)
  t.same(readdirSync(directory), [], 'neither leaves anything')
})

t.test('corral finds the model that needs a build', async t => {
  const records = [
    record('release-b1-cpu'),
    record('release-b1-vulkan', {}, { runtime: 'vulkan', kind: 'vulkan' }),
    record('release-b2-cpu'),
    record('release-b3-vulkan', { failure }, { runtime: 'vulkan', kind: 'vulkan' })
  ]
  const cases: [id: string, runtime: string | undefined, needed: boolean][] = [
    ['release-b1-cpu', undefined, false],
    ['release-b1-cpu', 'RELEASE-b1-cpu', true],
    ['release-b2-cpu', 'release-b1-cpu', false],
    ['release-b2-cpu', 'release-b9-cpu', false],
    // Another build of the kind is left.
    ['release-b1-cpu', 'cpu', false],
    ['release-b1-vulkan', 'vulkan', true],
    // The build does not work, but the model names it.
    ['release-b3-vulkan', 'vulkan', false],
    ['release-b3-vulkan', 'release-b3-vulkan', true]
  ]
  for (const [id, runtime, needed] of cases) {
    const models = { 'me/other': {}, 'me/mine': { ...(runtime && { runtime }) } }
    t.equal(modelThatNeeds(id, records, models), needed ? 'me/mine' : undefined, `${id} for ${runtime}`)
  }
})

t.test('corral keeps a build that a model names', async t => {
  const models = () => ({ 'me/mine': { runtime: 'release-b100-cpu' } })
  const { installation, directory, publish } = await world(t, { models })
  for (const tag of ['b100', 'b200']) {
    await publish(tag)
    await installation.install({ version: tag }, {})
  }
  await t.rejects(installation.remove('release-b100-cpu'), {
    code: 'runtime_in_use',
    message: /^me\/mine uses release-b100-cpu, because models\.me\/mine\.runtime in config\.yaml/
  })
  t.ok(existsSync(join(directory, 'release-b100-cpu')))
  await installation.remove('release-b200-cpu')
})

t.test('corral uses and removes builds', async t => {
  const { deps, installation, directory, publish, using } = await world(t)
  await publish('b100')
  await publish('b200')
  await installation.install({ version: 'b100' }, {})
  await installation.install({ version: 'b200' }, {})
  t.equal((await installation.use('release-b100-cpu', {})).id, 'release-b100-cpu')
  t.equal(deps.current()?.id, 'release-b100-cpu')
  t.same(new BuildsDirectory(directory).selection(), { selected: 'release-b100-cpu' })
  t.match(
    installation.list().map(({ build, state }) => [build.id, state]),
    [
      ['release-b100-cpu', 'in use'],
      ['release-b200-cpu', 'installed']
    ]
  )
  const inUse = { code: 'runtime_in_use' }
  await t.rejects(installation.remove('release-b100-cpu'), { ...inUse, message: /New engines use release-b100-cpu/ })
  using.add('release-b200-cpu')
  await t.rejects(installation.remove('release-b200-cpu'), { ...inUse, message: /An engine runs on release-b200-cpu/ })
  using.clear()
  await t.rejects(installation.remove('../models'), { code: 'runtime_not_found', message: /Installed: release-b/ })

  writeFileSync(join(directory, 'release-b200-cpu', 'llama-server'), BROKEN)
  await t.rejects(installation.use('cpu', {}), {
    code: 'runtime_missing',
    message: /release-b200-cpu no longer works here/
  })
  t.equal(deps.current()?.id, 'release-b100-cpu', 'the build in use stays')
  const found = installation.list().find(({ build }) => build.id === 'release-b200-cpu')
  t.match(found, { state: 'failed', failure: /bytes/ })
  await installation.remove('release-b200-cpu')
  t.notOk(existsSync(join(directory, 'release-b200-cpu')))
  t.equal((await installation.use('auto', {})).id, 'release-b100-cpu')
  t.equal(new BuildsDirectory(directory).selection().selected, undefined)

  const named = createInstallation({ ...deps, named: { folder: '/opt/llama', by: 'CORRAL_LLAMA_CPP' } })
  for (const refused of [() => named.use('cpu', {}), () => named.upgrade({})]) {
    await t.rejects(async () => void (await refused()), {
      code: 'invalid_request',
      message: /CORRAL_LLAMA_CPP names \/opt\/llama/
    })
  }
})

t.test('corral keeps stable and nightly releases apart', async t => {
  const { deps, installation, publish } = await world(t)
  const upgraded = async () => {
    const { changed, build } = await installation.upgrade({})
    return [changed, build.id]
  }
  await publish('b100')
  await installation.install({}, {})
  await installation.use('release-b100-cpu', {})
  await publish('v0.9.0')
  t.same(await upgraded(), [true, 'release-v0.9.0-cpu'], 'the newest release now has its own archives')
  t.same(await upgraded(), [false, 'release-v0.9.0-cpu'])
  await publish('b200', undefined, { stable: false })
  t.same(await upgraded(), [false, 'release-v0.9.0-cpu'], 'a nightly release is not the newest release')
  await publish('v0.10.0')
  t.same(await upgraded(), [true, 'release-v0.10.0-cpu'], 'by version, not by letters')
  await publish('v0.9.5')
  t.same(await upgraded(), [false, 'release-v0.10.0-cpu'], 'never to an older one')
  await installation.install({ version: 'b200' }, {})
  await installation.install({ version: 'v0.9.5' }, {})
  t.equal((await installation.use('cpu', {})).id, 'release-v0.10.0-cpu')
  t.equal((await installation.use('release-v0.9.5-cpu', {})).id, 'release-v0.9.5-cpu')
  t.equal(deps.current()?.id, 'release-v0.9.5-cpu')
})

t.test('corral upgrades to newer releases only', async t => {
  const w = await world(t)
  const { deps, installation, directory, publish } = w
  await publish('b100')
  await installation.install({}, {})
  t.match(await installation.upgrade({}), { changed: false, build: { id: 'release-b100-cpu' } })
  await publish('b200')
  t.match(await installation.upgrade({}), {
    changed: true,
    build: { id: 'release-b200-cpu' },
    previous: { id: 'release-b100-cpu' }
  })
  t.equal(deps.current()?.id, 'release-b200-cpu')
  t.match(new BuildsDirectory(directory).selection(), { selected: 'release-b200-cpu', previous: 'release-b100-cpu' })

  await publish('b150')
  const found = await installation.upgrade({})
  t.match(found, { changed: false, build: { id: 'release-b200-cpu' } }, 'never to an older one')

  await publish('b300', BROKEN)
  await t.rejects(installation.upgrade({}), {
    code: 'runtime_missing',
    message: /release-b300-cpu was removed because .*GLIBC.*release-b200-cpu stays in use/
  })
  t.equal(deps.current()?.id, 'release-b200-cpu')
  t.equal(new BuildsDirectory(directory).selection().selected, 'release-b200-cpu')
  t.notOk(existsSync(join(directory, 'release-b300-cpu')))
  w.server.requests.length = 0
  await t.rejects(installation.upgrade({}), {
    code: 'runtime_missing',
    message: /b300, was tried on .* --version b300/
  })
  t.notOk(
    w.server.requests.some(({ path }) => path.includes(CPU('b300'))),
    'not fetched again'
  )
  w.hardware = machine([], { libraries: [] })
  await t.rejects(
    installation.upgrade({}),
    { message: /was removed because/ },
    'a changed machine is worth another try'
  )
  await publish('b400')
  t.match(await installation.upgrade({}), { changed: true, build: { id: 'release-b400-cpu' } })
})

t.test('the first engine after an upgrade decides', async t => {
  const w = await world(t)
  const { deps, installation, directory, publish, lines } = w
  await publish('b100')
  await installation.install({}, {})
  await publish('b200')
  const { build: fresh } = await installation.upgrade({})
  const failed = new CorralError('load_failed', 'it does not load')
  const starts: string[] = []
  const attempt = (fails: string[]) => async (on: Build) => {
    starts.push(on.id)
    if (fails.includes(on.id)) throw failed
    return on.id
  }
  const both = ['release-b100-cpu', 'release-b200-cpu']
  await t.rejects(installation.start(fresh, attempt(both)), failed, 'both fail, so the model is to blame')
  t.same(starts.splice(0), ['release-b200-cpu', 'release-b100-cpu'])
  t.equal(deps.current()?.id, 'release-b200-cpu')

  const full = new CorralError('insufficient_memory', 'full')
  await t.rejects(
    installation.start(fresh, async () => {
      throw full
    }),
    full
  )
  t.equal(new BuildsDirectory(directory).selection().trial, 'release-b200-cpu', 'this does not blame the build')

  t.equal(await installation.start(fresh, attempt(['release-b200-cpu'])), 'release-b100-cpu')
  t.equal(deps.current()?.id, 'release-b100-cpu', 'corral has returned to the earlier build')
  t.match(new BuildsDirectory(directory).selection(), {
    selected: 'release-b100-cpu',
    failed: { 'release-b200-cpu': {} },
    trial: undefined
  })
  t.ok(lines.some(line => /corral uses release-b100-cpu again/.test(line)))
  const found = installation.list().find(({ build }) => build.id === 'release-b200-cpu')
  t.match(found, { state: 'failed', failure: 'it does not load' })
  await t.rejects(installation.upgrade({}), { message: /b200, was tried/ })

  await publish('b300')
  const { build: good } = await installation.upgrade({})
  t.equal(await installation.start(good, attempt([])), 'release-b300-cpu')
  t.equal(new BuildsDirectory(directory).selection().trial, undefined, 'its trial is over')
  starts.length = 0
  await t.rejects(installation.start(good, attempt(['release-b300-cpu'])), failed)
  t.same(starts, ['release-b300-cpu'], 'later failures are blamed on models')
})
