import test from 'node:test'
import { surfaceContract } from 'corral/testing'
import plugin from './index.js'

const model = 'corral/tiny-chat'

test('plugin fulfils the contract of APIs', async () => {
  await surfaceContract(plugin, { path: '/describe-api/describe', body: { model } })
  await surfaceContract(plugin, { path: '/describe-api/ask', body: { model, question: 'Who are you?' } })
})
