import { createSocket } from 'node:dgram'
import { createServer } from 'node:net'
import type { Test } from 'tap'
import { readFixture } from '../../support/fixture.ts'
import { listen } from '../../support/listen.ts'

/** Code that tries to leave its frame, by what it tries. */
export const HOSTILE = readFixture<Record<string, string>>('hostile-previews.yaml')

/** Starts the servers that hostile code tries to reach. */
export async function startOutside(t: Pick<Test, 'teardown'>) {
  /** What they received. */
  const received: string[] = []
  const server = createServer(socket => {
    received.push('connection')
    socket.on('error', () => undefined).on('data', data => received.push(String(data).slice(0, 60)))
  })
  const udp = createSocket('udp4', () => received.push('datagram'))
  t.teardown(() => udp.close())
  await new Promise<void>(resolve => udp.bind(0, '127.0.0.1', resolve))
  const url = `http://127.0.0.1:${await listen(t, server)}`
  const withPorts = (code: string) => code.replaceAll('FAR', url).replaceAll('UDP', `127.0.0.1:${udp.address().port}`)
  return { received, url, withPorts }
}
