import { isIPv6 } from 'node:net'
import { meantAddress } from './private-address.ts'

/**
 * Identifies a client by its address: the address for IPv4, its first 64 bits for IPv6, because a client with one
 * address of such a network can use all others.
 */
export function clientNetwork(address: string): string {
  if (address === '::1' || !isIPv6(address)) return address
  const bytes = meantAddress(address).toByteArray()
  return bytes.length === 4 ? bytes.join('.') : `${Buffer.from(bytes.slice(0, 8)).toString('hex')}/64`
}
