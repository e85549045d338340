import { readFile } from 'node:fs/promises'
import { isIPv4, isIPv6, type Socket } from 'node:net'
import { endianness } from 'node:os'

/**
 * Returns the user id of the program at the other end of a local connection, or undefined if it is unknown: on systems
 * other than Linux, and for other machines.
 */
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
function placeOf(address: string, port: number): Place {
  const plain = address.replace(/^::ffff:(?=\d+\.)/i, '')
  if (isIPv4(plain)) {
    const four = Buffer.from(plain.split('.').map(Number))
    const mapped = Buffer.concat([Buffer.alloc(10), Buffer.from([0xff, 0xff]), four])
    return { hex: [words(four), words(mapped)], port }
  }
  return { hex: isIPv6(plain) ? [words(bytesOfIPv6(plain))] : [], port }
}

function bytesOfIPv6(address: string): Buffer {
  const [head = '', tail] = address.replace(/%.*$/, '').split('::')
  const groups = (text: string) => (text === '' ? [] : text.split(':').map(group => Number.parseInt(group, 16)))
  const [first, last] = [groups(head), groups(tail ?? '')]
  const bytes = Buffer.alloc(16)
  for (const [at, group] of first.entries()) bytes.writeUInt16BE(group, at * 2)
  for (const [at, group] of last.entries()) bytes.writeUInt16BE(group, 16 - (last.length - at) * 2)
  return bytes
}

/** Linux prints each group of four bytes in the byte order of the processor. */
function words(bytes: Buffer): string {
  const swapped = Buffer.from(bytes)
  if (endianness() === 'LE') swapped.swap32()
  return swapped.toString('hex').toUpperCase()
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
