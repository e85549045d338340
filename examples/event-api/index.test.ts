import assert from 'node:assert/strict'
import test from 'node:test'
import { startTestCorral, surfaceContract } from 'corral/testing'
import plugin from './index.js'

const request = { model: 'corral/tiny-chat', question: 'Who are you?' }

test('plugin fulfils the contract of APIs', () => surfaceContract(plugin, { path: '/event-api/ask', body: request }))

test('answers are named events', async () => {
  const corral = await startTestCorral({ plugins: [plugin] })
  try {
    const events = await corral.events('/event-api/ask', request)
    assert.equal(events.map(({ text = '' }) => text).join(''), 'Who are you?')
    assert.deepEqual(events.at(-1), { tokens: 3 })
  } finally {
    await corral.close()
  }
})
