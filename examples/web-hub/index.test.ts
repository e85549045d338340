import assert from 'node:assert/strict'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import test from 'node:test'
import { CorralError } from 'corral/plugin'
import { hubContract, startTestCorral } from 'corral/testing'
import plugin, { createHub } from './index.js'

test('it fulfils the contract of hubs', async () => {
  const server = createServer(({ url }, reply) => {
    reply.writeHead(url === '/owner/model/model.gguf' ? 200 : 404, { 'content-length': 4 }).end('GGUF')
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  try {
    const { port } = server.address() as AddressInfo
    const error = (...values: ConstructorParameters<typeof CorralError>) => new CorralError(...values)
    await hubContract(createHub({ error }, `http://127.0.0.1:${port}`), { id: 'owner/model', absent: 'owner/none' })
  } finally {
    server.closeAllConnections()
    server.close()
  }
})

test('a server starts with it', async () => {
  const corral = await startTestCorral({ plugins: [plugin] })
  try {
    assert.equal((await corral.plugin('web-hub'))?.state, 'active')
  } finally {
    await corral.close()
  }
})
