import { isIPv6 } from 'node:net'
import { normalizedAddress } from './private-address.ts'

/** A client's address: for IPv6 only its first 64 bits, because it can use all other addresses of that network. */
export function clientNetwork(address: string): string {
  if (address === '::1' || !isIPv6(address)) return address
  const bytes = normalizedAddress(address).toByteArray()
  return bytes.length === 4 ? bytes.join('.') : `${Buffer.from(bytes.slice(0, 8)).toString('hex')}/64`
}
