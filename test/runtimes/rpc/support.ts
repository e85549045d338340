import { readdirSync, readFileSync } from 'node:fs'
import { createServer } from 'node:net'

/** Process ids of the `ggml-rpc-server`s that listen on a port (Linux only, from /proc). */
export function rpcServers(port: number): number[] {
  return readdirSync('/proc').flatMap(entry => {
    if (!/^\d+$/.test(entry)) return []
    try {
      const words = readFileSync(`/proc/${entry}/cmdline`, 'utf8').split('\0')
      const isOne = words[0]!.endsWith('ggml-rpc-server') && words[words.indexOf('-p') + 1] === `${port}`
      return isOne && !readFileSync(`/proc/${entry}/stat`, 'utf8').includes(') Z ') ? [Number(entry)] : []
    } catch {
      // The process ended during the check.
      return []
    }
  })
}

/** Returns a free port followed by another free port. */
export async function freePorts(): Promise<number> {
  for (;;) {
    const port = 20_000 + Math.floor(Math.random() * 12_000)
    const both = await Promise.all(
      [port, port + 1].map(each => {
        return new Promise<boolean>(resolve => {
          const server = createServer()
          server.once('error', () => resolve(false))
          server.listen(each, '127.0.0.1', () => server.close(() => resolve(true)))
        })
      })
    )
    if (both.every(Boolean)) return port
  }
}
