import t from 'tap'
import { definePlugin } from '../../core/plugins/plugin.ts'
import filter from '../../examples/capture-filter/index.ts'
import { startTestCorral } from '../../testing/index.ts'

const KEY = 'a-key-of-an-admin-for-this-test'
const admin = { authorization: `Bearer ${KEY}` }
const model = 'corral/tiny-chat'

t.test('the capture filter redacts captures and leaves answers alone', async t => {
  const config = `security: { api_keys: [${KEY}] }\ncapture-filter: { patterns: ['P-[0-9]+'] }`
  const corral = await startTestCorral({ plugins: [filter], config })
  t.teardown(() => corral.close())
  const { body: capture } = await corral.json('/api/captures', { model, for: '1m' }, admin)
  const content = 'I am ann@example.org, my key is sk-0123456789abcdef0123, my order P-77'
  const messages = [{ role: 'user', content }]
  const { body } = await corral.json('/v1/chat/completions', { model, messages }, admin)
  t.equal(body.choices[0].message.content, content)
  const [record] = await corral.events(`/api/captures/${capture.id}`, undefined, admin)
  const redacted = 'I am (email), my key is (key), my order (redacted)'
  t.match(record, { body: { messages: [{ content: redacted }] }, answer: [{ content: redacted }], status: 200 })
})

t.test('the capture filter leaves out keys that must not be captured', async t => {
  const config = `security: { api_keys: [${KEY}] }\ncapture-filter: { omit: ['api_keys[0]'] }`
  const corral = await startTestCorral({ plugins: [filter], config })
  t.teardown(() => corral.close())
  const { body: capture } = await corral.json('/api/captures', { model, for: '1m' }, admin)
  await corral.json('/v1/completions', { model, prompt: 'Hello' }, admin)
  t.same(await corral.events(`/api/captures/${capture.id}`, undefined, admin), [])
  t.match((await corral.json('/api/captures', undefined, admin)).body.captures, [{ records: 0, dropped: 1 }])
})

t.test('a failing capture filter lets nothing be written', async t => {
  const failing = definePlugin({
    name: 'failing',
    api: 1,
    setup: () => ({
      on: {
        async capture() {
          throw new Error('no such rule')
        }
      }
    })
  })
  const corral = await startTestCorral({ plugins: [failing], config: `security: { api_keys: [${KEY}] }` })
  t.teardown(() => corral.close())
  const { body: capture } = await corral.json('/api/captures', { model, for: '1m' }, admin)
  t.equal((await corral.json('/v1/completions', { model, prompt: 'Hello' }, admin)).status, 200)
  t.same(await corral.events(`/api/captures/${capture.id}`, undefined, admin), [])
  t.match(corral.log(), /"failing\\" failed in its hook \\"capture\\": no such rule/)
})
