import { once } from 'node:events'
import t from 'tap'
import { alive, until } from '../../../support/corral.ts'
import { realRay } from '../../../support/ray-python.ts'
import { corralOf, LIMIT, processesWith, run, startTrial } from './ray-trial.ts'

t.setTimeout(900_000)

t.test('a cluster on Ray survives the loss of machines', realRay(), async t => {
  const { nodes, gateway, members, mine, temps, status } = await startTrial(t)
  const [b, c] = nodes
  let ofB = await corralOf(b)
  const ofC = await corralOf(c)

  await t.test('members continue without the head, which is restarted with its state', async t => {
    const said = () => gateway.log().split('a source of members works again').length
    const before = said()
    for (const pid of processesWith(`${temps[0]}/`)) process.kill(pid, 'SIGKILL')
    await until('the fault is reported', () => gateway.log().includes("Ray's head on this machine is gone"), LIMIT)
    t.ok((await fetch(`${b.url}/api/health`)).ok, 'b answers')
    await until('the head is back', () => said() > before, LIMIT)
    await until('the controller is back', async () => (await status()).controller === 'up', LIMIT)
    t.same([await corralOf(b), await corralOf(c)], [ofB, ofC], 'the same processes')
    t.equal(await members(), 'b,c')
  })

  await t.test('killing a node ends its member, and "join" restarts both', async t => {
    const [raylet] = processesWith(`raylet_socket_name=${temps[1]}/`)
    process.kill(raylet!, 'SIGKILL')
    await until('the corral is gone', () => !alive(ofB), LIMIT)
    ofB = await corralOf(b, ofB)
    await until('the gateway knows it again', async () => (await members()) === 'b,c', LIMIT)
    t.ok(alive(ofC))
  })

  await t.test('killing "join" leaves nothing of its node', async t => {
    b.join.kill('SIGKILL')
    await until('all is gone', () => !alive(ofB) && processesWith(`${temps[1]}/`).length === 0, LIMIT)
    await until('the gateway has forgotten it', async () => (await members()) === 'c', LIMIT)
    t.ok(alive(ofC))
  })

  await t.test('members continue when the gateway is killed, and a machine leaves', async t => {
    await gateway.end('SIGKILL')
    t.ok((await fetch(`${c.url}/api/health`)).ok)
    const ended = once(c.join, 'exit')
    c.join.kill('SIGTERM')
    t.equal((await ended)[0], 0, c.output())
    await until('all is gone', () => !alive(ofC) && processesWith(`${temps[2]}/`).length === 0, LIMIT)
  })

  await t.test('"down" ends everything', async t => {
    const down = await run(gateway.home, 'cluster', 'down')
    t.equal(down.code, 0, down.stderr)
    t.same(processesWith(...mine), [], 'nothing is left')
  })
})
