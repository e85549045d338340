import { existsSync, readdirSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import type { InstalledBuild } from '../../core/contracts/builds.ts'
import { CAPITAL_ANSWER, type Corral, capital, DEMO, lastEvent, startCorral, until } from '../support/corral.ts'
import { refusedWith } from '../support/failure.ts'
import { newFolder } from '../support/folder.ts'
import { archiveName, BAD_SERVERS, engineArchive, releaseFiles } from '../support/release-archives.ts'
import { type ReleaseEmulator, startReleaseServer } from '../support/release-server.ts'
import { thorough } from '../support/thorough.ts'

/** One archive of the real engine serves for all good releases. */
let good: Buffer
t.before(async () => {
  good = await engineArchive('b100')
})

const releaseOnly = (server: ReleaseEmulator) => `  sources: [release]\n  release:\n    api_url: ${server.url}\n`

const id = (tag: string) => `release-${tag}-cpu`

async function answer(corral: Corral): Promise<string> {
  // The next load uses the build that is selected for new engines.
  await corral.json('/api/stop', { model: DEMO })
  const { body } = await corral.json('/api/chat', capital())
  return body.message?.content ?? JSON.stringify(body)
}

async function states(corral: Corral): Promise<Record<string, string>> {
  const { body } = await corral.json('/api/runtimes')
  return Object.fromEntries(body.installed.map(({ build, state }: InstalledBuild) => [build.id, state]))
}

t.test('a release is downloaded, verified, used, upgraded and rolled back', async t => {
  const server = await startReleaseServer(t)
  server.publish('b100', releaseFiles('b100', good))
  const home = newFolder(t)
  const options = { home, env: { CORRAL_LLAMA_CPP: '' }, runtimes: releaseOnly(server) }
  let corral = await startCorral(t, options)
  t.equal(await answer(corral), CAPITAL_ANSWER)
  t.match((await corral.json('/api/runtimes')).body, {
    state: 'ready',
    chosen: { id: id('b100'), runtime: 'cpu', source: 'release' },
    release: { tag: 'b100', list: 'live' },
    installed: [{ build: { id: id('b100') }, state: 'in use' }]
  })

  server.publish('b200', releaseFiles('b200', good))
  const events = await corral.events('/api/runtimes/upgrade', {}, { local: true })
  t.match(events.at(-1), { status: 'success', changed: true, build: { id: id('b200') }, previous: { id: id('b100') } })
  t.ok(
    events.some(
      ({ status, completed, total }) => /^downloading/.test(status) && completed === total && total === good.length
    ),
    'its bytes are counted'
  )
  t.ok(events.some(({ status }) => /^proving/.test(status)))
  t.equal(await answer(corral), CAPITAL_ANSWER)
  t.same(await states(corral), { [id('b200')]: 'in use', [id('b100')]: 'previous' })
  t.match((await corral.json('/api/runtimes/upgrade', { stream: false }, { local: true })).body, { changed: false })

  t.match((await corral.json('/api/runtimes/use', { runtime: id('b100') }, { local: true })).body, {
    status: 'success',
    build: { id: id('b100') }
  })
  await corral.end()
  corral = await startCorral(t, options)
  t.equal(await answer(corral), CAPITAL_ANSWER)
  t.match(await states(corral), { [id('b100')]: 'in use', [id('b200')]: 'installed' }, 'the choice survives a restart')
  const used = await corral.json(`/api/runtimes/${id('b100')}`, undefined, { method: 'DELETE', local: true })
  t.match(used, refusedWith(409, 'runtime_in_use'))
  t.match((await corral.json('/api/runtimes/use', { runtime: id('b200') }, { local: true })).body, {
    status: 'success'
  })
  t.match(await corral.json(`/api/runtimes/${id('b100')}`, undefined, { method: 'DELETE', local: true }), {
    status: 409,
    body: { error: /An engine runs on release-b100-cpu/ }
  })
  t.equal(await answer(corral), CAPITAL_ANSWER)
  t.match(await corral.json(`/api/runtimes/${id('b100')}`, undefined, { method: 'DELETE', local: true }), {
    body: { status: 'deleted' }
  })
  t.notOk(existsSync(join(home, 'runtimes', id('b100'))))
})

t.test('a release that does not work is removed, or replaced by the one before', thorough, async t => {
  const server = await startReleaseServer(t)
  server.publish('b200', releaseFiles('b200', good))
  const home = newFolder(t)
  const corral = await startCorral(t, { home, env: { CORRAL_LLAMA_CPP: '' }, runtimes: releaseOnly(server) })
  t.equal(await answer(corral), CAPITAL_ANSWER)

  server.publish('b300', releaseFiles('b300', await engineArchive('b300', BAD_SERVERS.exits)))
  const refused = await corral.json('/api/runtimes/upgrade', { stream: false }, { local: true })
  t.equal(refused.status, 503)
  t.match(refused.body, {
    code: 'runtime_missing',
    error: /release-b300-cpu was removed because .*libfoo\.so\.1.*release-b200-cpu stays/
  })
  server.publish('b400', releaseFiles('b400', await engineArchive('b400', BAD_SERVERS.nonsense)))
  t.match((await corral.json('/api/runtimes/upgrade', { stream: false }, { local: true })).body, {
    code: 'runtime_missing',
    error: /release-b400-cpu was removed because .*wrong answer/
  })
  const leftovers = readdirSync(join(home, 'runtimes')).filter(name => /b[34]00|unfinished/.test(name))
  t.same(leftovers, [], 'nothing of them remains')
  t.equal(await answer(corral), CAPITAL_ANSWER)

  server.publish('b500', releaseFiles('b500', await engineArchive('b500', BAD_SERVERS.failsLater)))
  t.match((await corral.json('/api/runtimes/upgrade', { stream: false }, { local: true })).body, {
    changed: true,
    build: { id: id('b500') }
  })
  t.equal(await answer(corral), CAPITAL_ANSWER, 'a request that meets the bad release is still answered')
  t.match(await states(corral), { [id('b500')]: 'failed', [id('b200')]: 'in use' })
  t.match(corral.log(), /release-b500-cpu fails but release-b200-cpu works, so corral uses release-b200-cpu again/)
  t.match((await corral.json('/api/runtimes/upgrade', { stream: false }, { local: true })).body, {
    error: /b500, was tried on/
  })
})

t.test('bad archives leave nothing behind', thorough, async t => {
  const server = await startReleaseServer(t)
  const home = newFolder(t)
  const corral = await startCorral(t, { home, runtimes: releaseOnly(server) })
  await until('the build in use is verified', async () => (await corral.json('/api/runtimes')).body.state === 'ready')
  const before = readdirSync(join(home, 'runtimes'))
  const install = async (body: object) =>
    await corral.json('/api/runtimes/install', { stream: false, ...body }, { local: true })
  const name = archiveName('b100')
  const digest = `sha256:${'0'.repeat(64)}`
  server.publish('b100', [{ name, data: good, digest }])
  t.match(await install({}), { status: 502, body: { code: 'checksum_mismatch', error: /has the digest/ } })
  const streamed = await corral.send('/api/runtimes/install', {}, { local: true })
  t.equal(streamed.status, 200, 'the download has begun')
  const failure = lastEvent(await streamed.text())
  t.match(failure, { errorCode: 502, code: 'checksum_mismatch', status: `error: ${failure.error}` })
  t.notOk('model' in failure || 'done' in failure, 'it is not an answer of a model')
  server.publish('b101', [{ name: archiveName('b101'), data: good.subarray(0, good.length / 2) }])
  t.match(await install({ runtime: 'cpu' }), { status: 400, body: { error: /b101.* cannot be used: it is damaged/ } })
  const climbing = await engineArchive('b102', undefined, path => (path.endsWith('LICENSE') ? '../../../evil' : path))
  server.publish('b102', [{ name: archiveName('b102'), data: climbing }])
  t.match(await install({ version: 'b102' }), { status: 400, body: { error: /refused.*evil/ } })

  t.match(await install({ archive: 'here.tar.gz' }), { status: 400, body: { error: /must be absolute/ } })
  t.match(await install({ version: '../b1' }), { status: 400, body: { code: 'invalid_request' } })
  t.match(await install({ sha256: 'abc' }), { status: 400, body: { error: /need "archive"/ } })
  t.match(await corral.json('/api/runtimes/use', { runtime: 'cpu' }, { local: true }), {
    status: 400,
    body: { error: /CORRAL_LLAMA_CPP names/ }
  })
  t.equal(
    (await corral.json('/api/runtimes/..%2F..%2Fmodels', undefined, { method: 'DELETE', local: true })).status,
    404
  )
  t.equal((await corral.json('/ollama/api/runtimes/install', {})).status, 404)
  const left = readdirSync(join(home, 'runtimes')).filter(entry => entry !== 'selection.json')
  t.same(left, before)
  t.notOk(readdirSync(home).includes('evil') || existsSync(join(home, '..', 'evil')))
})
