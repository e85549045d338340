import { createTransfers } from '../../plugins/download/transfer/create.ts'

/** Fetches one file with corral's engine, as a gateway does it, and prints how long that took. */
export async function fetchOne([url, target, size, sha256]: string[]): Promise<void> {
  const transfers = createTransfers({
    connections: 8,
    connectionsPerFile: 4,
    bandwidthLimit: 0,
    stallTimeout: 30_000
  })
  const began = performance.now()
  await transfers.run({
    identity: 'benchmark',
    files: [{ path: 'file', target: target!, size: Number(size), sha256: sha256! }],
    locate: async () => ({ url: url!, headers: {} }),
    signal: new AbortController().signal,
    onProgress: () => {}
  })
  console.log(JSON.stringify({ seconds: (performance.now() - began) / 1000 }))
  await transfers.close()
}
