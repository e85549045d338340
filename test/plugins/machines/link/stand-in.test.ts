import t from 'tap'
import {
  begin,
  CAPITAL_ANSWER,
  type Corral,
  capital,
  DEMO,
  endless,
  startCorral,
  until
} from '../../../support/corral.ts'
import { getNodes } from '../cluster/support.ts'

const local = { local: true }
const configOf = (name: string) =>
  `link: {name: ${name}, port: 0, discovery: false}\nmodels:\n  ${DEMO}: {options: {num_parallel: 1, num_ctx: 32000}}\n`

// Streams that occupy a machine have load options (`endless`), so they are answered there.
/** Two linked machines with the same model, which answers one request at a time. */
const [desk, laptop] = await Promise.all([
  startCorral(t, { config: configOf('desk') }),
  startCorral(t, { config: configOf('laptop') })
])
const { code } = (await desk.json('/api/link/code', {}, local)).body
const { port } = (await desk.json('/api/link', undefined, local)).body
t.match(await laptop.json('/api/link/join', { code, host: `127.0.0.1:${port}` }, local), { status: 200 })

const untilLoaded = (loaded: string[]) =>
  until(`the desk has ${loaded} in memory`, async () => `${(await getNodes(laptop))[0]?.loaded}` === `${loaded}`)
const asked = () => desk.log().match(/POST \/api\/cluster\/ask 200/g)?.length ?? 0
const loadAt = async (corral: Corral) => t.match(await corral.json('/api/load', { model: DEMO }), { status: 200 })
/** A machine's own engine, without that of the other machine. */
const engineOf = async (corral: Corral) =>
  (await corral.json('/api/ps')).body.models.find(({ member }: any) => member === undefined)
const ask = async () => (await laptop.json('/api/chat', capital())).body.message?.content

t.test('a linked machine answers while the model is only in its memory', async t => {
  await loadAt(desk)
  await untilLoaded([DEMO])
  t.equal(await ask(), CAPITAL_ANSWER)
  await until('the desk has answered', () => asked() === 1)
  t.strictSame(laptop.enginePids(), [], 'it is not loaded here')
})

t.test('the asked machine answers as long as it has a free slot, and the other one while it has none', async t => {
  await loadAt(laptop)
  t.equal(laptop.enginePids().length, 1)
  t.equal(await ask(), CAPITAL_ANSWER)
  t.equal(asked(), 1)
  const busy = await begin(laptop, '/api/chat', endless(DEMO))
  t.equal(await ask(), CAPITAL_ANSWER, 'without waiting')
  await until('the desk has answered', () => asked() === 2)
  await busy.leave()
})

t.test('a request waits here if the other machine is busy, does not have it in memory, or is lost', async t => {
  await loadAt(laptop)
  const occupy = (corral: Corral) => begin(corral, '/api/chat', endless(DEMO))
  const before = asked()
  const here = await occupy(laptop)
  const there = await occupy(desk)
  await until('the laptop knows', async () => (await getNodes(laptop))[0].running === 1)
  const first = ask()
  await until('it waits', async () => (await engineOf(laptop)).queued === 1)
  await there.leave()
  await desk.json('/api/stop', { model: DEMO })
  await untilLoaded([])
  const second = ask()
  await until('both wait', async () => (await engineOf(laptop)).queued === 2)
  await here.leave()
  t.strictSame(await Promise.all([first, second]), [CAPITAL_ANSWER, CAPITAL_ANSWER])
  t.equal(asked(), before)
  t.strictSame(desk.enginePids(), [])

  await loadAt(desk)
  await untilLoaded([DEMO])
  const again = await occupy(laptop)
  const long = laptop.json('/api/chat', { ...capital(), options: { num_predict: 2000, ignore_eos: true } })
  await until('the desk answers', async () => (await engineOf(desk)).running === 1)
  await desk.end('SIGKILL')
  await until('it waits here', async () => (await engineOf(laptop)).queued === 1)
  await again.leave()
  t.match(await long, { status: 200, body: { done_reason: 'length' } })
})
