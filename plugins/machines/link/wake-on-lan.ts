import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { CorralError, errorMessage } from '../../../core/errors.ts'
import type { Machine } from './link-records.ts'

const PORT = 9
const BROADCAST = '255.255.255.255'

/** Sends "magic packets" to a machine: six bytes 255, and its MAC address sixteen times. @throws CorralError `machine_unreachable` */
export async function wakeMachine({ name, macs }: Pick<Machine, 'name' | 'macs'>): Promise<void> {
  const failed = (why: string) => new CorralError('machine_unreachable', `"${name}" was not woken: ${why}.`)
  if (macs.length === 0) throw failed('its network address (MAC) is unknown, which it tells when it is reached')
  const socket = createSocket('udp4')
  try {
    socket.bind(0)
    await once(socket, 'listening')
    socket.setBroadcast(true)
    for (const mac of macs) {
      const address = Buffer.from(mac.replaceAll(':', ''), 'hex')
      const packet = Buffer.concat([Buffer.alloc(6, 0xff), ...Array.from({ length: 16 }, () => address)])
      await new Promise<void>((resolve, reject) => {
        socket.send(packet, PORT, BROADCAST, error => (error ? reject(error) : resolve()))
      })
    }
  } catch (error) {
    throw failed(errorMessage(error))
  } finally {
    socket.close()
  }
}
