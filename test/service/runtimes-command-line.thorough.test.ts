import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import type { InstalledBuild } from '../../core/contracts/builds.ts'
import { checkCommands, corral as command, commandEnvironment, MAIN } from '../command-line/command.ts'
import { until } from '../support/corral.ts'
import { newFolder } from '../support/folder.ts'
import { archiveName, engineArchive, releaseFiles } from '../support/release-archives.ts'
import { type ReleaseEmulator, sha256, startReleaseServer } from '../support/release-server.ts'

/** One archive of the real engine serves for all good releases. */
let good: Buffer
t.before(async () => {
  good = await engineArchive('b100')
})

const releaseOnly = (server: ReleaseEmulator) => `  sources: [release]\n  release:\n    api_url: ${server.url}\n`

t.test('corral runtime works without a server', async t => {
  const server = await startReleaseServer(t)
  server.publish('b100', releaseFiles('b100', good))
  const home = newFolder(t)
  // One thread for each engine, as in other tests: more threads mostly wait for each other.
  const threads = '  engine_arguments: [--threads, "1", --threads-batch, "1"]\n'
  writeFileSync(join(home, 'config.yaml'), `runtimes:\n${threads}${releaseOnly(server)}`)
  const options = { home, env: { CORRAL_LLAMA_CPP: '' } }
  const run = (...args: string[]) => command(['runtime', ...args], options)
  const check = (table: string, values = {}) => checkCommands(t, table, words => run(...words), values)
  const runtimes = join(home, 'runtimes')
  const list = async () =>
    JSON.parse((await run('list', '--json')).stdout).map(({ build }: InstalledBuild) => build.source)
  const builds = () => readdirSync(runtimes).filter(name => /^(release|archive)-.*\.build\.json$/.test(name))

  writeFileSync(join(home, archiveName('b50')), good)
  await check('builds', { archive: archiveName('b50'), digest: sha256(good) })
  t.equal(server.requests.filter(({ host }) => host === 'storage').length, 0)
  await check('missing builds')

  const killed = spawn(process.execPath, [MAIN, 'runtime', 'install', 'cpu'], {
    cwd: home,
    env: commandEnvironment(options),
    stdio: 'ignore'
  })
  server.break(archiveName('b100'), { slow: 50 })
  await until('bytes arrive', () => inFlight(server, 'b100'))
  await kill(killed)
  t.ok(readdirSync(runtimes).some(name => name.startsWith('unfinished-')))
  t.same(await list(), ['archive'], 'half a build does not count')
  server.mend()

  const both = await Promise.all([run('install', 'cpu', '--version', 'b100'), run('install')])
  for (const { code, stderr } of both) t.match({ code, stderr }, { code: 0, stderr: /installed release-b100-cpu/ })
  const unfinished = readdirSync(runtimes).filter(name => name.startsWith('unfinished-'))
  t.same(unfinished, [], 'leftovers of the kill are removed')

  await check('selected builds')
  t.same(builds(), ['release-b100-cpu.build.json'])
})

function inFlight(server: ReleaseEmulator, tag: string): boolean {
  return server.requests.some(
    ({ host, path, bytes }) => host === 'storage' && path.includes(archiveName(tag)) && bytes > 0
  )
}

async function kill(child: ChildProcess): Promise<void> {
  child.kill('SIGKILL')
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
}
