import { copyFileSync, mkdirSync, readFileSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { packageRoot } from '../../../../core/system/package-info.ts'
import { rayPlaces } from '../../../../plugins/machines/ray/ray-cluster.ts'
import { alive, until } from '../../../support/corral.ts'
import { realRay } from '../../../support/ray-python.ts'
import { corralOf, head, homeOf, LIMIT, parentOf, processesWith, run, startTrial } from './ray-trial.ts'

t.setTimeout(900_000)

t.test('a cluster on Ray survives kills of its parts', realRay(), async t => {
  const refused = await run(homeOf('front'), 'cluster', 'up', '--ray', 'local', '--bind', '127.0.0.1')
  t.match(refused, { code: 2, stderr: /Ray cannot use 127\.0\.0\.1/ })

  const { nodes, gateway, made, up, members, mine, status } = await startTrial(t)
  const [b, c] = nodes
  // Runs the commands of the guide with other addresses.
  const guide = readFileSync(join(packageRoot, 'docs', 'cluster-ray.md'), 'utf8')
  const [printed] = /corral cluster join .*/.exec(made.stderr) ?? ['nothing']
  t.equal(printed, `corral cluster join ${head} --token-file token`)
  t.ok(guide.includes(printed.replace(head, '192.168.1.10:6379')))
  for (const command of ['up --ray local', 'status', 'down']) t.ok(guide.includes(`corral cluster ${command}`), command)
  t.equal(statSync(join(gateway.home, 'cluster', 'token')).mode & 0o777, 0o600)
  let [ofB, ofC] = await Promise.all([corralOf(b), corralOf(c)])
  const key = readFileSync(join(b.home, 'cluster.key'), 'utf8').trim()
  const who = await (await fetch(`${b.url}/api/whoami`, { headers: { authorization: `Bearer ${key}` } })).json()
  t.match(who, { role: 'operator' }, 'the gateway is an operator there')
  t.same(processesWith(key), [], 'no command line contains the key')
  t.notOk(gateway.log().includes(key), 'nor does the log')

  await t.test('a killed corral is replaced', async t => {
    process.kill(ofB, 'SIGKILL')
    ofB = await corralOf(b, ofB)
    t.equal(await members(), 'b,c')
  })

  await t.test('killing the supervisor of a member ends its corral, and both are restarted', async t => {
    const [before, supervisor] = [ofC, parentOf(ofC)]
    process.kill(supervisor, 'SIGKILL')
    await until('the corral is gone', () => !alive(before))
    ofC = await corralOf(c, before)
    t.not(parentOf(ofC), supervisor)
    t.equal(await members(), 'b,c', 'the gateway has not forgotten it')
    t.ok(alive(ofB))
  })

  await t.test('the address of a live node is refused to another one', async t => {
    const token = join(gateway.home, 'cluster', 'token')
    const args = ['cluster', 'join', head, '--bind', new URL(b.url).hostname, '--token-file', token]
    const home = homeOf('another')
    mkdirSync(home)
    t.teardown(() => rmSync(rayPlaces(home).temp, { recursive: true, force: true }))
    copyFileSync(join(b.home, 'config.yaml'), join(home, 'config.yaml'))
    t.match(await run(home, ...args), { code: 1, stderr: /has a node at \S+ already. Stop it/ })
    t.ok(alive(ofB))
  })

  await t.test('the program that watches members is restarted when killed', async t => {
    const watching = () => processesWith('corral_ray.py').filter(pid => parentOf(pid) === gateway.process.pid)
    const [first] = watching()
    process.kill(first!, 'SIGKILL')
    await until('another one', () => watching().some(pid => pid !== first), LIMIT)
    await until(
      'it is reported',
      () => gateway.log().includes("The program that watches Ray's members has ended"),
      LIMIT
    )
    t.equal(await members(), 'b,c', 'the members stay meanwhile')
  })

  await t.test('"up" again changes nothing, and the status shows it', async t => {
    t.match(await up(), { code: 0, stderr: /already runs at \S+/ })
    const found = await until(
      'all are up',
      async () => {
        const now = await status()
        return now.controller === 'up' ? now : undefined
      },
      LIMIT
    )
    t.match(found, { address: head, authentication: true })
    t.match(
      found.nodes.map(({ name, member }: any) => [name, member?.state]),
      [
        ['b', 'up'],
        ['c', 'up'],
        [String, undefined]
      ]
    )
    t.notOk(JSON.stringify(found).includes(key))
    t.same([await corralOf(b), await corralOf(c)], [ofB, ofC])
  })

  await t.test('a drained member refuses requests until it is resumed', async t => {
    const stateOf = async () => (await status()).front.members.find(({ name }: any) => name === 'b')?.state
    await until('the gateway reaches it', async () => (await stateOf()) === 'up', LIMIT)
    t.equal((await run(gateway.home, 'cluster', 'drain', 'b')).code, 0)
    await until('it drains', async () => (await stateOf()) === 'draining', LIMIT)
    t.equal((await run(gateway.home, 'cluster', 'drain', 'b', '--undo')).code, 0)
    await until('it is back', async () => (await stateOf()) === 'up', LIMIT)
    t.equal((await run(gateway.home, 'cluster', 'drain', 'nobody')).code, 4)
  })

  await t.test('"down" ends everything', async t => {
    const down = await run(gateway.home, 'cluster', 'down')
    t.equal(down.code, 0, down.stderr)
    t.notOk(alive(ofB) || alive(ofC), 'the members have ended')
    for (const { join } of nodes) join.kill('SIGTERM')
    await gateway.end()
    await until('nothing is left', () => processesWith(...mine).length === 0, LIMIT)
    const none = await run(gateway.home, 'cluster', 'status')
    t.match(none, { code: 3, stderr: /No Ray cluster is in use.*cluster up --ray local/ })
  })
})
