import assert from 'node:assert/strict'
import test from 'node:test'
import { filterContract, startTestCorral } from 'corral/testing'
import plugin from './index.js'

const config = 'request-filter: { refuse: [weather], replace: { Hello: Good day } }'

test('plugin fulfils the contract of filters', () => filterContract(plugin, { refused: 'the weather', config }))

test('filter changes answers', async () => {
  const corral = await startTestCorral({ plugins: [plugin], config })
  try {
    const messages = [{ role: 'user', content: 'Hello there' }]
    const { body } = await corral.json('/v1/chat/completions', { model: 'corral/tiny-chat', messages })
    assert.equal(body.choices[0].message.content, 'Good day there')
  } finally {
    await corral.close()
  }
})
