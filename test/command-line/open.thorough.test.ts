import { existsSync, mkdirSync, readFileSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import t, { type Test } from 'tap'
import { wayToOpen } from '../../command-line/commands/open.ts'
import { type Corral, startCorral, until } from '../support/corral.ts'
import { localhostCertificate } from '../support/localhost-certificate.ts'
import { thorough } from '../support/thorough.ts'
import { corral, newHome, writeScript } from './command.ts'
import { tables } from './tables.ts'

const NO_SSH = { SSH_CONNECTION: '', SSH_TTY: '' }
const LINK = /^https?:\/\/[^/]+\/#open=[\w-]{43}\n$/

/** The status of starting a session with a link. */
async function use(server: Corral, link: string): Promise<number> {
  const token = new URL(link).hash.replace('#open=', '')
  return (await server.json('/api/sessions', { token })).status
}

/** A folder for PATH with a program that opens links and records its arguments. */
function openerIn(t: Test, end: string) {
  const folder = t.testdir({})
  const called = join(folder, 'called')
  writeScript(folder, 'xdg-open', `printf '%s' "$*" > '${called}'\n${end}`)
  const env = { ...NO_SSH, DISPLAY: ':0', PATH: `${folder}${delimiter}${process.env.PATH}` }
  return {
    env,
    link: () => until('the link is opened', () => (existsSync(called) ? readFileSync(called, 'utf8') : ''))
  }
}

t.test('wayToOpen chooses how to open a link', async t => {
  for (const [platform, env, command] of tables.wayToOpen!) {
    const way = wayToOpen(platform, env)
    t.equal('command' in way ? way.command : null, command, `${platform} ${JSON.stringify(env)}`)
  }
})

t.test('corral open prints or opens a link that works once', async t => {
  const server = await startCorral(t)
  const { home } = server

  const printed = await corral(['open', '--print'], { home })
  t.match(printed, { code: 0, stdout: LINK, stderr: /once, within a minute/ })
  t.ok(printed.stdout.startsWith(server.url), printed.stdout)
  t.notMatch(printed.stderr, /#open=/)
  t.equal(await use(server, printed.stdout.trim()), 200)
  t.equal(await use(server, printed.stdout.trim()), 410)

  for (const end of ['exit 0', 'sleep 20']) {
    const opener = openerIn(t, end)
    const opened = await corral(['open'], { home, env: opener.env })
    t.match(opened, { code: 0, stdout: '', stderr: /^Opened http:\S+ in the browser/ }, end)
    t.notMatch(opened.stderr, /#open=/)
    t.equal(await use(server, await opener.link()), 200, end)
  }

  const failing = openerIn(t, 'exit 3')
  const failed = await corral(['open'], { home, env: failing.env })
  t.match(failed, { code: 0, stdout: LINK, stderr: /xdg-open failed \(it ended with code 3\)/ })
  t.equal(await use(server, failed.stdout.trim()), 200)

  const empty = join(home, 'empty')
  mkdirSync(empty)
  const missing = await corral(['open'], { home, env: { ...NO_SSH, DISPLAY: ':0', PATH: empty } })
  t.match(missing, { code: 0, stdout: LINK, stderr: /xdg-open failed \(.*ENOENT/ })
  const far = await corral(['open'], { home, env: { DISPLAY: ':0', SSH_CONNECTION: '192.0.2.1 1 192.0.2.2 22' } })
  t.match(far, { code: 0, stdout: LINK, stderr: /in an ssh session/ })
  const blind = await corral(['open'], { home, env: { ...NO_SSH, DISPLAY: '', WAYLAND_DISPLAY: '' } })
  t.match(blind, { code: 0, stdout: LINK, stderr: /^There is no display\. Open this link yourself; it works once/ })

  t.comment("on another machine: with an admin's key, at the address used")
  const host = server.url.replace('127.0.0.1', 'localhost')
  const other = newHome(t)
  const refused = await corral(['open', '--print', '--host', host], { home: other })
  t.match(refused, { code: 1, stdout: '', stderr: /role "admin"/ })
  const root = await server.json('/api/keys', { name: 'root', role: 'admin' }, { local: true })
  const env = { CORRAL_API_KEYS: root.body.key }
  const named = await corral(['open', '--print', '--host', host], { home: other, env })
  t.match(named, { code: 0, stdout: LINK })
  t.ok(named.stdout.startsWith(`${host}/#open=`), named.stdout)
  t.equal(await use(server, named.stdout.trim()), 200)

  t.match(await corral(['open'], { home: other }), { code: 3, stderr: /corral serve/ })
})

t.test('corral open uses TLS and a name that the certificate has', thorough, async t => {
  const folder = t.testdir({ 'cert.pem': localhostCertificate.cert, 'key.pem': localhostCertificate.key })
  const tls = `tls:\n  certificate: ${join(folder, 'cert.pem')}\n  key: ${join(folder, 'key.pem')}\n`
  const server = await startCorral(t, { config: `${tls}web:\n  path: /chat\n`, ca: localhostCertificate.cert })
  const { stdout } = await corral(['open', '--print'], { home: server.home })
  t.equal(new URL(stdout).pathname, '/chat', 'the address of the page')
  t.equal(new URL(stdout).origin, `https://localhost:${new URL(server.url).port}`, 'a name that certificates have')
  t.equal(await use(server, stdout.trim()), 200)
})
