import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, chownSync, copyFileSync, mkdirSync, mkdtempSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../core/system/package-info.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, until } from '../support/corral.ts'
import { engineBuildFolder } from '../support/engine-build.ts'
import { MANIFESTS, parseObjects, readManifest } from './manifests.ts'

/*
 * Runs corral with the settings and limits of its pods, as far as possible without a cluster: a user without rights, no
 * capabilities, a file system that is read-only except /data and /tmp, a volume prepared as by a kubelet, and the
 * manifests' environment, hooks and probes. All pods share one private network.
 */

t.setTimeout(600_000)

const canIsolate = process.getuid?.() === 0 && spawnSync('unshare', ['--mount', '--net', 'true']).status === 0
const skip = canIsolate ? false : 'PODS ARE NOT TESTED: this needs root and Linux namespaces.'

const [, node] = parseObjects(readManifest('base/nodes.yaml'))
const [, front] = parseObjects(readManifest('base/fronts.yaml'))
const FRONT_PORT = 11436
const SECRETS: Record<string, string> = { node: 'n'.repeat(40), front: 'f'.repeat(40) }
const { runAsUser, runAsGroup, fsGroup } = node.spec.template.spec.securityContext

/** Namespaces for pods, with their volumes at /mnt. */
async function openMachine(folder: string) {
  for (const name of ['node', 'front']) {
    const volume = join(folder, name)
    mkdirSync(volume)
    // A kubelet does this to a new disk for fsGroup.
    chownSync(volume, 0, fsGroup)
    chmodSync(volume, 0o2775)
    mkdirSync(join(volume, 'lost+found'), { mode: 0o700 })
  }
  copyFileSync(join(MANIFESTS, 'base', 'node.yaml'), join(folder, 'node.yaml'))
  copyFileSync(join(MANIFESTS, 'base', 'front.yaml'), join(folder, 'front.yaml'))
  const script = `
    set -e
    mount --make-rprivate /
    mount -t tmpfs none /mnt
    mkdir /mnt/package /mnt/engine /mnt/pods
    touch /mnt/runtime /mnt/hosts
    mount --bind "$1" /mnt/package
    mount --bind "$2" /mnt/engine
    mount --bind "$3" /mnt/pods
    mount --bind "$4" /mnt/runtime
    printf '127.0.0.1 localhost corral-nodes\\n' > /mnt/hosts
    mount --bind /mnt/hosts /etc/hosts
    mount -o remount,bind,ro /
    mount -t tmpfs none /tmp
    chmod 1777 /tmp
    echo ready
    exec sleep infinity`
  const words = [packageRoot, engineBuildFolder(), folder, process.execPath]
  const holder = spawn('unshare', ['--mount', '--net', 'bash', '-c', script, 'bash', ...words], {
    stdio: ['ignore', 'pipe', 'pipe']
  })
  let said = ''
  for (const output of [holder.stdout, holder.stderr]) {
    output.setEncoding('utf8').on('data', text => {
      said += text
    })
  }
  await until('the namespaces', () => {
    if (holder.exitCode !== null) throw new Error(said)
    return said.includes('ready')
  })
  const inside = ['--target', `${holder.pid}`, '--mount', '--net']
  const up = spawnSync('nsenter', [...inside, 'ip', 'link', 'set', 'lo', 'up'], { encoding: 'utf8' })
  if (up.status !== 0) throw new Error(up.stderr)
  return { holder, inside }
}

const NO_RIGHTS = [
  ...[`--reuid=${runAsUser}`, `--regid=${runAsGroup}`, `--groups=${fsGroup}`],
  ...['--no-new-privs', '--inh-caps=-all', '--bounding-set=-all']
]

/** The environment of a container: the manifest's, with its secrets, on top of the image's. */
function readEnvironment(workload: any, name: string): Record<string, string> {
  const given = workload.spec.template.spec.containers[0].env.flatMap(({ name, value, valueFrom }: any) => {
    const text = value ?? SECRETS[valueFrom.secretKeyRef.key]
    return text === undefined ? [] : [[name, text]]
  })
  return {
    PATH: process.env.PATH!,
    CORRAL_HOME: `/mnt/pods/${name}`,
    HOME: `/mnt/pods/${name}`,
    ...Object.fromEntries(given),
    CORRAL_CONFIG: `/mnt/pods/${name}.yaml`
  }
}

t.test('nodes and gateways run as in their manifests', { skip }, async t => {
  const folder = mkdtempSync(join(tmpdir(), 'corral-pods-'))
  chmodSync(folder, 0o755)
  const { holder, inside } = await openMachine(folder)
  const started: ChildProcess[] = []
  t.teardown(async () => {
    for (const child of started) if (child.exitCode === null) child.kill('SIGKILL')
    holder.kill('SIGKILL')
    await once(holder, 'exit')
    rmSync(folder, { recursive: true, force: true })
  })
  const enter = (env: Record<string, string>, words: string[]) =>
    spawn('nsenter', [...inside, 'setpriv', ...NO_RIGHTS, '/mnt/runtime', ...words], {
      cwd: '/',
      env,
      stdio: ['ignore', 'pipe', 'pipe']
    })
  const run = async (env: Record<string, string>, words: string[]) => {
    const child = enter(env, words)
    let output = ''
    for (const each of [child.stdout!, child.stderr!]) {
      each.setEncoding('utf8').on('data', text => {
        output += text
      })
    }
    const [code] = await once(child, 'close')
    return { code: code as number, output }
  }
  const MAIN = '/mnt/package/scripts/corral.mjs'
  const serve = (env: Record<string, string>) => {
    const child = enter(env, [MAIN, 'serve'])
    started.push(child)
    let log = ''
    for (const output of [child.stdout!, child.stderr!]) {
      output.setEncoding('utf8').on('data', text => {
        log += text
      })
    }
    return { child, log: () => log, exited: once(child, 'exit') }
  }
  /** A request from another pod. */
  const ask = async (port: number, path: string, more: { key?: string; body?: unknown; host?: string } = {}) => {
    const script = `
      const { request } = require('node:http')
      const [url, key, body, host] = process.argv.slice(1)
      const headers = { ...(key && { authorization: 'Bearer ' + key }), ...(body && { 'content-type': 'application/json' }), ...(host && { host }) }
      const sent = request(url, { method: body ? 'POST' : 'GET', headers }, reply => {
        let text = ''
        reply.on('data', piece => { text += piece }).on('end', () => console.log(JSON.stringify({ status: reply.statusCode, text })))
      })
      sent.on('error', error => console.log(JSON.stringify({ status: 0, text: error.message }))).end(body)`
    const { key = '', body, host = '' } = more
    const words = [`http://127.0.0.1:${port}${path}`, key, body ? JSON.stringify(body) : '', host]
    const { output } = await run({ PATH: process.env.PATH! }, ['-e', script, ...words])
    return JSON.parse(output) as { status: number; text: string }
  }

  for (const path of ['/etc/corral', '/opt/corral', '/var/tmp/corral']) {
    const touched = spawnSync('nsenter', [...inside, 'touch', path], { encoding: 'utf8' })
    t.match(touched.stderr, 'Read-only file system', `${path}: even root cannot write there`)
  }
  const nodeEnvironment = { ...readEnvironment(node, 'node'), CORRAL_LLAMA_CPP: '/mnt/engine' }
  const server = serve(nodeEnvironment)
  const [{ startupProbe, readinessProbe, lifecycle }] = node.spec.template.spec.containers
  // A kubelet addresses a pod by its IP address.
  const host = '10.1.2.3:11435'
  const probed = async (port: number, { httpGet }: any) => {
    const { status } = await ask(port, httpGet.path, { host })
    return status === 200
  }
  await until('the node lives', () => {
    if (server.child.exitCode !== null) throw new Error(server.log())
    return probed(11435, startupProbe)
  })
  await until('the node is ready', () => probed(11435, readinessProbe))
  const chat = { model: DEMO, messages: [CAPITAL_QUESTION], temperature: 0 }
  const through = { key: SECRETS.node!, body: chat, host: 'corral-node-0.corral-nodes.corral.svc:11435' }
  const answered = await ask(11435, '/v1/chat/completions', through)
  t.match(answered, { status: 200, text: CAPITAL_ANSWER })
  t.equal((await ask(11435, '/v1/models')).status, 401, 'requests without a key are refused')
  t.equal(statSync(join(folder, 'node', 'owner.json')).uid, runAsUser)
  t.notMatch(server.log(), /EROFS|EACCES|EPERM/, 'it is not missing anything')

  const frontEnvironment = { ...readEnvironment(front, 'front'), CORRAL_PORT: `${FRONT_PORT}` }
  const before = serve(frontEnvironment)
  await until('the gateway is live', () => {
    if (before.child.exitCode !== null) throw new Error(before.log())
    return probed(FRONT_PORT, front.spec.template.spec.containers[0].livenessProbe)
  })
  // A gateway has no engine, so it is ready when it knows models of nodes.
  await until('the gateway is ready', () => probed(FRONT_PORT, front.spec.template.spec.containers[0].readinessProbe))
  const atFront = { key: SECRETS.front!, body: chat, host: 'corral.corral.svc:11435' }
  t.match(await ask(FRONT_PORT, '/v1/chat/completions', atFront), { status: 200, text: CAPITAL_ANSWER })
  t.notMatch(before.log(), /EROFS|EACCES|EPERM/)

  // Runs the hook's command in its container.
  const [command, ...words] = lifecycle.preStop.exec.command
  t.equal(command, 'corral')
  const drained = await run(nodeEnvironment, [MAIN, ...words])
  t.equal(drained.code, 0, drained.output)
  t.equal((await ask(11435, readinessProbe.httpGet.path)).status, 503, 'the Service stops sending requests')
  t.equal((await ask(11435, startupProbe.httpGet.path)).status, 200, 'the pod is not killed')
  for (const { child, exited } of [server, before]) {
    child.kill('SIGTERM')
    t.same(await exited, [0, null])
  }

  // Its volume again, after a kubelet has changed the group of all files.
  spawnSync('chown', ['-R', `:${fsGroup}`, join(folder, 'node')])
  spawnSync('chmod', ['-R', 'g+rwX', join(folder, 'node')])
  const again = serve(nodeEnvironment)
  await until('it is ready again', () => {
    if (again.child.exitCode !== null) throw new Error(again.log())
    return probed(11435, readinessProbe)
  })
  t.equal((await ask(11435, '/v1/chat/completions', through)).status, 200)
  t.equal(
    statSync(join(folder, 'node', 'private')).mode & 0o077,
    0,
    'its private socket is accessible only to itself again'
  )
})
