import { readFile } from 'node:fs/promises'
import type { Socket } from 'node:net'
import { endianness } from 'node:os'
import ipaddr from 'ipaddr.js'

/** Returns the user id of the program at the other end of a local connection, if it is known (Linux). */
export async function userOfPeer(socket: Pick<Socket, 'remoteAddress' | 'remotePort' | 'localAddress' | 'localPort'>) {
  if (process.platform !== 'linux') return undefined
  const { remoteAddress, remotePort, localAddress, localPort } = socket
  if (remoteAddress === undefined || localAddress === undefined || !remotePort || !localPort) return undefined
  // The program's end of the connection: our remote address is its local address.
  const own = placeOf(remoteAddress, remotePort)
  const other = placeOf(localAddress, localPort)
  for (const table of ['tcp', 'tcp6']) {
    const uid = userIn(await readFile(`/proc/self/net/${table}`, 'utf8').catch(() => ''), own, other)
    if (uid !== undefined) return uid
  }
  return undefined
}

interface Place {
  hex: string[]
  port: number
}

/** An address in the forms of the Linux tables. An IPv4 address may be listed as IPv6. */
function placeOf(text: string, port: number): Place {
  const address = ipaddr.process(text)
  const forms = address instanceof ipaddr.IPv4 ? [address, address.toIPv4MappedAddress()] : [address]
  return { hex: forms.map(form => words(Buffer.from(form.toByteArray()))), port }
}

/** Linux prints each group of four bytes in the byte order of the processor. */
function words(bytes: Buffer): string {
  return (endianness() === 'LE' ? bytes.swap32() : bytes).toString('hex').toUpperCase()
}

/** Returns the user of the connection between two addresses in a table of /proc/net. */
export function userIn(table: string, own: Place, other: Place): number | undefined {
  const at = ({ hex, port }: Place, text: string | undefined) => {
    const [address = '', digits = ''] = text?.split(':') ?? []
    return Number.parseInt(digits, 16) === port && hex.includes(address)
  }
  for (const line of table.split('\n').slice(1)) {
    const [, local, remote, , , , , uid] = line.trim().split(/\s+/)
    if (at(own, local) && at(other, remote)) return Number(uid)
  }
  return undefined
}
