import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, readFileSync, symlinkSync, unlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import {
  installSteps,
  launchdAgent,
  type ServiceDefinition,
  scheduledTask,
  serviceFile,
  systemdUnit,
  uninstallSteps
} from '../../command-line/commands/service.ts'
import { until } from '../support/corral.ts'
import { sample } from '../support/thorough.ts'
import { corral, newHome, writeScript } from './command.ts'

const USUAL: ServiceDefinition = {
  system: true,
  command: ['/usr/bin/node', '/usr/local/bin/corral'],
  flags: [],
  environment: {},
  home: undefined,
  writable: [],
  groups: ['video', 'render']
}
/** Paths and values with every character that systemd or launchd treat specially. */
const AWKWARD = `/srv/mödels "of" <all> & 100% $HOME\\x 'y'`
const LINUX = { platform: 'linux', uid: 0, userHome: '/root', configHome: undefined } as const

/** Writes a unit whose programs exist, as systemd's check requires. */
function unitFile(folder: string, service: ServiceDefinition): string {
  const file = join(folder, 'corral.service')
  writeFileSync(file, systemdUnit({ ...service, command: [process.execPath, ...service.command.slice(1)] }))
  return file
}

t.test('systemdUnit creates valid units with a strong sandbox', async t => {
  if (spawnSync('systemd-analyze', ['--version']).status !== 0) return t.comment('skipped: there is no systemd-analyze')
  const awkward = {
    flags: ['--models', AWKWARD],
    environment: { CORRAL_CONFIG: AWKWARD },
    home: AWKWARD,
    writable: [AWKWARD]
  }
  const services = {
    usual: USUAL,
    'of a user': { ...USUAL, system: false },
    'without groups': { ...USUAL, groups: [] },
    'special characters, for a user': { ...USUAL, ...awkward, system: false },
    awkward: { ...USUAL, ...awkward }
  }
  for (const [name, service] of sample(Object.entries(services), 4)) {
    const unit = unitFile(newHome(t), service)
    const scope = service.system ? [] : ['--user']
    const verified = spawnSync('systemd-analyze', [...scope, 'verify', '--man=no', unit], { encoding: 'utf8' })
    const own = verified.stderr.split('\n').filter(line => line.includes('corral.service'))
    t.same(own, [], `${name}: ${verified.stderr}`)
    if (!service.system) continue
    const flags = ['security', '--offline=true', '--threshold=25', '--no-pager', unit]
    const rated = spawnSync('systemd-analyze', flags, { encoding: 'utf8' })
    t.equal(rated.status, 0, `exposure above 2.5:\n${rated.stdout.split('\n').slice(-3).join('\n')}${rated.stderr}`)
  }
})

t.test('launchdAgent creates a valid agent with special characters in paths', async t => {
  if (spawnSync('python3', ['--version']).status !== 0) return t.comment('skipped: there is no Python')
  const service = {
    ...USUAL,
    system: false,
    flags: ['--models', AWKWARD],
    environment: { HF_HOME: AWKWARD },
    home: AWKWARD
  }
  const parse = 'import json, plistlib, sys; print(json.dumps(plistlib.loads(sys.stdin.buffer.read())))'
  const { stdout, stderr } = spawnSync('python3', ['-c', parse], {
    input: launchdAgent(service, '/Users/me/.corral/logs/service.log'),
    encoding: 'utf8'
  })
  t.match(JSON.parse(stdout || JSON.stringify({ stderr })), {
    Label: 'corral',
    ProgramArguments: ['/usr/bin/node', '/usr/local/bin/corral', '--models', AWKWARD, 'serve'],
    EnvironmentVariables: { CORRAL_HOME: AWKWARD, HF_HOME: AWKWARD },
    RunAtLoad: true,
    KeepAlive: { SuccessfulExit: false },
    Umask: 0o077,
    StandardOutPath: '/Users/me/.corral/logs/service.log'
  })
  const place = { platform: 'darwin', uid: 501, userHome: '/Users/me', configHome: undefined } as const
  t.equal(serviceFile(place, false), '/Users/me/Library/LaunchAgents/corral.plist')
  t.match(installSteps(place, service, '/log', false), [
    { do: 'write', path: '/Users/me/Library/LaunchAgents/corral.plist' },
    { command: ['launchctl', 'bootout', 'gui/501/corral'], optional: true },
    { command: ['launchctl', 'bootstrap', 'gui/501', '/Users/me/Library/LaunchAgents/corral.plist'] }
  ])
})

t.test('scheduledTask creates a valid task with special characters in paths', async t => {
  const home = `C:\\Users\\Zoë & Söhne\\<models> 'x'`
  const service = { ...USUAL, system: false, command: ['C:\\node.exe', 'C:\\corral.mjs'], flags: ['--port', '1'], home }
  const task = scheduledTask(service, `${home}\\service.log`, 'DESK\\Zoë')
  t.match(task, /^[ -~\n]*$/, 'only ASCII, since schtasks reads files in the code page')
  const parse = `import json, sys, xml.etree.ElementTree as tree
print(json.dumps({part.tag.split('}')[1]: part.text for part in tree.fromstring(sys.stdin.buffer.read()).iter()}))`
  const { stdout, stderr } = spawnSync('python3', ['-c', parse], { input: task, encoding: 'utf8' })
  t.match(JSON.parse(stdout || JSON.stringify({ stderr })), {
    UserId: 'DESK\\Zoë',
    LogonType: 'InteractiveToken',
    ExecutionTimeLimit: 'PT0S',
    Command: 'conhost.exe',
    Arguments: `--headless cmd.exe /d /s /c "set "CORRAL_HOME=${home}"&& "C:\\node.exe" "C:\\corral.mjs" "--port" "1" "serve" >> "${home}\\service.log" 2>&1"`
  })
  t.throws(
    () => scheduledTask({ ...service, home: 'C:\\50% off' }, 'log', 'me'),
    /cannot contain the characters " and %/
  )
  const place = { platform: 'win32', uid: -1, user: 'me', userHome: '/me', configHome: undefined } as const
  const described = (steps: ReturnType<typeof installSteps>) =>
    steps.map(step => (step.do === 'run' ? step.command.join(' ') : `${step.do} ${step.path}`))
  const file = '/me/AppData/Local/corral/task.xml'
  t.same(described(installSteps(place, service, 'log', false)), [
    `write ${file}`,
    `schtasks.exe /Create /F /TN corral /XML ${file}`,
    'schtasks.exe /End /TN corral',
    'schtasks.exe /Run /TN corral'
  ])
  t.same(described(uninstallSteps(place, false)), [
    'schtasks.exe /End /TN corral',
    'schtasks.exe /Delete /F /TN corral',
    `remove ${file}`
  ])
})

t.test('a service of the machine gets its own user once', async t => {
  const commands = (hasAccount: boolean) =>
    installSteps(LINUX, USUAL, '', hasAccount).map(step => (step.do === 'run' ? step.command.join(' ') : step.path))
  const rest = [
    '/etc/systemd/system/corral.service',
    'systemctl daemon-reload',
    'systemctl enable corral',
    'systemctl restart corral'
  ]
  t.same(commands(true), rest)
  const [useradd, ...others] = commands(false)
  t.match(useradd, /^useradd --system --user-group --home-dir \/var\/lib\/corral .*corral$/)
  t.same(others, rest)
})

/** The words of a setting as a shell writes them. systemd has the same quoting, except for `%%` and `$$`. */
const forShell = (text: string) => text.replaceAll('%%', '%').replaceAll('$$', '\\$')

t.test('a server started as in the unit answers, reloads and stops', async t => {
  const home = newHome(t)
  const data = join(home, 'däta 100% $HOME "x"')
  const {
    code,
    stdout: unit,
    stderr
  } = await corral(['service', 'install', '--user', '--dry-run', '--port', '0', '--home', data], { home })
  t.equal(code, 0, stderr)
  t.match(stderr, /would write .*corral\.service[\s\S]*would run systemctl --user enable corral/)
  t.notOk(existsSync(data), 'nothing is created')
  const line = (name: string) => new RegExp(`^${name}=(.*)$`, 'm').exec(unit)![1]!
  const settings = [...unit.matchAll(/^Environment=(.*)$/gm)].map(([, text]) => forShell(text!.replaceAll('$', '$$$$')))
  const start = (text: string) =>
    spawn(
      '/bin/sh',
      ['-c', `umask ${line('UMask')}; exec env -i ${settings.join(' ')} HOME='${home}' ${forShell(text)}`],
      { cwd: line('WorkingDirectory'), stdio: ['ignore', 'pipe', 'pipe'] }
    )
  const server = start(line('ExecStart'))
  t.teardown(() => server.kill('SIGKILL'))
  let log = ''
  for (const stream of [server.stdout, server.stderr]) stream.setEncoding('utf8').on('data', text => (log += text))
  const address = await until('it listens', () => /listens on (http:[^"\s]+)/.exec(log)?.[1])
  t.ok(existsSync(join(data, 'owner.json')), 'on the named data directory')
  t.equal((await fetch(`${address}/livez`)).status, 200)
  const reload = start(line('ExecReload'))
  const [reloaded] = await once(reload, 'close')
  t.equal(reloaded, 0, 'reload finds the server')
  server.kill('SIGTERM')
  const [ended] = await once(server, 'close')
  t.equal(ended, 0, log)
})

/** A systemctl that records its calls, because no systemd runs in tests. */
function recordingSystemd(t: Test) {
  const folder = newHome(t)
  const calls = join(folder, 'calls')
  const states = `case "$*" in *UnitFileState*) cat '${folder}/state';; esac`
  writeScript(folder, 'systemctl', `echo "$*" >> '${calls}'\n${states}`)
  return {
    path: `${folder}:${process.env.PATH}`,
    folder,
    state: (text: string) => writeFileSync(join(folder, 'state'), text),
    calls: () => {
      const text = existsSync(calls) ? readFileSync(calls, 'utf8') : ''
      if (text !== '') unlinkSync(calls)
      return text.trim().split('\n')
    }
  }
}

t.test('service installs, shows and removes its file, and never touches others', async t => {
  const home = newHome(t)
  const systemd = recordingSystemd(t)
  const env = { XDG_CONFIG_HOME: join(home, 'config'), PATH: systemd.path, HOME: home, CORRAL_API_KEYS: 'hidden-key' }
  const service = (...args: string[]) => corral(['service', ...args, '--user'], { home, env })
  const file = join(home, 'config', 'systemd', 'user', 'corral.service')

  t.match(await service('status'), { code: 4, stderr: /corral service install/ })
  t.match(await service('uninstall'), { code: 0, stderr: /no service to remove/ })
  const first = await service('install', '--port', '8123')
  t.match(first, { code: 0, stdout: /journalctl --user -u corral/, stderr: /CORRAL_API_KEYS/ })
  t.same(systemd.calls(), [
    '--user show --property=Version',
    '--user daemon-reload',
    '--user enable corral',
    '--user restart corral'
  ])
  const text = readFileSync(file, 'utf8')
  t.match(text, /^ExecStart=.*scripts\/corral\.mjs"? --port 8123 serve$/m)
  t.notMatch(text, 'hidden-key')
  t.match(await service('install', '--port', '8123'), { code: 0 })
  t.equal(readFileSync(file, 'utf8'), text, 'a second time gives the same')

  systemd.state('UnitFileState=enabled\nActiveState=active\nSubState=running\nResult=success\n')
  t.match(await service('status'), { code: 0, stdout: /^state +active \(running\)$/m })
  systemd.state('UnitFileState=enabled\nActiveState=failed\nSubState=failed\nResult=exit-code\n')
  writeFileSync(file, text.replace(/^ExecStart=\S+/m, 'ExecStart=/gone/node'))
  t.match(await service('status'), {
    code: 3,
    stdout: /failed \(failed, exit-code\)/,
    stderr: /\/gone\/node.*no longer exists/
  })
  t.match(JSON.parse((await service('status', '--json')).stdout), { running: false, missing: ['/gone/node'] })

  systemd.calls()
  t.match(await service('uninstall', '--dry-run'), { code: 0, stderr: /would remove/ })
  t.ok(existsSync(file))
  t.match(await service('uninstall'), { code: 0, stderr: /data is kept in/ })
  t.same(systemd.calls().slice(-2), ['--user disable --now corral', '--user daemon-reload'])
  t.notOk(existsSync(file))

  writeFileSync(file, '[Service]\nExecStart=/usr/bin/mine\n')
  for (const act of ['install', 'uninstall']) {
    t.match(await service(act), { code: 1, stderr: /was not created by/ }, act)
    t.match(readFileSync(file, 'utf8'), '/usr/bin/mine')
  }
})

t.test('a service uses stable paths, and impossible services are rejected before anything is written', async t => {
  const home = newHome(t)
  const systemd = recordingSystemd(t)
  const config = join(home, 'config')
  const service = (env: Record<string, string>, ...args: string[]) =>
    corral(['service', 'install', '--user', ...args], { home, env: { XDG_CONFIG_HOME: config, HOME: home, ...env } })
  // Version managers create links for one shell in temporary folders. A service must not use them.
  symlinkSync(process.execPath, join(systemd.folder, 'node'))
  const shortLived = await service({ PATH: systemd.path }, '--dry-run')
  t.notMatch(shortLived.stdout, systemd.folder)

  const failing = newHome(t)
  writeScript(failing, 'systemctl', 'echo "Failed to connect to bus: No medium found" >&2; exit 1')
  t.match(await service({ PATH: `${failing}:${process.env.PATH}` }), {
    code: 1,
    stderr: /No medium found.*Log in as this user/
  })
  t.match(await service({ PATH: systemd.path }, '--port', 'abc'), { code: 2, stderr: /port/ })
  mkdirSync(join(home, 'data'))
  writeFileSync(join(home, 'data', 'config.yaml'), 'port: here\n')
  t.match(await service({ PATH: systemd.path }, '--home', join(home, 'data')), { code: 2, stderr: /port/ })
  t.match(await service({ PATH: systemd.path }, '--system'), {
    code: 2,
    stderr: /--system cannot be combined with --user/
  })
  t.notOk(existsSync(config), 'nothing was written')
})
