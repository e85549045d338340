import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { claimDataDirectory, DataDirectoryError, readOwner } from '../../core/system/data-directory.ts'
import { type DataPaths, dataPaths } from '../../core/system/data-paths.ts'
import { isSameProcess, processStartTime } from '../../core/system/processes.ts'

const SERVER = { address: 'http://127.0.0.1:11435', version: '1.2.3' }
const CLAIMANT = fileURLToPath(new URL('../support/claimant.js', import.meta.url))

/** A process that claims a directory, prints a line, and keeps the claim until it is killed. */
async function claimant(paths: DataPaths): Promise<{ child: ChildProcess; line: string }> {
  const child = spawn(process.execPath, [CLAIMANT, paths.home, paths.models], { stdio: ['ignore', 'pipe', 'inherit'] })
  const [line] = (await once(createInterface({ input: child.stdout! }), 'line')) as [string]
  return { child, line }
}

async function kill(child: ChildProcess): Promise<void> {
  child.kill('SIGKILL')
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
}

t.test('a claim creates the folders and can be read, updated and released', async t => {
  const paths = dataPaths(join(t.testdir(), 'new', 'home'), undefined)
  const claim = await claimDataDirectory(paths, SERVER)
  for (const folder of [paths.models, paths.runtimes, paths.cache, paths.logs]) t.ok(statSync(folder).isDirectory())
  t.equal(readFileSync(join(paths.home, 'version'), 'utf8'), '1.2.3\n')
  t.match(await readOwner(paths), { pid: process.pid, host: hostname(), ...SERVER })
  await claim.update({ address: 'http://127.0.0.1:4000', socket: undefined })
  t.equal((await readOwner(paths))?.address, 'http://127.0.0.1:4000')
  await claim.release()
  t.equal(await readOwner(paths), undefined)
  t.notOk(existsSync(paths.ownerFile))
  await claim.release()
})

t.test('a second server fails and names the process that owns the directory', async t => {
  const paths = dataPaths(t.testdir(), undefined)
  const { child, line } = await claimant(paths)
  t.teardown(() => kill(child))
  t.equal(line, 'claimed')
  const error = await claimDataDirectory(paths, SERVER).catch(error => error)
  t.type(error, DataDirectoryError)
  t.equal(error.reason, 'held')
  t.match(error.message, `process ${child.pid}`)
  t.match(error.message, 'http://127.0.0.1:1')
  t.match(error.message, 'CORRAL_HOME')
  t.equal(error.owner.pid, child.pid)

  t.test('a server takes over after that process was killed', async t => {
    await kill(child)
    t.equal(await readOwner(paths), undefined)
    const claim = await claimDataDirectory(paths, SERVER)
    t.equal((await readOwner(paths))?.pid, process.pid)
    // A process can claim it only once.
    await t.rejects(claimDataDirectory(paths, SERVER), { message: /uses/ })
    await claim.release()
  })
})

t.test('one of several servers that start at the same time gets the directory', async t => {
  const paths = dataPaths(t.testdir(), undefined)
  const all = await Promise.all(Array.from({ length: 4 }, () => claimant(paths)))
  t.teardown(() => Promise.all(all.map(({ child }) => kill(child))))
  t.equal(all.filter(({ line }) => line === 'claimed').length, 1)
  t.equal(all.filter(({ line }) => line === 'held').length, 3)
})

t.test('two data directories cannot share a models folder', async t => {
  const dir = t.testdir()
  const first = dataPaths(join(dir, 'one'), join(dir, 'models'))
  const second = dataPaths(join(dir, 'two'), join(dir, 'models'))
  const claim = await claimDataDirectory(first, SERVER)
  await t.rejects(claimDataDirectory(second, SERVER), { reason: 'held', message: /models/ })
  t.notOk(existsSync(second.ownerFile), 'a failed claim leaves nothing claimed')
  await claim.release()
  const next = await claimDataDirectory(second, SERVER)
  await next.release()
})

t.test('an owner counts as dead in these cases', async t => {
  const paths = dataPaths(t.testdir(), undefined)
  await (await claimDataDirectory(paths, SERVER)).release()
  const startTime = (await processStartTime(process.pid))!
  const living = { pid: process.pid, startTime, host: hostname(), ...SERVER }
  const write = (owner: unknown) => writeFileSync(paths.ownerFile, JSON.stringify(owner))

  write(living)
  t.match(await readOwner(paths), living)
  write({ ...living, startTime: 'earlier' })
  t.equal(await readOwner(paths), undefined, 'its process id was reused by another process')
  write({ ...living, pid: 2 ** 22 + 1 })
  t.equal(await readOwner(paths), undefined, 'no process has the id')
  writeFileSync(paths.ownerFile, '{')
  t.equal(await readOwner(paths), undefined, 'a damaged file')
  await (await claimDataDirectory(paths, SERVER)).release()

  write({ ...living, host: 'elsewhere' })
  t.equal((await readOwner(paths))?.host, 'elsewhere', 'another machine that was alive a moment ago')
  await t.rejects(claimDataDirectory(paths, SERVER), { reason: 'held', message: /on elsewhere/ })
  utimesSync(paths.ownerFile, new Date(0), new Date(0))
  t.equal(await readOwner(paths), undefined, 'another machine that has been silent for long')
})

t.test('a server that lost its claim does not touch the new claim', async t => {
  const paths = dataPaths(t.testdir(), undefined)
  const claim = await claimDataDirectory(paths, SERVER)
  const other = { pid: 1, startTime: 'x', host: 'elsewhere', address: '', version: '' }
  writeFileSync(paths.ownerFile, JSON.stringify(other))
  await claim.release()
  t.match(JSON.parse(readFileSync(paths.ownerFile, 'utf8')), other)
})

t.test('a lock of a server that was killed during its start expires', async t => {
  const paths = dataPaths(t.testdir({ 'owner.json.lock': {} }), undefined)
  await (await claimDataDirectory(paths, SERVER)).release()
  t.notOk(existsSync(`${paths.ownerFile}.lock`))
})

t.test('the error names an unusable directory', async t => {
  const dir = t.testdir({ file: '' })
  const error = await claimDataDirectory(dataPaths(join(dir, 'file', 'home'), undefined), SERVER).catch(error => error)
  t.type(error, DataDirectoryError)
  t.equal(error.reason, 'unusable')
  t.match(error.message, join(dir, 'file', 'home'))
  t.match(error.message, 'CORRAL_HOME')
})

t.test('processStartTime identifies a running process', async t => {
  const child = spawn(process.execPath, ['-e', 'setInterval(() => {}, 1000)'], { stdio: 'ignore' })
  const start = (await processStartTime(child.pid!))!
  t.type(start, 'string')
  t.equal(await processStartTime(child.pid!), start)
  t.ok(await isSameProcess(child.pid!, start))
  t.notOk(await isSameProcess(child.pid!, 'another'))
  await kill(child)
  t.equal(await processStartTime(child.pid!), undefined)
  t.notOk(await isSameProcess(child.pid!, start))
  for (const pid of [0, -1, 1.5, Number.NaN]) t.equal(await processStartTime(pid), undefined)
})

t.test('a zombie process does not count as running', { skip: process.platform !== 'linux' }, async t => {
  // The shell becomes `sleep`, which never waits for the child that the shell left behind.
  const parent = spawn('sh', ['-c', 'sleep 1 & echo $!; exec sleep 60'], { stdio: ['ignore', 'pipe', 'ignore'] })
  t.teardown(() => kill(parent))
  const [line] = (await once(createInterface({ input: parent.stdout! }), 'line')) as [string]
  const pid = Number(line)
  const state = () => readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.[0]
  while (state() !== 'Z') await new Promise(resolve => setTimeout(resolve, 10))
  t.equal(await processStartTime(pid), undefined)
})
