import { readdirSync } from 'node:fs'
import t from 'tap'
import { alive, DEMO, endless, startCorral, until } from '../support/corral.ts'

t.test('a hundred reloads under load break no answer, leak no descriptor, and allow a clean shutdown', async t => {
  const config = `models: { ${DEMO}: { options: { num_parallel: 4 } } }\n`
  const corral = await startCorral(t, { config })
  const pid = corral.process.pid!
  const reload = (n: number) => {
    corral.configure(
      `${config}limits: { n: ${n} }\nsecurity: { hosts: [host-${n}.example] }\nscheduler: { max_queue: ${500 + n} }\n`
    )
    return corral.json('/api/reload', undefined, { method: 'POST', local: true })
  }
  await corral.json('/api/load', { model: DEMO }, { local: true })
  const [engine] = corral.enginePids()
  const answers = Array.from({ length: 4 }, () =>
    corral.events('/api/chat', endless(DEMO, { max_tokens: 300, num_ctx: 4096 }))
  )
  for (let n = 1; n <= 20; n++) t.equal((await reload(n)).status, 200)
  const before = readdirSync(`/proc/${pid}/fd`).length
  for (let n = 21; n <= 100; n++) t.equal((await reload(n)).body.applied?.length, 3)
  for (const events of await Promise.all(answers)) t.match(events.at(-1), { done: true, eval_count: 300 })
  await until('no descriptor is leaked', () => readdirSync(`/proc/${pid}/fd`).length <= before)
  t.notMatch(corral.log(), /MaxListenersExceeded/)
  t.same(corral.enginePids(), [engine])
  const both = await Promise.all([reload(1), reload(2)])
  t.match(both, [{ status: 200 }, { status: 200 }], 'two at once')
  void reload(3).catch(() => undefined)
  t.equal(await corral.end('SIGTERM'), 0)
  t.notOk(alive(engine!))
})
