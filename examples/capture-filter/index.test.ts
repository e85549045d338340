import assert from 'node:assert/strict'
import test from 'node:test'
import { startTestCorral } from 'corral/testing'
import plugin from './index.js'

test('filter redacts captures but not answers', async () => {
  const key = 'a-key-of-an-admin-for-this-test'
  const config = `security: { api_keys: [${key}] }\ncapture-filter: { patterns: ['P-[0-9]+'] }`
  const admin = { authorization: `Bearer ${key}` }
  const corral = await startTestCorral({ plugins: [plugin], config })
  try {
    const model = 'corral/tiny-chat'
    const { body: capture } = await corral.json('/api/captures', { model, for: '1m' }, admin)
    const content = 'I am ann@example.org, my key is sk-0123456789abcdef0123, my order P-77'
    const { body } = await corral.json('/v1/chat/completions', { model, messages: [{ role: 'user', content }] }, admin)
    assert.match(body.choices[0].message.content, /ann@example\.org/)
    const [record] = await corral.events(`/api/captures/${capture.id}`, undefined, admin)
    const said = 'I am (email), my key is (key), my order (redacted)'
    assert.equal(record.body.messages[0].content, said)
    assert.doesNotMatch(JSON.stringify(record), /ann@|sk-01|P-77/)
  } finally {
    await corral.close()
  }
})
