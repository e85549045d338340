import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { Agent, fetch } from 'undici'
import { freePort } from '../../core/system/free-port.ts'
import { packageRoot } from '../../core/system/package-info.ts'
import { CAPITAL_ANSWER, type Corral, capital, DEMO, endless, startCorral, until } from '../support/corral.ts'
import { newFolder } from '../support/folder.ts'
import { localhostCertificate } from '../support/localhost-certificate.ts'

// The files of docs/proxies, with other addresses, ports and certificate paths.

const NAME = 'models.example.org'
const KEY = 'a-key-of-somebody-that-is-long-enough'
const ADMIN = 'a-key-of-the-admin-that-is-long-enough'
const documented = (name: string) => readFileSync(join(packageRoot, 'docs', 'proxies', name), 'utf8')
const missing = (program: string, ...args: string[]) =>
  spawnSync(program, args).error ? `skipped: ${program} is not installed` : undefined

function certificateFolder(t: Test): string {
  const folder = newFolder(t)
  writeFileSync(join(folder, 'cert.pem'), localhostCertificate.cert)
  writeFileSync(join(folder, 'key.pem'), localhostCertificate.key)
  return folder
}

function start(t: Test, program: string, args: string[], env: NodeJS.ProcessEnv = process.env): ChildProcess {
  const child = spawn(program, args, { env, stdio: ['ignore', 'pipe', 'pipe'] })
  t.teardown(async () => {
    child.kill('SIGTERM')
    await new Promise(resolve => (child.exitCode === null ? child.once('exit', resolve) : resolve(undefined)))
  })
  return child
}

const upstream = (corral: Corral) => `127.0.0.1:${new URL(corral.url).port}`

/** Promises that hold behind every proxy. @param url the proxy's address */
async function behind(t: Test, corral: Corral, url: string): Promise<void> {
  const dispatcher = new Agent({
    headersTimeout: 0,
    bodyTimeout: 0,
    connect: { ca: localhostCertificate.cert, servername: 'localhost' }
  })
  t.teardown(() => dispatcher.destroy())
  const ask = (path: string, body?: object, init: { signal?: AbortSignal; headers?: Record<string, string> } = {}) =>
    fetch(url + path, {
      method: body ? 'POST' : 'GET',
      ...(body && { body: JSON.stringify(body) }),
      ...(init.signal && { signal: init.signal }),
      headers: { host: NAME, authorization: `Bearer ${KEY}`, ...init.headers },
      dispatcher
    })
  const running = async () => {
    const admin = { headers: { authorization: `Bearer ${ADMIN}` } }
    return (await corral.json('/api/ps', undefined, admin)).body.models[0]?.running
  }
  await until('the proxy answers', async () => (await ask('/livez').catch(() => undefined))?.status === 200)
  t.equal((await ask('/api/tags', undefined, { headers: { authorization: '' } })).status, 401, 'a key is needed')
  const claimed = { 'x-forwarded-for': '127.0.0.1', 'x-real-ip': '127.0.0.1', forwarded: 'for=127.0.0.1' }
  t.equal((await ask('/api/tags', undefined, { headers: { ...claimed, authorization: '' } })).status, 401)

  const question = capital()
  const large = { ...question, padding: 'x'.repeat(20_000_000) }
  const whole = (await (await ask('/api/chat', large)).json()) as any
  t.equal(whole.message?.content, CAPITAL_ANSWER, 'a body of 20 MB')

  const controller = new AbortController()
  const stream = await ask('/api/chat', endless(DEMO), { signal: controller.signal })
  const reader = stream.body!.getReader()
  t.match(Buffer.from((await reader.read()).value!).toString(), /^data: /, 'chunks arrive while the answer continues')
  await reader.read()
  t.equal(await running(), 1)
  controller.abort()
  await reader.read().catch(() => {})
  await until('the slot of a disconnected client is free', async () => (await running()) === 0)
}

async function server(t: Test): Promise<Corral> {
  // The settings in docs/admin.md.
  const [, yaml] = /^```yaml\n(host: 127.0.0.1\n.*?)^```/ms.exec(
    readFileSync(join(packageRoot, 'docs', 'admin.md'), 'utf8')
  )!
  return await startCorral(t, { config: `${yaml}  api_keys: [${ADMIN}, ${KEY}]\nbody_limit: 64MiB` })
}

t.test('corral works behind nginx as documented', async t => {
  const absent = missing('nginx', '-v')
  if (absent) return t.comment(absent)
  const corral = await server(t)
  const folder = certificateFolder(t)
  const port = await freePort()
  const own = documented('nginx.conf')
    .replace('listen 443 ssl', `listen 127.0.0.1:${port} ssl`)
    .replace(/ssl_certificate \S+;/, `ssl_certificate ${folder}/cert.pem;`)
    .replace(/ssl_certificate_key \S+;/, `ssl_certificate_key ${folder}/key.pem;`)
    .replace('127.0.0.1:11435', upstream(corral))
  mkdirSync(join(folder, 'temp'))
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
  const paths = temporary.map(name => `${name}_temp_path ${folder}/temp/${name};`).join(' ')
  const user = process.getuid?.() === 0 ? 'user root;' : ''
  writeFileSync(
    join(folder, 'nginx.conf'),
    `${user} daemon off; worker_processes 1; pid ${folder}/nginx.pid; error_log ${folder}/error.log;
events {} http { access_log off; ${paths} ${own} }`
  )
  const flags = ['-p', folder, '-e', join(folder, 'error.log'), '-c', join(folder, 'nginx.conf')]
  execFileSync('nginx', ['-t', '-q', ...flags], { stdio: 'pipe' })
  start(t, 'nginx', flags)
  await behind(t, corral, `https://127.0.0.1:${port}`)
  const errors = readFileSync(join(folder, 'error.log'), 'utf8')
  t.notMatch(errors, /buffered to a temporary file/, 'the proxy buffers nothing in files')
})

t.test('corral works behind Caddy as documented', async t => {
  const absent = missing('caddy', 'version')
  if (absent) return t.comment(absent)
  const corral = await server(t)
  const folder = certificateFolder(t)
  const port = await freePort()
  // A self-made certificate instead of one from an authority.
  const own = documented('Caddyfile')
    .replace(
      /^models\.example\.org \{$/m,
      `https://:${port} {\n\tbind 127.0.0.1\n\ttls ${folder}/cert.pem ${folder}/key.pem`
    )
    .replace('127.0.0.1:11435', upstream(corral))
  const file = join(folder, 'Caddyfile')
  writeFileSync(file, `{\n\tadmin off\n\tauto_https off\n}\n${own}`)
  const env = { ...process.env, HOME: folder, XDG_DATA_HOME: folder, XDG_CONFIG_HOME: folder }
  execFileSync('caddy', ['validate', '--adapter', 'caddyfile', '--config', file], { env, stdio: 'pipe' })
  start(t, 'caddy', ['run', '--adapter', 'caddyfile', '--config', file], env).stderr?.resume()
  await behind(t, corral, `https://127.0.0.1:${port}`)
})
