import { execFileSync } from 'node:child_process'
import { readdirSync } from 'node:fs'
import t from 'tap'
import { corralWithHub, largeGguf, MIB } from '../plugins/models/download/support.ts'
import { type Corral, until } from '../support/corral.ts'
import { startHubEmulator } from '../support/hub-emulator/hub-emulator.ts'
import type { EmulatedRepository } from '../support/hub-emulator/repositories.ts'
import { clientFrom } from '../support/other-client.ts'

const COUNT = 150
/** A hub that sends almost nothing for as long as a client waits. */
const TARPIT = { total: 2000 }

const descriptors = (pid: number) => readdirSync(`/proc/${pid}/fd`).length
const countStates = async (corral: Corral) => {
  const { pulls } = (await corral.json('/api/pulls')).body
  const count = (state: string) => pulls.filter((pull: any) => pull.state === state).length
  return { downloading: count('downloading'), waiting: count('waiting'), all: pulls.length }
}

t.test("150 pulls of one client do not stop another client's pull", async t => {
  const repositories: Record<string, EmulatedRepository> = {}
  for (let i = 0; i < COUNT; i++)
    repositories[`evil/m${i}-GGUF`] = { files: { [`m${i}-Q8_0.gguf`]: largeGguf(MIB / 4, i) } }
  const tarpit = await startHubEmulator(t, { repositories, bandwidth: TARPIT })
  const quick = await startHubEmulator(t, {
    hub: 'modelscope',
    repositories: {
      'good/one-GGUF': { files: { 'one-Q8_0.gguf': largeGguf(MIB / 4, 1001) } },
      'good/two-GGUF': { files: { 'two-Q8_0.gguf': largeGguf(MIB / 4, 1002) } }
    }
  })
  const home = t.testdir()
  const options = { home, env: { MODELSCOPE_ENDPOINT: quick.url }, config: 'limits:\n  waiting_pulls: 20' }
  const corral = await corralWithHub(t, tarpit, options)
  const { pid } = corral.process
  execFileSync('prlimit', ['--pid', String(pid), '--nofile=256:256'])
  const attacker = clientFrom(t, corral, '127.0.0.2')
  const before = descriptors(pid!)
  const replies = await Promise.all(
    Array.from({ length: COUNT }, (_, i) => attacker.json('/api/pull', { model: `evil/m${i}-GGUF`, detach: true }))
  )
  const accepted = replies.filter(({ status }) => status === 202)
  const refused = replies.filter(({ status }) => status === 429)
  t.equal(accepted.length + refused.length, COUNT, 'each is accepted or refused')
  t.ok(accepted.length <= 4 + 20)
  t.match(refused[0]!.body, { code: 'rate_limited', error: /^20 pulls are already waiting, .*limits\.waiting_pulls/ })
  t.ok(Number(refused[0]!.headers.get('retry-after')) > 0)
  const states = await until('they are downloading', async () => {
    const found = await countStates(corral)
    return found.downloading === 4 ? found : undefined
  })
  t.equal(states.waiting, accepted.length - 4)

  const honest = clientFrom(t, corral, '127.0.0.1')
  const pulled = await honest.json('/api/pull', { model: 'modelscope:good/one-GGUF', stream: false })
  t.match(pulled, { status: 200, body: { status: 'success' } }, 'another client gets its turn immediately')
  // The first client's pulls are paused, and resume when no other client needs the slot.
  await until('the slot is used again', async () => (await countStates(corral)).downloading === 4)
  t.ok(descriptors(pid!) - before < 100, `${descriptors(pid!) - before} more descriptors`)
  t.equal((await corral.json('/api/health')).status, 200)
  t.notMatch(corral.log(), /EMFILE|too many open files/i)
  const mine = (await corral.json('/api/pulls')).body.pulls.find((pull: any) => pull.state === 'waiting').id
  t.match(await honest.json('/api/pulls/cancel', { id: mine }), { status: 200 }, 'operators share the models')

  await corral.end('SIGKILL')
  const again = await corralWithHub(t, tarpit, options)
  const after = await until('they continue', async () => {
    const found = await countStates(again)
    return found.downloading === 4 ? found : undefined
  })
  t.same(after, { downloading: 4, waiting: accepted.length - 5, all: accepted.length - 1 })
  const back = clientFrom(t, again, '127.0.0.1')
  t.match(await back.json('/api/pull', { model: 'modelscope:good/two-GGUF', stream: false }), {
    status: 200,
    body: { status: 'success' }
  })
})

t.test('a queued pull reports that it is waiting', async t => {
  const repositories: Record<string, EmulatedRepository> = {}
  for (const name of ['a', 'b'])
    repositories[`me/${name}-GGUF`] = { files: { [`${name}-Q8_0.gguf`]: largeGguf(MIB, 7) } }
  const hub = await startHubEmulator(t, { repositories, bandwidth: TARPIT })
  const corral = await corralWithHub(t, hub, { config: 'limits:\n  pulls: 1' })
  const first = await corral.json('/api/pull', { model: 'me/a-GGUF', detach: true })
  t.match(first, { status: 202, body: { state: /downloading/ } })
  const leaving = new AbortController()
  const reply = await corral.send('/api/pull', { model: 'me/b-GGUF' }, { signal: leaving.signal })
  let text = ''
  for await (const chunk of reply.body!) {
    text += Buffer.from(chunk).toString()
    if (text.includes('waiting')) break
  }
  leaving.abort()
  t.match(text, /"status":"waiting for other pulls"/)
  t.match(await countStates(corral), { downloading: 1, waiting: 1 })
  t.match(await corral.json('/api/pulls/cancel', { model: 'me/a-GGUF' }), { status: 200 })
  hub.bandwidth = {}
  const events = await corral.events('/api/pull', { model: 'me/b-GGUF' })
  t.match(events.at(-1), { status: 'success' })
})
