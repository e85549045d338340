import test from 'node:test'
import { surfaceContract } from 'corral/testing'
import plugin from './index.js'

test('it fulfils the contract of surfaces', async () => {
  await surfaceContract(plugin, { path: '/describe-api/describe', body: { model: 'corral/tiny-chat' } })
})
