import { isIPv6 } from 'node:net'
import { meantAddress } from './private-address.ts'

/**
 * What tells clients apart by their addresses: of IPv4 the address, of IPv6 its first 64 bits, since whoever has one
 * address of such a network can take any other.
 */
export function clientNetwork(address: string): string {
  if (address === '::1' || !isIPv6(address)) return address
  const bytes = meantAddress(address).toByteArray()
  return bytes.length === 4 ? bytes.join('.') : `${Buffer.from(bytes.slice(0, 8)).toString('hex')}/64`
}
