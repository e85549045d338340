import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync
} from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { processStartTime } from '../../../core/system/processes.ts'
import { reapStrayEngines, writeRunRecord } from '../../../runtimes/llama-server/launch.ts'
import { realBuild } from './support.ts'

const SERVER = realBuild().executables.server
const PARENT = fileURLToPath(new URL('parent.js', import.meta.url))
const LOG = { warn: () => {} }
/** The promise is two seconds. A busy machine gets more. */
const GONE_WITHIN = 5000

function startParent(run: string, path: string, what: string, server = SERVER): ChildProcess {
  return spawn(process.execPath, [PARENT, server, run, what], {
    env: { ...process.env, PATH: path },
    stdio: ['ignore', 'pipe', 'inherit']
  })
}

/** Waits for the engine that a parent has recorded. */
async function recordedEngine(run: string): Promise<number> {
  for (;;) {
    for (const name of existsSync(run) ? readdirSync(run) : []) {
      if (!name.endsWith('.json')) continue
      const { pid } = JSON.parse(readFileSync(join(run, name), 'utf8'))
      if (pid !== undefined) return pid
    }
    await sleep(20)
  }
}

/** Waits for the engine of a parent that reports it as ready. */
async function readyEngine(parent: ChildProcess): Promise<number> {
  const ended = once(parent, 'exit').then(([code]) => {
    throw new Error(`The parent ended with ${code}.`)
  })
  ended.catch(() => {
    // The test kills it later.
  })
  const [said] = await Promise.race([once(parent.stdout!, 'data'), ended])
  return Number(/ready (\d+)/.exec(String(said))?.[1])
}

async function isGone(pid: number): Promise<boolean> {
  for (let waited = 0; waited < GONE_WITHIN; waited += 20) {
    if ((await processStartTime(pid)) === undefined) return true
    await sleep(20)
  }
  process.kill(pid, 'SIGKILL')
  return false
}

async function killParent(parent: ChildProcess): Promise<void> {
  parent.kill('SIGKILL')
  await once(parent, 'exit')
}

t.test('no engine outlives a killed gateway', async t => {
  const tools = t.testdir({ shell: {}, none: {} })
  symlinkSync('/bin/sh', join(tools, 'shell', 'sh'))
  const paths = {
    watchdog: join(tools, 'shell'),
    'end of input': join(tools, 'none')
  }
  const tryOne = async (guard: string, path: string, what: string) => {
    const run = mkdtempSync(join(tools, 'run-'))
    const parent = startParent(run, path, what)
    const pid = await readyEngine(parent)
    t.ok(await processStartTime(pid), 'it runs')
    await killParent(parent)
    t.ok(await isGone(pid), `${guard}, ${what}`)

    const { folder } = JSON.parse(readFileSync(join(run, readdirSync(run)[0]!), 'utf8'))
    t.ok(existsSync(folder))
    t.equal(await reapStrayEngines(run, LOG), 0)
    t.notOk(existsSync(folder), 'the next start removes the leftovers')
    t.same(readdirSync(run), [])
  }
  for (const [guard, path] of Object.entries(paths)) {
    await Promise.all(['idle', 'busy'].map(what => tryOne(guard, path, what)))
  }
})

t.test('no loading engine outlives a killed gateway', async t => {
  const tools = t.testdir()
  const server = join(tools, 'llama-server.mjs')
  writeFileSync(
    server,
    `#!${process.execPath}\nif (process.argv.includes('--help')) process.exit(0)\nsetInterval(() => {}, 1000)`
  )
  chmodSync(server, 0o755)
  const run = join(tools, 'run')
  const parent = startParent(run, process.env.PATH!, 'idle', server)
  const pid = await recordedEngine(run)
  await killParent(parent)
  t.ok(await isGone(pid))
  await reapStrayEngines(run, LOG)
})

t.test('the next start cleans up after an earlier gateway, and touches nothing else', async t => {
  const folder = t.testdir({ run: {} })
  const run = join(folder, 'run')
  t.equal(await reapStrayEngines(join(folder, 'absent'), LOG), 0)

  const children = [spawn('sleep', ['600']), spawn('sleep', ['600']), spawn('sleep', ['600'])]
  t.teardown(() => {
    for (const child of children) child.kill('SIGKILL')
  })
  const [stray, reused, doubtful] = children.map(child => child.pid!)
  const owned = ['corral-a', 'corral-b', 'corral-c', 'corral-d'].map(name => join(folder, name))
  for (const path of [...owned, join(folder, 'precious')]) mkdirSync(path)

  await writeRunRecord(run, 'a', { folder: owned[0]!, pid: stray, startTime: await processStartTime(stray!) })
  await writeRunRecord(run, 'b', { folder: owned[1]!, pid: reused, startTime: 'another process had this id' })
  await writeRunRecord(run, 'c', { folder: owned[2]!, pid: doubtful, startTime: 'unknown' })
  await writeRunRecord(run, 'd', { folder: owned[3]! })
  await writeRunRecord(run, 'e', { folder: join(folder, 'precious') })
  writeFileSync(join(run, 'f.engine.json'), '{"folder": "/tm')
  writeFileSync(join(run, 'other.txt'), 'not ours')

  t.equal(await reapStrayEngines(run, LOG), 1)
  t.equal(await processStartTime(stray!), undefined)
  t.ok(await processStartTime(reused!), 'a process that reused the id lives')
  t.ok(await processStartTime(doubtful!), 'so does a process of uncertain origin')
  t.same(owned.filter(existsSync), [])
  t.ok(existsSync(join(folder, 'precious')), 'a folder without an engine stays')
  t.same(readdirSync(run), ['other.txt'])
})
