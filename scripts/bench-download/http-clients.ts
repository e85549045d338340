import { execFileSync } from 'node:child_process'
import { Agent } from 'undici'
import { ConnectionPool } from '../../plugins/models/download/transfer/http-connection.ts'
import { median } from '../bench/measuring.ts'

/** Bytes received before the measurement, to open connections and compile code. */
const WARM_UP = 64 * 1024 * 1024

/** Receives bytes into the same memory again and again, as a transfer does before it writes them. */
class Memory {
  readonly #buffer = Buffer.allocUnsafeSlow(256 * 1024)
  #filled = 0
  received = 0

  room(): Buffer {
    return this.#buffer.subarray(this.#filled)
  }

  took(length: number): boolean {
    this.received += length
    this.#filled = (this.#filled + length) % this.#buffer.length
    return true
  }
}

type Receive = (url: URL, end: number, memory: Memory) => Promise<unknown>

function corralClient(): Receive {
  const connections = new ConnectionPool()
  const { signal } = new AbortController()
  return (url, end, memory) =>
    connections.get(
      { url, headers: { Range: `bytes=0-${end - 1}` }, proxy: undefined },
      {
        signal,
        stallTimeout: 30_000,
        receiver: { onHead: () => true, room: () => memory.room(), onBytes: length => memory.took(length) }
      }
    )
}

/** undici without its streams: a handler copies the received bytes. */
function undiciClient(): Receive {
  const agent = new Agent({ headersTimeout: 30_000, bodyTimeout: 30_000 })
  return (url, end, memory) =>
    new Promise((resolve, reject) => {
      agent.dispatch(
        { origin: url.origin, path: url.pathname, method: 'GET', headers: { Range: `bytes=0-${end - 1}` } },
        {
          // Otherwise undici treats the handler as its legacy kind.
          onRequestStart() {},
          onResponseData(_controller, bytes) {
            for (let at = 0; at < bytes.length; ) {
              const room = memory.room()
              const length = bytes.copy(room, 0, at, at + room.length)
              at += length
              memory.took(length)
            }
          },
          onResponseEnd: resolve,
          onResponseError: (_controller, error) => reject(error)
        }
      )
    })
}

export async function receiveOne([client, address, size]: string[]): Promise<void> {
  const url = new URL(address!)
  const receive = client === 'corral' ? corralClient() : undiciClient()
  await receive(url, WARM_UP, new Memory())
  const memory = new Memory()
  const before = process.cpuUsage()
  await receive(url, Number(size), memory)
  const { user, system } = process.cpuUsage(before)
  if (memory.received !== Number(size)) throw new Error(`${client} received ${memory.received} bytes`)
  console.log((user + system) / 1e6)
  process.exit()
}

/** Seconds of processor time per GB over TLS, alternating between the clients. */
export async function compareClients(
  url: string,
  size: number,
  certificate: string,
  rounds: number
): Promise<Map<string, number[]>> {
  const seconds = new Map<string, number[]>([
    ['corral', []],
    ['undici', []]
  ])
  for (let round = 0; round < rounds; round++) {
    for (const [client, all] of seconds) {
      const args = [process.argv[1]!, '--receive', client, url, String(size)]
      const env = { ...process.env, NODE_EXTRA_CA_CERTS: certificate }
      const text = execFileSync(process.execPath, args, { env, encoding: 'utf8' })
      process.stderr.write(`Over TLS, round ${round + 1}: ${client} ${text}`)
      all.push((Number(text) * 1e9) / size)
    }
  }
  return seconds
}

export function clientReport(seconds: ReadonlyMap<string, readonly number[]>, size: number, rounds: number): string {
  const [corral, undici] = [median(seconds.get('corral')!), median(seconds.get('undici')!)]
  const rows = [...seconds].map(
    ([name, all]) => `| ${name} | ${median(all).toFixed(2)} | ${Math.min(...all).toFixed(2)} |`
  )
  return `## The HTTP client over TLS

${rounds} rounds of ${(size / 1024 / 1024).toFixed(0)} MiB.

corral has its own HTTP/1.1 client (\`plugins/models/download/transfer\`), because Node lets a socket read directly into
a reused buffer, and client libraries do not use this. The comparison is undici's \`dispatch\` with a handler that copies
into the same buffer: one request for the file over TLS in a fresh process, after a warm-up, alternating. Nothing is hashed
or written. The time is the CPU time of the whole process. The client is worth keeping while it saves at least 30 %. It
saves **${(100 * (1 - corral / undici)).toFixed(0)} %**.

| | processor s for 1 GB, median | least |
| --- | ---: | ---: |
${rows.join('\n')}
`
}
