import { existsSync, mkdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { corral, newHome, writeScript } from '../command-line/command.ts'
import { recording } from '../plugins/running/hardware/support.ts'
import { CAPITAL_ANSWER, capital, startCorral, until } from '../support/corral.ts'

/* corral as on a Mac: a real process that takes itself for one, with recorded answers of the system's programs. docs/systems.md
   lists what no test covers. */

/** Variables that make every Node.js process take this machine for a Mac. */
function likeMac(folder: string): Record<string, string> {
  const preload = join(folder, 'mac.cjs')
  writeFileSync(preload, "Object.defineProperty(process, 'platform', { value: 'darwin' })\n")
  const answer = (name: string, cases: string) => writeScript(folder, name, `case "$*" in\n${cases}\nesac`)
  const file = (name: string, text: string) => {
    writeFileSync(join(folder, name), text)
    return `cat '${join(folder, name)}'`
  }
  const memory = file('memory', recording('macos/sysctl-memsize-16gb.txt'))
  answer('sysctl', `*memsize*) ${memory};;\n*) ${file('cpu', recording('macos/sysctl-cpu-m1.txt'))};;`)
  answer('vm_stat', `*) ${file('pages', 'page size of 16384 bytes\nPages free: 300000.\nPages inactive: 200000.\n')};;`)
  answer('system_profiler', `*) ${file('gpu', recording('macos/system_profiler-displays-m5max.json.txt'))};;`)
  answer('open', `*) printf '%s' "$*" > '${folder}/opened';;`)
  const agent = `${folder}/agent`
  const calls = `echo "$*" >> '${folder}/calls'`
  writeScript(
    folder,
    'launchctl',
    `${calls}\ncase "$1" in
bootstrap) touch '${agent}';;
bootout) rm '${agent}';;
print) test -e '${agent}' && printf 'gui/501/corral = {\\n\\tstate = running\\n}\\n' || exit 113;;
esac`
  )
  return {
    NODE_OPTIONS: `--require ${preload}`,
    PATH: `${folder}:${process.env.PATH}`,
    HOME: folder,
    SSH_CONNECTION: ''
  }
}

t.test('a server starts, answers, finds the hardware and keeps others out of its directory', async t => {
  const env = likeMac(newHome(t))
  const server = await startCorral(t, { env })
  t.match((await server.json('/api/chat', capital())).body, { message: { content: CAPITAL_ANSWER } })
  const { home } = server
  const { hardware } = JSON.parse((await corral(['doctor', '--json'], { home, env })).stdout)
  t.match(hardware, {
    platform: 'darwin',
    cpu: { model: 'Apple M1' },
    gpus: [{ vendor: 'apple', name: 'Apple M5 Max' }],
    memory: { total: 16 * 2 ** 30, available: 500_000 * 16_384 }
  })
  t.match(await corral(['serve', '--port', '0'], { home, env }), { code: 1, stderr: /Another corral \(process \d+/ })

  t.comment('open hands over a page that only this user can read')
  t.match(await corral(['open'], { home, env }), { code: 0, stderr: /^Opened http:/ })
  const page = await until('it is opened', () => {
    const record = join(env.HOME!, 'opened')
    return existsSync(record) ? fileURLToPath(readFileSync(record, 'utf8')) : undefined
  })
  t.equal(statSync(page).mode & 0o777, 0o600)
  t.match(readFileSync(page, 'utf8'), /url=http:\/\/127\.0\.0\.1:\d+\/#open=/)

  t.comment('after a kill, the next server takes over')
  await server.end('SIGKILL')
  const next = await startCorral(t, { env, home })
  t.equal((await next.json('/api/tags')).status, 200)
})

t.test('service creates, shows and removes a launchd agent', async t => {
  const home = newHome(t)
  const env = likeMac(home)
  mkdirSync(join(home, 'data'))
  const service = (...args: string[]) => corral(['service', ...args], { home: join(home, 'data'), env })
  const file = join(home, 'Library', 'LaunchAgents', 'corral.plist')
  t.match(await service('status'), { code: 4, stderr: /There is no service/ })
  t.match(await service('install', '--system'), { code: 1, stderr: /can only be a service of a user/ })
  t.match(await service('install', '--port', '8123'), { code: 0, stdout: /log +.*service\.log/ })
  t.match(readFileSync(file, 'utf8'), '<string>8123</string>')
  t.match(await service('status'), {
    code: 0,
    stdout: new RegExp(`^state +running\nlog +${join(home, 'data', 'logs')}`, 'm')
  })
  t.match(await service('uninstall'), { code: 0, stderr: new RegExp(`data is kept in ${join(home, 'data')}`) })
  t.notOk(existsSync(file))
  t.match(await service('status'), { code: 4 })
  const uid = process.getuid!()
  t.same(readFileSync(join(home, 'calls'), 'utf8').trim().split('\n'), [
    `bootout gui/${uid}/corral`,
    `bootstrap gui/${uid} ${file}`,
    `print gui/${uid}/corral`,
    `bootout gui/${uid}/corral`
  ])
})
