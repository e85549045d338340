/** Downloads one file in a process that may be killed: `transfer-child.js URL TARGET SIZE SHA256 CONNECTIONS`. */
import { TransferThread } from '../../plugins/models/download/transfer/transfers.ts'

const [url, target, size, sha256, connections] = process.argv.slice(2)
const transfers = new TransferThread({
  connections: 8,
  connectionsPerFile: Number(connections),
  bandwidthLimit: 0,
  stallTimeout: 5000
})
const [file] = await transfers.run({
  identity: 'kills',
  files: [{ path: 'file', target: target!, size: Number(size), sha256: sha256! }],
  locate: async () => ({ url: `${url}/file`, headers: {} }),
  signal: new AbortController().signal,
  onProgress: () => {}
})
process.send!(file)
await transfers.close()
process.disconnect()
