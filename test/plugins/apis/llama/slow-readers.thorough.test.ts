import { once } from 'node:events'
import { connect } from 'node:net'
import t from 'tap'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, DEMO, startCorral, until } from '../../../support/corral.ts'
import { follow } from './feed.ts'

// Enough rows for their events to fill the buffers of a connection quickly.
const ALIASES = Array.from({ length: 5000 }, (_, at) => `helper-${at}`)
const corral = await startCorral(t, {
  config: `limits:\n  reader_stall: 2s\nmodels:\n  ${DEMO}:\n    aliases: [${ALIASES.join(', ')}]\n`
})
const post = (path: string) => corral.json(path, { model: DEMO })

t.test('a feed listener that stops reading is disconnected without affecting others', async t => {
  const { port } = new URL(corral.url)
  const stalled = connect(Number(port), '127.0.0.1')
  stalled.on('error', () => {})
  let received = ''
  stalled.setEncoding('utf8').on('data', chunk => {
    received += chunk
  })
  stalled.write('GET /models/sse HTTP/1.1\r\nHost: localhost\r\n\r\n')
  await until('the listener is connected', () => received.includes(': following'))
  stalled.pause()
  const feed = await follow(corral)
  t.teardown(feed.leave)
  const states = () => feed.events.filter(({ model }) => model === DEMO).map(({ data }) => data.status)
  const LOADS = 4
  for (let loads = 1; loads <= LOADS; loads++) {
    t.equal((await post('/models/load')).status, 200)
    await until(
      'the other listener receives each load',
      () => states().filter(state => state === 'loaded').length === loads
    )
    const chat = { model: DEMO, messages: [CAPITAL_QUESTION], temperature: 0 }
    t.equal((await corral.json('/v1/chat/completions', chat)).body.choices[0].message.content, CAPITAL_ANSWER)
    t.equal((await post('/models/unload')).status, 200)
    await until('and each unload', () => states().filter(state => state === 'unloaded').length === loads)
  }
  const closed = once(stalled, 'close')
  stalled.resume()
  await closed
  const heard = received.split('"status":"unloaded"').length - 1
  t.comment(`received ${heard} of ${LOADS * (ALIASES.length + 1)} events`)
  t.ok(heard < LOADS * (ALIASES.length + 1), 'the stalled listener did not receive all events')
})
