import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { createIdentity } from '../../../../plugins/machines/link/link-certificate.ts'
import { commandEnvironment, corral, MAIN } from '../../../command-line/command.ts'
import { getBlocks } from '../../../docs/guides.ts'
import { type Corral, DEMO, startCorral, until } from '../../../support/corral.ts'
import { startTlsServer, type TestNetwork, whyNoNetwork, withNetwork } from './network.ts'

const NO_MODEL = 'storage:\n  demo_model: false\n'
/** The commands of docs/link.md by their first three words. */
const commands = new Map(
  getBlocks('docs/link.md')
    .flatMap(({ text }) => text.trim().split('\n'))
    .map(line => [line.split(' ').slice(1, 3).join(' '), line.split(' ').slice(1)])
)

/** Runs `corral link`, and waits for the code. */
async function showCode(t: Test, { home }: Corral) {
  const child = spawn(process.execPath, [MAIN, ...commands.get('link')!], { env: commandEnvironment({ home }) })
  t.teardown(() => child.kill('SIGKILL'))
  let output = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', text => (output += text))
  const code = await until('a code is shown', () => /^\w{4}-\w{4}$/m.exec(output)?.[0])
  return { code, exited: once(child, 'exit'), output: () => output, kill: () => child.kill('SIGINT') }
}

const run = (where: Corral, words: string[]) => corral(words, { home: where.home })
const local = { local: true }
const stateOf = async (where: Corral) => (await where.json('/api/link', undefined, local)).body.machines[0]
const untilState = (where: Corral, state: string) =>
  until(`the machine is ${state}`, async () => (await stateOf(where))?.state === state, 90_000)
const untilListed = (where: Corral) =>
  until('its model is listed', async () => {
    const { models } = (await where.json('/api/tags', undefined, local)).body
    return models.some(({ name }: any) => name === DEMO)
  })

t.test('the commands of the guide link two machines', async t => {
  const config = 'link: { port: 0, discovery: false'
  const desk = await startCorral(t, { config: `${config}, name: desk }\n` })
  const laptop = await startCorral(t, { config: `${config}, name: laptop }\n${NO_MODEL}` })
  const shown = await showCode(t, desk)
  const place = /\S+:(\d+)$/m.exec(shown.output())
  t.ok(place, shown.output())
  const linked = await run(laptop, ['link', shown.code, `127.0.0.1:${place![1]}`])
  t.equal(linked.code, 0, linked.stderr)
  t.equal((await shown.exited)[0], 0, shown.output())
  await untilListed(laptop)
  t.match((await run(laptop, ['list'])).stdout, DEMO)
  const list = await run(laptop, commands.get('link list')!)
  t.match(list.stdout, /desk +here .* ask/)
  t.equal((await run(laptop, ['pull', DEMO, '--from', 'desk'])).code, 0)
  t.match((await run(laptop, ['list'])).stdout, /gguf/)
  for (const name of ['link allow', 'link remove']) {
    const { code, stderr } = await run(desk, commands.get(name)!)
    t.equal(code, 0, `${name}: ${stderr}`)
  }
  t.match(await run(desk, commands.get('link wake')!), { code: 4, stderr: /No machine named "desk" is linked/ })
  t.match(await run(laptop, ['link', 'list']), { stdout: /desk/ })

  t.test('Ctrl-C cancels the code', async t => {
    const again = await showCode(t, desk)
    again.kill()
    t.equal((await again.exited)[0], 130)
    t.equal((await desk.json('/api/link', undefined, local)).body.code, undefined)
    const late = await run(laptop, ['link', again.code, `127.0.0.1:${place![1]}`])
    t.equal(late.code, 1)
    t.match(late.stderr, 'error: ')
  })
})

t.test('machines find each other in a network', async t => {
  const why = whyNoNetwork()
  if (why !== undefined) return t.comment(`SKIPPED: ${why}`)
  await withNetwork(t, ['desk', 'laptop', 'liar'], async network => {
    const start = (name: string, more = '') =>
      startCorral(t, { launcher: network.launcher(name), config: `link: { name: ${name} }\n${more}` })
    const desk = await start('desk')
    const laptop = await start('laptop', NO_MODEL)
    const shown = await showCode(t, desk)
    const linked = await run(laptop, ['link', shown.code])
    t.equal(linked.code, 0, linked.stderr)
    t.equal((await shown.exited)[0], 0)
    await untilState(laptop, 'here')
    await untilListed(laptop)
    const ask = async () => {
      const chat = {
        model: DEMO,
        messages: [{ role: 'user', content: 'What is the capital of France?' }],
        stream: false
      }
      const { status, body } = await laptop.json('/api/chat', chat, local)
      t.match(body.message?.content, 'Paris', `${status} ${JSON.stringify(body)}`)
    }
    await ask()

    t.comment('a cut in one direction')
    network.cut('desk', 'laptop', true)
    await untilState(laptop, 'absent')
    t.strictSame((await laptop.json('/api/tags', undefined, local)).body.models, [])
    network.cut('desk', 'laptop', false)
    await untilState(laptop, 'here')

    t.comment('another machine gets the old address, and the machine moves to a new one')
    const before = network.address('desk')
    network.move('desk', 77)
    network.move('liar', before)
    const liar = await startTlsServer(t, network.launcher('liar'), createIdentity())
    await until('the machine is found at its new address', async () =>
      (await stateOf(laptop))?.address?.includes(network.address('desk'))
    )
    await untilListed(laptop)
    await ask()
    await sleep(100)
    t.strictSame(liar.requests(), [], 'a machine with another certificate gets no request')
  })
})

t.test('three machines link in a network without IPv4', async t => {
  const why = whyNoNetwork()
  if (why !== undefined) return t.comment(`SKIPPED: ${why}`)
  const names = ['desk', 'laptop', 'tower']
  const work = async (network: TestNetwork) => {
    const start = (name: string, more = '') =>
      startCorral(t, { launcher: network.launcher(name), config: `link: { name: ${name} }\n${more}` })
    const desk = await start('desk')
    const [laptop, tower] = [await start('laptop', NO_MODEL), await start('tower', NO_MODEL)]
    for (const [there, here] of [
      [desk, laptop],
      [laptop, tower]
    ] as const) {
      const shown = await showCode(t, there)
      const [, words] = /corral (link \S+ \S+)/.exec(shown.output()) ?? []
      t.ok(words, shown.output())
      const linked = await run(here, words!.split(' '))
      t.equal(linked.code, 0, `${words}: ${linked.stderr}`)
      t.equal((await shown.exited)[0], 0)
    }
    await untilListed(laptop)
    await untilState(tower, 'here')
    t.strictSame(
      (await tower.json('/api/tags', undefined, local)).body.models,
      [],
      'a machine offers only its own models'
    )
  }
  await withNetwork(t, names, work, true)
})
