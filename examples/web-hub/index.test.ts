import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import test from 'node:test'
import { hubContract } from 'corral/testing'
import plugin from './index.js'

test('plugin fulfils the contract of hubs', async () => {
  const server = createServer(({ url }, reply) => {
    reply.writeHead(url === '/owner/model/model.gguf' ? 200 : 404, { 'content-length': 4 }).end('GGUF')
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  try {
    const { port } = server.address() as AddressInfo
    const config = `web-hub: { address: 'http://127.0.0.1:${port}' }`
    await hubContract(plugin, { id: 'owner/model', absent: 'owner/none', config })
  } finally {
    server.closeAllConnections()
    server.close()
  }
})
