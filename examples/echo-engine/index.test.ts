import assert from 'node:assert/strict'
import test from 'node:test'
import { engineContract, startTestCorral } from 'corral/testing'
import plugin from './index.js'

const model = 'echo/parrot'

test('plugin fulfils the contract of engines', () => engineContract(plugin, { model }))

test('engine answers on /v1', async () => {
  const corral = await startTestCorral({ plugins: [plugin], echo: false })
  try {
    const messages = [{ role: 'user', content: 'Hello there' }]
    const { body } = await corral.json('/v1/chat/completions', { model, messages })
    assert.equal(body.choices[0].message.content, 'Hello there')
  } finally {
    await corral.close()
  }
})
