import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import { startCorral, until } from '../../../support/corral.ts'
import { readState } from '../../../support/state-reader.ts'

const COUNT = 10_000
const STALLED = 14

// A plugin with ten thousand models, one of which comes and goes.
const plugin = join(t.testdir(), 'many.mjs')
writeFileSync(
  plugin,
  `const many = Array.from({ length: ${COUNT} }, (_, at) => ({ name: 'many/m' + at, capabilities: ['completion'] }))
  const with_ = [...many, { name: 'many/extra', capabilities: ['completion'] }]
  export default {
    name: 'many', api: 1, description: 'Many models', needs: ['catalog'],
    setup(context) {
      context.service('catalog').add({ name: 'many', models: () => (Math.floor(Date.now() / 3000) % 2 ? with_ : many) })
      return {}
    }
  }`
)
const corral = await startCorral(t, { config: `plugins: [${JSON.stringify(plugin)}]\n` })

t.test('the feed handles ten thousand models and many stalled readers', { timeout: 300_000 }, async t => {
  const first = await readState(corral)
  await until('all models', () => first.of('model').length > COUNT)
  t.ok(first.bytes() > 2 ** 21, `the snapshot has ${first.bytes()} bytes`)
  const { hostname, port } = new URL(corral.url)
  for (let at = 0; at < STALLED; at++) {
    const socket = connect(Number(port), hostname).pause()
    t.teardown(() => socket.destroy())
    await once(socket, 'connect')
    socket.write(`GET /api/events HTTP/1.1\r\nhost: ${hostname}:${port}\r\n\r\n`)
  }
  const seen = first.events.length
  await until('some changes', () => first.events.length >= seen + 6)
  const change = first.events.at(-1)!
  t.equal(change.event, 'change')
  t.ok(JSON.stringify(change.data).length < 2000, 'the change contains one model')
  const next = await readState(corral, '', { headers: { 'last-event-id': first.lastId() } })
  await until('the feed resumes', () => next.events.length > 0)
  t.equal(next.events[0]!.event, 'change')
  await Promise.all([first.leave(), next.leave()])
})
