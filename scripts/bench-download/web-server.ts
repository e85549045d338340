import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { connect, createServer } from 'node:net'
import { join } from 'node:path'
import { freePort } from '../../core/system/free-port.ts'
import { localhostCertificate } from '../../test/support/localhost-certificate.ts'

/** Bytes per second of each limited connection. */
export const LIMIT_BYTES_PER_SECOND = 25_000_000
/** Delay in each direction, and maximum bytes in flight of each delayed connection. */
export const DELAY_MS = 20
const WINDOW = 1024 * 1024

/** The kinds of connection and their ports. */
export interface Lines {
  unlimited: string
  limited: string
  delayed: string
  /** TLS, with a certificate that clients must trust. */
  secure: string
  certificate: string
  close(): Promise<void>
}

async function untilOpen(port: number): Promise<void> {
  for (let tries = 0; tries < 200; tries++) {
    const socket = connect(port, '127.0.0.1')
    const open = await new Promise<boolean>(resolve => {
      socket.once('connect', () => resolve(true)).once('error', () => resolve(false))
    })
    socket.destroy()
    if (open) return
    await new Promise(resolve => setTimeout(resolve, 25))
  }
  throw new Error(`no server listens on port ${port}`)
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  child.kill('SIGTERM')
  await once(child, 'exit')
}

export async function startLines(nginx: string, folder: string): Promise<Lines> {
  const [plain, limited, delayed, secure] = [await freePort(), await freePort(), await freePort(), await freePort()]
  const [certificate, key] = [join(folder, 'certificate.pem'), join(folder, 'key.pem')]
  writeFileSync(certificate, localhostCertificate.cert)
  writeFileSync(key, localhostCertificate.key)
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
    .map(name => `${name}_temp_path ${join(folder, `nginx-${name}`)};`)
    .join('\n  ')
  const server = (listen: number | string, more: string) =>
    `server { listen 127.0.0.1:${listen}; root ${join(folder, 'www')}; ${more} }`
  writeFileSync(
    join(folder, 'nginx.conf'),
    `daemon off;
worker_processes 1;
pid ${join(folder, 'nginx.pid')};
error_log ${join(folder, 'nginx.log')};
events { worker_connections 256; }
http {
  access_log off;
  sendfile on;
  tcp_nopush on;
  ${temporary}
  ${server(plain, '')}
  ${server(limited, `limit_rate ${LIMIT_BYTES_PER_SECOND};`)}
  ${server(`${secure} ssl`, `ssl_certificate ${certificate}; ssl_certificate_key ${key}; ssl_protocols TLSv1.3;`)}
}
`
  )
  const web = spawn(nginx, ['-p', folder, '-c', join(folder, 'nginx.conf'), '-e', join(folder, 'nginx.log')], {
    stdio: ['ignore', 'inherit', 'inherit']
  })
  const slow = spawn(process.execPath, [process.argv[1]!, '--delay', String(delayed), String(plain)], {
    stdio: ['ignore', 'inherit', 'inherit']
  })
  await Promise.all([plain, limited, delayed, secure].map(untilOpen))
  const address = (port: number) => `http://127.0.0.1:${port}/file`
  return {
    unlimited: address(plain),
    limited: address(limited),
    delayed: address(delayed),
    secure: `https://127.0.0.1:${secure}/file`,
    certificate,
    async close() {
      await Promise.all([end(web), end(slow)])
    }
  }
}

/** Forwards connections and delays each byte. Runs in its own process. */
export function serveDelayed(port: number, to: number): void {
  createServer(client => {
    const server = connect(to, '127.0.0.1')
    const pass = (from: typeof client, target: typeof client) => {
      let onTheWay = 0
      from.on('data', bytes => {
        onTheWay += bytes.length
        if (onTheWay >= WINDOW) from.pause()
        setTimeout(() => {
          target.write(bytes)
          // The sender learns of the delivery after the same delay.
          setTimeout(() => {
            onTheWay -= bytes.length
            if (onTheWay < WINDOW) from.resume()
          }, DELAY_MS)
        }, DELAY_MS)
      })
      from.on('end', () => setTimeout(() => target.end(), DELAY_MS))
      from.on('error', () => target.destroy())
      from.on('close', () => setTimeout(() => target.destroy(), DELAY_MS * 4))
    }
    pass(client, server)
    pass(server, client)
  }).listen(port, '127.0.0.1')
}
