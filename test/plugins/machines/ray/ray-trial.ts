import { execFile, spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { lock } from 'proper-lockfile'
import type { Test } from 'tap'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { rayPlaces } from '../../../../plugins/machines/ray/ray-cluster.ts'
import { alive, startCorral, until } from '../../../support/corral.ts'
import { engineBuildFolder } from '../../../support/engine-build.ts'
import { rayPython } from '../../../support/ray-python.ts'

/* A cluster of real Ray on addresses that only this test uses: a head, and two machines with a node each. */

const MAIN = join(packageRoot, 'scripts', 'corral.mjs')
/** Timeout in milliseconds for Ray's steps on a loaded machine. */
export const LIMIT = 180_000
const byte = () => 1 + Math.floor(Math.random() * 250)
const [second, third] = [byte(), byte()]
const addressOf = (last: number) => `127.${second}.${third}.${last}`
const RAY_PORT = 6500
const MEMBER_PORT = 11600
export const head = `${addressOf(2)}:${RAY_PORT}`
const root = mkdtempSync(join(tmpdir(), 'corral-ray-'))
const CONFIG = `cluster-ray:\n  python: ${rayPython}`
/** Lets Ray notice dead nodes within a second. */
const QUICK = {
  RAY_health_check_period_ms: '300',
  RAY_health_check_timeout_ms: '2000',
  RAY_health_check_failure_threshold: '4'
}

export const homeOf = (name: string) => join(root, name)
const environment = (home: string) => ({
  ...process.env,
  ...QUICK,
  CORRAL_HOME: home,
  CORRAL_LLAMA_CPP: engineBuildFolder()
})

/** Runs a command to its end. */
export function run(home: string, ...args: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
  return new Promise(resolve =>
    execFile(process.execPath, [MAIN, ...args], { env: environment(home), cwd: root }, (error, stdout, stderr) =>
      resolve({ code: error ? Number(error.code ?? -1) : 0, stdout, stderr })
    )
  )
}

function joinCluster(name: string, last: number) {
  const home = homeOf(name)
  const token = join(homeOf('front'), 'cluster', 'token')
  const args = ['cluster', 'join', head, '--bind', addressOf(last), '--name', name, '--token-file', token]
  const child = spawn(process.execPath, [MAIN, ...args], {
    env: environment(home),
    cwd: root,
    stdio: ['ignore', 'pipe', 'pipe']
  })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', text => (output += text))
  }
  return { home, url: `http://${addressOf(last)}:${MEMBER_PORT}`, join: child, output: () => output }
}

/** Returns the process of a node's corral when it answers. */
export async function corralOf({ home, url, output }: ReturnType<typeof joinCluster>, before = 0): Promise<number> {
  return await until(
    `a corral answers at ${url}; ${output()}`,
    async () => {
      try {
        const { pid } = JSON.parse(readFileSync(join(home, 'owner.json'), 'utf8'))
        return pid !== before && (await fetch(`${url}/api/health`)).ok && alive(pid) ? pid : undefined
      } catch {
        return undefined
      }
    },
    LIMIT
  )
}

/** Returns live processes with one of the texts in their command line. */
export function processesWith(...texts: string[]): number[] {
  return readdirSync('/proc')
    .filter(name => /^\d+$/.test(name) && Number(name) !== process.pid)
    .filter(name => {
      try {
        const words = readFileSync(`/proc/${name}/cmdline`, 'utf8')
        return texts.some(text => words.includes(text))
      } catch {
        return false
      }
    })
    .map(Number)
}

export const parentOf = (pid: number) => {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  return Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1])
}

/** Starts a head with a gateway, and two nodes that the gateway knows. */
export async function startTrial(t: Test) {
  const names = ['front', 'b', 'c']
  /** Ray's own files of the gateway and both nodes. */
  const temps = names.map(name => rayPlaces(homeOf(name)).temp) as [gateway: string, b: string, c: string]
  /** Folders that only processes of this trial name. */
  const mine = [root, ...temps]
  const nodes: ReturnType<typeof joinCluster>[] = []
  // Ray's head listens on all addresses, so only one trial may run at a time.
  const release = await lock(tmpdir(), {
    lockfilePath: join(tmpdir(), 'corral-ray-trial.lock'),
    stale: 30_000,
    retries: { forever: true, minTimeout: 1000, maxTimeout: 1000 }
  })
  t.teardown(async () => {
    for (const { join } of nodes) join.kill('SIGKILL')
    for (let left = processesWith(...mine); left.length > 0; left = processesWith(...mine)) {
      for (const pid of left) process.kill(pid, 'SIGKILL')
      await sleep(200)
    }
    for (const path of mine) rmSync(path, { recursive: true, force: true, maxRetries: 5 })
    await release()
  })
  for (const name of names) {
    mkdirSync(homeOf(name), { recursive: true })
    writeFileSync(join(homeOf(name), 'config.yaml'), CONFIG)
  }
  const ports = ['--ray-port', String(RAY_PORT), '--member-port', String(MEMBER_PORT)]
  const up = () => run(homeOf('front'), 'cluster', 'up', '--ray', 'local', '--bind', addressOf(2), ...ports)
  const made = await up()
  if (made.code !== 0) throw new Error(made.stderr)
  const [b, c] = [joinCluster('b', 3), joinCluster('c', 4)]
  nodes.push(b, c)
  const gateway = await startCorral(t, { home: homeOf('front'), config: CONFIG, env: QUICK })
  /** The nodes that the gateway knows now, comma-separated. */
  const members = async () => {
    const { body } = await gateway.json('/api/cluster', undefined, { local: true })
    const known: string[] = body.members.map(({ name }: any) => name)
    return known.sort().join()
  }
  await until('the gateway knows both', async () => (await members()) === 'b,c', LIMIT)
  const status = async () => {
    const { code, stdout, stderr } = await run(homeOf('front'), 'cluster', 'status', '--json')
    return code === 0 ? JSON.parse(stdout) : { stderr }
  }
  return { nodes: [b, c] as const, gateway, made, up, members, mine, temps, status }
}
